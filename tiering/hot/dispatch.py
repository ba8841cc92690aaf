"""One reader of the log hands whole ranges of records to whoever derives something from them.

The log does not know its consume queues or its index: they are :class:`LogSubscriber` and say how far they are.
Recovery is this same dispatcher, started from the lowest of those positions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, ReadOnlyError, StoreError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.hot.topics import TopicRegistry
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan, topic_at_stop

_LOG = logging.getLogger("tierlog")
#: A try scans up to a segment again.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


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


#: Finds the first of some rows, whose topic numbers lead to these ids, with which a topic begins again.
SecondBeginning = Callable[[ScanRows, NDArray[np.int32]], int | None]


class LogSubscriber(Protocol):
    """Derives data from the log. Called by one thread at a time, ranges ascending and without holes."""

    def next_offset(self) -> int:
        """First physical offset not seen yet; rows below it are ignored."""
        ...

    def on_records(self, records: LogRange) -> None:
        """Takes the range in; afterwards :meth:`next_offset` is at least its end."""
        ...


class ClassicFiles(LogSubscriber, Protocol):
    """RocketMQ's key index beside ours: a subscriber whose durability the checkpoint file speaks of."""

    def checkpoint(self) -> None:
        """Makes durable how far the index is."""
        ...

    def durable_ms(self) -> int:
        """Store time up to which the index is as RocketMQ needs it."""
        ...

    def flush(self) -> None:
        """Makes everything taken in so, at a clean stop."""
        ...

    def remove_below(self, border: int) -> object:
        """Drops files that speak of nothing at or above the border."""
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
        is_foreign: bool = False,
        second_beginning: SecondBeginning | None = None,
    ) -> None:
        """``topics_are_known``: the log was dispatched before, so a record of an unknown topic is damaged.

        ``is_foreign``: somebody else wrote the log, who may not flush a segment before the next one's first byte.

        ``second_beginning``, of a broker's log, finds where a topic begins again: before anything is derived from its
        records, the generation is made durable. Killed then: they are found to be its own. Killed before: it is found
        again, as it depends on nothing but the log.
        """
        self._second_beginning = second_beginning
        self._log = log
        self._topics_are_known = topics_are_known
        self._is_foreign = is_foreign
        self._topics = topics
        self._subscribers = tuple(subscribers)
        self._table = TopicTable([])
        self._topic_ids = np.empty(0, np.int32)
        self._known = -1

    def position(self) -> int:
        """Returns the lowest position of any subscriber, never before the log begins."""
        return max(self._log.begin, min(subscriber.next_offset() for subscriber in self._subscribers))

    def run(self, end: int) -> None:
        """Dispatches every record below ``end``, which are known to be whole.

        Raises :class:`CorruptionError` where they are not: the disk changed what it had kept.
        """
        reached = self._run(self.position(), end, recovering=False)
        if reached < end:
            raise CorruptionError("the log is damaged below its visible end", path="commitlog", position=reached)

    def recover(self, end: int) -> int:
        """Dispatches every valid record below ``end``; returns where the first invalid byte lies, ``end`` at most."""
        return min(end, self._run(self.position(), end, recovering=True))

    def _run(self, position: int, end: int, *, recovering: bool) -> int:
        while position < end:
            segment = self._log.segment_of(position)
            limit = min(end, segment.end)
            table = self._topic_table()
            # of what was flushed a power cut takes no sector: zeros in a text are the sender's there
            may_be_torn = recovering and (self._is_foreign or not self._log.goes_on_behind(segment.base_offset))
            found = scan(
                segment.data, position - segment.base_offset, limit - segment.base_offset,
                segment.base_offset, table, check_crc=recovering, check_torn=may_be_torn,
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
            if self._second_beginning is not None:
                again = self._second_beginning(rows, self._topic_ids)
                if again is not None:
                    begin = int(rows["physical_offset"][again])
                    self._topics.begin_generation(record_topic(table.names[rows["topic_number"][again]]), begin)
                    rows, reached, is_valid = rows[:again], begin, True
            if reached > position:
                piece = LogRange(
                    data=segment.data,
                    base_offset=segment.base_offset,
                    start=position,
                    end=reached,
                    rows=rows,
                    topic_ids=self._topic_ids,
                )
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


class DispatchRetry:
    """Runs of the dispatcher, with pauses after failures. One thread at a time; :attr:`error` may be read by any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = self._again_s = 0.0
        #: Why the last try failed; None after one that went well.
        self.error: str | None = None

    def run_once(self, dispatch: Callable[[], object]) -> None:
        """Dispatches, unless that failed less than a pause ago.

        Raises :class:`CorruptionError` and :class:`ReadOnlyError`, for which another try is no help. Any other failure,
        foreseen or not, is logged once until it changes, and makes the pause twice as long, 30 s at most.
        """
        if self.error is not None and self._clock.monotonic_s() < self._again_s:
            return
        try:
            dispatch()
        except (CorruptionError, ReadOnlyError):
            raise
        except Exception as error:
            found = str(error) if isinstance(error, StoreError) else repr(error)
            if found != self.error:
                _LOG.error("queues and index cannot follow the log, will try again: %s", found, exc_info=error)
            self.error = found
            self._pause_s = min(max(_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._again_s = self._clock.monotonic_s() + self._pause_s
        else:
            if self.error is not None:
                _LOG.warning("queues and index follow the log again")
            self.error, self._pause_s = None, 0.0
