"""How many bits of a key filter buy which share of look-ups in vain, and do all kinds of keys get what they pay for?

For each kind of keys a filter is built of half of them and asked for the other half, with the hashes that an index
object has: Java's string hash cut to 31 bits and XXH32, both of ``topic#key``. Printed: the share of keys that are not
ruled out though they are not there, in parts per million, beside what the bits that are set let expect; and below, what
a 64-bit hash of the same keys would give (XXH64, which is what Parquet puts into this filter).

``TIERLOG_DATA=… python benchmarks/key_filter.py [--keys 2000000]``
"""

from __future__ import annotations

import argparse
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import xxhash
from numpy.typing import NDArray

from tierlog.index.format.key_filter import KeyFilter
from tierlog.tiering.format.hashing import key_hash, key_hash_high

_BITS = (8, 10, 12, 14, 16, 18, 20, 24, 28, 32)
_TOPIC = "orders"
_KEY = re.compile(rb"[A-Za-z_-]*\d{4,}")
Hashes = tuple[NDArray[np.int64], NDArray[np.int64]]


def random_hex(count: int) -> Iterable[str]:
    chance = Random(1)
    return (f"{chance.getrandbits(64):016x}" for _ in range(count))


def sequential(count: int) -> Iterable[str]:
    return (f"order-{number:06d}" for number in range(count))


def uuids(count: int) -> Iterable[str]:
    chance = Random(2)
    return (str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(count))


def message_ids(count: int) -> Iterable[str]:
    """As RocketMQ's clients make them: address, process and class loader stay, then milliseconds and a counter."""
    return (f"7F0000011A2B18B4AAC2{1_700_000_000 + number // 7:08X}{number & 0xFFFF:04X}" for number in range(count))


def colliding(count: int) -> Iterable[str]:
    """Words of "Aa" and "BB", which are all one to Java's hash."""
    length = max(1, (count - 1).bit_length())
    return ("".join(word) for word, _ in zip(product(("Aa", "BB"), repeat=length), range(count), strict=False))


def of_the_logs(count: int) -> Iterable[str]:
    """What `tierlog load` makes keys of, in the eight real logs; there are only so many."""
    found: dict[str, None] = {}
    for path in sorted(Path(os.environ["TIERLOG_DATA"], "loghub").glob("*.log")):
        for key in _KEY.findall(path.read_bytes()):
            found.setdefault(key.decode())
    return list(found)[:count]


_KINDS: dict[str, Callable[[int], Iterable[str]]] = {
    "random, 16 hex digits": random_hex,
    "order-000001 and so on": sequential,
    "UUIDs": uuids,
    "ids of RocketMQ's clients": message_ids,
    "keys of eight real logs": of_the_logs,
    "AaBB… (one Java hash)": colliding,
}


def ours(keys: list[str]) -> Hashes:
    low = np.array([key_hash(_TOPIC, key) for key in keys], np.int64)
    return low, np.array([key_hash_high(_TOPIC, key) for key in keys], np.int64)


def parquets(keys: list[str]) -> Hashes:
    whole = np.array([xxhash.xxh64_intdigest(f"{_TOPIC}#{key}".encode()) for key in keys], np.uint64)
    return (whole & np.uint64(0xFFFFFFFF)).astype(np.int64), (whole >> np.uint64(32)).astype(np.int64)


def passed(hashes: Hashes, bits: int) -> tuple[float, float]:
    """The share of absent keys that are not ruled out, found and expected."""
    low, high = hashes
    is_put = np.random.default_rng(3).permutation(len(low)) % 2 == 0
    built = KeyFilter.build(low[is_put], high[is_put], bits)
    absent = ~is_put
    return float(built.may_contain_each(low[absent], high[absent]).mean()), built.false_positive_rate()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=2_000_000, help="of each kind, half of them put in")
    count = parser.parse_args().keys
    print("keys not ruled out though absent, per million (expected from the fill)\n")
    print("| keys | hash | " + " | ".join(f"{bits} bits" for bits in _BITS) + " |")
    print("|---|---|" + "---|" * len(_BITS))
    for name, kind in _KINDS.items():
        keys = list(kind(count))
        for hash_name, hashed in (("ours", ours), ("XXH64", parquets)):
            hashes = hashed(keys)
            cells = [passed(hashes, bits) for bits in _BITS]
            print(
                f"| {name}, {len(keys) // 2} put in | {hash_name} | "
                + " | ".join(f"{found * 1e6:.0f} ({expected * 1e6:.0f})" for found, expected in cells)
                + " |",
                flush=True,
            )
    low, high = np.random.default_rng(4).integers(0, 1 << 31, (2, 4_000_000))
    KeyFilter.build(low[:9], high[:9])
    begun = time.perf_counter()
    KeyFilter.sized(len(low), 16).add(low, high)
    print(f"\nbuilt: {len(low) / (time.perf_counter() - begun) / 1e6:.0f} M keys/s")


if __name__ == "__main__":
    main()
