"""Ways to damage one object of an archive in memory, beneath whatever checks its store makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import Content

#: Puts damage to the object of that key.
Damage = Callable[[MemoryObjectStore, str], None]


def overwrite(objects: MemoryObjectStore, key: str, data: bytes) -> None:
    """Other bytes under the same name; the server knows their checksum, as a server does."""
    objects._objects[key] = (data, Content(data).info(key, objects._objects[key][1].modified_ms))


def remove(objects: MemoryObjectStore, key: str) -> None:
    """No object."""
    del objects._objects[key]


def changed(change: Callable[[bytes], bytes]) -> Damage:
    """The bytes as ``change`` makes them."""
    return lambda objects, key: overwrite(objects, key, change(objects._objects[key][0]))


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    """One bit turned around."""
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def bytes_of(other: str) -> Damage:
    """What another object holds."""
    return lambda objects, key: overwrite(objects, key, objects._objects[other][0])


def cut(data: bytes, at: int) -> bytes:
    """The first bytes."""
    return data[:at]


def noise(data: bytes, seed: int) -> bytes:
    """As many other bytes."""
    return random.Random(seed).randbytes(len(data))


def damages(chance: random.Random, size: int, others: Sequence[str], flips: int) -> dict[str, Damage]:
    """Every kind of damage to an object of ``size`` bytes, ``flips`` of them turned bits, by name."""
    found: dict[str, Damage] = {
        "missing": remove,
        "empty": changed(partial(cut, at=0)),
        "a byte short": changed(partial(cut, at=size - 1)),
        "cut": changed(partial(cut, at=chance.randrange(size))),
        "zeros": changed(lambda data: bytes(len(data))),
        "wrong bytes": changed(partial(noise, seed=chance.randrange(1 << 30))),
    }
    for other in others:
        found[f"bytes of {other}"] = bytes_of(other)
    for _ in range(flips):
        at, bit = chance.randrange(size), chance.randrange(8)
        found[f"bit {bit} of byte {at}"] = changed(partial(flipped, position=at, bit=bit))
    return found
