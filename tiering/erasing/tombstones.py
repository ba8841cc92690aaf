"""What a tombstone hides: messages of a topic that were in the log when they were erased.

A tombstone names its topic and bounds; of a key, or of many, it holds only BLAKE2b keyed with a salt of its own, 16
bytes, so that nobody reads from the manifest whose data went. It speaks of records below the end that the log had at
the time: what is written later is seen, whatever its key. Store times are compared in ms, ``[from_ms, to_ms)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from tiering.errors import ConflictError, InvalidRequestError
from tiering.format.manifest import Head, Tombstone
from tiering.format.properties import indexed_keys
from tiering.format.record import Record
from tiering.randomness import Randomness
from tiering.types import TimeBounds

#: Tombstones that may be open at once: each has about 250 bytes in the head, and every read of its topic looks at it.
MAX_OPEN = 200
#: Keys that all open tombstones may have together: each takes 17 bytes of the head, which is to stay under 150 kB.
MAX_KEYS = 5_000
_HASH_BYTES = 16
#: Every id of a tombstone, whole.
TOMBSTONE_ID_PATTERN = "[0-9a-f]{16}"


class Run(Protocol):
    """Some records of one topic with bounds of their times, as a row of a directory is."""

    @property
    def topic(self) -> str:
        """Their topic."""
        ...

    @property
    def bounds(self) -> TimeBounds:
        """Least and greatest of both times."""
        ...


class ErasureSource(Protocol):
    """Who knows what is hidden."""

    def current(self) -> Erasures:
        """What is hidden now."""
        ...


def make_tombstone(
    topic: str,
    key: str | None,
    from_ms: int | None,
    to_ms: int | None,
    end: int,
    randomness: Randomness,
    *,
    other_keys: Collection[str] = (),
) -> Tombstone:
    """A tombstone for what the log holds below ``end``: with the key or one of the others, or without one all of it.

    Raises :class:`InvalidRequestError` for an empty range of times.
    """
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidRequestError(f"nothing lies between {from_ms} and {to_ms}", hint="the range is [from, to)")
    salt = randomness.token_hex(16)
    digest = None if key is None else _keyed_hash(salt, key)
    others = tuple(_keyed_hash(salt, other) for other in other_keys)
    return Tombstone(randomness.token_hex(8), topic, digest, salt, from_ms, to_ms, end, other_hashes=others)


def is_for(tombstone: Tombstone, topic: str, keys: Collection[str], from_ms: int | None, to_ms: int | None) -> bool:
    """Whether a tombstone was made for exactly this."""
    if (tombstone.topic, tombstone.from_ms, tombstone.to_ms) != (topic, from_ms, to_ms):
        return False
    return len(tombstone.hashes) == len(keys) and set(tombstone.hashes) == {
        _keyed_hash(tombstone.salt, key) for key in keys
    }


def refuse_too_many(head: Head, more: Tombstone) -> None:
    """Raise :class:`ConflictError` if a head has no room for one more tombstone."""
    keys = sum(len(stone.hashes) for stone in head.tombstones)
    if len(head.tombstones) >= MAX_OPEN:
        raise ConflictError(f"{MAX_OPEN} erasures are open", hint="wait until some of them are done")
    if keys + len(more.hashes) > MAX_KEYS:
        raise ConflictError(f"open erasures would have more than {MAX_KEYS} keys", hint="wait until some are done")


@dataclass(frozen=True, slots=True)
class KeysMeant:
    """Tells of a key whether a tombstone is for messages with it."""

    salt: str
    hashes: frozenset[str]

    def __call__(self, key: str) -> bool:
        """Whether it is."""
        return _keyed_hash(self.salt, key) in self.hashes


def keys_meant(tombstone: Tombstone) -> KeysMeant | None:
    """The keys of a tombstone; None if it is for all of its topic."""
    return KeysMeant(tombstone.salt, frozenset(tombstone.hashes)) if tombstone.key_hash is not None else None


def _keyed_hash(salt: str, key: str) -> str:
    return hashlib.blake2b(key.encode(), key=bytes.fromhex(salt), digest_size=_HASH_BYTES).hexdigest()


class Erasures:
    """What some tombstones hide together. Immutable; a record of a topic without one costs a look into a dictionary."""

    def __init__(self, tombstones: Iterable[Tombstone] = ()) -> None:
        self.tombstones = tuple(tombstones)
        self._by_topic: dict[str, list[tuple[Tombstone, KeysMeant | None]]] = {}
        for tombstone in self.tombstones:
            self._by_topic.setdefault(tombstone.topic, []).append((tombstone, keys_meant(tombstone)))
        for found in self._by_topic.values():
            found.sort(key=lambda each: each[1] is not None)  # what needs no hash decides first

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def joined(self, tombstones: Iterable[Tombstone]) -> Erasures:
        """These and others, of which some may be the same ones."""
        known = {stone.tombstone_id for stone in self.tombstones}
        more = [stone for stone in tombstones if stone.tombstone_id not in known]
        return Erasures([*self.tombstones, *more]) if more else self

    def hides(self, record: Record) -> bool:
        """Whether any tombstone hides the record."""
        tombstones = self._by_topic.get(record.topic)
        if tombstones is None:
            return False
        keys: list[str] | None = None
        for tombstone, means in tombstones:
            if record.physical_offset >= tombstone.end or not _contains(tombstone, record.store_ms):
                continue
            if means is None:
                return True
            keys = indexed_keys(record.properties) if keys is None else keys
            if any(map(means, keys)):
                return True
        return False

    def end_of(self, topic: str) -> int:
        """The physical offset from which on nothing of a topic is hidden."""
        return max((tombstone.end for tombstone, _ in self._by_topic.get(topic, ())), default=0)

    def may_hide(self, run: Run) -> bool:
        """Whether any record of the run may be hidden, by topic and time alone."""
        return any(_overlaps(tombstone, run.bounds) for tombstone, _ in self._by_topic.get(run.topic, ()))

    def may_hide_at(self, bounds: TimeBounds) -> bool:
        """Whether any record with such times may be hidden."""
        return any(_overlaps(tombstone, bounds) for tombstone in self.tombstones)


def _contains(tombstone: Tombstone, store_ms: int) -> bool:
    return (tombstone.from_ms is None or tombstone.from_ms <= store_ms) and (
        tombstone.to_ms is None or store_ms < tombstone.to_ms
    )


def _overlaps(tombstone: Tombstone, bounds: TimeBounds) -> bool:
    return (tombstone.from_ms is None or tombstone.from_ms <= bounds.max_store_ms) and (
        tombstone.to_ms is None or bounds.min_store_ms < tombstone.to_ms
    )


class FixedErasures:
    """What was hidden at one moment."""

    def __init__(self, erased: Erasures) -> None:
        self._erased = erased

    def current(self) -> Erasures:
        """The same always."""
        return self._erased


#: Nothing is erased.
NOTHING_ERASED = Erasures()
