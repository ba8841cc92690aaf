"""Values of ranges of immutable objects, kept in memory within a byte limit.

In a :class:`MemoryCache` the least recently used goes first. An eighth of the limit is for scans: what a scan brings in
pushes out only what scans brought in, until somebody else asks for it as well; and a scan changes nothing in the order
of the rest. So a scan of any length costs those who read single messages nothing of what is kept for them.

:class:`AdmissionByUse` decides which of many large values are kept: those whose uses save most requests a byte. It is
meant for values that cost much to bring and save one request a use, whether they are kept or not being known each time:
so uses are counted of all, not only of those kept. A newcomer must have been used as often as pays for bringing it
(:func:`uses_that_pay`), and replaces others only if it was used that much more often than all of them together. So a
scan over more than fits, which uses all alike, replaces nothing, where the least recently used rule would replace
everything before its next use. Between those who compete old use fades: counts are halved from time to time. What has
room waits for nothing but enough uses ever.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Iterator
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
_REQUEST_BYTES = 4 << 20
"""Bytes that take about as long as a request's first byte: 40 ms at 100 MB/s."""
_MOST_USES_ASKED = 16
_AGE = 16
"""Uses of each object, on average, after which all counts are halved."""


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
        """Returns the value, which becomes the last to go if ``touch``; None if there is none."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        if touch:
            self._kept.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, cost: int) -> None:
        """Keeps a value that is not kept yet and for which :meth:`evict` has made room."""
        self._kept[key] = value, cost
        self.used_bytes += cost

    def evict(self) -> tuple[K, V, int]:
        """Lets the least recently used go."""
        key, (value, cost) = self._kept.popitem(last=False)
        self.used_bytes -= cost
        return key, value, cost

    def pop(self, key: K) -> tuple[V, int] | None:
        """Lets one go: its value and cost."""
        entry = self._kept.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry[1]
        return entry


class ForgottenKeys:
    """Keys of objects of which nothing more is kept: a fetch that was on its way brings nothing back.

    Names are used once, so a key never leaves for being wanted again; the last 10,000 are remembered.
    """

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}
        self._lock = threading.Lock()

    def add(self, key: str) -> None:
        """Keeps nothing more of this object."""
        with self._lock:
            self._keys[key] = None
            if len(self._keys) > _FORGOTTEN:
                del self._keys[next(iter(self._keys))]

    def __contains__(self, key: str) -> bool:
        return key in self._keys


class MemoryCache(Generic[V]):
    """A cache layer in memory. Thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._main: ByteLru[Range, V] = ByteLru(limit_bytes - limit_bytes // _SCAN_SHARE)
        self._scanned: ByteLru[Range, V] = ByteLru(limit_bytes // _SCAN_SHARE)
        self._forgotten = ForgottenKeys()
        self._hits = self._misses = self._evictions = 0

    def get(self, place: Range, *, scan: bool = False, again: bool = False) -> V | None:
        """Returns what is kept of a range, or None.

        The look is counted, but what is missing only when it is not looked for ``again``.
        """
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
        """Keeps a value, unless it alone is over the limit or a range of a scan is kept already."""
        with self._lock:
            if place[0] in self._forgotten or (scan and place in self._main):
                return
            self._scanned.pop(place)
            self._keep(self._scanned if scan else self._main, place, value, size_bytes + _ENTRY_BYTES)

    def __contains__(self, place: Range) -> bool:
        with self._lock:
            return place in self._main or place in self._scanned

    def drop(self, places: Iterable[Range]) -> None:
        """Lets these ranges go."""
        with self._lock:
            for place in places:
                self._main.pop(place)
                self._scanned.pop(place)

    def forget(self, key: str) -> None:
        """Lets everything of an object go, for good."""
        self._forgotten.add(key)
        with self._lock:
            places = [place for part in (self._main, self._scanned) for place in part if place[0] == key]
        self.drop(places)

    def counters(self) -> LayerCounters:
        with self._lock:
            return LayerCounters(
                hits=self._hits, misses=self._misses, evictions=self._evictions,
                bytes=self._main.used_bytes + self._scanned.used_bytes, entries=len(self._main) + len(self._scanned),
                limit_bytes=self._main.limit_bytes + self._scanned.limit_bytes,
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


def uses_that_pay(size_bytes: int) -> int:
    """Uses after which a value of this size is brought: then it has cost as much as bringing it would have."""
    return min(2 + size_bytes // _REQUEST_BYTES, _MOST_USES_ASKED)


class AdmissionByUse:
    """The uses of all and the sizes of those kept, which never pass ``limit_bytes`` together. Not thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._ever: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        # (uses a byte when it was put there, name): uses rise only, so the least may be looked up again at the top
        self._least: list[tuple[float, str]] = []
        self._count = 0

    def __contains__(self, name: str) -> bool:
        return name in self._sizes or name in self._reserved

    def use(self, name: str) -> None:
        """Counts a use of something, kept or not."""
        self._ever[name] = self._ever.get(name, 0) + 1
        self._uses[name] = self._uses.get(name, 0) + 1
        self._count += 1
        if self._count >= _AGE * len(self._uses):
            self._age()

    def count_as_paid(self, name: str, size_bytes: int) -> None:
        """Gives something the uses that it takes to be brought: it was, before counts were kept."""
        for counts in (self._ever, self._uses):
            counts[name] = max(counts.get(name, 0), uses_that_pay(size_bytes))

    def _age(self) -> None:
        self._count = 0
        self._uses = {name: half for name, uses in self._uses.items() if (half := uses // 2) or name in self}
        self._least = [(self._worth(name), name) for name in self._sizes]
        heapq.heapify(self._least)

    def to_go_for(self, name: str, size_bytes: int) -> list[str] | None:
        """Returns what must go for something used: nothing if there is room; None if it has not been used that much."""
        margin = uses_that_pay(size_bytes)
        if name in self or size_bytes > self.limit_bytes or self._ever.get(name, 0) < margin:
            return None
        uses, lacking = self._uses.get(name, 0), self.used_bytes + size_bytes - self.limit_bytes
        taken: dict[str, float] = {}
        while lacking > 0 and uses >= margin and (least := self._pop_least(taken)) is not None:
            worth, each = least
            taken[each] = worth
            lacking -= self._sizes[each]
            margin += self._uses.get(each, 0)
        for each, worth in taken.items():
            heapq.heappush(self._least, (worth, each))
        return list(taken) if lacking <= 0 and (not taken or uses >= margin) else None

    def _pop_least(self, but: Container[str]) -> tuple[float, str] | None:
        while self._least:
            worth, name = heapq.heappop(self._least)
            if name not in self._sizes or name in but:
                continue
            now = self._worth(name)
            if now <= worth or not self._least or (now, name) <= self._least[0]:
                return now, name
            heapq.heappush(self._least, (now, name))
        return None

    def _worth(self, name: str) -> float:
        return self._uses.get(name, 0) / max(self._sizes[name], 1)

    def reserve(self, name: str, size_bytes: int) -> bool:
        """Takes room for what is being brought, which nothing replaces meanwhile; False if there is none."""
        if name in self or self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self._reserved[name] = size_bytes
        self.used_bytes += size_bytes
        return True

    def keep(self, name: str) -> bool:
        """Keeps what room was taken for; False if it was dropped since."""
        size_bytes = self._reserved.pop(name, None)
        if size_bytes is None:
            return False
        self._sizes[name] = size_bytes
        heapq.heappush(self._least, (self._worth(name), name))
        return True

    def drop(self, name: str) -> None:
        """Gives something's room back; its uses still count."""
        self.used_bytes -= self._sizes.pop(name, 0) + self._reserved.pop(name, 0)

    def forget(self, name: str) -> None:
        """Something that will not be used again."""
        self.drop(name)
        self._uses.pop(name, None)
        self._ever.pop(name, None)
