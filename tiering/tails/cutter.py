"""Cuts what is flushed into pieces for tails: whole records, each verified, never across a segment's end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tiering.errors import CorruptionError
from tiering.format.tail import TailKind
from tiering.fs import ByteArray
from tiering.hot.commit_log import CommitLog
from tiering.hot.topics import Topic
from tiering.kernels.scan import ScanResult, ScanStop, TopicTable, scan

_PIECE_BYTES = 1 << 20


class Topics(Protocol):
    """The topics of a store, as its registry has them."""

    @property
    def version(self) -> int:
        """Rises whenever a topic is added."""
        ...

    def all(self) -> list[Topic]:
        """All of them."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of the log; ``payload`` is a view of the segment's map, which outlives the file."""

    first: int
    end: int
    kind: TailKind
    payload: ByteArray
    topics: Mapping[str, int]


class TailCutter:
    """Used by one thread at a time."""

    def __init__(self, log: CommitLog, topics: Topics) -> None:
        self._log = log
        self._topics = topics
        self._table = TopicTable([])
        self._known = -1
        self._closed: tuple[int, int] = -1, 0

    def available(self, position: int) -> int:
        """Flushed bytes behind ``position`` in its segment, a closed segment's zeros not counted."""
        return self._data_end(position) - position

    def cut(self, position: int, max_bytes: int) -> Cut:
        """The next piece from ``position``, where something is flushed; :class:`CorruptionError` if that is damaged.

        At most ``max_bytes`` long unless a single record is longer.
        """
        segment = self._log.segment_of(position)
        is_closed = self._is_closed(position)
        start, data_end = position - segment.base_offset, self._data_end(position) - segment.base_offset
        limit = min(data_end, start + max_bytes)
        found, used = self._scan(segment.data, start, limit, segment.base_offset)
        if found.position == start and limit < data_end and found.stop is ScanStop.INVALID:
            limit = min(data_end, max(limit, start + int.from_bytes(bytes(segment.data[start : start + 4]))))
            found, used = self._scan(segment.data, start, limit, segment.base_offset)
        is_last = found.stop is ScanStop.BLANK or (is_closed and found.position == data_end)
        if (found.position == start and not is_last) or (limit == data_end and found.stop is ScanStop.INVALID):
            raise CorruptionError(
                "the log is damaged below its flushed position", path="commitlog",
                position=segment.base_offset + found.position,
            )  # fmt: skip
        if is_last and is_closed:
            return Cut(position, segment.end, TailKind.ROLL, segment.data[start:data_end], used)
        end = segment.base_offset + found.position
        return Cut(position, end, TailKind.DATA, segment.data[start : found.position], used)

    def payload(self, first: int, end: int) -> ByteArray:
        """The log's bytes of a range as a tail has them: fewer than the range where a segment was closed."""
        segment = self._log.segment_of(first)
        data_end = min(end, self._data_end(first)) - segment.base_offset
        return segment.data[first - segment.base_offset : max(data_end, first - segment.base_offset)]

    def _is_closed(self, position: int) -> bool:
        return self._log.flushed >= self._log.segment_of(position).end

    def _data_end(self, position: int) -> int:
        """The flushed end in a segment; in a closed one where its zeros begin."""
        segment = self._log.segment_of(position)
        if not self._is_closed(position):
            return max(position, self._log.flushed)
        if self._closed[0] != segment.base_offset:
            self._closed = segment.base_offset, segment.base_offset + _without_zeros(segment.data)
        return max(position, self._closed[1])

    def _scan(self, data: ByteArray, start: int, limit: int, base: int) -> tuple[ScanResult, dict[str, int]]:
        if self._known != self._topics.version:
            self._known = self._topics.version
            self._table = TopicTable([topic.name for topic in self._topics.all()])
        numbers: set[int] = set()
        found = scan(data, start, limit, base, self._table, check_crc=True)
        numbers.update(np.unique(found.rows["topic_number"]).tolist())
        while found.stop is ScanStop.ROWS_FULL:
            found = scan(data, found.position, limit, base, self._table, check_crc=True)
            numbers.update(np.unique(found.rows["topic_number"]).tolist())
        names = self._table.names
        queues = {topic.name: topic.queues for topic in self._topics.all()}
        return found, {names[number]: queues[names[number]] for number in sorted(numbers)}


def _without_zeros(data: ByteArray) -> int:
    """Length without the zeros at the end; looked at in pieces, because they may be a hole of up to 1 GiB."""
    end = len(data)
    while end:
        start = max(0, end - _PIECE_BYTES)
        found = np.flatnonzero(data[start:end])
        if len(found):
            return start + int(found[-1]) + 1
        end = start
    return 0
