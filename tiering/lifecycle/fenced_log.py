"""Compares the log of a volume that no longer writes the archive with the archive: which records the archive lacks.

The two begin alike, part once and never meet again, so a few segments say where. A record that the archive holds byte
for byte is common. One in whose place it holds another, or nothing, is not, nor is any behind it. All else says
nothing: a segment without records, one that has expired, a filler. So two bounds are found, and behind the lower one
each filler is asked whether it can stand for the record here: by size, queue, queue offset, topic and times, and, as it
says that something was removed, by whether anything known has removed this record.

Below the bounds the archive may lack records all the same: those of a topic that was not to be archived. Their fillers
are in no row of the directory, while those of removed records stay in theirs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.format.filler import Filler, decode_filler, is_filler
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.format.record import Record, decode_record
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.log_files import LogFiles, ReadableSegment


@dataclass(frozen=True, slots=True)
class Divergence:
    """The place where log and archive part; what lies between the bounds cannot be compared."""

    common_to: int
    """All records below are the same in both, or were."""
    parted_from: int
    """None from here on is."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Physical offsets ``[first, next)`` of the log that hold no readable record."""

    first: int
    next: int


class FencedLog:
    """The log of an old volume beside a head of the archive. For one thread; nothing is written.

    ``is_removed`` tells whether any erasure, deletion or expiry that is known has removed a record.
    """

    def __init__(
        self, files: LogFiles, manifest: ManifestStore, head: Head, is_removed: Callable[[Record], bool]
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._head = head
        self._is_removed = is_removed
        #: Where records that the archive lacks cannot be read; complete once :meth:`lacking` has ended.
        self.damaged: list[DamagedRange] = []

    def parting(self) -> Divergence:
        """Returns where log and archive part. Reads a few segments of both, and more the fewer can be compared."""
        found = self._bounds()
        for segment in self._files.segments():
            if segment.end > found.common_to and segment.base_offset < found.parted_from:
                other = self._first_other(segment, found)
                if other is not None:
                    return Divergence(found.common_to, other)
        return found

    def lacking(self, parting: Divergence, *, from_offset: int) -> Iterator[Record]:
        """Yields every record from an offset on that the archive lacks and never removed, in the order of the log."""
        for segment in self._files.segments():
            if segment.end <= from_offset:
                continue
            is_below = segment.base_offset < parting.parted_from
            left_out = self._left_out(segment) if is_below else frozenset[str]()
            if segment.end <= parting.common_to and not left_out:
                continue
            found = self._files.read(segment)
            self.damaged += self._lacking_damage(segment, found, parting, from_offset)
            for row in found.rows:
                offset = int(row["physical_offset"])
                is_parted = offset >= parting.parted_from
                if offset < from_offset or not (is_parted or self._files.names[row["topic_number"]] in left_out):
                    continue
                record = decode_record(segment.data.data, int(row["position"]))
                if not is_parted and self._is_removed(record):
                    continue
                if _is_sound(record):
                    yield record
                else:
                    self.damaged.append(DamagedRange(offset, offset + record.size))
        for first, following in self._files.holes():
            self.damaged += self._lacking_hole(max(first, parting.common_to), following, from_offset)
        self.damaged.sort(key=lambda damaged: damaged.first)

    # where they part

    def _bounds(self) -> Divergence:
        """Returns what records alone tell, by bisection: a segment that says nothing is left out of it.

        Logs that have parted never meet again: where the next segment that says anything has common records, it was
        damage that no checksum covers.
        """
        undecided = list(self._files.segments())
        common_to, parted_from = self._files.begin, self._files.end
        while undecided:
            middle = len(undecided) // 2
            common, parted = self._compared(undecided[middle])
            if parted is not None and self._meet_again(undecided[middle + 1 :]):
                common, parted = undecided[middle].end, None
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
        return Divergence(common_to, parted_from)

    def _meet_again(self, following: Iterable[Segment]) -> bool:
        for segment in following:
            common, parted = self._compared(segment)
            if common is not None or parted is not None:
                return common is not None
        return False

    def _compared(self, segment: Segment) -> tuple[int | None, int | None]:
        """Returns the end of a segment's last common record, and the first offset where archive and log differ."""
        found = self._files.read(segment)
        if not len(found.rows):
            return None, None
        entry = self._entry(segment.base_offset)
        if entry is None:
            return None, None if self._has_expired(segment.base_offset) else segment.base_offset
        archived = SegmentReader(self._manifest.reader(), entry)
        others = [archived.blank_position] if archived.blank_position < found.end else []
        common: list[int] = []
        for position, item in archived.raw_items():
            if position >= found.end or is_filler(item) or found.is_damaged(position, position + len(item)):
                continue
            if bytes(item) == bytes(segment.data[position : position + len(item)]):
                common.append(position + len(item))
            else:
                others.append(position)
        common_to = max(common, default=0)
        parted = min((position for position in others if position >= common_to), default=None)
        return (
            segment.base_offset + common_to if common else None,
            None if parted is None else segment.base_offset + parted,
        )

    def _first_other(self, segment: Segment, bounds: Divergence) -> int | None:
        """Returns the first offset between the bounds with a filler that cannot stand for the record here."""
        entry = self._entry(segment.base_offset)
        if entry is None:
            return None
        archived = SegmentReader(self._manifest.reader(), entry)
        found, runs = self._files.read(segment), _Runs(archived)
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
        topic, run = self._files.names[row["topic_number"]], runs.at(cold)
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
        entry = self._entry(segment.base_offset)
        if entry is None:
            return frozenset(topic.name for topic in self._files.topics.all() if not topic.archive)
        topics, records = set(self._files.names), 0
        for run in SegmentReader(self._manifest.reader(), entry).runs():
            topics.discard(run.topic)
            records += run.records
        return frozenset(topics) if records < entry.records else frozenset()

    def _lacking_damage(
        self, segment: Segment, found: ReadableSegment, parting: Divergence, from_offset: int
    ) -> Iterator[DamagedRange]:
        """Ranges of which the archive has, or had, not every record."""
        entry = self._entry(segment.base_offset)
        if not found.damaged or (entry is None and self._has_expired(segment.base_offset)):
            return
        ends = {} if entry is None else self._archived_ends(entry, is_closed=segment.end <= parting.common_to)
        base, parted_from = segment.base_offset, parting.parted_from
        for first, following in found.damaged:
            following, at = min(following, self._files.end - base), first
            while at < following and base + at < parted_from and at in ends:
                at = ends[at]
            if at != following:  # else the archive has as many bytes in its place
                yield from self._lacking_range(base + first, base + following, from_offset)

    def _lacking_hole(self, first: int, following: int, from_offset: int) -> Iterator[DamagedRange]:
        """Yields what of a hole between the files lies behind all that is archived."""
        segment_bytes = self._files.segment_bytes
        base = first - first % segment_bytes
        while base < following:
            entry = self._entry(base)
            if entry is None and not self._has_expired(base):
                break
            base += segment_bytes
        yield from self._lacking_range(max(first, base), following, from_offset)

    def _lacking_range(self, first: int, following: int, from_offset: int) -> Iterator[DamagedRange]:
        following = min(following, self._files.end)
        if following > max(first, from_offset):
            yield DamagedRange(first, following)

    def _archived_ends(self, entry: LogEntry, *, is_closed: bool) -> dict[int, int]:
        """Returns where each record that the archive has or had ends, by where it begins.

        Of a closed segment, its rest too.
        """
        archived = SegmentReader(self._manifest.reader(), entry)
        runs, ends, cold = _Runs(archived), {}, 0
        for position, item in archived.raw_items():
            if not is_filler(item) or runs.at(cold) is not None:
                ends[position] = position + len(item)
            cold += len(item)
        if is_closed:
            ends[archived.blank_position] = entry.segment_bytes
        return ends

    # helpers

    def _entry(self, base_offset: int) -> LogEntry | None:
        return self._manifest.log_entry(self._manifest.reader(), self._head, base_offset)

    def _has_expired(self, base_offset: int) -> bool:
        """Whether an archived segment was here: none ever was in a gap of the log, which expiry passes over as well."""
        return base_offset < self._head.cold_min and self._head.beyond_gaps(base_offset) == base_offset


class _Runs:
    """The rows of a directory by the place of their records in the decompressed object."""

    def __init__(self, archived: SegmentReader) -> None:
        frames = archived.seek_table().decompressed
        self._runs = list(archived.runs())
        self._starts = [int(frames[run.frame]) + run.position for run in self._runs]
        self.topics = {run.topic for run in self._runs}

    def at(self, cold: int) -> DirectoryRow | None:
        """Returns the row of what lies there; None for a record of a topic that was not to be archived."""
        number = bisect_right(self._starts, cold) - 1
        if number < 0 or cold >= self._starts[number] + self._runs[number].bytes:
            return None
        return self._runs[number]


def _is_sound(record: Record) -> bool:
    """Whether the property text, which no checksum has to cover, may be what was written: UTF-8 without a zero byte."""
    try:
        return "\0" not in record.properties_text.decode()
    except UnicodeDecodeError:
        return False
