"""Rendezvous hashing: of several stores the one whose hash together with a name is greatest.

The weight of a store for a name is XXH64 (seed 0) of the UTF-8 of ``name``, a zero byte, and the store id. Every
process of every version finds the same store, and when a store comes, about one name in n moves, to that store only.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash


def weight(name: str, store_id: str) -> int:
    """Unsigned 64-bit weight of one store for a name."""
    return xxhash.xxh64_intdigest(f"{name}\0{store_id}".encode())


def rendezvous(name: str, store_ids: Iterable[str]) -> str | None:
    """The store for a name, or None of none; of equal weights the least id."""
    return max(sorted(store_ids), key=lambda store_id: weight(name, store_id), default=None)
