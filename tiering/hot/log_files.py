"""The log of a volume as it lies on its disk, read without recovery: what can be read, and where nothing can.

Recovery refuses a log that is damaged where no crash explains it, so that nothing is appended behind a hole. A reader
that only wants what is left reads on behind the damage. Nothing is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import ByteArray, FileSystem
from tierlog.tiering.base.paths import StorePaths, parse_base_offset
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.record import MAGIC_V1, MAGIC_V2
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.topics import TopicRegistry
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan

_WINDOW_BYTES = 1 << 20
_OFFSET_AT = 28
_OFFSET_END = 36
_MAGIC_AT = 4
_MAGIC = re.compile(b"|".join(re.escape(magic.to_bytes(4, "big", signed=True)) for magic in (MAGIC_V1, MAGIC_V2)))


@dataclass(slots=True)
class ReadableSegment:
    """The readable part of one segment."""

    rows: ScanRows
    """``SCAN_ROW``; topic numbers count :attr:`LogFiles.names`."""
    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Positions ``[first, next)`` that hold no readable record; the last may be a tail that was never written."""

    @property
    def end(self) -> int:
        """Position behind the last record."""
        return int(self.rows["position"][-1] + self.rows["size"][-1]) if len(self.rows) else 0

    def row_at(self, position: int) -> np.void | None:
        """Returns the record that begins at a position, None if none does."""
        at = int(np.searchsorted(self.rows["position"], position))
        return self.rows[at] if at < len(self.rows) and self.rows["position"][at] == position else None

    def is_damaged(self, first: int, end: int) -> bool:
        """Whether any of these positions is, below the last record: what lies behind it may never have been written."""
        return any(first < following and begin < min(end, self.end) for begin, following in self.damaged)


class LogFiles:
    """Segments in order, whatever is missing between them; one that was cut is shorter. For one thread.

    Files and folders that are no segment are passed over. Raises :class:`CorruptionError` for a damaged
    ``topics.json``, or none beside a log.
    """

    def __init__(self, fs: FileSystem, paths: StorePaths, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.topics = TopicRegistry(fs, paths, 1, read_only=True)
        #: Topics by number.
        self.names = [topic.name for topic in self.topics.all()]
        self._table = TopicTable(self.names)
        self._segments: list[Segment] = []
        for base in sorted(base for base in map(parse_base_offset, fs.list_dir(paths.commitlog)) if base is not None):
            path = paths.segment(base)
            if base % segment_bytes == 0 and not fs.is_dir(path):
                self._segments.append(Segment(base, fs.map_read(path)[:segment_bytes]))
        if not self.names and any(segment.data.any() for segment in self._segments):
            raise CorruptionError("the topics of this log are lost", path=str(paths.topics_json))
        checkpoint = Checkpoint.decode(fs.read(paths.checkpoint)) if fs.exists(paths.checkpoint) else Checkpoint()
        #: Behind the last record, and never before what was flushed: of what lies behind nothing was ever whole.
        self.end = max(checkpoint.confirm_offset, self._last_end())
        self._next_offsets: dict[tuple[str, int], int] | None = None

    def segments(self) -> list[Segment]:
        """Those that there are, ascending."""
        return self._segments

    @property
    def begin(self) -> int:
        """Physical offset of the first segment."""
        return self._segments[0].base_offset if self._segments else 0

    def holes(self) -> list[tuple[int, int]]:
        """Physical offsets ``[first, next)`` below the end that no file is for; each begins where a segment does."""
        bases = [segment.base_offset for segment in self._segments]
        starts = [base + self.segment_bytes for base in bases]
        holes = [
            (first, min(following, self.end)) for first, following in zip(starts, [*bases[1:], self.end], strict=False)
        ]
        return [hole for hole in holes if hole[0] < hole[1]]

    def read(self, segment: Segment) -> ReadableSegment:
        """Returns all records with every checksum; damage ends at the next record that says where it lies."""
        return read_segment(segment, self.segment_bytes, self._table)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset behind a queue's last readable record; reads the whole log once."""
        if self._next_offsets is None:
            found: dict[tuple[str, int], int] = {}
            self._next_offsets = found
            for segment in self._segments:
                for row in self.read(segment).rows:
                    queue = self.names[row["topic_number"]], int(row["queue_id"])
                    found[queue] = max(found.get(queue, 0), int(row["queue_offset"]) + 1)
        floor = self.topics.of_log(topic).floor(queue_id)
        return max(floor, self._next_offsets.get((topic, queue_id), 0))

    def _last_end(self) -> int:
        for segment in reversed(self._segments):
            end = self.read(segment).end
            if end:
                return segment.base_offset + end
        return self.begin


def read_segment(
    segment: Segment, segment_bytes: int, table: TopicTable, *, limit: int | None = None, keeps_rows: bool = True
) -> ReadableSegment:
    """Returns the records below position ``limit``, or all that are there, with every checksum.

    Damage ends at the next record that says where it lies. Without ``keeps_rows`` only damage is told, for those who
    have no memory to spare for millions of rows.
    """
    limit, base = len(segment.data) if limit is None else limit, segment.base_offset
    pieces: list[ScanRows] = []
    damaged: list[tuple[int, int]] = []
    position = 0
    while True:
        found = scan(segment.data, position, limit, base, table, check_crc=True)
        # the last row of a scan that met an unknown topic tells that topic and nothing else
        rows = found.rows[:-1] if found.stop is ScanStop.UNKNOWN_TOPIC else found.rows
        pieces.append(rows if keeps_rows else rows[:0])
        position = found.position
        if found.stop is ScanStop.ROWS_FULL:
            continue
        rest = segment_bytes - position
        if found.stop is ScanStop.BLANK and bytes(segment.data[position : position + 4]) == rest.to_bytes(4, "big"):
            return ReadableSegment(np.concatenate(pieces), damaged)
        following = _next_record(segment.data, position, limit, base)
        is_last = following == limit
        if rest:
            is_same = damaged and damaged[-1][1] == position
            first = damaged.pop()[0] if is_same else position
            damaged.append((first, segment_bytes if is_last else following))
        if not is_last:
            position = following
            continue
        return ReadableSegment(np.concatenate(pieces), damaged)


def _next_record(data: ByteArray, position: int, limit: int, base_offset: int) -> int:
    """Returns where the next record seems to begin, by its magic and an offset that is its own.

    The end if there is none.
    """
    for start in range(position + 1, limit, _WINDOW_BYTES):
        window = data[start : min(limit, start + _WINDOW_BYTES + _OFFSET_END)].tobytes()
        for magic in _MAGIC.finditer(window):
            found = start + magic.start() - _MAGIC_AT
            stored = bytes(data[found + _OFFSET_AT : found + _OFFSET_END])
            if found > position and stored == (base_offset + found).to_bytes(8, "big"):
                return found
    return limit
