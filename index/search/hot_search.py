"""Searches the hot tier of one store, by index files or consume queues, within one snapshot.

:class:`HotSearch` is the hot half of a store's search. :class:`HotTierSearch` searches the hot tier alone, and
:func:`hot_page` answers with what somebody else needs to search the rest: whoever reads the archive below the border,
at the version named in the page or a newer one, has with it every message of the store once. The messages in the page
are copies, so nothing that moves into the archive meanwhile is missed or twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import in_groups
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.search.column_results import FoundRows
from tierlog.index.search.hot_times import HotTimes
from tierlog.index.search.query import Coverage, Query, StoreCoverage, TierCoverage
from tierlog.index.search.row_filling import RowFilling
from tierlog.index.search.searcher import Searcher, StoreSearch
from tierlog.index.search.task import Found, IndexOutcome, SearchContext, SearchTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, StoreError, UnavailableError
from tierlog.tiering.base.types import ALL_TIME, Order, Tier, TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.generation import Generation, record_topic
from tierlog.tiering.format.manifest import Tombstone
from tierlog.tiering.format.queue_unit import GAP_BYTES, is_gap
from tierlog.tiering.format.record import FIXED_BYTES_V1
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue, shown_queues
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.tombstones import Erasures, ErasureSource, reaching
from tierlog.tiering.message.stored_message import StoredMessage

_STEP = 256
_BORN_STEP = 8192
"""Records of a queue whose born times are read between two looks at the clock."""
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
        assert query.key is not None
        damaged: dict[int, CorruptIndexError] = {}
        hits = self._files.candidates(query.topic, query.key, within, query.axis, damaged)
        for entry in self._files.select(within, query.axis):
            if entry.begin_ms not in damaged:
                context.index_file((f"{self._store_id}/hot", 0), entry.name, IndexOutcome.SEARCHED)
        for begin_ms, error in damaged.items():
            self._index.note_damage(error)
            yield self._task(ALL_TIME, f"index/{begin_ms}", partial(_fail, error), counter="index_unreachable")
        offsets = hits["physical_offset"]
        parts = [(max(each.begin, self._snapshot.border), min(each.end, self._snapshot.end)) for each in generations]
        hits = hits[np.any([(offsets >= begin) & (offsets < end) for begin, end in parts], axis=0)]
        for bounds, group in in_groups(query.axis, hits["second_ms"], hits["seconds"], hits["physical_offset"]):
            run = partial(self._messages, group, query, within)
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

        tags = query.filters.tags if query.filters is not None and queue.tags_are_compared else None
        hashes = tags.hashes if tags is not None else None

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
            if query.by_columns:
                yield from self._rows(_without(units, chunk[0], failures), query, within, context)
            else:
                good = [
                    place
                    for offset, (place, size, tag) in enumerate(units.tolist(), chunk[0])
                    if size != GAP_BYTES and offset not in failures and (hashes is None or tag in hashes)
                ]
                yield from self._messages(good, query, within, context)
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
        units = _without(units, cut, failures)
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
        segments = {offset // self._snapshot.segment_bytes for offset in offsets}
        context.segments_read.update((self._store_id, Tier.HOT, number) for number in segments)
        failure: StoreError | None = None
        for offset in offsets:
            try:
                record = self._snapshot.record(offset)
            except StoreError as error:  # those behind it can be read
                failure = failure or error
                continue
            message = StoredMessage(record, self._store_id, Tier.HOT)
            if message.record.topic != query.topic or not (query.key is None or message.has_key(query.key)):
                continue
            if self._erased.hides(message.record):
                context.segments_erased.add((self._store_id, offset - offset % self._snapshot.segment_bytes))
            elif context.matches(message, query, within):
                yield message
        if failure is not None:
            raise failure


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


def _without(units: NDArray[np.void], first: int, failures: Collection[int]) -> NDArray[np.void]:
    """Returns the units, of the queue offsets from ``first`` on, but those that lead to no record."""
    units = np.delete(units, [offset - first for offset in failures]) if failures else units
    gaps = is_gap(units)
    return units[~gaps] if gaps.any() else units


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
