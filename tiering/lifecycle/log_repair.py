"""Puts damaged segments of a log back from the archive, in place, while nobody has the store open.

A segment that the archive has is made anew beside the log: the archived bytes, and over their fillers what can still be
read here, as topics that are not archived and erased records lie in the log alone. Everything that can be read in both
has to be the same, byte for byte; otherwise the log is left as it is. The new file is scanned as every log is, flushed,
and takes the old one's name in one step.

Killed before the rename: the log as it was, and a file in ``tmp/``, which the next open removes. After it: the whole
segment. Segments are put back one by one, and each is found sound by the next run.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierlog.tiering.base.errors import ConflictError, CorruptionError, ObjectNotFoundError, StoreError
from tierlog.tiering.base.fs import ByteArray, FileSystem, flush_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.cold.segment.restoration import restore_segment
from tierlog.tiering.format.filler import HEAD, is_filler
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.log_files import LogFiles, ReadableSegment

_PIECE_BYTES = 16 << 20
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SegmentRepair:
    """What became of one damaged segment; ranges are physical offsets ``[first, next)`` without a readable record."""

    base_offset: int
    damaged: Ranges
    left: Ranges
    """Damaged still: all of it if nothing could be done."""
    problem: str | None = None
    """Why something is left; None if nothing is."""


class LogRepair:
    """Repairs one log. The caller holds the lock of the directory, and the archive's head names this volume."""

    def __init__(
        self,
        files: LogFiles,
        manifest: ManifestStore,
        head: Head,
        *,
        fs: FileSystem,
        paths: StorePaths,
        randomness: Randomness,
    ) -> None:
        self._files, self._manifest, self._head = files, manifest, head
        self._fs, self._paths, self._randomness = fs, paths, randomness

    def run(self, *, dry_run: bool, progress: Callable[[int, int], None]) -> Iterator[SegmentRepair]:
        """Yields each segment that is damaged, once it was put back or, with ``dry_run``, could be.

        Raises the object store's error if it does not answer: what could not be asked for is not missing.
        """
        segments = self._files.segments()
        for number, segment in enumerate(segments):
            found = self._files.read(segment)
            is_last = number == len(segments) - 1
            damaged = self._ranges(segment, found, is_last=is_last)
            if damaged:
                yield self._repaired(segment, found, damaged, dry_run=dry_run)
            progress(number + 1, len(segments))

    def _ranges(self, segment: Segment, found: ReadableSegment, *, is_last: bool) -> Ranges:
        """Returns the physical ranges that hold no record; what follows the log's end never held any."""
        base = segment.base_offset
        end = self._files.end if is_last else base + self._files.segment_bytes
        ranges = ((base + first, min(base + following, end)) for first, following in found.damaged)
        return tuple((first, following) for first, following in ranges if first < following)

    def _repaired(self, segment: Segment, found: ReadableSegment, damaged: Ranges, *, dry_run: bool) -> SegmentRepair:
        base, size = segment.base_offset, self._files.segment_bytes
        entry = self._manifest.log_entry(self._manifest.reader(scan=True), self._head, base)
        if entry is None:
            was_there = base < self._head.archived_to
            reason = "it has expired from the archive" if was_there else "the archive does not have it yet"
            return SegmentRepair(base, damaged, damaged, reason)
        if entry.segment_bytes != size:
            return SegmentRepair(base, damaged, damaged, "the archive has it in another size")
        if dry_run:
            return SegmentRepair(base, damaged, ())
        beside = self._paths.tmp / f"{self._paths.segment(base).name}.{self._randomness.token_hex(4)}"
        try:
            left = self._put_back(segment, found, entry, beside)
        except Exception as error:
            with contextlib.suppress(StoreError, OSError):
                self._fs.unlink(beside)
            if isinstance(error, ObjectNotFoundError):
                problem = "the archive names it, and the object is not there"
                return SegmentRepair(base, damaged, damaged, problem)
            if isinstance(error, (CorruptionError, ConflictError)):
                return SegmentRepair(base, damaged, damaged, str(error))
            raise
        is_lost = "these messages are in neither tier: they were removed, or their topics are not archived"
        return SegmentRepair(base, damaged, left, is_lost if left else None)

    def _put_back(self, segment: Segment, found: ReadableSegment, entry: LogEntry, beside: Path) -> Ranges:
        """Replaces the file of a segment; returns what is damaged still."""
        archived = SegmentReader(self._manifest.reader(scan=True), entry)
        restore_segment(archived, entry, self._fs, beside, self._randomness.token_hex(4), overwrite=True)
        merged = self._fs.map_write(beside)
        _keep_what_is_here(merged, segment, found)
        for first, following in found.damaged:
            _keep_what_is_lost(merged, segment, first, min(following, archived.blank_position))
        flush_file(self._fs, beside)
        again = self._files.read(Segment(segment.base_offset, merged))
        if not np.isin(found.rows["position"], again.rows["position"]).all():
            raise ConflictError("put together with the archive's bytes, the segment would lose records", path=entry.key)
        # Killed before: the damaged segment. After: the one put back; its name is durable before anybody is told.
        self._fs.rename(beside, self._paths.segment(segment.base_offset))
        self._fs.flush_dir(self._paths.commitlog)
        return self._ranges(segment, again, is_last=False)


def _keep_what_is_here(merged: ByteArray, segment: Segment, found: ReadableSegment) -> None:
    """Copies the readable records whose place in the archive is a filler; all others have to be equal in both.

    Raises :class:`ConflictError` for one that is not.
    """
    rows = found.rows
    starts = rows["position"].astype(np.int64)
    ends = starts + rows["size"]
    breaks = [*(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), len(rows)]
    at = 0
    while at < len(rows):
        # as many as lie side by side and fit into a piece: what is the same is passed over at once
        fitting = int(np.searchsorted(ends, starts[at] + _PIECE_BYTES, "right"))
        last = max(at + 1, min(fitting, breaks[bisect_right(breaks, at)]))
        first, end = int(starts[at]), int(ends[last - 1])
        if not np.array_equal(merged[first:end], segment.data[first:end]):
            for start, following in zip(starts[at:last].tolist(), ends[at:last].tolist(), strict=True):
                _keep_record(merged, segment, start, following)
        at = last


def _keep_record(merged: ByteArray, segment: Segment, start: int, end: int) -> None:
    mine = segment.data[start:end]
    theirs = bytes(merged[start:end])
    if theirs == bytes(mine):
        return
    if not is_filler(theirs) or HEAD.unpack_from(theirs)[0] != end - start:
        raise ConflictError(
            "the archive has another record than this log, in which it can be read", path="commitlog",
            position=segment.base_offset + start,
            hint="nothing was changed: this is another log, or bytes have changed that no checksum covers",
        )  # fmt: skip
    merged[start:end] = mine


def _keep_what_is_lost(merged: ByteArray, segment: Segment, first: int, end: int) -> None:
    """Leaves bytes as they are where the archive has a filler: a log never holds one, and a person may want to look."""
    position = first
    while position < end:
        (size,) = np.frombuffer(bytes(merged[position : position + 4]), ">i4").tolist()
        if size <= 0:
            return
        if is_filler(bytes(merged[position : position + 8])):
            mine = segment.data[position : position + size]
            merged[position : position + len(mine)] = mine
            merged[position + len(mine) : position + size] = 0
        position += size
