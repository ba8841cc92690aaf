"""Values of ranges of immutable objects, kept in memory within a byte limit.

Least recently used goes first. An eighth of the limit is for scans: what a scan brings in pushes out only what scans
brought in, until somebody else asks for it as well; and a scan changes nothing in the order of the rest. So a scan of
any length costs those who read single messages nothing of what is kept for them.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Object key and half-open byte range. Names are used once, so what a range holds never changes.
Range = tuple[str, int, int]

_SCAN_SHARE = 8
_FORGOTTEN = 10_000
_ENTRY_BYTES = 400
"""What an entry costs beside its value: key, place in the table and in the order. Measured: 320 to 400."""


@dataclass(frozen=True, slots=True)
class LayerCounters:
    """One layer of a cache at one moment; ``bytes`` and ``entries`` are what it holds, the rest only rises."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes: int = 0
    entries: int = 0
    limit_bytes: int = 0


class ByteLru(Generic[K, V]):
    """The order and the cost of one layer's entries. Not thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: K) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[K]:
        return iter(self._kept)

    def get(self, key: K, *, touch: bool = True) -> V | None:
        """The value, which becomes the last to go if ``touch``; None if there is none."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        if touch:
            self._kept.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, cost: int) -> None:
        """Keep a value that is not kept yet and for which :meth:`evict` has made room."""
        self._kept[key] = value, cost
        self.used_bytes += cost

    def evict(self) -> tuple[K, V, int]:
        """Let the least recently used go."""
        key, (value, cost) = self._kept.popitem(last=False)
        self.used_bytes -= cost
        return key, value, cost

    def pop(self, key: K) -> tuple[V, int] | None:
        """Let one go: its value and cost."""
        entry = self._kept.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry[1]
        return entry


class Forgotten:
    """Keys of objects of which nothing more is kept: a fetch that was on its way brings nothing back.

    Names are used once, so a key never leaves for being wanted again; the last 10,000 are remembered.
    """

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}
        self._lock = threading.Lock()

    def add(self, key: str) -> None:
        """Keep nothing more of this object."""
        with self._lock:
            self._keys[key] = None
            if len(self._keys) > _FORGOTTEN:
                del self._keys[next(iter(self._keys))]

    def __contains__(self, key: str) -> bool:
        return key in self._keys


class MemoryCache(Generic[V]):
    """One layer in memory. Thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._main: ByteLru[Range, V] = ByteLru(limit_bytes - limit_bytes // _SCAN_SHARE)
        self._scanned: ByteLru[Range, V] = ByteLru(limit_bytes // _SCAN_SHARE)
        self._forgotten = Forgotten()
        self._hits = self._misses = self._evictions = 0

    def get(self, place: Range, *, scan: bool = False, again: bool = False) -> V | None:
        """What is kept of a range, or None; counted, but what is missing only when it is not looked for ``again``."""
        with self._lock:
            found = self._main.get(place, touch=not scan)
            if found is None:
                found = self._scanned.get(place)
                if found is not None and not scan and (entry := self._scanned.pop(place)) is not None:
                    self._keep(self._main, place, *entry)
            if found is None:
                self._misses += not again
            else:
                self._hits += 1
            return found

    def put(self, place: Range, value: V, size_bytes: int, *, scan: bool = False) -> None:
        """Keep a value, unless it alone is over the limit or a range of a scan is kept already."""
        with self._lock:
            if place[0] in self._forgotten or (scan and place in self._main):
                return
            self._scanned.pop(place)
            self._keep(self._scanned if scan else self._main, place, value, size_bytes + _ENTRY_BYTES)

    def __contains__(self, place: Range) -> bool:
        with self._lock:
            return place in self._main or place in self._scanned

    def drop(self, places: Iterable[Range]) -> None:
        """Let these ranges go."""
        with self._lock:
            for place in places:
                self._main.pop(place)
                self._scanned.pop(place)

    def forget(self, key: str) -> None:
        """Let everything of an object go, for good."""
        self._forgotten.add(key)
        with self._lock:
            places = [place for part in (self._main, self._scanned) for place in part if place[0] == key]
        self.drop(places)

    def counters(self) -> LayerCounters:
        """All numbers at one moment."""
        with self._lock:
            return LayerCounters(
                self._hits, self._misses, self._evictions,
                self._main.used_bytes + self._scanned.used_bytes, len(self._main) + len(self._scanned),
                self._main.limit_bytes + self._scanned.limit_bytes,
            )  # fmt: skip

    def _keep(self, part: ByteLru[Range, V], place: Range, value: V, cost: int) -> None:
        if cost > part.limit_bytes:
            return
        part.pop(place)
        while part.used_bytes + cost > part.limit_bytes:
            part.evict()
            self._evictions += 1
        part.put(place, value, cost)


def size_of(value: object) -> int:
    """Bytes of memory that a decoded value holds on to: itself and everything below it, shared parts once.

    Arrays and tables say their own size, and an array over received bytes keeps those. Within a factor of two of what
    the allocator gives, mostly above.
    """
    seen: set[int] = set()
    pending = [value]
    total = 0
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, Enum | type):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each, 64)
        if isinstance(each, dict):
            pending += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            pending += each
        elif is_dataclass(each):
            pending += [getattr(each, field.name) for field in fields(each)]
            pending += [each.__dict__] if hasattr(each, "__dict__") else []
        elif not isinstance(each, bytes | bytearray | memoryview):
            base = getattr(each, "base", None)
            if base is not None:
                pending.append(base)  # an array that is a view: its owner's bytes stay in memory
            elif sys.getsizeof(each, 64) < (size := getattr(each, "nbytes", 0)):
                total += int(size)
    return total
