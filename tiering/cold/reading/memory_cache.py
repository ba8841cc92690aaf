"""Values of ranges of immutable objects, kept in memory within a byte limit.

In a :class:`MemoryCache` the least recently used goes first, behind a door: what is brought is kept only if it was
asked for more often, of late, than each of those that would go for it. So what is asked for once in a long turn, as
a look-up over a year does with each of its objects, replaces nothing of what is asked for again and again
(docs/decisions/0062). An eighth of the limit is for scans: what a scan brings in pushes out only what scans brought in,
until somebody else asks for it as well; and a scan changes nothing in the order of the rest. So a scan of any length
costs those who read single messages nothing of what is kept for them.

:class:`ByteUses` is the order of the disk cache, which sees only what memory lacks: the fewest uses a byte go first,
and what is not used ages.

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
import zlib
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
_AGE_AT_DOOR, _FEWEST = 4, 16
"""The same at the door, of as many as are kept, or 16: interest that moves is followed within a few times as much."""
_COUNTED_BYTES = 64
"""Room for which the door has one count, which is one byte."""
_SPREAD = 0x9E3779B97F4A7C15
_HALVES = bytes(count // 2 for count in range(256))


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


class FrequentLru(ByteLru[Range, V]):
    """The same with a door: :meth:`admits` counts who asks, and says whether it may push out others.

    Takes a byte for each 64 of the limit beside it, whatever is asked for. A range has two counts, of which the lower
    holds: only two that share both look like one.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._counts = bytearray(1 << max(6, (limit_bytes // _COUNTED_BYTES).bit_length() - 1))
        self._asked = 0

    def get(self, key: Range, *, touch: bool = True) -> V | None:
        found = super().get(key, touch=touch)
        if found is not None and touch:
            self._count(key)
        return found

    def admits(self, key: Range, cost: int) -> bool:
        """Whether something that was brought may be kept; it counts as asked for once more."""
        count, lacking = self._count(key), self.used_bytes + cost - self.limit_bytes
        if cost > self.limit_bytes:
            return False
        for other, (_, freed) in self._kept.items():
            if lacking <= 0:
                break
            one, two = self._places(other)
            if min(self._counts[one], self._counts[two]) >= count:
                self._kept.move_to_end(other)  # the next faces another: one that shares its count could stand for ever
                return False
            lacking -= freed
        return True

    def _places(self, key: Range) -> tuple[int, int]:
        spread, mask = zlib.crc32(key[0].encode(), key[1] & 0xFFFFFFFF) * _SPREAD, len(self._counts) - 1
        return spread >> 16 & mask, spread >> 40 & mask

    def _count(self, key: Range) -> int:
        self._asked += 1
        if self._asked > _AGE_AT_DOOR * max(len(self._kept), _FEWEST):
            self._asked = 0
            self._counts = self._counts.translate(_HALVES)
        one, two = self._places(key)
        count = min(self._counts[one], self._counts[two], 254) + 1
        self._counts[one], self._counts[two] = max(self._counts[one], count), max(self._counts[two], count)
        return count


class ByteUses(ByteLru[K, V]):
    """The fewest uses a byte go first, each use worth as much more as what went last was: old use fades.

    Uses are those since something was kept; so those of an earlier process are not known.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._age = 0.0
        self._ranks: dict[K, tuple[float, int]] = {}
        # (worth when it was put there, turn, key): worth rises only, so it is looked up again at the top
        self._least: list[tuple[float, int, K]] = []
        self._turn = 0

    def get(self, key: K, *, touch: bool = True) -> V | None:
        entry = self._kept.get(key)
        if entry is None:
            return None
        if touch:
            uses = self._ranks[key][1] + 1
            self._ranks[key] = self._age + uses / entry[1], uses
        return entry[0]

    def put(self, key: K, value: V, cost: int) -> None:
        super().put(key, value, cost)
        self._ranks[key] = self._age + 1 / max(cost, 1), 1
        if len(self._least) > 2 * len(self._kept) + _FEWEST:  # those that were let go by name
            self._least = []
            for each in self._kept:
                self._push(each)
        else:
            self._push(key)

    def evict(self) -> tuple[K, V, int]:
        """Lets the one with the fewest uses a byte go."""
        while True:
            worth, _, key = heapq.heappop(self._least)
            now = self._ranks.get(key)
            if now is None or now[0] < worth:
                continue
            if now[0] > worth:
                self._push(key)
                continue
            self._age = worth
            value, cost = self._kept[key]
            self.pop(key)
            return key, value, cost

    def pop(self, key: K) -> tuple[V, int] | None:
        self._ranks.pop(key, None)
        return super().pop(key)

    def _push(self, key: K) -> None:
        self._turn += 1
        heapq.heappush(self._least, (self._ranks[key][0], self._turn, key))


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
        self._main: FrequentLru[V] = FrequentLru(limit_bytes - limit_bytes // _SCAN_SHARE)
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
                    if self._main.admits(place, entry[1]):
                        self._keep(self._main, place, *entry)
                    else:
                        self._scanned.put(place, *entry)
            if found is None:
                self._misses += not again
            else:
                self._hits += 1
            return found

    def put(self, place: Range, value: V, size_bytes: int, *, scan: bool = False) -> None:
        """Keeps a value, unless it alone is over the limit, was asked for too rarely, or is kept and a scan's."""
        cost = size_bytes + _ENTRY_BYTES
        with self._lock:
            if place[0] in self._forgotten or (scan and place in self._main):
                return
            self._scanned.pop(place)
            self._main.pop(place)
            if scan or self._main.admits(place, cost):
                self._keep(self._scanned if scan else self._main, place, value, cost)

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
