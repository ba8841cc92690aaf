"""Goes over archived segments and writes those again that hold what must not be kept, a few at a time.

A batch uploads rewritten segments under new names and changes nothing else; the caller writes down what it is about to
replace, commits the batch, and goes on behind it. Killed before the commit: unnamed objects. After it: the manifest
names the new objects, and going over them again finds fillers only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ConflictError, CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.segment.reader import DirectoryRow
from tierlog.tiering.cold.segment.rewriter import choose_records, rewrite_segment
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.format.record import Record
from tierlog.tiering.lifecycle.store_view import Committer

_LOG = logging.getLogger("tierlog")
_MOST_REWRITTEN = 8
_MOST_LOOKED_AT = 64
_MOST_S = 5.0


@dataclass(frozen=True, slots=True)
class UnwantedRecords:
    """The records that must go from one segment: which runs may hold them, and whether a record is meant."""

    may_hold: Callable[[DirectoryRow], bool]
    is_meant: Callable[[Record], bool]


class RecordSelection(Protocol):
    """The records that must go from an archive. It is pickled from process to process, so it holds values alone."""

    def concerns(self, entry: LogEntry) -> bool:
        """Whether a segment may hold any of it, by its entry alone."""
        ...

    def unwanted_records(self, reader: ArchiveReader, entry: LogEntry) -> UnwantedRecords | None:
        """Returns what must go from a segment that it concerns; None if nothing need."""
        ...


@dataclass(frozen=True, slots=True)
class ReplacedSegment:
    """One segment that was written again; ``records`` became fillers."""

    old: LogEntry
    new: LogEntry
    records: int


@dataclass(frozen=True, slots=True)
class RewriteOutcome:
    """The outcome for one segment that was looked at."""

    entry: LogEntry
    replacement: ReplacedSegment | None = None
    error: str | None = None
    """Why it cannot be read: damaged, or missing."""


@dataclass(slots=True)
class RewriteBatch:
    """Segments of ``[first, reached)`` were looked at, and those that needed it uploaded again."""

    first: int
    reached: int
    begun_s: float
    replacements: list[ReplacedSegment] = field(default_factory=list)
    unreadable: list[LogEntry] = field(default_factory=list)
    """Segments that are damaged or missing, which were passed over."""

    def take(self, outcome: RewriteOutcome) -> None:
        """Adds what became of the next segment."""
        if outcome.replacement is not None:
            self.replacements.append(outcome.replacement)
        if outcome.error is not None:
            _LOG.error("an archived segment cannot be read and is not written again: %s", outcome.error)
            self.unreadable.append(outcome.entry)
        self.reached = outcome.entry.next

    def change(self) -> ManifestChange:
        """Returns the commit that puts the new objects in the place of the old ones."""
        return ManifestChange(
            log=tuple(each.new for each in self.replacements),
            remove=tuple(each.old for each in self.replacements),
            begun_s=self.begun_s,
        )

    def still_named(self, manifest: ManifestStore, head: Head) -> RewriteBatch:
        """The batch without what somebody else has replaced or dropped since, reaching as far as the first of that."""
        reader = manifest.reader()
        entries = {each.old.base: manifest.log_entry(reader, head, each.old.base) for each in self.replacements}
        named = {entry.key for entry in entries.values() if entry is not None}
        left = [each for each in self.replacements if each.old.key in named]
        lost = [each.old.base for each in self.replacements if each.old.key not in named]
        reached = min(lost, default=self.reached)
        return RewriteBatch(
            self.first, reached, self.begun_s, left, [entry for entry in self.unreadable if entry.base < reached]
        )


class RewriteBatchMaker(Protocol):
    """A writer of new segments for old ones: this process, or many."""

    def batch(self, head: Head, first: int, end: int, selection: RecordSelection) -> RewriteBatch:
        """Looks at published segments of ``[first, end)`` in ascending order, at so many as one commit should replace.

        A segment that is damaged stays as it is and keeps no other from being written again.
        """
        ...


def rewrite(
    manifest: ManifestStore,
    reader: ArchiveReader,
    *,
    epoch: int,
    entry: LogEntry,
    selection: RecordSelection,
    randomness: Randomness,
) -> RewriteOutcome:
    """Stores one segment again, under a name of this attempt, if it holds anything that must go.

    Raises the object store's errors; damage of the segment itself is an outcome.
    """
    try:
        unwanted = selection.unwanted_records(reader, entry)
        if unwanted is None:
            return RewriteOutcome(entry)
        chosen = choose_records(reader, entry, unwanted.may_hold, unwanted.is_meant)
        if not chosen.records:
            return RewriteOutcome(entry)
        key = manifest.keys.segment(entry.base, epoch, randomness.token_hex(4))
        new = rewrite_segment(
            manifest.objects, reader, entry, chosen=chosen, key=key, level=manifest.options.compression_level
        )
    except (CorruptionError, ObjectNotFoundError) as error:
        if error.path != entry.key:
            raise
        return RewriteOutcome(entry, error=str(error))
    return RewriteOutcome(entry, ReplacedSegment(entry, new, chosen.records))


def commit_batch(
    manifest: ManifestStore, committer: Committer, batch: RewriteBatch, topics: Collection[str]
) -> RewriteBatch:
    """Puts what a batch holds in the place of the old objects; the batch without what somebody else replaced meanwhile.

    Raises :class:`ConflictError` if one of the topics is on hold or the uploads took too long.
    """
    try:
        committer.commit(batch.change(), topics)
    except ConflictError:
        left = batch.still_named(manifest, manifest.refresh())
        if len(left.replacements) == len(batch.replacements):
            raise
        if left.replacements:
            committer.commit(left.change(), topics)
        return left
    return batch


def entries_between(
    manifest: ManifestStore, reader: ArchiveReader, head: Head, first: int, end: int
) -> Iterator[LogEntry]:
    """Published segments that lie in ``[first, end)`` at least in part, ascending."""
    return (entry for entry in manifest.log_entries(reader, head) if entry.next > first and entry.base < end)


class SegmentRewriter:
    """Prepares batches for one store in this process; used by one thread at a time."""

    def __init__(
        self, manifest: ManifestStore, randomness: Randomness, clock: Clock, check_going_on: Callable[[], None]
    ) -> None:
        """``check_going_on`` is asked before each segment and raises if the work must stop."""
        self._manifest = manifest
        self._randomness = randomness
        self._clock = clock
        self._check_going_on = check_going_on

    def batch(self, head: Head, first: int, end: int, selection: RecordSelection) -> RewriteBatch:
        """Returns the next 64 segments that are concerned, or 8 written again, or what takes 5 s; see
        :class:`RewriteBatchMaker`.
        """
        manifest = self._manifest
        reader = manifest.reader()
        batch = RewriteBatch(first, first, manifest.begin_upload())
        looked_at = 0
        for entry in entries_between(manifest, reader, head, first, end):
            took_s = self._clock.monotonic_s() - batch.begun_s
            if looked_at == _MOST_LOOKED_AT or len(batch.replacements) == _MOST_REWRITTEN or took_s > _MOST_S:
                return batch
            self._check_going_on()
            if selection.concerns(entry):
                looked_at += 1
                batch.take(
                    rewrite(
                        manifest,
                        reader,
                        epoch=head.epoch,
                        entry=entry,
                        selection=selection,
                        randomness=self._randomness,
                    )
                )
            batch.reached = entry.next
        batch.reached = max(first, end)
        return batch
