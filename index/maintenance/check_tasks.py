"""The deep check of an archive in tasks that need nothing of each other, with the findings of the check in one process.

First every index object is read, then every segment is compared with what the objects said of it, which is two numbers;
only a segment whose numbers differ reads its objects again. What travels are manifest entries, queue rows, numbers and
findings. A task holds one segment, or one page and filter of an object. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tierlog.index.maintenance.check import (
    FindingKind,
    IndexCheck,
    IndexedSegment,
    IndexRules,
    ObjectRead,
    PendingFinding,
    index_check,
    read_object,
)
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.checks.archive import ColdCheck, SegmentOrder, SegmentSeen, StoredRows, check_segment
from tierlog.tiering.checks.findings import Findings
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import uncached_reader
from tierlog.tiering.cold.segment.whole_segment import WholeSegment
from tierlog.tiering.format.manifest import IndexEntry, LogEntry

T = TypeVar("T", IndexEntry, LogEntry)


@dataclass(frozen=True, slots=True)
class ObjectTask:
    """Index objects that one task reads."""

    rules: IndexRules
    entries: tuple[IndexEntry, ...]

    def run(self, manifest: ManifestStore) -> tuple[ObjectRead, ...]:
        """Reads each of them; raises the object store's errors."""
        return tuple(read_object(manifest.objects, self.rules, entry) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class SegmentToCheck:
    """A segment to read, and what is known of it from elsewhere."""

    entry: LogEntry
    stored: StoredRows
    indexed: IndexedSegment


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """The counts of one segment, and what is wrong with it."""

    seen: SegmentSeen
    findings: tuple[PendingFinding, ...]
    records: int


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Segments that one task reads, one after the other."""

    rules: IndexRules
    segments: tuple[SegmentToCheck, ...]

    def run(self, manifest: ManifestStore) -> tuple[SegmentRead, ...]:
        """Reads each of them; raises the object store's errors."""
        return tuple(self._read(manifest, segment) for segment in self.segments)

    def _read(self, manifest: ManifestStore, segment: SegmentToCheck) -> SegmentRead:
        findings: list[PendingFinding] = []
        records = 0

        def visit(whole: WholeSegment) -> None:
            nonlocal records
            records = len(whole.rows)
            findings.extend(segment.indexed.compare(manifest.objects, self.rules, whole))

        seen = check_segment(
            manifest.objects, uncached_reader(manifest.objects), segment.entry,
            topic_ids=dict(self.rules.topic_ids), stored=segment.stored,
            add=lambda about, text: findings.append(PendingFinding(FindingKind.PLAIN, about, text)), visit=visit,
        )  # fmt: skip
        return SegmentRead(seen, tuple(findings), records)


#: Runs some tasks wherever it likes, with a manifest of the same archive; results in the order of the tasks.
RunObjects = Callable[[Sequence[ObjectTask]], Iterable[tuple[ObjectRead, ...]]]
RunSegments = Callable[[Sequence[SegmentTask]], Iterable[tuple[SegmentRead, ...]]]


@dataclass(slots=True)
class CheckCounts:
    """Counts of what was read."""

    objects: int = 0
    items: int = 0
    segments: int = 0
    records: int = 0
    firsts: dict[str, int] = field(default_factory=dict)
    """Where in the log objects of the archive begin, by name."""


def check_in_tasks(
    manifest: ManifestStore,
    findings: Findings,
    run_objects: RunObjects,
    run_segments: RunSegments,
    progress: Callable[[int, int], None],
    *,
    task_bytes: int,
    wave_tasks: int,
) -> CheckCounts:
    """Finds what :func:`index.maintenance.check.check_archive_deep` finds without a hot tier, in tasks.

    A task reads about ``task_bytes`` of the bucket, one object at least; so many tasks are handed out together, and
    what one wave found is all that is kept of it.
    """
    counts = CheckCounts()
    try:
        head = manifest.refresh()
    except StoreError as error:
        findings.add(manifest.keys.head, error.message)
        return counts
    cold = ColdCheck(manifest, head, findings)
    cold.check_manifest()
    counts.firsts = {each.key: each.first for each in cold.log} | {each.key: each.first for each in cold.index}
    index, total = index_check(cold, findings), len(cold.index) + len(cold.log)
    for objects in _waves(cold.index, task_bytes, wave_tasks):
        reads = run_objects([ObjectTask(index.rules, tuple(group)) for group in objects])
        for group, found in zip(objects, reads, strict=True):
            for entry, read in zip(group, found, strict=True):
                index.take(entry, read)
                counts.objects += 1
                counts.items += sum(each.items for each in read.sums.values())
        progress(counts.objects, total)
    follow = SegmentOrder(cold)
    for segments in _waves(cold.log, task_bytes, wave_tasks):
        _check_segments(segments, follow, index, run_segments, counts)
        progress(counts.objects + counts.segments, total)
    cold.check_bucket()
    return counts


def _check_segments(
    groups: Sequence[Sequence[LogEntry]], follow: SegmentOrder, index: IndexCheck, run: RunSegments, counts: CheckCounts
) -> None:
    tasks = [
        SegmentTask(
            index.rules,
            tuple(SegmentToCheck(entry, follow.stored_rows(entry), index.segment(entry.base)) for entry in group),
        )
        for group in groups
    ]
    for group, found in zip(groups, run(tasks), strict=True):
        for entry, read in zip(group, found, strict=True):
            index.report(read.findings)
            follow.see(entry, read.seen)
            counts.segments += 1
            counts.records += read.records


def _waves(entries: Sequence[T], task_bytes: int, tasks: int) -> Iterator[list[list[T]]]:
    """Yields entries in their order: so many groups together, each of about so many bytes."""
    wave: list[list[T]] = [[]]
    filled = 0
    for entry in entries:
        if wave[-1] and filled + entry.size_bytes > task_bytes:
            if len(wave) == tasks:
                yield wave
                wave = []
            wave.append([])
            filled = 0
        wave[-1].append(entry)
        filled += entry.size_bytes
    if wave[-1]:
        yield wave
