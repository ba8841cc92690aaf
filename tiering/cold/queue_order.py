"""Follows every queue through the segments: its offsets are consecutive, apart from declared gaps (invariant I2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tiering.cold.segment.reader import DirectoryRow
from tiering.cold.segment.whole import Find
from tiering.format.manifest import Head, LogEntry, QueueGap
from tiering.format.store_state import StoreState


class QueueStretch(NamedTuple):
    """Records of one queue that follow each other, of one segment; ``first_queue_offset`` is -1 without units."""

    topic: str
    queue_id: int
    first_queue_offset: int
    records: int


def stretches(runs: Iterable[DirectoryRow]) -> Iterator[QueueStretch]:
    """The rows of a directory with those that go on where the one before ends put together: a few for each queue."""
    last: QueueStretch | None = None
    for run in runs:
        goes_on = (
            last is not None
            and (last.topic, last.queue_id) == (run.topic, run.queue_id)
            and last.first_queue_offset >= 0
            and run.first_queue_offset == last.first_queue_offset + last.records
        )
        if last is not None and goes_on:
            last = last._replace(records=last.records + run.records)
            continue
        if last is not None:
            yield last
        last = QueueStretch(run.topic, run.queue_id, run.first_queue_offset, run.records)
    if last is not None:
        yield last


class QueueOrder:
    """Sees segments in ascending order. Memory: a number for each queue."""

    def __init__(self, head: Head, state: StoreState, gaps: Sequence[QueueGap]) -> None:
        self._starts = {0, state.first_offset}
        self._whole_log = head.cold_min == 0
        self._gaps = {(gap.topic_id, gap.queue_id, gap.first_missing): gap.next_present for gap in gaps}
        self._next: dict[tuple[int, int], int] = {}
        self._missed = False
        self._after_miss: set[tuple[int, int]] = set()

    def miss(self) -> None:
        """A segment could not be read: where its queues go on is not known."""
        self._missed = True
        self._after_miss.clear()

    def see(self, runs: Iterable[QueueStretch], entry: LogEntry, topic_ids: Mapping[str, int], find: Find) -> None:
        """What the directory of the next segment says."""
        for run in runs:
            topic_id = topic_ids.get(run.topic)
            if topic_id is None or run.first_queue_offset < 0:
                continue
            queue = topic_id, run.queue_id
            if not self.is_next(queue, run.first_queue_offset, is_first_segment=entry.base == 0):
                find(
                    f"I2: queue {run.topic}/{run.queue_id} goes on at {run.first_queue_offset} in segment "
                    f"{entry.base}, expected {self._next.get(queue, 0)}"
                )
            self._next[queue] = run.first_queue_offset + run.records

    def is_next(self, queue: tuple[int, int], offset: int, *, is_first_segment: bool) -> bool:
        """Whether a queue may go on at an offset."""
        expected = self._next.get(queue)
        if self._missed and queue not in self._after_miss:
            self._after_miss.add(queue)
            return expected is None or offset >= expected
        if expected is None:
            known = offset in self._starts or any(self._leads(queue, start, offset) for start in self._starts)
            return known or not (is_first_segment and self._whole_log)
        return offset == expected or self._leads(queue, expected, offset)

    def _leads(self, queue: tuple[int, int], offset: int, target: int) -> bool:
        while offset < target:
            following = self._gaps.get((*queue, offset))
            if following is None:
                return False
            offset = following
        return offset == target

    def reached(self) -> Mapping[tuple[int, int], int]:
        """The next offset of each queue, where nothing of it was missed."""
        if self._missed:
            return {queue: offset for queue, offset in self._next.items() if queue in self._after_miss}
        return self._next

    def leads(self, queue: tuple[int, int], offset: int, target: int) -> bool:
        """Whether declared gaps alone lie between two offsets."""
        return self._leads(queue, offset, target)
