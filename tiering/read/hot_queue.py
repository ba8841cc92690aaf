"""The hot messages of one queue, as one snapshot shows them: in order, by time, and one by where its record begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tierlog.tiering.base.errors import BadMagicError, CorruptionError, StoreError, TopicNotFoundError, TornRecordError
from tierlog.tiering.base.fs import is_in_memory, will_need
from tierlog.tiering.base.types import Boundary, Tier
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.format.queue_unit import GAP_BYTES, UNIT_DTYPE, is_gap
from tierlog.tiering.format.record import FIXED_BYTES_V1, Record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue, offset_by_time, shown_queue
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.stored_message import Messages, StoredMessage
from tierlog.tiering.message.tags import TagFilter

_STEP = 256
_FEWEST_AHEAD = 4
_THIN_BYTES = 16 << 10
"""Queues whose records lie further from each other are thin: what the kernel reads ahead of itself is others'."""
_MOST_AHEAD_BYTES = 1 << 20
"""Of one record."""
_MOST_AHEAD_IN_ALL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class HotQueue:
    """The hot part of a queue: messages in ``[first, end)``; none below ``begin`` is left in either tier."""

    name: str
    """Of the topic's entry."""
    topic_id: int
    queue_id: int
    snapshot: HotSnapshot
    shown: SnapshotQueue | None
    first: int
    end: int
    begin: int

    @property
    def topic(self) -> str:
        """The topic that its records have."""
        return record_topic(self.name)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, hot: HotStore, topic: str, queue_id: int) -> Iterator[HotQueue]:
        """The queue in a snapshot of its own; :class:`TopicNotFoundError`."""
        found = hot.topics.get(topic)
        if not 0 <= queue_id < found.queues:
            raise TopicNotFoundError(f"topic {topic!r} has no queue {queue_id}")
        floor = found.floor(queue_id)  # read first: it then counts no message that the snapshot lacks
        with hot.snapshot() as snapshot:
            yield cls.seen(found, queue_id, snapshot, shown_queue(hot, snapshot, found, queue_id), floor)

    @classmethod
    def seen(
        cls, topic: Topic, queue_id: int, snapshot: HotSnapshot, shown: SnapshotQueue | None, floor: int
    ) -> HotQueue:  # fmt: skip
        """Returns the queue as a snapshot shows it; ``floor`` is the queue's from before the snapshot."""
        begin = topic.begin(queue_id)
        if shown is None:
            first = end = max(floor, begin)
        else:
            first = max(shown.first, begin)
            # a floor may count units above what is shown: a reader sent there would skip them
            end = max(shown.next if shown.ends_early else max(shown.next, floor), begin)
        return cls(
            name=topic.name,
            topic_id=topic.topic_id,
            queue_id=queue_id,
            snapshot=snapshot,
            shown=shown,
            first=first,
            end=end,
            begin=begin,
        )

    def messages(
        self, offset: int, limit: int, wanted: TagFilter | None, erased: Erasures, store_id: str
    ) -> Messages:  # fmt: skip
        """Offsets from ``offset`` on with the message there; None where it is erased or its tag is ruled out.

        Units are taken in stretches of ``limit``; with a filter, of more, as what it rules out is compared as well.
        """
        shown = self.shown
        tags = shown.tags_in_units(wanted) if shown is not None else None
        step = _STEP if tags is not None else max(1, min(_STEP, limit))
        while shown is not None and offset < shown.next:
            units, failures = self._stretch(shown, offset, offset + step, tags)
            for unit, may_pass in zip(units.tolist(), _may_pass(units, tags), strict=True):
                if offset in failures:
                    raise failures[offset]
                record = shown.record_of(offset, *unit) if may_pass else None
                yield (
                    offset,
                    None if record is None or erased.hides(record) else StoredMessage(record, store_id, Tier.HOT),
                )
                offset += 1

    def messages_below(
        self, below: int, limit: int, wanted: TagFilter | None, erased: Erasures, store_id: str
    ) -> Messages:  # fmt: skip
        """What :meth:`messages` gives of the offsets below ``below``, the last first; gaps are stepped over."""
        shown = self.shown
        tags = shown.tags_in_units(wanted) if shown is not None else None
        step = _STEP if tags is not None else max(1, min(_STEP, limit))
        has_gaps = shown is not None and shown.has_gaps
        while shown is not None and (end := shown.before_gap(min(below, shown.next))) > self.first:
            begin = max(self.first, end - step)
            units, failures = self._stretch(shown, begin, end, tags)
            found = zip(range(begin, end), units.tolist(), _may_pass(units, tags), strict=True)
            for offset, unit, may_pass in reversed(list(found)):
                if offset in failures:
                    raise failures[offset]
                if has_gaps and unit[1] == GAP_BYTES:
                    continue
                record = shown.record_of(offset, *unit) if may_pass else None
                yield (
                    offset,
                    None if record is None or erased.hides(record) else StoredMessage(record, store_id, Tier.HOT),
                )
            below = begin

    def _stretch(
        self, shown: SnapshotQueue, begin: int, end: int, tags: TagFilter | None
    ) -> tuple[UnitArray, dict[int, StoreError]]:
        """Returns units whose records are on their way, checked if they are to rule some out, and what failed."""
        units, failures = (shown.raw_units(begin, end), {}) if tags is None else shown.checked(begin, end)
        self.read_ahead(units)
        return units, failures

    def behind_gap(self, offset: int) -> int:
        """Returns the first offset from ``offset`` on that no gap among the hot messages has."""
        return offset if self.shown is None else self.shown.behind_gap(offset)

    def until_gap(self, offset: int, most: int) -> HotQueue:
        """Returns the queue with the messages before the next gap, if one is within so many offsets."""
        return self if self.shown is None else replace(self, shown=self.shown.until_gap(offset, most))

    def raw_units(self, start: int, end: int) -> UnitArray:
        """Units of the offsets ``[start, end)``, as far as there are any; the caller compares them."""
        return self.shown.raw_units(start, end) if self.shown is not None else np.empty(0, UNIT_DTYPE)

    def units(self, start: int, end: int) -> UnitArray:
        """Returns the units of :meth:`raw_units`, each compared; raises as :meth:`record` does."""
        return self.shown.units(start, end) if self.shown is not None else np.empty(0, UNIT_DTYPE)

    def read_ahead(self, units: UnitArray) -> None:
        """Has the records of units brought at once if they left memory and lie far from each other.

        Read one by one, each record of such a queue waits for the disk in turn (docs/decisions/0062). Whether they left
        is told by the first and the last. What is wrong with a unit is left to whoever reads its record.
        """
        if not len(units) or _lie_together(units[0], units[-1], len(units)):  # what is usual, found in no time
            return
        units = units[~is_gap(units)]
        units = units[units["size"].astype(np.int64).cumsum() <= _MOST_AHEAD_IN_ALL_BYTES]
        if len(units) < _FEWEST_AHEAD:
            return
        ends = [int(units["physical_offset"][at]) for at in (0, -1)]
        if _lie_together(units[0], units[-1], len(units)) or all(self._is_in_memory(at) for at in ends):
            return
        starts, length = units["physical_offset"].astype(np.int64), self.snapshot.segment_bytes
        for base in np.unique(starts - starts % length).tolist():
            segment = self.snapshot.segments.get(base)
            if segment is not None:
                inside = units[(starts >= base) & (starts < base + length)]
                firsts = inside["physical_offset"].astype(np.int64) - base
                stops = firsts + np.minimum(inside["size"].astype(np.int64), _MOST_AHEAD_BYTES)
                will_need(segment.data, zip(firsts.tolist(), stops.tolist(), strict=True))

    def _is_in_memory(self, physical_offset: int) -> bool:
        position = physical_offset % self.snapshot.segment_bytes
        segment = self.snapshot.segments.get(physical_offset - position)
        return segment is None or is_in_memory(segment.data, position)

    def offset_in_log(self, offset: int) -> int:
        """The queue offset that the record at an offset has; -1 if its own may be another, as in a broker's log."""
        return offset if self.shown is not None and self.shown.offsets_are_compared else -1

    def record(self, offset: int) -> Record:
        """Returns the record of an offset that there is a unit of."""
        assert self.shown is not None
        return self.shown.record(offset)

    def decided_by_time(self, time_ms: int, boundary: Boundary) -> int | None:
        """Returns the answer, if the hot messages decide it: a message below them might be nearer otherwise."""
        if self.shown is None or self.first >= self.shown.next:
            return None
        if not self.snapshot.times_rise:
            if boundary is Boundary.LOWER:
                return None
            found = self.by_time(time_ms, boundary)
            return found if found >= self.first else None
        first_ms = self.shown.record(self.first).store_ms
        if first_ms > time_ms or (first_ms == time_ms and boundary is Boundary.LOWER):
            return None
        return self.by_time(time_ms, boundary)

    def by_time(self, time_ms: int, boundary: Boundary) -> int:
        """Returns the offset that belongs to a store time, of the hot messages alone."""
        if self.shown is None:
            return self.first if boundary is Boundary.LOWER else 0
        return offset_by_time(self.shown, time_ms, boundary)


def _lie_together(first: np.void, last: np.void, count: int) -> bool:
    """Whether so many records, told by two units that are of messages, fill enough of the log to be read in a row."""
    span = int(last["physical_offset"]) - int(first["physical_offset"])
    return not is_gap(first) and not is_gap(last) and span < count * _THIN_BYTES


def _may_pass(units: UnitArray, tags: TagFilter | None) -> list[bool]:
    return [True] * len(units) if tags is None else tags.may_pass(units).tolist()


def hot_record(hot: HotStore, snapshot: HotSnapshot, offset: int) -> Record | None:
    """Returns the record that begins at a physical offset, if a queue leads to it: a body may hold what looks like one.

    So too one of a broker's log whose queue offset came before, to which no queue leads, if records lead to it. Raises
    :class:`CorruptionError` for a damaged one that a queue leads to.
    """
    try:
        record = snapshot.guessed_record(offset)
    except CorruptionError as error:
        if _is_in_a_queue(hot, offset):
            snapshot.suspect(offset)
        elif isinstance(error, BadMagicError | TornRecordError):
            return None
        raise
    topic = hot.topics.entry_at(record.topic, offset)
    queue = topic and shown_queue(hot, snapshot, topic, record.queue_id)
    if not queue:
        return None
    at = record.queue_offset
    if queue.first <= at < queue.next and queue.units(at, at + 1)["physical_offset"][0] == offset:
        return record
    return record if offset < hot.queues.followed_below and _is_led_to(hot, snapshot, offset) else None


def _is_led_to(hot: HotStore, snapshot: HotSnapshot, offset: int) -> bool:
    """Whether a record begins at a physical offset, as those before it tell, from the last one that is in a queue."""
    segment = snapshot.segments[offset - offset % snapshot.segment_bytes]
    at = segment.base_offset
    for topic in hot.topics.all():
        for view in hot.queue_views(topic).values():
            end = view.first_at_or_above(offset)
            units = view.units(end - 1, end) if end > view.first else view.units(end, end)
            units = units[~is_gap(units)]
            at = max([at, *(units["physical_offset"] + units["size"]).tolist()])
    while segment.base_offset <= at < offset:
        size = int.from_bytes(bytes(segment.data[at - segment.base_offset :][:4]), "big")
        if size < FIXED_BYTES_V1:
            return False
        at += size
    return at == offset


def _is_in_a_queue(hot: HotStore, offset: int) -> bool:
    """Whether a unit of any queue says that its record begins at a physical offset."""
    for topic in hot.topics.listed():
        for view in hot.queue_views(topic).values():
            at = view.first_at_or_above(offset)
            if (view.units(at, at + 1)["physical_offset"] == offset).any():
                return True
    return False
