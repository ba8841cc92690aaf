"""The hot messages of one queue, as one snapshot shows them: in order, by time, and one by where its record begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiering.erasing.tombstones import Erasures
from tiering.errors import BadMagicError, TopicNotFoundError, TornRecordError
from tiering.format.queue_unit import UNIT_DTYPE
from tiering.format.record import Record
from tiering.hot.consume_queue import QueueView, UnitArray
from tiering.hot.snapshot import HotSnapshot
from tiering.hot.store import HotStore
from tiering.hot.time_search import offset_by_time
from tiering.message import StoredMessage
from tiering.pull_result import Messages
from tiering.tag_filter import TagFilter
from tiering.types import Boundary, Tier

_STEP = 256


@dataclass(frozen=True, slots=True)
class HotQueue:
    """The hot part of a queue: messages in ``[first, end)``; none below ``begin`` is left in either tier."""

    topic: str
    topic_id: int
    queue_id: int
    snapshot: HotSnapshot
    view: QueueView | None
    first: int
    end: int
    begin: int

    @classmethod
    @contextlib.contextmanager
    def opened(cls, hot: HotStore, topic: str, queue_id: int) -> Iterator[HotQueue]:
        """The queue in a snapshot of its own; :class:`TopicNotFoundError`."""
        found = hot.topics.get(topic)
        if not 0 <= queue_id < found.queues:
            raise TopicNotFoundError(f"topic {topic!r} has no queue {queue_id}")
        begin = found.begin(queue_id)
        floor = found.floor(queue_id)  # read first: it then counts no message that the snapshot lacks
        with hot.snapshot() as snapshot:
            view = hot.queues.view(found.topic_id, queue_id)
            if view is None:
                first = end = max(floor, begin)
                yield cls(topic, found.topic_id, queue_id, snapshot, None, first, end, begin)
            else:
                shown = view.until(snapshot.end)
                first = max(shown.first_at_or_above(snapshot.border), begin)
                # a floor may count units above what is shown: who is sent there has skipped them
                end = max(shown.next, floor) if shown.next == view.next else shown.next
                yield cls(topic, found.topic_id, queue_id, snapshot, shown, first, max(end, begin), begin)

    def messages(self, offset: int, wanted: TagFilter | None, erased: Erasures, store_id: str) -> Messages:
        """Offsets from ``offset`` on with the message there; None where it is erased or its tag is ruled out."""
        while self.view is not None and offset < self.view.next:
            for unit in self.view.units(offset, offset + _STEP):
                if wanted is not None and int(unit["tag_hash"]) not in wanted.hashes:
                    yield offset, None
                else:
                    record = self.snapshot.record(int(unit["physical_offset"]))
                    yield offset, None if erased.hides(record) else StoredMessage(record, store_id, Tier.HOT)
                offset += 1

    def units(self, start: int, end: int) -> UnitArray:
        """Units of the offsets ``[start, end)``, as far as there are any."""
        return self.view.units(start, end) if self.view is not None else np.empty(0, UNIT_DTYPE)

    def decided_by_time(self, time_ms: int, boundary: Boundary) -> int | None:
        """The answer, if the hot messages decide it: a message below them might be nearer otherwise."""
        if self.view is None or self.first >= self.view.next:
            return None
        if not self.snapshot.times_rise:
            if boundary is Boundary.LOWER:
                return None
            found = self.by_time(time_ms, boundary)
            return found if found >= self.first else None
        (unit,) = self.view.units(self.first, self.first + 1)
        first_ms = self.snapshot.record(int(unit["physical_offset"])).store_ms
        if first_ms > time_ms or (first_ms == time_ms and boundary is Boundary.LOWER):
            return None
        return self.by_time(time_ms, boundary)

    def by_time(self, time_ms: int, boundary: Boundary) -> int:
        """The offset that belongs to a store time, of the hot messages alone."""
        if self.view is None:
            return self.first if boundary is Boundary.LOWER else 0
        return offset_by_time(self.view, self.snapshot, time_ms, boundary)


def hot_record(hot: HotStore, snapshot: HotSnapshot, offset: int) -> Record | None:
    """The record that begins at a physical offset, if a queue leads to it: a body may hold what looks like one."""
    try:
        record = snapshot.record(offset)
    except (BadMagicError, TornRecordError):
        return None
    topic = hot.topics.find(record.topic)
    view = topic and hot.queues.view(topic.topic_id, record.queue_id)
    units = view.units(record.queue_offset, record.queue_offset + 1) if view else ()
    return record if any(unit["physical_offset"] == offset for unit in units) else None
