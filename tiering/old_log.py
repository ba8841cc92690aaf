"""The log of a volume that writes the archive no longer, read beside the archive: what of it the archive lacks.

The two begin alike, part once and never meet again, so a few segments say where. A record that the archive holds byte
for byte is common. One in whose place it holds another, or nothing, is not, nor is any behind it. All else says
nothing: a segment without records, one that has expired, a filler. So two bounds are found, and behind the lower one
each filler is asked whether it can stand for the record here: by size, queue, queue offset, topic and times, and, as it
says that something was removed, by whether anything known has removed this record.

Below the bounds the archive may lack records all the same: those of a topic that was not to be archived. Their fillers
are in no row of the directory, while those of removed records stay in theirs.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tiering.format.filler import Filler, decode_filler, is_filler
from tiering.format.manifest import Head, LogEntry
from tiering.format.record import MAGIC_V1, MAGIC_V2, Record, decode_record
from tiering.fs import ByteArray
from tiering.hot.commit_log import Segment
from tiering.hot.store import HotStore
from tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan

_WINDOW_BYTES = 1 << 20
_OFFSET_AT = 28
_OFFSET_END = 36
_MAGIC_AT = 4
_MAGIC = re.compile(b"|".join(re.escape(magic.to_bytes(4, "big", signed=True)) for magic in (MAGIC_V1, MAGIC_V2)))


@dataclass(frozen=True, slots=True)
class Parting:
    """Where log and archive part; what lies between the bounds cannot be compared."""

    common_to: int
    """All records below are the same in both, or were."""
    parted_from: int
    """None from here on is."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Physical offsets ``[first, next)`` of the log that hold no readable record."""

    first: int
    next: int


@dataclass(slots=True)
class _Readable:
    """What can be read of one segment."""

    rows: ScanRows
    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Positions ``[first, next)``."""

    @property
    def end(self) -> int:
        """Position behind the last record."""
        return int(self.rows["position"][-1] + self.rows["size"][-1]) if len(self.rows) else 0

    def row_at(self, position: int) -> np.void | None:
        """The record that begins at a position, None if none does."""
        at = int(np.searchsorted(self.rows["position"], position))
        return self.rows[at] if at < len(self.rows) and self.rows["position"][at] == position else None

    def is_damaged(self, first: int, end: int) -> bool:
        """Whether any of these positions is."""
        return any(first < following and begin < end for begin, following in self.damaged)


class OldLog:
    """One opened old volume beside a head of the archive. For one thread; nothing is written.

    ``is_removed`` tells whether any erasure, deletion or expiry that is known has removed a record.
    """

    def __init__(
        self, hot: HotStore, manifest: ManifestStore, head: Head, is_removed: Callable[[Record], bool]
    ) -> None:
        self._hot = hot
        self._manifest = manifest
        self._head = head
        self._is_removed = is_removed
        self._topics = TopicTable([topic.name for topic in hot.topics.all()])
        #: Where records that the archive lacks cannot be read; complete once :meth:`lacking` has ended.
        self.damaged: list[DamagedRange] = []

    def parting(self) -> Parting:
        """Where log and archive part. Reads a few segments of both, and more the fewer can be compared."""
        found = self._bounds()
        for segment in self._hot.log.segments():
            if segment.end > found.common_to and segment.base_offset < found.parted_from:
                other = self._first_other(segment, found)
                if other is not None:
                    return Parting(found.common_to, other)
        return found

    def lacking(self, parting: Parting, *, from_offset: int) -> Iterator[Record]:
        """Every record from an offset on that the archive lacks and never removed, in the order of the log."""
        for segment in self._hot.log.segments():
            if segment.end <= from_offset:
                continue
            is_below = segment.base_offset < parting.parted_from
            left_out = self._left_out(segment) if is_below else frozenset[str]()
            if segment.end <= parting.parted_from and not left_out:
                continue
            found = self._read(segment)
            self.damaged += self._lacking_damage(segment, found, parting)
            for row in found.rows:
                offset = int(row["physical_offset"])
                is_parted = offset >= parting.parted_from
                if offset < from_offset or not (is_parted or self._topics.names[row["topic_number"]] in left_out):
                    continue
                record = decode_record(segment.data.data, int(row["position"]))
                if is_parted or not self._is_removed(record):
                    yield record

    # where they part

    def _bounds(self) -> Parting:
        """What records alone say, by bisection: a segment that says nothing is left out of it."""
        undecided = self._hot.log.segments()
        common_to, parted_from = self._hot.log.begin, self._hot.log.end
        while undecided:
            middle = len(undecided) // 2
            common, parted = self._compared(undecided[middle])
            if common is not None:
                common_to = common
            if parted is not None:
                parted_from = parted
            if parted is not None:
                undecided = undecided[:middle] if common is None else []
            elif common is not None:
                undecided = undecided[middle + 1 :]
            else:
                del undecided[middle]
        return Parting(common_to, parted_from)

    def _compared(self, segment: Segment) -> tuple[int | None, int | None]:
        """The end of a segment's last common record, and the first offset where archive and log differ."""
        found = self._read(segment)
        if not len(found.rows):
            return None, None
        archived = self._archived(segment)
        if archived is None:
            return None, None if self._has_expired(segment) else segment.base_offset
        parted = archived.blank_position if archived.blank_position < found.end else found.end
        common: list[int] = []
        for position, item in archived.raw_items():
            if position >= found.end or is_filler(item) or found.is_damaged(position, position + len(item)):
                continue
            if bytes(item) == bytes(segment.data[position : position + len(item)]):
                common.append(position + len(item))
            else:
                parted = min(parted, position)
        common_to = max((end for end in common if end <= parted), default=None)
        return (
            None if common_to is None else segment.base_offset + common_to,
            segment.base_offset + parted if parted < found.end else None,
        )

    def _first_other(self, segment: Segment, bounds: Parting) -> int | None:
        """The first offset between the bounds with a filler that cannot stand for the record here."""
        entry = self._entry(segment)
        if entry is None:
            return None
        archived = SegmentReader(self._manifest.reader(), entry)
        found, runs = self._read(segment), _Runs(archived)
        others: list[int] = []
        cold = 0
        for position, item in archived.raw_items():
            is_between = bounds.common_to <= segment.base_offset + position < bounds.parted_from
            is_told = position < found.end and not found.is_damaged(position, position + len(item))
            if is_between and is_told and is_filler(item):
                row = found.row_at(position)
                if row is None or not self._stands_for(decode_filler(item), runs, cold, row, segment):
                    others.append(segment.base_offset + position)
            cold += len(item)
        return min(others, default=None)

    def _stands_for(self, filler: Filler, runs: _Runs, cold: int, row: np.void, segment: Segment) -> bool:
        if (filler.size, filler.queue_id, filler.queue_offset) != (row["size"], row["queue_id"], row["queue_offset"]):
            return False
        topic, run = self._topics.names[row["topic_number"]], runs.at(cold)
        if run is None:
            return topic not in runs.topics
        bounds = run.bounds
        if (
            run.topic != topic
            or not bounds.min_store_ms <= row["store_ms"] <= bounds.max_store_ms
            or not bounds.min_born_ms <= row["born_ms"] <= bounds.max_born_ms
        ):
            return False
        return self._is_removed(decode_record(segment.data.data, int(row["position"])))

    # what the archive lacks below

    def _left_out(self, segment: Segment) -> frozenset[str]:
        """Topics of which the archive never held a record of this segment."""
        entry = self._entry(segment)
        if entry is None:
            return frozenset(topic.name for topic in self._hot.topics.all() if not topic.archive)
        topics, records = set(self._topics.names), 0
        for run in SegmentReader(self._manifest.reader(), entry).runs():
            topics.discard(run.topic)
            records += run.records
        return frozenset(topics) if records < entry.records else frozenset()

    def _lacking_damage(self, segment: Segment, found: _Readable, parting: Parting) -> Iterator[DamagedRange]:
        """Ranges of which the archive has no record either."""
        archived = self._archived(segment)
        for first, following in found.damaged:
            damaged = DamagedRange(segment.base_offset + first, segment.base_offset + following)
            if archived is not None and damaged.first < parting.parted_from:
                cold = archived.cold_offset(damaged.first)
                if cold is not None and any(record for _, record in archived.records_at([cold])):
                    continue
            yield damaged

    # helpers

    def _entry(self, segment: Segment) -> LogEntry | None:
        return self._manifest.log_entry(self._manifest.reader(), self._head, segment.base_offset)

    def _archived(self, segment: Segment) -> SegmentReader | None:
        entry = self._entry(segment)
        return None if entry is None else SegmentReader(self._manifest.reader(), entry)

    def _has_expired(self, segment: Segment) -> bool:
        """Whether an archived segment was here: none ever was in a gap of the log, which expiry passes over as well."""
        base = segment.base_offset
        return base < self._head.cold_min and self._head.beyond_gaps(base) == base

    def _read(self, segment: Segment) -> _Readable:
        """All records with every checksum; damage ends at the next record that says where it lies."""
        limit = max(0, min(segment.end, self._hot.log.end) - segment.base_offset)
        pieces: list[ScanRows] = []
        damaged: list[tuple[int, int]] = []
        position = 0
        while True:
            found = scan(segment.data, position, limit, segment.base_offset, self._topics, check_crc=True)
            # the last row of a scan that met an unknown topic tells that topic and nothing else
            pieces.append(found.rows[:-1] if found.stop is ScanStop.UNKNOWN_TOPIC else found.rows)
            position = found.position
            if found.stop in (ScanStop.INVALID, ScanStop.UNKNOWN_TOPIC):
                position = _next_record(segment.data, position, limit, segment.base_offset)
                damaged.append((found.position, position))
            elif found.stop is not ScanStop.ROWS_FULL:
                return _Readable(np.concatenate(pieces), damaged)


class _Runs:
    """The rows of a directory by the place of their records in the decompressed object."""

    def __init__(self, archived: SegmentReader) -> None:
        frames = archived.seek_table().decompressed
        self._runs = list(archived.runs())
        self._starts = [int(frames[run.frame]) + run.position for run in self._runs]
        self.topics = {run.topic for run in self._runs}

    def at(self, cold: int) -> DirectoryRow | None:
        """The row of what lies there; None for a record of a topic that was not to be archived."""
        number = bisect_right(self._starts, cold) - 1
        if number < 0 or cold >= self._starts[number] + self._runs[number].bytes:
            return None
        return self._runs[number]


def _next_record(data: ByteArray, position: int, limit: int, base_offset: int) -> int:
    """Where the next record seems to begin, by its magic and an offset that is its own; the end if there is none."""
    for start in range(position + 1, limit, _WINDOW_BYTES):
        window = data[start : min(limit, start + _WINDOW_BYTES + _OFFSET_END)].tobytes()
        for magic in _MAGIC.finditer(window):
            found = start + magic.start() - _MAGIC_AT
            stored = bytes(data[found + _OFFSET_AT : found + _OFFSET_END])
            if found > position and stored == (base_offset + found).to_bytes(8, "big"):
                return found
    return limit
