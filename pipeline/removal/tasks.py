"""What executors do for an erasure or expiry, a segment or an index object at a time.

Each is a plain function of values that travel. A task that Spark runs twice stores two objects, of which one is named;
the other is swept as nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol, TypeVar

from index.key_segments import KeyNumbers, segments_of_keys
from pipeline.archive import open_manifest
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.segment.reader import SegmentReader, items_in
from tiering.erasing.rewriting import Batch, Outcome, Selection, entries_between, rewrite
from tiering.errors import CorruptionError, ObjectNotFoundError
from tiering.format.filler import Filler
from tiering.format.manifest import Head, IndexEntry, LogEntry
from tiering.format.record import Record
from tiering.randomness import Randomness, SystemRandomness

A = TypeVar("A")
R = TypeVar("R")


class FanOut(Protocol):
    """Who runs tasks: executors, or this process."""

    def __call__(self, function: Callable[[A], R], arguments: Sequence[A]) -> list[R]:
        """What the function, which travels, makes of each argument, in their order."""
        ...


class Archive(Protocol):
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
    """Where the archive of one store is."""

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
class Counted:
    """What one segment holds of what is meant."""

    base: int
    all: int
    seen: int = 0
    """Of all, those that readers see."""
    error: str | None = None
    """Why it cannot be read."""


class Seen(Protocol):
    """Whether readers see a record. Goes from process to process by pickle."""

    def __call__(self, record: Record) -> bool:
        """True if it is neither erased nor expired."""
        ...


def rewrite_segment(archive: Archive, epoch: int, selection: Selection, entry: LogEntry) -> Outcome:
    """See :func:`tiering.erasing.rewriting.rewrite`."""
    manifest = archive.manifest
    return rewrite(manifest, manifest.reader(scan=True), epoch, entry, selection, archive.randomness)


def count_segment(archive: Archive, selection: Selection, is_seen: Seen, entry: LogEntry) -> Counted:
    """How many records of a segment a selection takes; nothing is written."""
    reader, meant, seen = archive.manifest.reader(scan=True), 0, 0
    try:
        unwanted = selection.unwanted(reader, entry)
        if unwanted is None:
            return Counted(entry.base, 0)
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
        return Counted(entry.base, 0, error=str(error))
    return Counted(entry.base, meant, seen)


def find_segments(archive: Archive, keys: KeyNumbers, segment_bytes: int, entry: IndexEntry) -> set[int] | None:
    """Bases of the segments to which an index object leads for any of the keys; None if it cannot be read."""
    try:
        return segments_of_keys(archive.manifest.reader(scan=True), entry, keys, segment_bytes)
    except (CorruptionError, ObjectNotFoundError):
        return None


class ExecutorRewriter:
    """Prepares batches of which each segment is a task."""

    def __init__(self, archive: Archive, fan_out: FanOut, most: int) -> None:
        """``most`` segments are looked at for one commit: what is lost if somebody else was faster."""
        self._archive = archive
        self._fan_out = fan_out
        self._most = most

    def batch(self, head: Head, first: int, end: int, selection: Selection) -> Batch:
        """See :class:`tiering.erasing.rewriting.BatchMaker`."""
        manifest = self._archive.manifest
        batch = Batch(first, first, manifest.begin_upload())
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
