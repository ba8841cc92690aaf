"""One queue as a snapshot shows it: every unit that leaves here was compared with the record that it leads to.

Units have no checksum, and a damaged one may lead to a message of another topic. So topic, queue, queue offset, size
and tag of the record are compared. A unit that is not its record's is damage, as every unit here was durable or
written by this process: it is derived again from the part of the log between its nearest good neighbours. What the
log does not tell either is an error that names queue and offset.

A unit of a record below the border cannot be compared, as its segment is gone. It only says that it is not hot, and
is believed where its neighbours agree (docs/decisions/0030).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.format.queue_unit import GAP_BYTES, UNIT_DTYPE, is_gap, is_prefill
from tierlog.tiering.format.record import Record
from tierlog.tiering.hot.consume_queue import QueueView, units_of
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.queue_places import UnitArray, have_places, with_gaps
from tierlog.tiering.kernels.queue_units import UnitComparison
from tierlog.tiering.kernels.scan import in_queues
from tierlog.tiering.message.tags import TagFilter
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC

_STEP = 256


class SnapshotQueue:
    """The units ``[first, next)`` of a queue, those of records at or above the border and below the visible end."""

    def __init__(self, hot: HotStore, snapshot: HotSnapshot, topic: Topic, queue_id: int, view: QueueView) -> None:
        """``view`` was taken inside the snapshot."""
        self._hot, self._snapshot, self._topic, self._queue_id, self._view = hot, snapshot, topic, queue_id, view
        #: Whether records have the queue offsets of their units: not in a broker's log, whose units lie in memory here.
        self.offsets_are_compared = not hot.queues.is_foreign
        self._may_have_gaps = hot.queues.followed_below > 0
        self._units_have_tags = topic.record_topic != SCHEDULE_TOPIC
        self.first, self.next = view.first, view.next
        self.first = self._known_first() if self.offsets_are_compared else view.first_at_or_above(snapshot.border)
        self.next = max(self.first, self._last_shown())

    def tags_in_units(self, wanted: TagFilter | None) -> TagFilter | None:
        """Returns a filter if what it rules out by the hash in a unit is known to be without the tag."""
        return wanted if self._units_have_tags else None

    @cached_property
    def _comparison(self) -> UnitComparison:
        return UnitComparison.of_queue(
            self._topic.record_topic,
            self._queue_id,
            with_offsets=self.offsets_are_compared,
            with_tags=self._units_have_tags,
        )

    @property
    def times_rise(self) -> bool:
        """Whether store times never step back."""
        return self._snapshot.times_rise

    @property
    def ends_early(self) -> bool:
        """Whether the queue has units that the snapshot does not show."""
        return self.next < self._view.next

    # gaps

    @property
    def has_gaps(self) -> bool:
        """Whether not every offset between the first and the last one has a message."""
        return self._may_have_gaps and bool(self._hot.queues.gaps(self._topic, self._queue_id))

    def behind_gap(self, offset: int) -> int:
        """Returns the first offset shown from ``offset`` on that no gap has, the end if there is none."""
        return min(self._view.behind_gap(offset), max(self.next, offset)) if self._may_have_gaps else offset

    def before_gap(self, end: int) -> int:
        """Returns where the gap begins that lies right below an offset, or holds it; the offset if there is none."""
        if not self._may_have_gaps:
            return end
        gaps = self._hot.queues.gaps(self._topic, self._queue_id)
        return next((first for first, behind in gaps if first < end <= behind), end)

    def until_gap(self, offset: int, most: int) -> SnapshotQueue:
        """Returns the queue as it is up to the first gap within so many offsets from ``offset`` on."""
        gaps = is_gap(self.raw_units(offset, offset + most)) if self._may_have_gaps else np.empty(0, np.bool_)
        if not gaps.any():
            return self
        shorter = copy(self)
        shorter.next = offset + int(np.flatnonzero(gaps)[0])
        return shorter

    def between(self, begin: int, end: int) -> SnapshotQueue:
        """Returns the queue with the messages of a physical range alone."""
        shorter = copy(self)
        shorter.first = max(self.first, min(self.next, self._view.first_at_or_above(begin)))
        shorter.next = max(shorter.first, min(self.next, self._view.first_at_or_above(end)))
        return shorter

    # reading

    def raw_units(self, start: int, end: int) -> UnitArray:
        """Units of ``[start, end)`` as the file has them, for callers who compare them with their records."""
        return self._view.units(max(start, self.first), min(end, self.next))

    def units(self, start: int, end: int) -> UnitArray:
        """Units of the offsets ``[start, end)``, cut to what is shown; raises as :meth:`record` does."""
        units, failures = self.checked(start, end)
        if failures:
            raise failures[min(failures)]
        return units

    def record(self, offset: int) -> Record:
        """Returns the record of a queue offset, decoded and checked.

        Raises :class:`CorruptionError` with queue and offset if neither the unit nor the log leads to it.
        """
        (unit,) = self.raw_units(offset, offset + 1).tolist()
        return self.record_of(offset, *unit)

    def record_of(self, offset: int, physical_offset: int, size: int, _tag_hash: int) -> Record:
        """Returns the record of a queue offset, given the unit as the file has it; in a gap, that of the next one."""
        if size == GAP_BYTES and self._may_have_gaps and (behind := self.behind_gap(offset)) < self.next:
            return self.record(behind)
        try:
            record = self._snapshot.record(physical_offset)
        except CorruptionError:
            record = None
        if record is None or not self._is_at(record, offset, size):
            (unit,) = self.units(offset, offset + 1)
            record = self._snapshot.record(int(unit["physical_offset"]))
        return record

    def _is_at(self, record: Record, offset: int, size: int) -> bool:
        """Whether a decoded record is what a unit of this size must lead to, apart from its tag."""
        return (
            record.topic == self._topic.record_topic
            and record.queue_id == self._queue_id
            and record.size == size
            and (record.queue_offset == offset or not self.offsets_are_compared)
            and record.has_queue_unit
        )

    def checked(
        self, start: int, end: int, *, with_sums: bool = False
    ) -> tuple[UnitArray, dict[int, StoreError]]:  # fmt: skip
        """Units of ``[start, end)``, cut to what is shown, and by offset why one of them leads to no record.

        ``with_sums`` compares records with their own checksums: for callers who use their fields without decoding.
        """
        start, end = max(start, self.first), min(end, self.next)
        units = self._view.units(start, end)
        good = self._compare(units, start, with_sums=with_sums)
        if self._may_have_gaps:
            good |= is_gap(units)
        failures: dict[int, StoreError] = {}
        if not good.all():
            for low, high in _runs(~good):
                self._mend(units, start, start + low, start + high, failures)
        return units, failures

    def _compare(self, units: UnitArray, first: int, *, with_sums: bool = False) -> NDArray[np.bool_]:
        """Returns which units lead to their record, in a segment that the snapshot shows."""
        segment_bytes, segments = self._snapshot.segment_bytes, self._snapshot.segments
        bases = units["physical_offset"].astype(np.int64) // segment_bytes * segment_bytes
        good = np.zeros(len(units), np.bool_)
        for low, high in _runs_of_equal(bases):
            segment = segments.get(int(bases[low]))
            if segment is not None and segment.base_offset >= self._snapshot.border:
                good[low:high] = self._comparison.of(
                    units[low:high], first + low, segment.data, segment.base_offset, with_sums=with_sums
                )
        return good

    # where it begins and ends

    def _known_first(self) -> int:
        """Returns the first unit of a record at or above the border; found once for each border."""
        known, border = self._view.firsts, self._snapshot.border
        first = known.get(border)
        if first is None:
            begin = self._view.first_at_or_above(border)
            first = self._view.behind_gap(begin) if self._may_have_gaps else begin
            if not self._agree_at(first, begin):
                first = self._first_by_all()
            known.clear()
            known[border] = first
        return first

    def _agree_at(self, first: int, end: int) -> bool:
        """Whether the unit ``first`` is good, if there is one, and those below ``end`` speak of what is gone, in order.

        Between the two lies a gap, if there is one.
        """
        view, border = self._view, self._snapshot.border
        if first < view.next and not self._compare(view.units(first, first + 1), first).all():
            return False
        if end == view.first:
            return True
        last = view.units(max(view.first, end - 2), end)
        if is_prefill(last[-1]):
            return bool(is_prefill(view.units(view.first, end)).all())
        begins = last["physical_offset"].astype(np.int64)
        ends = np.where(is_gap(last), begins, begins + last["size"])
        return bool((begins >= 0).all() and (last["size"] > 0).all() and ends[-1] <= border and ends[0] <= begins[-1])

    def _first_by_all(self) -> int:
        """Finds the first unit at or above the border where one that would tell is damaged.

        By all units, and by the log.
        """
        view, border = self._view, self._snapshot.border
        high, begin = self._good_behind(view.first)
        found = _UnitsOfQueue(self._topic, self._queue_id, border)
        try:
            self._hot.derive(found, border, begin)
        except CorruptionError:  # unknown: a unit that does not lead below the border is read, and fails
            units = view.units(view.first, high)
            gone = is_prefill(units) | ((units["size"] > 0) & (units["physical_offset"] < border))
            gone &= units["physical_offset"] >= 0
            return view.first + (int(np.flatnonzero(gone)[-1]) + 1 if gone.any() else 0)
        offsets = found.result()[0]
        return max(view.first, int(offsets[0]) if len(offsets) else high)

    def _last_shown(self) -> int:
        """Behind the last unit of a record below the snapshot's end; more are there only just after a dispatch."""
        view, end = self._view, self._snapshot.end
        if view.next == self.first or view.is_below(view.next - 1, end):
            return view.next
        shown = view.until(end).next
        following = view.behind_gap(shown) if self._may_have_gaps else shown
        unit = view.units(following, following + 1)
        segment = self._hot.log.segment_at(int(unit["physical_offset"][0]))
        is_good = segment is not None and self._comparison.of(unit, following, segment.data, segment.base_offset).all()
        return shown if is_good else view.next  # a damaged unit hides nothing

    # deriving again

    def _mend(
        self, units: UnitArray, start: int, low: int, high: int, failures: dict[int, StoreError]
    ) -> None:  # fmt: skip
        """Replaces the units of ``[low, high)``, none of which is good, by those that the log implies."""
        try:
            if not self.offsets_are_compared:
                raise self._no_record(low)
            after, before = self._good_before(low), self._good_behind(high)
            at, derived = self._derived(after, before)
            self._hot.put_units_again(self._topic, self._queue_id, at, derived)
        except StoreError as error:
            failures.update(dict.fromkeys(range(low, high), error))
            return
        good = self._compare(derived, at, with_sums=True)
        for offset in range(low, high):
            if offset < at or not good[offset - at]:
                failures[offset] = self._no_record(offset)
            else:
                units[offset - start] = derived[offset - at]

    def _good_before(self, offset: int) -> tuple[int, int]:
        """Behind the nearest good unit below ``offset``: its queue offset and where its record ends."""
        while offset > self.first:
            start = max(self.first, offset - _STEP)
            units = self._view.units(start, offset)
            found = np.flatnonzero(self._compare(units, start))
            if len(found):
                unit = units[found[-1]]
                return start + int(found[-1]) + 1, int(unit["physical_offset"]) + int(unit["size"])
            offset = start
        return self.first, self._snapshot.border

    def _good_behind(self, offset: int) -> tuple[int, int]:
        """Returns the nearest good unit from ``offset`` on and where its record begins."""
        for start in range(offset, self.next, _STEP):
            units = self._view.units(start, min(start + _STEP, self.next))
            found = np.flatnonzero(self._compare(units, start))
            if len(found):
                return start + int(found[0]), int(units[found[0]]["physical_offset"])
        return self.next, self._snapshot.end

    def _derived(self, after: tuple[int, int], before: tuple[int, int]) -> tuple[int, UnitArray]:
        """Returns the units between two neighbours as the log implies them, and the first one's queue offset.

        Below the first unit shown there may be fewer than places for them.
        """
        (low, begin), (high, end) = after, before
        found = _UnitsOfQueue(self._topic, self._queue_id, begin, low)
        try:
            self._hot.derive(found, begin, end)
        except CorruptionError as error:
            raise CorruptionError(
                f"the log does not tell where message {low} of queue {self._name} is: {error.message}",
                path=error.path, position=error.position,
            ) from error  # fmt: skip
        offsets, units = found.result()
        has_gap = self._may_have_gaps and low <= high and len(offsets) and not (np.diff(offsets) == 1).all()
        if has_gap:
            units, offsets = with_gaps(units, offsets, int(offsets[0])), np.arange(offsets[0], offsets[-1] + 1)
        at = high - len(offsets)
        is_whole = at == low or (at > low == self.first)
        if not is_whole or not np.array_equal(offsets, np.arange(at, high)):
            raise self._no_record(low)
        return at, units

    @property
    def _name(self) -> str:
        return f"{self._topic.name}/{self._queue_id}"

    def _no_record(self, offset: int) -> CorruptionError:
        path, position = self._hot.queues.place_of(self._topic, self._queue_id, offset)
        return CorruptionError(
            f"unit {offset} of queue {self._name} does not lead to its record, and the log does not tell where that is",
            path=str(path), position=position,
        )  # fmt: skip


def shown_queue(hot: HotStore, snapshot: HotSnapshot, topic: Topic, queue_id: int) -> SnapshotQueue | None:
    """A queue as the snapshot shows it, or None if nothing was ever put in it; asked for inside the snapshot."""
    view = hot.queues.view(topic.topic_id, queue_id)
    return None if view is None else SnapshotQueue(hot, snapshot, topic, queue_id, view)


def shown_queues(hot: HotStore, snapshot: HotSnapshot, topic: Topic) -> dict[int, SnapshotQueue]:
    """Returns the topic's queues that have units."""
    views = hot.queues.views(topic)
    return {queue_id: SnapshotQueue(hot, snapshot, topic, queue_id, view) for queue_id, view in views.items()}


class _UnitsOfQueue:
    """Collects the units of one queue from a part of the log; a subscriber of the dispatcher."""

    def __init__(self, topic: Topic, queue_id: int, begin: int, expected: int = 0) -> None:
        """``expected``: behind the last offset that has a unit below ``begin``."""
        self._topic, self._queue_id, self._position = topic, queue_id, begin
        self._expected = expected
        self._offsets: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        self._units: list[UnitArray] = [np.empty(0, UNIT_DTYPE)]

    def next_offset(self) -> int:
        return self._position

    def on_records(self, records: LogRange) -> None:
        rows = records.rows[in_queues(records.rows)]
        if len(rows):
            is_mine = records.topic_ids[rows["topic_number"]] == self._topic.topic_id
            rows = rows[is_mine & (rows["queue_id"] == self._queue_id)]
            rows = rows[have_places(rows["queue_offset"], self._expected)]
            self._expected = int(rows["queue_offset"][-1]) + 1 if len(rows) else self._expected
            self._offsets.append(rows["queue_offset"])
            self._units.append(units_of(self._topic.record_topic, records.data, rows))
        self._position = records.end

    def result(self) -> tuple[NDArray[np.int64], UnitArray]:
        """Queue offsets and units, in the order of the log."""
        return np.concatenate(self._offsets), np.concatenate(self._units, dtype=UNIT_DTYPE)


def _runs_of_equal(values: NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    if not len(values):
        return iter(())
    if values[0] == values[-1] and (values == values[0]).all():  # what is usual
        return iter(((0, len(values)),))
    return pairwise([0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)])


def _runs(chosen: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yields where runs of chosen places begin and end."""
    edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def offset_by_time(queue: SnapshotQueue, time_ms: int, boundary: Boundary) -> int:
    """Returns the queue offset that belongs to a store time, of the messages that the snapshot shows.

    The units of a queue are in the order of the log and our store times never step back, so a binary search over the
    whole queue answers, whatever files its units lie in. RocketMQ picks one file first and follows a run of equal times
    only inside it; a run that crosses a file's border is followed to its end here.

    ``LOWER``: the first message stored at or after the time; the queue's end if there is none. ``UPPER``: the last
    message stored at or before it; 0 if there is none, as RocketMQ answers, even where the queue begins later.
    Reads one record a step of the search, or all of them in the log of a broker whose clock stepped back. Raises
    :class:`CorruptionError` where one of them cannot be read.
    """
    if not queue.times_rise:
        return _search_all(queue, time_ms, boundary)
    low, high = queue.first, queue.next
    while low < high:
        middle = (low + high) // 2
        stored_ms = queue.record(middle).store_ms
        if stored_ms < time_ms or (stored_ms == time_ms and boundary is Boundary.UPPER):
            low = middle + 1
        else:
            high = middle
    if boundary is Boundary.LOWER:
        return queue.behind_gap(low)
    return low - 1 if low > queue.first else 0


def _search_all(queue: SnapshotQueue, time_ms: int, boundary: Boundary) -> int:
    offsets = range(queue.first, queue.next)
    if boundary is Boundary.LOWER:
        found = next((offset for offset in offsets if queue.record(offset).store_ms >= time_ms), offsets.stop)
        return queue.behind_gap(found)
    at_or_before = (offset for offset in reversed(offsets) if queue.behind_gap(offset) == offset)
    return next((offset for offset in at_or_before if queue.record(offset).store_ms <= time_ms), 0)
