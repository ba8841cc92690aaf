"""Searches the hot tier of one store, by index files or consume queues, within one snapshot.

:class:`HotSearch` is the hot half of a store's search. :class:`HotTierSearch` searches the hot tier alone, and
:func:`hot_page` answers with what somebody else needs to search the rest: whoever reads the archive below the border,
at the version named in the page or a newer one, has with it every message of the store once. The messages in the page
are copies, so nothing that moves into the archive meanwhile is missed or twice.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import in_groups
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.search.column_results import FoundRows
from tierlog.index.search.query import Coverage, Query, StoreCoverage, TierCoverage
from tierlog.index.search.row_filling import RowFilling
from tierlog.index.search.searcher import StoreSearch, search
from tierlog.index.search.task import Found, IndexOutcome, SearchContext, SearchTask
from tierlog.tiering.base.errors import CorruptionError, StoreError, UnavailableError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import ALL_TIME, Order, Tier, TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Tombstone
from tierlog.tiering.format.record import FIXED_BYTES_V1, SysFlag
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue, shown_queues
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.tombstones import Erasures, ErasureSource
from tierlog.tiering.message.stored_message import StoredMessage

_STEP = 256
_CHUNK_BYTES = 256 << 10
"""Records of a queue that a query by columns reads at a time; what it reads behind a page's end is for nothing."""
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_HEAD_BYTES = 76
_BORN_MS_AT = 40
"""The position of the born time in a record (``tiering.format.record``)."""


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

    def plan(self, query: Query, within: TimeRange) -> Iterator[SearchTask]:
        """Yields tasks that find every hot message of the query ``within``, or fail if some are not dispatched."""
        if self._snapshot.undispatched:
            yield self._task(ALL_TIME, "hot", self._undispatched)
        if query.key is not None:
            if self._missing:
                yield self._task(ALL_TIME, "index", self._not_indexed, counter="index_unreachable")
            run = partial(self._by_key, query, within)
            yield self._task(ALL_TIME, "index", run, counter="index_unreachable")
        else:
            yield from self._by_time(query, within)

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

    def _by_key(self, query: Query, within: TimeRange, context: SearchContext) -> Iterator[SearchTask]:
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
        hits = hits[(offsets >= self._snapshot.border) & (offsets < self._snapshot.end)]
        for bounds, group in in_groups(query.axis, hits["second_ms"], hits["seconds"], hits["physical_offset"]):
            run = partial(self._messages, group, query)
            yield self._task(bounds, "commitlog", run)

    # by time

    def _by_time(self, query: Query, within: TimeRange) -> Iterator[SearchTask]:
        topic = self._hot.topics.get(query.topic)
        for queue in shown_queues(self._hot, self._snapshot, topic).values():
            try:
                yield from self._of_queue(queue, query, within)
            except CorruptionError as error:
                yield self._task(ALL_TIME, "commitlog", partial(_fail, error))

    def _of_queue(self, queue: SnapshotQueue, query: Query, within: TimeRange) -> Iterator[SearchTask]:
        first, last = queue.first, queue.next
        if self._rises_on(query.axis):
            first = self._by_store_time(queue, first, last, within.from_ms)
            last = self._by_store_time(queue, first, last, within.to_ms)
        if first >= last:
            return
        if query.axis is TimeAxis.BORN:
            run = partial(self._by_born_time, queue, first, last, query=query, within=within)
            yield self._task(ALL_TIME, "commitlog", run)
        else:
            yield self._stretch(queue, first, last, min(_STEP, query.limit + 1), query=query, within=within)

    def _stretch(
        self, queue: SnapshotQueue, first: int, last: int, step: int, *, query: Query, within: TimeRange
    ) -> SearchTask:
        """Returns a task for ``[first, last)`` of a queue: it yields the next messages, the rest as another task."""
        bounds = ALL_TIME  # where times may step back, or an end cannot be read, all have to be read anyway
        if self._rises_on(query.axis):
            with contextlib.suppress(CorruptionError):
                bounds = self._store_ms(queue, first), self._store_ms(queue, last - 1)

        def run(context: SearchContext) -> Iterator[Found | SearchTask]:
            count = _fitting(queue, first, last, query.order) if query.by_columns else step
            if query.order is Order.NEWEST:
                cut = max(first, last - count)
                rest, chunk = (first, cut), (cut, last)
            else:
                cut = min(last, first + count)
                chunk, rest = (first, cut), (cut, last)
            if rest[0] < rest[1]:  # first of all, so that one bad record does not hide it
                yield self._stretch(queue, *rest, min(_STEP, 2 * step), query=query, within=within)
            units, failures = queue.checked(*chunk)
            if query.by_columns:
                yield from self._rows(_without(units, chunk[0], failures), query, within, context)
                yield from _fail_if_any(failures)
                return
            places = units["physical_offset"].tolist()
            good = [place for offset, place in enumerate(places, chunk[0]) if offset not in failures]
            yield from self._messages(good, query, context)
            yield from _fail_if_any(failures)

        return self._task(bounds, "commitlog", run)

    def _by_born_time(
        self, queue: SnapshotQueue, first: int, last: int, context: SearchContext, *, query: Query, within: TimeRange
    ) -> Iterator[SearchTask]:
        """Yields messages in groups by born time, which is read off each record without decoding it."""
        units, failures = queue.checked(first, last, with_sums=True)
        units = _without(units, first, failures)
        places = units["physical_offset"].astype(np.int64)
        if failures:
            yield self._task(ALL_TIME, "commitlog", partial(_fail, failures[min(failures)]))
        born_ms = self._born_ms(places)
        wanted = (born_ms >= within.from_ms) & (born_ms < within.to_ms)
        born_ms, places, units = born_ms[wanted], places[wanted], units[wanted]
        order = np.lexsort((places, born_ms))
        step = min(_STEP, query.limit + 1)
        for chosen in np.split(order, range(step, len(order), step)):
            if len(chosen):
                bounds = int(born_ms[chosen[0]]), int(born_ms[chosen[-1]])
                run: Callable[[SearchContext], Iterator[Found]] = partial(
                    self._messages, places[chosen].tolist(), query
                )
                if query.by_columns:
                    run = partial(self._rows, np.ascontiguousarray(units[chosen]), query, within)
                yield self._task(bounds, "commitlog", run)

    def _born_ms(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Born times of the records at physical offsets."""
        born_ms = np.zeros(len(offsets), np.int64)
        bases = offsets - offsets % self._snapshot.segment_bytes
        for base in np.unique(bases).tolist():
            mine = np.flatnonzero(bases == base)
            data = np.frombuffer(self._snapshot.segments[base].data, np.uint8)
            position = (offsets[mine] - base)[:, None] + np.arange(8)
            born_ms[mine] = data[position + _BORN_MS_AT].view(">i8")[:, 0]
        return born_ms

    def _rises_on(self, axis: TimeAxis) -> bool:
        """Whether the times of a queue's messages never step back."""
        return axis is TimeAxis.STORE and self._snapshot.times_rise

    def _by_store_time(self, queue: SnapshotQueue, first: int, last: int, time_ms: int) -> int:
        """Returns the first queue offset in ``[first, last)`` of a message stored at or after a time."""
        guess = self._guess(queue, first, last, time_ms)
        is_after_last = guess == last or self._store_ms(queue, guess) >= time_ms
        if is_after_last and (guess == first or self._store_ms(queue, guess - 1) < time_ms):
            return guess
        while first < last:
            middle = (first + last) // 2
            if self._store_ms(queue, middle) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first

    def _guess(self, queue: SnapshotQueue, first: int, last: int, time_ms: int) -> int:
        """Returns what :meth:`_by_store_time` would if no unit and no record were damaged: reads without comparing."""
        while first < last:
            middle = (first + last) // 2
            offset = int(queue.raw_units(middle, middle + 1)["physical_offset"][0])
            segment = self._snapshot.segments.get(offset - offset % self._snapshot.segment_bytes)
            if segment is None or _stored_ms(segment.data, offset - segment.base_offset) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first

    def _store_ms(self, queue: SnapshotQueue, offset: int) -> int:
        """Returns a message's store time without decoding the rest of it."""
        units, failures = queue.checked(offset, offset + 1, with_sums=True)
        if failures:
            raise failures[offset]
        physical_offset = int(units["physical_offset"][0])
        segment = self._snapshot.segments[physical_offset - physical_offset % self._snapshot.segment_bytes]
        return _stored_ms(segment.data, physical_offset - segment.base_offset)

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

    def _messages(self, offsets: list[int], query: Query, context: SearchContext) -> Iterator[StoredMessage]:
        segments = {offset // self._snapshot.segment_bytes for offset in offsets}
        context.segments_read.update((self._store_id, Tier.HOT, number) for number in segments)
        for offset in offsets:
            message = StoredMessage(self._snapshot.record(offset), self._store_id, Tier.HOT)
            if message.record.topic != query.topic or not (query.key is None or message.has_key(query.key)):
                continue
            if self._erased.hides(message.record):
                context.segments_erased.add((self._store_id, offset - offset % self._snapshot.segment_bytes))
            else:
                yield message


def _stored_ms(data: ByteArray, position: int) -> int:
    """Returns the store time of the record at a position; anything where none is, and zeros behind the segment."""
    head = bytes(data[position : position + _HEAD_BYTES]).ljust(_HEAD_BYTES, b"\0")
    wide = _I32.unpack_from(head, 36)[0] & SysFlag.BORN_HOST_V6
    return int(_I64.unpack_from(head, 68 if wide else 56)[0])


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
    return np.delete(units, [offset - first for offset in failures]) if failures else units


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
    topic_id: int
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
    topic_id: int
    first_ms: int | None
    #: The archive at this version covers everything below the border; None before the store has seen its archive.
    manifest_version: int | None
    #: Erasures of the topic that the store knows, deletions that its archive was not told of yet among them.
    tombstones: tuple[Tombstone, ...]
    messages: list[StoredMessage]
    #: Whether limit or bytes cut the page: then nothing behind its last message is known.
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
        topic_id = self._hot.topics.get(query.topic).topic_id
        erased, hot = self._known.current(), None
        if max(snapshot.end, snapshot.visible) > snapshot.border:
            covered.hot = claim = TierCoverage(within.from_ms, within.to_ms)
            hot = HotSearch(self.store_id, self._hot, self._index, snapshot=snapshot, claim=claim, erased=erased)
        first_ms = hot.first_ms if hot is not None else None
        self.pinned = Pinned(snapshot.border, snapshot.end, topic_id, first_ms, erased)
        if hot is not None:
            yield from hot.plan(query, within)


def hot_page(
    tier: HotTierSearch, manifest: ManifestStore | None, cold_url: str | None, query: Query, page_bytes: int
) -> HotPage:
    """Asks a hot tier alone; :class:`TopicNotFoundError` for a topic that the store does not have."""
    answer = search([tier], query, page_bytes=page_bytes)
    pinned, head = tier.pinned, manifest.head if manifest is not None else None
    tombstones = tuple(one for one in pinned.erased.tombstones if one.topic == query.topic)
    return HotPage(
        store_id=tier.store_id, cold_url=cold_url, border=pinned.border, end=pinned.end, topic_id=pinned.topic_id,
        first_ms=pinned.first_ms, manifest_version=None if head is None else head.version, tombstones=tombstones,
        messages=answer.messages, more=answer.next_cursor is not None, coverage=answer.coverage,
    )  # fmt: skip
