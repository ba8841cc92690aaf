"""Reads archive objects: in ranges, on a bill, through the caches, each range fetched once for all who want it.

Objects are immutable and their names used once, so a range of one, once read and found good, is good for ever. Three
layers keep such ranges: decoded metadata in memory, raw data in memory, both raw on the local disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.cold.reading.bill import ReadBill, RequestChain, UnsharedError
from tierlog.tiering.cold.reading.disk_cache import DiskCache
from tierlog.tiering.cold.reading.memory_cache import LayerCounters, MemoryCache, Range, size_of
from tierlog.tiering.objects.object_store import ObjectStore

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Decode = Callable[[bytes], T]

_DATA_SHARE = 4
_JOIN_GAP_BYTES = 64 << 10
"""Closer ranges are asked for in one request: the bytes between them cost less than another round trip."""
JOIN_BYTES = 8 << 20
"""Ranges are joined to requests up to this size."""


class SingleFlight:
    """Runs one piece of work a key at a time; whoever comes while it runs gets its outcome. Thread safe.

    The work runs on the thread of the first, so nobody who waits can end it. An error of the work reaches everybody
    who waits for it: of a bucket that is dead each learns once, without asking again in turn. What stops only the
    first, an :class:`UnsharedError` or a signal, is not passed on: the next one who waits does the work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Any]] = {}
        self._joined = 0

    @property
    def joined(self) -> int:
        """Number of times that somebody waited for what another one was fetching."""
        return self._joined

    def run(self, key: Hashable, work: Callable[[], T]) -> tuple[T, bool]:
        """Returns the work's result, and whether it was done here."""
        while True:
            with self._lock:
                flight = self._running.get(key)
                if flight is None:
                    mine: Future[T] = Future()
                    self._running[key] = mine
                    break
                self._joined += 1
            try:
                result: T = flight.result()
            except CancelledError:
                continue
            return result, False
        return self._run(key, mine, work), True

    def _run(self, key: Hashable, mine: Future[T], work: Callable[[], T]) -> T:
        try:
            result = work()
        except BaseException as error:
            self._end(key)
            if isinstance(error, UnsharedError) or not isinstance(error, Exception):
                mine.cancel()
            else:
                mine.set_exception(error)
            raise
        self._end(key)
        mine.set_result(result)
        return result

    def _end(self, key: Hashable) -> None:
        with self._lock:
            del self._running[key]


class _Look(Protocol[T_co]):
    """A look for what memory keeps of a range; ``again`` is a second look for the same purpose."""

    def __call__(self, *, again: bool) -> tuple[T_co] | None: ...


class CacheLayer(Protocol):
    """Something else that is kept of objects, by rules of its own. Thread safe."""

    def forget(self, key: str) -> None:
        """Drops everything of an object for good; :class:`DiskFailedError` if some of it stays on disk."""
        ...

    def counters(self) -> LayerCounters:
        """Returns all numbers at one moment."""
        ...

    def close(self) -> None:
        """Keeps nothing more, and waits for nothing."""
        ...


class ArchiveCache:
    """The caches and fetches that all readers of one archive share. Thread safe.

    A quarter of ``limit_bytes`` is for data (frames, index pages), the rest for decoded metadata.
    """

    def __init__(self, limit_bytes: int, disk: DiskCache | None = None) -> None:
        self.metadata: MemoryCache[object] = MemoryCache(limit_bytes - limit_bytes // _DATA_SHARE)
        self.data: MemoryCache[bytes] = MemoryCache(limit_bytes // _DATA_SHARE)
        self.disk = disk
        self.others: dict[str, CacheLayer] = {}
        """Further layers by name; added before anybody reads."""
        self.flights = SingleFlight()

    def forget(self, key: str) -> None:
        """Drops every range of an object for good, in memory and on disk: what is being fetched now is not kept either.

        Raises :class:`DiskFailedError` if a file that holds some of it cannot be removed.
        """
        self.metadata.forget(key)
        self.data.forget(key)
        with contextlib.ExitStack() as all_of_them:  # one that fails keeps no other from forgetting
            for layer in self.others.values():
                all_of_them.callback(layer.forget, key)
            if self.disk is not None:
                all_of_them.callback(self.disk.forget, key)

    def counters(self) -> dict[str, LayerCounters]:
        found = {"metadata": self.metadata.counters(), "data": self.data.counters()}
        if self.disk is not None:
            found["disk"] = self.disk.counters()
        return found | {name: layer.counters() for name, layer in self.others.items()}

    def close(self) -> None:
        """Writes nothing more to disk."""
        for layer in self.others.values():
            layer.close()
        if self.disk is not None:
            self.disk.close()


class ArchiveReader:
    """Reads objects for one query or pull and keeps its bill, as one chain of requests.

    ``scan`` is for those who read much once: they use what is kept, and what they bring pushes out no other's.
    """

    def __init__(
        self,
        objects: ObjectStore,
        cache: ArchiveCache,
        bill: ReadBill | RequestChain | None = None,
        *,
        scan: bool = False,
    ) -> None:
        self._objects = objects
        self._cache = cache
        self._scan = scan
        self._chain = bill if isinstance(bill, RequestChain) else RequestChain(bill or ReadBill())
        self.bill = self._chain.bill

    def fetch(self, key: str, start: int, end: int, stage: str) -> bytes:
        """One ranged GET past the caches; :class:`BudgetSpentError` instead of one too many."""
        self._chain.charge((key, start, end), stage)
        data = self._objects.get_range(key, start, end)
        self.bill.arrived(len(data))
        return data

    def fetch_once(self, key: str, start: int, end: int, stage: str) -> tuple[bytes, bool]:
        """:meth:`fetch`, or what somebody else's that is on its way brings; whether it was this one's."""
        data, is_mine = self._cache.flights.run((key, start, end, stage), lambda: self.fetch(key, start, end, stage))
        if not is_mine:
            self._chain.hit((key, start, end))
        return data, is_mine

    def together(self, key: str, start: int, end: int) -> ArchiveReader:
        """This reader, which fetches ``[start, end)`` of an object whole as soon as it needs a piece of it."""
        return _BlockReader(self, key, start, end)

    def fetcher(self, key: str, stage: str) -> Callable[[int, int], bytes]:
        """:meth:`fetch` with object and stage filled in."""
        return lambda start, end: self.fetch(key, start, end, stage)

    def metadata(self, key: str, start: int, end: int, stage: str, decode: Decode[T]) -> T:
        """Returns a decoded piece of metadata, fetched only if it is not kept already.

        ``decode`` checks the bytes: nothing that it refuses is kept, and what it refuses of the disk is fetched again.
        """
        place = key, start, end
        kept = self._cache.metadata

        def look(*, again: bool) -> tuple[T] | None:
            found: T | None = kept.get(place, scan=self._scan, again=again)  # type: ignore[assignment]
            return None if found is None else (found,)

        def keep(value: T, _: bytes) -> None:
            kept.put(place, value, size_of(value), scan=self._scan)

        return self._through(place, stage, decode, look, keep)[0]

    def data(self, key: str, start: int, end: int, stage: str, decode: Decode[T]) -> T:
        """Returns what ``decode`` makes of a range of data, whose bytes are kept as they are stored.

        A caller who waits for another's fetch gets its bytes: the other may decode them in another way.
        """
        place = key, start, end
        kept = self._cache.data

        def both(raw: bytes) -> tuple[T, bytes]:
            return decode(raw), raw

        def look(*, again: bool) -> tuple[tuple[T, bytes]] | None:
            raw = kept.get(place, scan=self._scan, again=again)
            return None if raw is None else (both(raw),)

        def keep(_: object, raw: bytes) -> None:
            kept.put(place, raw, len(raw), scan=self._scan)

        (value, raw), is_mine = self._through(place, stage, both, look, keep)
        return value if is_mine else decode(raw)

    def kept_data(self, key: str, start: int, end: int, decode: Decode[T]) -> tuple[T] | None:
        """Returns what ``decode`` makes of a range of data if that is kept, without asking the store."""
        place = key, start, end

        def look(*, again: bool) -> tuple[T] | None:
            raw = self._cache.data.get(place, scan=self._scan, again=again)
            return None if raw is None else (decode(raw),)

        def keep(_: object, raw: bytes) -> None:
            self._cache.data.put(place, raw, len(raw), scan=self._scan)

        found = self._kept(place, decode, look, keep, again=False)
        if found is not None:
            self._chain.hit(place)
        return found

    def holds_data(self, key: str, start: int, end: int) -> bool:
        """Whether a range of data is kept now, in memory or on disk; it may be gone when it is read."""
        place = key, start, end
        return place in self._cache.data or (self._cache.disk is not None and place in self._cache.disk)

    def holds_metadata(self, key: str, start: int, end: int) -> bool:
        """Whether a piece of metadata is kept now; it may be gone when it is read."""
        place = key, start, end
        return place in self._cache.metadata or (self._cache.disk is not None and place in self._cache.disk)

    def data_of(
        self, key: str, ranges: Sequence[tuple[int, int]], stage: str, decode: Callable[[int, bytes], T]
    ) -> Iterator[T]:
        """Yields what ``decode`` makes of each of some ascending ranges, given its number; neighbours in one request.

        What is kept is not asked for; the rest is joined where the gap is below 64 KiB, up to 8 MiB a request.
        """
        joined: list[int] = []
        for number, (start, end) in enumerate(ranges):
            found = self.kept_data(key, start, end, lambda raw, number=number: decode(number, raw))  # type: ignore[misc]
            if joined and (
                found is not None
                or start - ranges[joined[-1]][1] > _JOIN_GAP_BYTES
                or end - ranges[joined[0]][0] > JOIN_BYTES
            ):
                yield from self._joined(key, ranges, joined, stage, decode)
                joined = []
            if found is None:
                joined.append(number)
            else:
                yield found[0]
        yield from self._joined(key, ranges, joined, stage, decode)

    def _joined(
        self,
        key: str,
        ranges: Sequence[tuple[int, int]],
        joined: list[int],
        stage: str,
        decode: Callable[[int, bytes], T],
    ) -> Iterator[T]:
        if len(joined) == 1:
            start, end = ranges[joined[0]]
            yield self.data(key, start, end, stage, lambda raw: decode(joined[0], raw))
        elif joined:
            begin, stop = ranges[joined[0]][0], ranges[joined[-1]][1]
            together, is_mine = self.fetch_once(key, begin, stop, stage)
            for number in joined:
                start, end = ranges[number]
                raw = together[start - begin : end - begin]
                value = decode(number, raw)
                if is_mine:
                    self._cache.data.put((key, start, end), raw, len(raw), scan=self._scan)
                    self._to_disk((key, start, end), raw)
                yield value

    def _through(
        self,
        place: Range,
        stage: str,
        decode: Decode[T],
        look: _Look[T],
        keep: Callable[[T, bytes], None],
    ) -> tuple[T, bool]:
        """Memory, then disk, then the store, once for all who ask at the same time; whether it was decoded here."""
        found = self._trusted(place, look, again=False)
        if found is not None:
            self._chain.hit(place)
            return found[0], True
        is_paid = False

        def work() -> T:
            nonlocal is_paid
            found = self._kept(place, decode, look, keep, again=True)  # somebody may have brought it since
            if found is None:
                is_paid = True
                raw = self.fetch(*place, stage)
                found = (decode(raw),)
                keep(found[0], raw)
                self._to_disk(place, raw)
            return found[0]

        value, is_mine = self._cache.flights.run((*place, stage), work)
        if not is_paid:
            self._chain.hit(place)
        return value, is_mine

    def _kept(
        self, place: Range, decode: Decode[T], look: _Look[T], keep: Callable[[T, bytes], None], *, again: bool
    ) -> tuple[T] | None:
        """Returns what memory has of a range, or the disk, which memory then has too."""
        found = self._trusted(place, look, again=again)
        return self._from_disk(place, decode, keep) if found is None else found

    def _trusted(self, place: Range, look: _Look[T], *, again: bool) -> tuple[T] | None:
        try:
            return look(again=again)
        except CorruptionError:  # good when it was kept: memory is at fault, and the store is asked again
            self._drop(place)
            return None

    def _from_disk(self, place: Range, decode: Decode[T], keep: Callable[[T, bytes], None]) -> tuple[T] | None:
        raw = None if self._cache.disk is None else self._cache.disk.get(*place)
        if raw is None:
            return None
        try:
            value = decode(raw)
        except CorruptionError:
            self._drop(place)
            return None
        keep(value, raw)
        return (value,)

    def _to_disk(self, place: Range, raw: bytes) -> None:
        if self._cache.disk is not None and not self._scan:
            self._cache.disk.offer(*place, raw)

    def _drop(self, place: Range) -> None:
        self._cache.metadata.drop([place])
        self._cache.data.drop([place])
        if self._cache.disk is not None:
            self._cache.disk.drop(*place)


def uncached_reader(objects: ObjectStore) -> ArchiveReader:
    """Returns a reader past all caches, for one object: its bill remembers every range that it read."""
    return ArchiveReader(objects, ArchiveCache(0), scan=True)


class _BlockReader(ArchiveReader):
    """Serves pieces of one range out of one request."""

    def __init__(self, inner: ArchiveReader, key: str, start: int, end: int) -> None:
        super().__init__(inner._objects, inner._cache, inner._chain, scan=inner._scan)
        self._key, self._start, self._end = key, start, end
        self._block: bytes | None = None

    def fetch(self, key: str, start: int, end: int, stage: str) -> bytes:
        """Returns a piece of the range, or one ranged GET for what lies outside it."""
        if key != self._key or start < self._start or end > self._end:
            return super().fetch(key, start, end, stage)
        if self._block is None:
            self._block = super().fetch(key, self._start, self._end, stage)
        return self._block[start - self._start : end - self._start]
