"""Goes over archived segments and writes those again that hold what must not be kept, a few at a time.

A batch uploads rewritten segments under new names and changes nothing else; the caller writes down what it is about to
replace, commits the batch, and goes on behind it. Killed before the commit: unnamed objects. After it: the manifest
names the new objects, and going over them again finds fillers only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tiering.clock import Clock
from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.cold.reading import ArchiveReader
from tiering.cold.segment.reader import DirectoryRow
from tiering.cold.segment.rewriting import choose_records, rewrite_segment
from tiering.errors import CorruptionError, ObjectNotFoundError
from tiering.format.manifest import Head, LogEntry
from tiering.format.record import Record
from tiering.randomness import Randomness

_LOG = logging.getLogger("tierlog")
_MOST_REWRITTEN = 8
_MOST_LOOKED_AT = 64
_MOST_S = 5.0


@dataclass(frozen=True, slots=True)
class Unwanted:
    """What must go from one segment: which runs may hold it, and whether a record is meant."""

    may_hold: Callable[[DirectoryRow], bool]
    is_meant: Callable[[Record], bool]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One segment that was written again; ``records`` became fillers."""

    old: LogEntry
    new: LogEntry
    records: int


@dataclass(slots=True)
class Batch:
    """Segments of ``[first, reached)`` were looked at, and those that needed it uploaded again."""

    first: int
    reached: int
    begun_s: float
    replacements: list[Replacement] = field(default_factory=list)
    unreadable: list[LogEntry] = field(default_factory=list)
    """Segments that are damaged or missing, which were passed over."""

    def change(self) -> ManifestChange:
        """The commit that puts the new objects in the place of the old ones."""
        return ManifestChange(
            log=tuple(each.new for each in self.replacements),
            remove=tuple(each.old for each in self.replacements),
            begun_s=self.begun_s,
        )


class SegmentRewriter:
    """Prepares batches for one store; used by one thread at a time."""

    def __init__(
        self, manifest: ManifestStore, randomness: Randomness, clock: Clock, check_going_on: Callable[[], None]
    ) -> None:
        """``check_going_on`` is asked before each segment and raises if the work must stop."""
        self._manifest = manifest
        self._randomness = randomness
        self._clock = clock
        self._check_going_on = check_going_on

    def batch(self, head: Head, first: int, end: int, unwanted_in: Callable[[LogEntry], Unwanted | None]) -> Batch:
        """Look at published segments of ``[first, end)`` in ascending order: 64, or 8 written again, or 5 s at most.

        ``unwanted_in`` gives None for a segment that need not be read. A segment that is damaged stays as it is and
        keeps no other from being written again.
        """
        manifest = self._manifest
        reader = manifest.reader()
        batch = Batch(first, first, manifest.begin_upload())
        looked_at = 0
        for entry in manifest.log_entries(reader, head):
            if entry.next <= first or entry.base >= end:
                continue
            took_s = self._clock.monotonic_s() - batch.begun_s
            if looked_at == _MOST_LOOKED_AT or len(batch.replacements) == _MOST_REWRITTEN or took_s > _MOST_S:
                return batch
            self._check_going_on()
            unwanted = unwanted_in(entry)
            if unwanted is not None:
                looked_at += 1
                try:
                    batch.replacements += self._replacement(reader, head, entry, unwanted)
                except (CorruptionError, ObjectNotFoundError) as error:
                    if error.path != entry.key:
                        raise
                    _LOG.error("an archived segment cannot be read and is not written again: %s", error)
                    batch.unreadable.append(entry)
            batch.reached = entry.next
        batch.reached = max(first, end)
        return batch

    def _replacement(
        self, reader: ArchiveReader, head: Head, entry: LogEntry, unwanted: Unwanted
    ) -> Iterator[Replacement]:
        manifest = self._manifest
        chosen = choose_records(reader, entry, unwanted.may_hold, unwanted.is_meant)
        if chosen.records:
            key = manifest.keys.segment(entry.base, head.epoch, self._randomness.token_hex(4))
            new = rewrite_segment(manifest.objects, reader, entry, chosen, key, manifest.options.compression_level)
            yield Replacement(entry, new, chosen.records)
