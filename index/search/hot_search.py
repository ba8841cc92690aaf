"""Searches the hot tier of one store, by index files or consume queues, within one snapshot.

:class:`HotSearch` is the hot half of a store's search. :class:`HotTierSearch` searches the hot tier alone, and
:func:`hot_page` answers with what somebody else needs to search the rest: whoever reads the archive below the border,
at the version named in the page or a newer one, has with it every message of the store once. The messages in the page
are copies, so nothing that moves into the archive meanwhile is missed or twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import WIDEN_MS, Items, is_saturated, may_lie_in
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import IndexFileEntry, KeyWalk
from tierlog.index.search.column_results import FoundRows
from tierlog.index.search.hot_times import HotTimes, LogBorder
from tierlog.index.search.query import Coverage, Query, StoreCoverage, TierCoverage
from tierlog.index.search.row_filling import RowFilling
from tierlog.index.search.searcher import Searcher, StoreSearch
from tierlog.index.search.task import Bounds, Found, IndexOutcome, SearchContext, SearchTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, StoreError, UnavailableError
from tierlog.tiering.base.types import ALL_TIME, Order, Tier, TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.generation import Generation, record_topic
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.format.manifest import Tombstone
from tierlog.tiering.format.queue_unit import is_gap
from tierlog.tiering.format.record import FIXED_BYTES_V1, Record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue, shown_queues
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.kernels.mapped_log import NO_TIME, MappedLog, record_times
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.lifecycle.tombstones import Erasures, ErasureSource, reaching
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.message.tags import TagFilter

_STEP = 256
_BORN_STEP = 8192
"""Records of a queue whose born times are read between two looks at the clock."""
_KEY_STEP = 4096
"""Items of a key of which the times are read at once, where they do not lie in their order."""
_CHUNK_BYTES = 256 << 10
"""Records of a queue that a query by columns reads at a time; what it reads behind a page's end is for nothing."""


class HotSearch:
    """Plans the search of one store's hot tier for one query."""

    def __init__(
        self,
        store_id: str,
        hot: HotStore,
        index: LocalIndex,
        *,
        snapshot: HotSnapshot,
        claim: TierCoverage,
        erased: Erasures,
    ) -> None:
        self._store_id = store_id
        self._erased = erased
        self._claim = claim
        self._hot, self._index = hot, index
        self._files, self._missing = index.searchable(snapshot.border, snapshot.end)
        self._snapshot = snapshot
        self._times = HotTimes(snapshot)

    def plan(self, query: Query, within: TimeRange, generations: Sequence[Generation]) -> Iterator[SearchTask]:
        """Yields tasks that find every hot message of the query ``within``, or fail if some are not dispatched.

        ``generations`` are those that the query means; it has the topic of their records.
        """
        if self._snapshot.undispatched:
            yield self._task(ALL_TIME, "hot", self._undispatched)
        if query.key is not None:
            if self._missing:
                yield self._task(ALL_TIME, "index", self._not_indexed, counter="index_unreachable")
            run = partial(self._by_key, query, within, generations)
            yield self._task(ALL_TIME, "index", run, counter="index_unreachable")
        else:
            for generation in generations:
                yield from self._by_time(generation, query, within)

    @property
    def _plan(self) -> str:
        """What the index files belong to."""
        return f"{self._store_id}/hot"

    @cached_property
    def _log(self) -> MappedLog:
        maps = {base: segment.data for base, segment in self._snapshot.segments.items()}
        return MappedLog(maps, self._snapshot.segment_bytes)

    @property
    def first_ms(self) -> int | None:
        """A store time that everything below the border is at or before; None if that is not known."""
        if self._snapshot.border >= self._snapshot.end or not self._snapshot.times_rise:
            return None
        with contextlib.suppress(CorruptionError):
            return self._snapshot.record(self._snapshot.border).store_ms
        return None

    def _undispatched(self, context: SearchContext) -> Iterator[SearchTask]:
        self._snapshot.require_dispatched()
        yield from ()

    def _not_indexed(self, context: SearchContext) -> Iterator[SearchTask]:
        stretches = ", ".join(f"{first} to {end}" for first, end in self._missing)
        raise UnavailableError(f"the key index is being derived again from {stretches}")

    # by key

    def _by_key(
        self, query: Query, within: TimeRange, generations: Sequence[Generation], context: SearchContext
    ) -> Iterator[SearchTask]:
        """Yields a task for each index file that may hold a message of the range."""
        wanted = _WantedKey.of(
            query, within, generations, self._snapshot,
            store_id=self._store_id, times_rise=self._times.rise_on(query.axis),
        )  # fmt: skip
        for entry in self._files.select(within, query.axis):
            bounds = entry.bounds
            assert bounds is not None
            context.index_file((self._plan, 0), str(entry.path), IndexOutcome.SKIPPED)
            yield self._of_file(entry, bounds.on(query.axis), partial(self._in_file, entry, wanted))

    def _of_file(
        self, entry: IndexFileEntry, bounds: Bounds, run: Callable[[SearchContext], Iterator[Found | SearchTask]]
    ) -> SearchTask:
        def reporting(context: SearchContext) -> Iterator[Found | SearchTask]:
            context.index_file((self._plan, 0), str(entry.path), IndexOutcome.SEARCHED)
            try:
                yield from run(context)
            except CorruptIndexError as error:
                self._index.note_damage(error)
                raise

        return self._task(bounds, f"index/{entry.name}", reporting, counter="index_unreachable")

    def _in_file(
        self, entry: IndexFileEntry, wanted: _WantedKey, context: SearchContext
    ) -> Iterator[Found | SearchTask]:
        bounds = entry.bounds
        assert bounds is not None
        on_axis, query = bounds.on(wanted.query.axis), wanted.query
        if not self._times.rise_on(query.axis):
            walk = KeyWalk.newest_first(entry.reader, wanted.hashes)
            yield from self._stretch_of_any(_KeyPart(entry, wanted, on_axis, walk), context, is_first=True)
            return
        low, high = self._borders(entry, wanted, on_axis)
        walk = KeyWalk.in_order(entry.reader, wanted.hashes, query.order, low, high)
        step = min(_STEP, query.limit + 1) if query.filters is None else _STEP
        yield from self._stretch_of_key(_KeyPart(entry, wanted, on_axis, walk), step, context)

    def _borders(
        self, entry: IndexFileEntry, wanted: _WantedKey, bounds: Bounds
    ) -> tuple[LogBorder | None, LogBorder | None]:
        """Returns where in the log what is wanted begins and ends, as far as the file reaches beyond that."""
        snapshot, within = self._snapshot, wanted.within
        low = high = None
        if entry.first < wanted.begin or bounds[0] < within.from_ms:
            low = LogBorder(snapshot, (wanted.begin, snapshot.end), within.from_ms)
        ends_later = entry.next is None or entry.next > wanted.end
        if (ends_later and wanted.end < snapshot.end) or bounds[1] >= within.to_ms:
            high = LogBorder(snapshot, (snapshot.border, wanted.end), within.to_ms)
        return low, high

    def _stretch_of_key(self, part: _KeyPart, step: int, context: SearchContext) -> Iterator[Found | SearchTask]:
        """Yields the next messages of a key in a file where times rise, then the rest as another task.

        Once the page is full of what was found here, there is no rest: it lies behind all of that.
        """
        wanted, newest = part.wanted, part.wanted.query.order is Order.NEWEST
        items, rest = part.walk.take(step)
        low_ms, high_ms = part.bounds
        found, last_offset = part.found, part.last_offset
        lost: StoreError | None = None

        def bounds() -> Bounds:
            return low_ms, high_ms

        for offset in wanted.offsets_in(items, part.entry.reader.begin_ms).tolist():
            if found > wanted.query.limit:
                return
            if offset == last_offset:
                continue
            last_offset = offset
            try:
                record = self._read(offset, context)
            except StoreError as error:  # those behind it can be read
                lost = lost or error
                continue
            time_ms = record.store_ms
            if lost is not None:  # it lies between its neighbours
                between = (time_ms, high_ms) if newest else (low_ms, time_ms)
                yield self._task(between, "commitlog", partial(_fail, lost))
                lost = None
            low_ms, high_ms = (low_ms, min(high_ms, time_ms)) if newest else (max(low_ms, time_ms), high_ms)
            for message in self._of_record(record, wanted.query, wanted.within, context):
                found += wanted.is_behind_cursor(message)
                yield message
        if lost is not None:
            yield self._task(bounds(), "commitlog", partial(_fail, lost))
        if rest is None or found > wanted.query.limit:
            return
        if len(items):
            second_ms = part.entry.reader.begin_ms + int(items[-1]["seconds"]) * 1000
            is_known = not is_saturated(items[-1:]["seconds"]).any()
            if wanted.ends_before(int(items[-1]["offset"])):
                return
            if is_known and newest:
                high_ms = max(low_ms, min(high_ms, second_ms + WIDEN_MS))
            elif is_known:
                low_ms = min(high_ms, max(low_ms, second_ms - WIDEN_MS))
        going_on = replace(part, bounds=bounds(), walk=rest, found=found, last_offset=last_offset)
        run = partial(self._stretch_of_key, going_on, min(_STEP, 2 * step))
        yield self._of_file(part.entry, going_on.bounds, run)

    # by key, where times may step back

    def _stretch_of_any(
        self, part: _KeyPart, context: SearchContext, *, is_first: bool = False
    ) -> Iterator[SearchTask]:
        """Finds out between which times the next items of a key lie, the rest of them being another task.

        Which of them are wanted is not known before the last one was looked at. Until then a stretch is kept as the way
        that leads through it, so that memory does not grow with the number of items.
        """
        items, rest = part.walk.take(_KEY_STEP)
        if rest is not None:
            going_on = replace(part, walk=rest)
            yield self._of_file(part.entry, part.bounds, partial(self._stretch_of_any, going_on))
        times_ms, offsets, damaged = self._timed(part, items)
        if len(damaged):
            run = partial(self._messages, damaged.tolist(), part.wanted.query, part.wanted.within)
            yield self._task(part.bounds, "commitlog", run)
        if not len(offsets):
            return
        if is_first and rest is None:
            yield from self._in_groups(part, times_ms, offsets)
        else:
            bounds = int(times_ms.min()), int(times_ms.max())
            yield self._of_file(part.entry, bounds, partial(self._known_stretch, part))

    def _known_stretch(self, part: _KeyPart, context: SearchContext) -> Iterator[SearchTask]:
        items, _ = part.walk.take(_KEY_STEP)
        times_ms, offsets, _ = self._timed(part, items)
        yield from self._in_groups(part, times_ms, offsets)

    def _timed(self, part: _KeyPart, items: Items) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns times and offsets of the records that may be wanted, and the offsets of those that are damaged."""
        wanted = part.wanted
        offsets = wanted.offsets_in(items, part.entry.reader.begin_ms)
        times_ms = np.empty(len(offsets), np.int64)
        record_times(
            self._log.address, offsets=offsets.ctypes.data, count=len(offsets),
            is_store=wanted.query.axis is TimeAxis.STORE, out=times_ms.ctypes.data,
        )  # fmt: skip
        inside = (times_ms >= wanted.within.from_ms) & (times_ms < wanted.within.to_ms)
        return times_ms[inside], offsets[inside], offsets[times_ms == NO_TIME]

    def _in_groups(
        self, part: _KeyPart, times_ms: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> Iterator[SearchTask]:
        query, order = part.wanted.query, np.lexsort((offsets, times_ms))
        step = min(_STEP, query.limit + 1)
        for chosen in np.split(order, range(step, len(order), step)):
            bounds = int(times_ms[chosen[0]]), int(times_ms[chosen[-1]])
            run = partial(self._messages, offsets[chosen].tolist(), query, part.wanted.within)
            yield self._task(bounds, "commitlog", run)

    # by time

    def _by_time(self, generation: Generation, query: Query, within: TimeRange) -> Iterator[SearchTask]:
        topic = self._hot.topics.of_log(generation.name)
        for queue in shown_queues(self._hot, self._snapshot, topic).values():
            if query.without is not None:
                queue = queue.between(generation.begin, generation.end)
            try:
                yield from self._of_queue(queue, query, within)
            except CorruptionError as error:
                yield self._task(ALL_TIME, "commitlog", partial(_fail, error))

    def _of_queue(self, queue: SnapshotQueue, query: Query, within: TimeRange) -> Iterator[SearchTask]:
        first, last = queue.first, queue.next
        if self._times.rise_on(query.axis):
            first = self._times.first_at(queue, first, last, within.from_ms)
            last = self._times.first_at(queue, first, last, within.to_ms)
        if first >= last:
            return
        if query.axis is TimeAxis.BORN:
            if query.most_by_born_time is not None:
                first = max(first, last - query.most_by_born_time)
            yield self._born_stretch(queue, first, last, query, within)
        else:
            step = min(_STEP, query.limit + 1) if query.filters is None else _STEP
            yield self._stretch(queue, range(first, last), step, query, within)

    def _stretch(self, queue: SnapshotQueue, offsets: range, step: int, query: Query, within: TimeRange) -> SearchTask:
        """Returns a task for some offsets of a queue: it yields the next messages, the rest as another task."""
        first, last = offsets.start, offsets.stop
        bounds = ALL_TIME  # where times may step back, or an end cannot be read, all have to be read anyway
        if self._times.rise_on(query.axis):
            with contextlib.suppress(CorruptionError):
                bounds = self._times.store_ms(queue, first), self._times.store_ms(queue, last - 1)

        tags = _tags_in_units(queue, query)

        def run(context: SearchContext) -> Iterator[Found | SearchTask]:
            count = _fitting(queue, first, last, query.order) if query.by_columns else step
            if query.order is Order.NEWEST:
                cut = max(first, last - count)
                rest, chunk = (first, cut), (cut, last)
            else:
                cut = min(last, first + count)
                chunk, rest = (first, cut), (cut, last)
            if rest[0] < rest[1]:  # first of all, so that one bad record does not hide it
                yield self._stretch(queue, range(*rest), min(_STEP, 2 * step), query, within)
            units, failures = queue.checked(*chunk)
            units = _leading(units, chunk[0], failures, tags)
            if query.by_columns:
                yield from self._rows(units, query, within, context)
            else:
                yield from self._messages(units["physical_offset"].tolist(), query, within, context)
            yield from _fail_if_any(failures)

        return self._task(bounds, "commitlog", run)

    def _born_stretch(self, queue: SnapshotQueue, first: int, last: int, query: Query, within: TimeRange) -> SearchTask:
        run = partial(self._by_born_time, queue, first, last, query=query, within=within)
        return self._task(ALL_TIME, "commitlog", run)

    def _by_born_time(
        self, queue: SnapshotQueue, first: int, last: int, context: SearchContext, *, query: Query, within: TimeRange
    ) -> Iterator[SearchTask]:
        """Yields messages in groups by born time, which is read off each record without decoding it.

        The newest part of the queue comes first, the rest is another task: time is over between two parts.
        """
        cut = max(first, last - _BORN_STEP)
        if first < cut:
            yield self._born_stretch(queue, first, cut, query, within)
        units, failures = queue.checked(cut, last, with_sums=True)
        units = _leading(units, cut, failures, _tags_in_units(queue, query))
        places = units["physical_offset"].astype(np.int64)
        if failures:
            yield self._task(ALL_TIME, "commitlog", partial(_fail, failures[min(failures)]))
        born_ms = self._times.of(places, TimeAxis.BORN)
        wanted = (born_ms >= within.from_ms) & (born_ms < within.to_ms)
        born_ms, places, units = born_ms[wanted], places[wanted], units[wanted]
        order = np.lexsort((places, born_ms))
        step = min(_STEP, query.limit + 1)
        for chosen in np.split(order, range(step, len(order), step)):
            if len(chosen):
                bounds = int(born_ms[chosen[0]]), int(born_ms[chosen[-1]])
                run: Callable[[SearchContext], Iterator[Found]] = partial(
                    self._messages, places[chosen].tolist(), query, within
                )
                if query.by_columns:
                    run = partial(self._rows, np.ascontiguousarray(units[chosen]), query, within)
                yield self._task(bounds, "commitlog", run)

    # both

    def _rows(
        self, units: NDArray[np.void], query: Query, within: TimeRange, context: SearchContext
    ) -> Iterator[FoundRows]:
        """Yields the messages that units lead to, by columns."""
        filling = RowFilling(
            self._store_id, Tier.HOT, query, within, segment_bytes=self._snapshot.segment_bytes,
            erased=self._erased, present_from_ms=None, context=context,
        )  # fmt: skip
        filling.expect(int(np.clip(units["size"].astype(np.int64), 0, _CHUNK_BYTES).sum()))
        try:
            yield from filling.add_units(units, self._snapshot)
        except StoreError:
            yield from filling.finish()  # what was read before counts
            raise
        yield from filling.finish()

    def _task(
        self,
        bounds: tuple[int, int],
        name: str,
        run: Callable[[SearchContext], Iterable[Found | SearchTask]],
        *,
        counter: str = "segments_unreachable",
    ) -> SearchTask:
        return SearchTask(bounds, f"{self._store_id}/{name}", counter, self._claim, run, is_local=True)

    def _messages(
        self, offsets: list[int], query: Query, within: TimeRange, context: SearchContext
    ) -> Iterator[StoredMessage]:
        failure: StoreError | None = None
        for offset in offsets:
            try:
                record = self._read(offset, context)
            except StoreError as error:  # those behind it can be read
                failure = failure or error
            else:
                yield from self._of_record(record, query, within, context)
        if failure is not None:
            raise failure

    def _read(self, offset: int, context: SearchContext) -> Record:
        context.segments_read.add((self._store_id, Tier.HOT, offset // self._snapshot.segment_bytes))
        return self._snapshot.record(offset)

    def _of_record(
        self, record: Record, query: Query, within: TimeRange, context: SearchContext
    ) -> Iterator[StoredMessage]:
        """Yields the message of a record if it is asked for."""
        message, offset = StoredMessage(record, self._store_id, Tier.HOT), record.physical_offset
        if record.topic != query.topic or not (query.key is None or message.has_key(query.key)):
            return
        if self._erased.hides(record):
            context.segments_erased.add((self._store_id, offset - offset % self._snapshot.segment_bytes))
        elif context.matches(message, query, within):
            yield message


@dataclass(frozen=True, slots=True)
class _WantedKey:
    """What a query by key wants of a hot tier."""

    query: Query
    within: TimeRange
    hashes: tuple[int, int]
    store_id: str
    parts: list[tuple[int, int]]
    """Physical ranges in which the messages lie."""
    begin: int
    """Nothing is wanted below; where store times rise also because of the cursor."""
    end: int

    @classmethod
    def of(
        cls, query: Query, within: TimeRange, generations: Sequence[Generation], snapshot: HotSnapshot,
        *, store_id: str, times_rise: bool,
    ) -> _WantedKey:  # fmt: skip
        assert query.key is not None
        hashes = key_hash(query.topic, query.key), key_hash_high(query.topic, query.key)
        parts = [(max(each.begin, snapshot.border), min(each.end, snapshot.end)) for each in generations]
        begin, end = min(begin for begin, _ in parts), max(end for _, end in parts)
        if times_rise and query.after is not None and query.after[1] == store_id:
            if query.order is Order.NEWEST:
                end = min(end, query.after[2])
            else:
                begin = max(begin, query.after[2] + 1)
        return cls(query, within, hashes, store_id, parts, begin, end)

    def offsets_in(self, items: Items, begin_ms: int) -> NDArray[np.int64]:
        """Returns the physical offsets of those items of a file that may lead to what is wanted."""
        offsets = items["offset"].astype(np.int64)
        kept = (offsets >= self.begin) & (offsets < self.end)
        kept &= np.any([(offsets >= begin) & (offsets < end) for begin, end in self.parts], axis=0)
        if self.query.axis is TimeAxis.STORE:
            kept &= may_lie_in(self.within, begin_ms + items["seconds"].astype(np.int64) * 1000, items["seconds"])
        return offsets[kept]

    def ends_before(self, offset: int) -> bool:
        """Whether nothing is wanted of a record, nor of those behind it in the order of the query."""
        return offset < self.begin if self.query.order is Order.NEWEST else offset >= self.end

    def is_behind_cursor(self, message: StoredMessage) -> bool:
        """Whether a message comes behind the cursor, if there is one."""
        after, place = self.query.after, message.place(self.query.axis)
        if after is None:
            return True
        return place < after if self.query.order is Order.NEWEST else place > after


@dataclass(frozen=True, slots=True)
class _KeyPart:
    """The rest of a key's items in one index file, with bounds on their times."""

    entry: IndexFileEntry
    wanted: _WantedKey
    bounds: Bounds
    walk: KeyWalk
    found: int = 0
    """Messages found in the file before, behind the cursor."""
    last_offset: int = -1
    """The place of the last one of them in the log."""


def _fitting(queue: SnapshotQueue, first: int, last: int, order: Order) -> int:
    """Returns how many units at the beginning of ``[first, last)``, or at its end, lead to records of a chunk."""
    most = _CHUNK_BYTES // FIXED_BYTES_V1
    newest = order is Order.NEWEST
    units = (
        queue.raw_units(max(first, last - most), last) if newest else queue.raw_units(first, min(last, first + most))
    )
    sizes = np.clip(units["size"].astype(np.int64), FIXED_BYTES_V1, _CHUNK_BYTES)
    ends = np.cumsum(sizes[::-1] if newest else sizes)
    return max(1, int(np.searchsorted(ends, _CHUNK_BYTES, side="right")))


def _tags_in_units(queue: SnapshotQueue, query: Query) -> TagFilter | None:
    return queue.tags_in_units(query.filters.tags if query.filters is not None else None)


def _leading(units: UnitArray, first: int, failures: Collection[int], tags: TagFilter | None) -> UnitArray:
    """Returns those units, of the queue offsets from ``first`` on, that lead to a record which may pass the filter."""
    units = np.delete(units, [offset - first for offset in failures]) if failures else units
    gaps = is_gap(units)
    units = units[~gaps] if gaps.any() else units
    return units if tags is None else units[tags.may_pass(units)]


def _fail(error: Exception, context: SearchContext) -> Iterator[SearchTask]:
    """The run of a task of which nothing can be read."""
    raise error
    yield  # an iterator, as every piece is


def _fail_if_any(failures: dict[int, StoreError]) -> Iterator[StoredMessage]:
    if failures:
        raise failures[min(failures)]
    yield from ()


@dataclass(frozen=True, slots=True)
class Pinned:
    """The facts that one snapshot of a hot tier gives beside its messages."""

    border: int
    end: int
    generations: tuple[Generation, ...]
    """Those that the query means, oldest first."""
    first_ms: int | None
    """Everything below the border was stored at this time or before; None if that is not known."""
    erased: Erasures


@dataclass(frozen=True, slots=True)
class HotPage:
    """Answer of one store's hot tier to a query, out of one snapshot. Physical offsets, store times in ms."""

    store_id: str
    cold_url: str | None
    border: int
    end: int
    #: Those that the query means, oldest first.
    generations: tuple[Generation, ...]
    first_ms: int | None
    #: The archive at this version covers everything below the border; None before the store has seen its archive.
    manifest_version: int | None
    #: Erasures of the topic that the store knows, deletions that its archive was not told of yet among them.
    tombstones: tuple[Tombstone, ...]
    messages: list[StoredMessage]
    #: Whether limit or bytes cut the page: then nothing behind its last message is known; or time did while messages
    #: were filtered: then nothing behind the time that the coverage names is known.
    more: bool
    coverage: Coverage


class HotTierSearch(StoreSearch):
    """Searches what is hot in a store; ``pinned`` is set as soon as the plan has begun."""

    looks_at_head = False
    pinned: Pinned

    def __init__(self, store_id: str, hot: HotStore, index: LocalIndex, known: ErasureSource) -> None:
        self.store_id = store_id
        self._hot = hot
        self._index = index
        self._known = known

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[SearchTask]:
        """Pins the hot tier and searches it."""
        snapshot = stack.enter_context(self._hot.snapshot())
        generations = query.within_log(self._hot.topics.ranges(query.topic))
        erased, hot = self._known.current(), None
        if generations and max(snapshot.end, snapshot.visible) > snapshot.border:
            covered.hot = claim = TierCoverage(within.from_ms, within.to_ms)
            hot = HotSearch(self.store_id, self._hot, self._index, snapshot=snapshot, claim=claim, erased=erased)
        first_ms = hot.first_ms if hot is not None else None
        self.pinned = Pinned(snapshot.border, snapshot.end, generations, first_ms, erased)
        if hot is not None:
            yield from hot.plan(query.of_records, within, generations)


def hot_page(
    tier: HotTierSearch, manifest: ManifestStore | None, cold_url: str | None, query: Query, *,
    page_bytes: int, clock: Clock,
) -> HotPage:  # fmt: skip
    """Asks a hot tier alone; :class:`TopicNotFoundError` for a topic that the store does not have."""
    answer = Searcher(clock=clock).search([tier], query, page_bytes=page_bytes)
    pinned, head = tier.pinned, manifest.head if manifest is not None else None
    tombstones = reaching(pinned.erased.tombstones, record_topic(query.topic))
    return HotPage(
        store_id=tier.store_id, cold_url=cold_url, border=pinned.border, end=pinned.end, generations=pinned.generations,
        first_ms=pinned.first_ms, manifest_version=None if head is None else head.version, tombstones=tombstones,
        messages=answer.messages, more=answer.next_cursor is not None, coverage=answer.coverage,
    )  # fmt: skip
