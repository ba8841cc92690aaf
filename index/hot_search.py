"""The hot half of a store's search: index files or consume queues, within one snapshot."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.hits import in_groups
from index.local_index import LocalIndex
from index.query import Query, TierCoverage
from index.work import ALL_TIME, Fate, SearchContext, Work
from tiering.erasing.tombstones import Erasures
from tiering.errors import CorruptionError, StoreError, UnavailableError
from tiering.format.record import SysFlag
from tiering.hot.shown_queue import ShownQueue
from tiering.hot.snapshot import HotSnapshot
from tiering.hot.store import HotStore
from tiering.message import StoredMessage
from tiering.types import Order, Tier, TimeAxis, TimeRange

_STEP = 256
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_BORN_MS_AT = 40
"""Where a record says its born time (``tiering.format.record``)."""


class HotSearch:
    """Work on the hot tier of one store for one query."""

    def __init__(
        self,
        store_id: str,
        hot: HotStore,
        index: LocalIndex,
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

    def plan(self, query: Query, within: TimeRange) -> Iterator[Work]:
        """Work that finds every hot message of the query inside ``within``, or fails to if some are not dispatched."""
        if self._snapshot.undispatched:
            yield self._work(ALL_TIME, "hot", self._undispatched)
        if query.key is not None:
            if self._missing:
                yield self._work(ALL_TIME, "index", self._not_indexed, counter="index_unreachable")
            run = partial(self._by_key, query, within)
            yield self._work(ALL_TIME, "index", run, counter="index_unreachable")
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

    def _undispatched(self, context: SearchContext) -> Iterator[Work]:
        self._snapshot.require_dispatched()
        yield from ()

    def _not_indexed(self, context: SearchContext) -> Iterator[Work]:
        stretches = ", ".join(f"{first} to {end}" for first, end in self._missing)
        raise UnavailableError(f"the key index is being derived again from {stretches}")

    # by key

    def _by_key(self, query: Query, within: TimeRange, context: SearchContext) -> Iterator[Work]:
        assert query.key is not None
        damaged: dict[int, CorruptIndexError] = {}
        hits = self._files.candidates(query.topic, query.key, within, query.axis, damaged)
        for entry in self._files.select(within, query.axis):
            if entry.begin_ms not in damaged:
                context.index_file((f"{self._store_id}/hot", 0), entry.name, Fate.SEARCHED)
        for begin_ms, error in damaged.items():
            self._index.note_damage(error)
            yield self._work(ALL_TIME, f"index/{begin_ms}", partial(_fail, error), counter="index_unreachable")
        offsets = hits["physical_offset"]
        hits = hits[(offsets >= self._snapshot.border) & (offsets < self._snapshot.end)]
        for bounds, group in in_groups(query.axis, hits["second_ms"], hits["seconds"], hits["physical_offset"]):
            run = partial(self._messages, group, query)
            yield self._work(bounds, "commitlog", run)

    # by time

    def _by_time(self, query: Query, within: TimeRange) -> Iterator[Work]:
        topic = self._hot.topics.get(query.topic)
        for queue in self._hot.shown_queues(self._snapshot, topic).values():
            try:
                yield from self._of_queue(queue, query, within)
            except CorruptionError as error:
                yield self._work(ALL_TIME, "commitlog", partial(_fail, error))

    def _of_queue(self, queue: ShownQueue, query: Query, within: TimeRange) -> Iterator[Work]:
        first, last = queue.first, queue.next
        if self._rises_on(query.axis):
            first = self._by_store_time(queue, first, last, within.from_ms)
            last = self._by_store_time(queue, first, last, within.to_ms)
        if first >= last:
            return
        if query.axis is TimeAxis.BORN:
            run = partial(self._by_born_time, queue, first, last, query, within)
            yield self._work(ALL_TIME, "commitlog", run)
        else:
            yield self._stretch(queue, first, last, min(_STEP, query.limit + 1), query)

    def _stretch(self, queue: ShownQueue, first: int, last: int, step: int, query: Query) -> Work:
        """The messages ``[first, last)`` of a queue: it yields those next in the order, the rest as another stretch."""
        bounds = ALL_TIME  # where times may step back, or an end cannot be read, all have to be read anyway
        if self._rises_on(query.axis):
            with contextlib.suppress(CorruptionError):
                bounds = self._store_ms(queue, first), self._store_ms(queue, last - 1)

        def run(context: SearchContext) -> Iterator[StoredMessage | Work]:
            if query.order is Order.NEWEST:
                cut = max(first, last - step)
                rest, chunk = (first, cut), (cut, last)
            else:
                cut = min(last, first + step)
                chunk, rest = (first, cut), (cut, last)
            if rest[0] < rest[1]:  # first of all, so that one bad record does not hide it
                yield self._stretch(queue, *rest, min(_STEP, 2 * step), query)
            units, failures = queue.checked(*chunk)
            places = units["physical_offset"].tolist()
            good = [place for offset, place in enumerate(places, chunk[0]) if offset not in failures]
            yield from self._messages(good, query, context)
            yield from _fail_if_any(failures)

        return self._work(bounds, "commitlog", run)

    def _by_born_time(
        self, queue: ShownQueue, first: int, last: int, query: Query, within: TimeRange, context: SearchContext
    ) -> Iterator[Work]:
        """Messages in groups by born time, which is read off each record without decoding it."""
        units, failures = queue.checked(first, last, with_sums=True)
        places = units["physical_offset"].astype(np.int64)
        if failures:
            places = np.delete(places, [offset - first for offset in failures])
            yield self._work(ALL_TIME, "commitlog", partial(_fail, failures[min(failures)]))
        born_ms = self._born_ms(places)
        wanted = (born_ms >= within.from_ms) & (born_ms < within.to_ms)
        born_ms, places = born_ms[wanted], places[wanted]
        order = np.lexsort((places, born_ms))
        step = min(_STEP, query.limit + 1)
        for chosen in np.split(order, range(step, len(order), step)):
            if len(chosen):
                bounds = int(born_ms[chosen[0]]), int(born_ms[chosen[-1]])
                yield self._work(bounds, "commitlog", partial(self._messages, places[chosen].tolist(), query))

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

    def _by_store_time(self, queue: ShownQueue, first: int, last: int, time_ms: int) -> int:
        """The first queue offset in ``[first, last)`` of a message stored at or after a time."""
        while first < last:
            middle = (first + last) // 2
            if self._store_ms(queue, middle) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first

    def _store_ms(self, queue: ShownQueue, offset: int) -> int:
        """A message's store time without decoding the rest of it."""
        units, failures = queue.checked(offset, offset + 1, with_sums=True)
        if failures:
            raise failures[offset]
        physical_offset = int(units["physical_offset"][0])
        segment = self._snapshot.segments[physical_offset - physical_offset % self._snapshot.segment_bytes]
        head = bytes(segment.data[physical_offset - segment.base_offset :][:76])
        wide = _I32.unpack_from(head, 36)[0] & SysFlag.BORN_HOST_V6
        return int(_I64.unpack_from(head, 68 if wide else 56)[0])

    # both

    def _work(
        self,
        bounds: tuple[int, int],
        name: str,
        run: Callable[[SearchContext], Iterable[StoredMessage | Work]],
        *,
        counter: str = "segments_unreachable",
    ) -> Work:
        return Work(bounds, f"{self._store_id}/{name}", counter, self._claim, run, is_local=True)

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


def _fail(error: Exception, context: SearchContext) -> Iterator[Work]:
    """A piece of which nothing can be read."""
    raise error
    yield  # an iterator, as every piece is


def _fail_if_any(failures: dict[int, StoreError]) -> Iterator[StoredMessage]:
    if failures:
        raise failures[min(failures)]
    yield from ()
