"""One reader of the log hands whole ranges of records to whoever derives something from them.

The log does not know its consume queues or its index: they are :class:`LogSubscriber` and say how far they are.
Recovery is this same dispatcher, started from the lowest of those positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tiering.errors import CorruptionError, InvalidRequestError
from tiering.fs import ByteArray
from tiering.hot.commit_log import CommitLog
from tiering.hot.topics import TopicRegistry
from tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan, topic_at_stop


@dataclass(frozen=True, slots=True)
class LogRange:
    """Records of the physical range ``[start, end)``, which lies in one segment.

    ``rows`` are ``SCAN_ROW``; their positions count from the start of ``data``, the segment's bytes.
    ``topic_ids`` turns a row's topic number into a topic id.
    """

    data: ByteArray
    base_offset: int
    start: int
    end: int
    rows: ScanRows
    topic_ids: NDArray[np.int32]


class LogSubscriber(Protocol):
    """Derives data from the log. Called by one thread at a time, ranges ascending and without holes."""

    def next_offset(self) -> int:
        """First physical offset not seen yet; rows below it are ignored."""
        ...

    def on_records(self, records: LogRange) -> None:
        """Take the range in; afterwards :meth:`next_offset` is at least its end."""
        ...


class ClassicFiles(LogSubscriber, Protocol):
    """RocketMQ's key index beside ours: a subscriber whose durability the checkpoint file speaks of."""

    def checkpoint(self) -> None:
        """Make durable how far the index is."""
        ...

    def durable_ms(self) -> int:
        """Store time up to which the index is as RocketMQ needs it."""
        ...

    def flush(self) -> None:
        """Make everything taken in so, at a clean stop."""
        ...

    def remove_below(self, border: int) -> object:
        """Drop files that speak of nothing at or above the border."""
        ...


class Dispatcher:
    """Moves subscribers forward over the log."""

    def __init__(
        self,
        log: CommitLog,
        topics: TopicRegistry,
        subscribers: Sequence[LogSubscriber],
        *,
        topics_are_known: bool = False,
    ) -> None:
        """``topics_are_known``: the log was dispatched before, so a record of an unknown topic is damaged."""
        self._log = log
        self._topics_are_known = topics_are_known
        self._topics = topics
        self._subscribers = tuple(subscribers)
        self._table = TopicTable([])
        self._topic_ids = np.empty(0, np.int32)
        self._known = -1

    def position(self) -> int:
        """The lowest position of any subscriber, never before the log begins."""
        return max(self._log.begin, min(subscriber.next_offset() for subscriber in self._subscribers))

    def run(self, end: int) -> None:
        """Dispatch every record below ``end``, which are known to be whole.

        Raises :class:`CorruptionError` where they are not: the disk changed what it had kept.
        """
        reached = self._run(self.position(), end, recovering=False)
        if reached < end:
            raise CorruptionError("the log is damaged below its visible end", path="commitlog", position=reached)

    def recover(self, end: int) -> int:
        """Dispatch every valid record below ``end`` and return where the first invalid byte lies, ``end`` at most."""
        return min(end, self._run(self.position(), end, recovering=True))

    def _run(self, position: int, end: int, *, recovering: bool) -> int:
        while position < end:
            segment = self._log.segment_of(position)
            limit = min(end, segment.end)
            table = self._topic_table()
            found = scan(
                segment.data, position - segment.base_offset, limit - segment.base_offset,
                segment.base_offset, table, check_crc=recovering, check_torn=recovering,
            )  # fmt: skip
            rows = found.rows
            reached = segment.base_offset + found.position
            is_valid = found.stop is not ScanStop.INVALID
            if found.stop is ScanStop.UNKNOWN_TOPIC:
                rows = rows[:-1]
                try:
                    if self._topics_are_known:
                        is_valid = False
                    else:
                        self._topics.create(topic_at_stop(segment.data, found))
                except InvalidRequestError:  # no checksum covers the name: a power cut may have torn it
                    is_valid = False
            elif found.stop is ScanStop.BLANK:
                reached = segment.end
            if reached > position:
                piece = LogRange(segment.data, segment.base_offset, position, reached, rows, self._topic_ids)
                for subscriber in self._subscribers:
                    if subscriber.next_offset() < reached:
                        subscriber.on_records(piece)
                position = reached
            if not is_valid:
                return position
        return position

    def _topic_table(self) -> TopicTable:
        if self._known != self._topics.version:
            self._known = self._topics.version
            topics = self._topics.all()
            self._table = TopicTable([topic.name for topic in topics])
            self._topic_ids = np.array([topic.topic_id for topic in topics], np.int32)
        return self._table
