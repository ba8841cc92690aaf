"""The work of executors for an erasure or expiry, a segment or an index object at a time.

Each is a plain function of values that travel. A task that Spark runs twice stores two objects, of which one is named;
the other is swept as nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol, TypeVar

from tierlog.index.objects.lookup import KeyNumbers, segments_of_keys
from tierlog.pipeline.base.archive import open_manifest
from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader, items_in
from tierlog.tiering.format.filler import Filler
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry
from tierlog.tiering.format.record import Record
from tierlog.tiering.lifecycle.rewrite_batches import (
    RecordSelection,
    RewriteBatch,
    RewriteOutcome,
    entries_between,
    rewrite,
)

A = TypeVar("A")
R = TypeVar("R")


class FanOut(Protocol):
    """A runner of tasks: on executors, or in this process."""

    def __call__(self, function: Callable[[A], R], arguments: Sequence[A]) -> list[R]:
        """Runs the function, which travels, on each argument; returns the results in their order."""
        ...


class ArchiveAccess(Protocol):
    """One store's archive as each process opens it."""

    @property
    def manifest(self) -> ManifestStore:
        """This process's manifest of it."""
        ...

    @property
    def randomness(self) -> Randomness:
        """For names of objects."""
        ...


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The place of one store's archive."""

    url: str
    store_id: str
    grace_ms: int | None = None
    """The store's, if it is not the default."""

    @property
    def manifest(self) -> ManifestStore:
        """One a process."""
        return open_manifest(self.url, self.store_id, self.grace_ms)

    @property
    def randomness(self) -> Randomness:
        """The system's."""
        return SystemRandomness()


@dataclass(frozen=True, slots=True)
class SegmentCount:
    """Counts of the selected records of one segment."""

    base: int
    all: int
    seen: int = 0
    """Of all, those that readers see."""
    error: str | None = None
    """Why it cannot be read."""


class RecordVisibility(Protocol):
    """Whether readers see a record. Goes from process to process by pickle."""

    def __call__(self, record: Record) -> bool:
        """True if it is neither erased nor expired."""
        ...


def rewrite_segment(archive: ArchiveAccess, epoch: int, selection: RecordSelection, entry: LogEntry) -> RewriteOutcome:
    """See :func:`tiering.lifecycle.rewrite_batches.rewrite`."""
    manifest = archive.manifest
    return rewrite(
        manifest,
        manifest.reader(scan=True),
        epoch=epoch,
        entry=entry,
        selection=selection,
        randomness=archive.randomness,
    )


def count_segment(
    archive: ArchiveAccess, selection: RecordSelection, is_seen: RecordVisibility, entry: LogEntry
) -> SegmentCount:
    """Counts the records of a segment that a selection takes; nothing is written."""
    reader, meant, seen = archive.manifest.reader(scan=True), 0, 0
    try:
        unwanted = selection.unwanted_records(reader, entry)
        if unwanted is None:
            return SegmentCount(entry.base, 0)
        segment = SegmentReader(reader, entry)
        for place, rows in groupby(filter(unwanted.may_hold, segment.runs()), key=lambda row: row.place):
            frame = segment.frame(place)
            for row in rows:
                for item in items_in(frame, row):
                    if not isinstance(item, Filler) and unwanted.is_meant(item):
                        meant += 1
                        seen += row.first_queue_offset >= 0 and is_seen(item)
    except (CorruptionError, ObjectNotFoundError) as error:
        if error.path != entry.key:
            raise
        return SegmentCount(entry.base, 0, error=str(error))
    return SegmentCount(entry.base, meant, seen)


def find_segments(archive: ArchiveAccess, keys: KeyNumbers, segment_bytes: int, entry: IndexEntry) -> set[int] | None:
    """Bases of the segments to which an index object leads for any of the keys; None if it cannot be read."""
    try:
        return segments_of_keys(archive.manifest.reader(scan=True), entry, keys, segment_bytes)
    except (CorruptionError, ObjectNotFoundError):
        return None


class ExecutorRewriter:
    """Prepares batches of which each segment is a task."""

    def __init__(self, archive: ArchiveAccess, fan_out: FanOut, most: int) -> None:
        """``most`` segments go into one commit: the work that is lost if another process commits first."""
        self._archive = archive
        self._fan_out = fan_out
        self._most = most

    def batch(self, head: Head, first: int, end: int, selection: RecordSelection) -> RewriteBatch:
        """See :class:`tiering.lifecycle.rewrite_batches.RewriteBatchMaker`."""
        manifest = self._archive.manifest
        batch = RewriteBatch(first, first, manifest.begin_upload())
        wanted: list[LogEntry] = []
        reached = max(first, end)
        for entry in entries_between(manifest, manifest.reader(), head, first, end):
            if selection.concerns(entry):
                if len(wanted) == self._most:
                    reached = wanted[-1].next
                    break
                wanted.append(entry)
        for outcome in self._fan_out(partial(rewrite_segment, self._archive, head.epoch, selection), wanted):
            batch.take(outcome)
        batch.reached = reached
        return batch
