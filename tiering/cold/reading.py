"""How archive objects are read: in ranges, on a bill, with metadata kept in memory.

Data (frames, index pages) is fetched each time; directories, seek tables and manifest pages, which are immutable and
read again and again, are kept within a byte limit, least recently used first out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachetools import LRUCache

from tiering.cold.object_store import ObjectStore
from tiering.errors import StoreError

T = TypeVar("T")


class BudgetSpentError(StoreError):
    """The next request would exceed what the query may ask for."""


@dataclass(slots=True)
class ReadBill:
    """What one query or pull asked of the object store."""

    requests: int = 0
    bytes: int = 0
    max_requests: int | None = None
    stages: set[str] = field(default_factory=set)
    """Kinds of objects that needed at least one request: with each kind depending on the one before, their number is
    the depth of the round trips."""

    def charge(self, key: str) -> None:
        """Count a request that is about to be made; :class:`BudgetSpentError` instead of one too many."""
        if self.max_requests is not None and self.requests >= self.max_requests:
            raise BudgetSpentError(f"the budget of {self.max_requests} requests is spent", path=key)
        self.requests += 1


class MetadataCache:
    """Decoded immutable metadata, shared by all readers of one archive. Thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._cache: LRUCache[tuple[str, int], tuple[Any, int]] = LRUCache(limit_bytes, getsizeof=_cost)

    def get(self, key: tuple[str, int]) -> Any | None:
        """The value kept for an object and position, or None."""
        with self._lock:
            found = self._cache.get(key)
        return None if found is None else found[0]

    def put(self, key: tuple[str, int], value: object, size_bytes: int) -> None:
        """Keep a value unless it alone is over the limit."""
        with self._lock:
            if size_bytes <= self._cache.maxsize:
                self._cache[key] = (value, size_bytes)


def _cost(entry: tuple[Any, int]) -> int:
    return entry[1]


class ArchiveReader:
    """Reads objects for one query or pull and keeps its bill."""

    def __init__(self, objects: ObjectStore, cache: MetadataCache, bill: ReadBill | None = None) -> None:
        self._objects = objects
        self._cache = cache
        self.bill = bill or ReadBill()

    def fetch(self, key: str, start: int, end: int, stage: str) -> bytes:
        """One ranged GET; :class:`BudgetSpentError` instead of one too many."""
        self.bill.charge(key)
        self.bill.stages.add(stage)
        data = self._objects.get_range(key, start, end)
        self.bill.bytes += len(data)
        return data

    def fetcher(self, key: str, stage: str) -> Callable[[int, int], bytes]:
        """:meth:`fetch` with object and stage filled in."""
        return lambda start, end: self.fetch(key, start, end, stage)

    def metadata(self, key: str, start: int, end: int, stage: str, decode: Callable[[bytes], T]) -> T:
        """A decoded piece of metadata, fetched only if it is not kept already."""
        found: T | None = self._cache.get((key, start))
        if found is None:
            data = self.fetch(key, start, end, stage)
            found = decode(data)
            self._cache.put((key, start), found, 64 + 8 * len(data))
        return found
