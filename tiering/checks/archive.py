"""Verifies an archive: its manifest, and every segment with its metadata.

Everything is read from the object store, past every cache. Memory: one segment, and a few numbers for each object of
the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.checks.findings import Findings
from tierlog.tiering.checks.segment import compare_queue_rows, compare_segment, compare_with_hot
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.manifest.sweep import NameSet, overdue_ms
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader, uncached_reader
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.cold.segment.whole_segment import Find, WholeSegment, read_whole
from tierlog.tiering.format.manifest import (
    Entry,
    Head,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    QueueGap,
    decode_gaps,
    decode_page,
    decode_removed,
)
from tierlog.tiering.format.queue_rows import QUEUE_ROW, QueueRows, decode_queue_rows_head, decode_rows_page
from tierlog.tiering.format.store_state import StoreState
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.erasure_receipts import ReceiptStore
from tierlog.tiering.objects.object_store import ObjectStore

_HOUR_MS = 3_600_000
#: Takes a finding: the object that it is about, and what is wrong.
Add = Callable[[str, str], None]


class ColdCheck:
    """One deep check of one archive at one version of its manifest."""

    def __init__(self, manifest: ManifestStore, head: Head, findings: Findings) -> None:
        self.manifest = manifest
        self.head = head
        self.findings = findings
        self.log: list[LogEntry] = []
        self.index: list[IndexEntry] = []
        self.lost_ranges: list[tuple[int, int]] = []
        """Physical ranges whose segments the manifest does not tell because a page of it cannot be read."""
        self.lost_index: list[tuple[int, int]] = []
        """The same of index objects."""
        self.lost_nodes: list[tuple[str, PageNode]] = []
        """The pages themselves, with their kind."""
        self.page_names: set[str] = set()
        """Every page that is named, as far as the manifest can be read."""
        self.state = StoreState()
        self._rows: list[tuple[tuple[int, int], ObjectRef]] = []
        self._gaps: Sequence[QueueGap] = ()
        self._is_manifest_damaged = False

    # the manifest

    def check_manifest(self) -> None:
        """Watermarks, pages and what they say of each other; afterwards ``log`` and ``index`` are known."""
        head, find = self.head, self._finder(self.manifest.keys.head)
        if not head.cold_min <= head.indexed_to <= head.archived_to:
            find(f"watermarks out of order: {head.cold_min}, {head.indexed_to}, {head.archived_to}")
        self.log = [*self._walk("log", head.log_tree), *head.log]
        self.index = [*self._walk("index", head.index_tree), *head.index]
        self._rows += [((entry.first, entry.next), entry.rows) for entry in head.log if entry.rows is not None]
        self._check_ranges(find)
        self._check_names(find)
        self.state = self._read(head.state, lambda data, key: StoreState.decode(data, path=key)) or StoreState()
        self._gaps = self._read(head.gaps, lambda data, key: decode_gaps(data, path=key)) or ()
        for page in head.removed:
            self._read(page.ref, lambda data, key: decode_removed(data, path=key))

    def _finder(self, key: str) -> Callable[[str], None]:
        return lambda text: self.findings.add(key, text)

    def _read(self, ref: ObjectRef | None, decode: Callable[[bytes, str], Any]) -> Any | None:
        """Reads a whole object of the manifest; reports what is wrong with it and returns None."""
        if ref is None:
            return None
        try:
            data, _ = self.manifest.objects.get(ref.key)
            return decode(ref.check(data), ref.key)
        except (CorruptionError, ObjectNotFoundError) as error:
            self.findings.add(ref.key, error.message)
            self._is_manifest_damaged = True
            return None

    def _walk(self, kind: str, nodes: Sequence[PageNode]) -> Iterator[Any]:
        for node in nodes:
            self.page_names.add(node.ref.key)
            items = self._read(node.ref, partial(_decode_page, kind, node.level))
            if items is None:
                (self.lost_ranges if kind == "log" else self.lost_index).append((node.first, node.next))
                self.lost_nodes.append((kind, node))
                continue
            self._check_node(node, items)
            if node.rows is not None:
                self._rows.append(((node.first, node.next), node.rows))
            if node.level:
                yield from self._walk(kind, items)
            else:
                yield from items

    def _check_node(self, node: PageNode, items: Sequence[Any]) -> None:
        find = self._finder(node.ref.key)
        if node.count != len(items) or not items:
            find(f"holds {len(items)} entries, its reference says {node.count}")
            return
        first, last = min(item.first for item in items), max(item.next for item in items)
        if node.first > first or node.next < last:
            find(f"holds [{first}, {last}), its reference says [{node.first}, {node.next})")
        bounds = [item.bounds for item in items if item.bounds is not None]
        if bounds:
            held = reduce(TimeBounds.union, bounds)
            if node.bounds is None or node.bounds.union(held) != node.bounds:
                find("its reference has narrower times than its entries")

    def _check_ranges(self, find: Callable[[str], None]) -> None:
        """Segments follow each other from ``cold_min`` to ``archived_to``, apart from declared gaps."""
        known = sorted([*self.head.log_gaps, *self.lost_ranges])
        expected = self.head.cold_min
        bases = [(entry.base, entry.next) for entry in self.log]
        if bases != sorted(bases):
            find("segments are not in order")
        for first, following in sorted([*bases, *known]):
            if first > expected:
                find(f"I4: no segment holds [{expected}, {first})")
            elif first < expected and (first, following) not in known:
                find(f"I4: segment {first} begins before {expected}, where the one before ends")
            expected = max(expected, following)
        if expected != max(self.head.archived_to, self.head.cold_min):
            find(f"segments reach {expected}, archived_to is {self.head.archived_to}")
        for entry in self.index:
            if entry.next > self.head.indexed_to or entry.first >= entry.next:
                indexed_to = f"indexed_to is {self.head.indexed_to}"
                self.findings.add(entry.key, f"covers [{entry.first}, {entry.next}), {indexed_to}")

    def _check_names(self, find: Callable[[str], None]) -> None:
        prefix, seen = f"{self.manifest.keys.store_id}/", set[str]()
        entries: list[Entry] = [*self.log, *self.index]
        for entry in entries:
            if entry.key in seen:
                find(f"{entry.key} is named twice")
            seen.add(entry.key)
            if not entry.key.startswith(prefix) or entry.added > self.head.version:
                find(f"{entry.key} is no name of this store, or newer than the manifest")

    # the segments

    def check_segments(self, hot: HotStore | None, visit: Callable[[WholeSegment], None], progress: Progress) -> None:
        """Every segment in ascending order; ``visit`` gets what could be read of it."""
        kept = {segment.base_offset: segment for segment in hot.log.segments()} if hot else {}
        follow = SegmentOrder(self)
        for number, entry in enumerate(self.log):
            stored = follow.stored_rows(entry)
            copy = kept[entry.base].data if entry.base in kept else None
            seen = check_segment(
                self.manifest.objects,
                uncached_reader(self.manifest.objects),
                entry,
                topic_ids=follow.topic_ids,
                stored=stored,
                add=self.findings.add,
                visit=visit,
                copy=copy,
            )
            follow.see(entry, seen)
            progress(number + 1, len(self.log))
        if hot is not None:
            self._check_border(hot, follow.queues)

    @property
    def topic_ids(self) -> dict[str, int]:
        """Ids by name, of the topics that the state object names."""
        return {topic.name: topic.topic_id for topic in self.state.topics}

    def is_segment_damaged(self, entry: LogEntry) -> bool:
        """Whether a segment itself is not what its entry says, whatever is said of it elsewhere."""
        found: list[str] = []
        try:
            segment = SegmentReader(uncached_reader(self.manifest.objects), entry)
            whole = read_whole(self.manifest.objects, segment, entry, [], found.append)
            if whole is not None:
                compare_segment(segment, whole, found.append)
        except (CorruptionError, ObjectNotFoundError) as error:
            found.append(error.message)
        return bool(found)

    def _check_border(self, hot: HotStore, queues: QueueOrder) -> None:
        """Each queue goes on in the hot tier where its archived part ends."""
        with hot.snapshot() as snapshot:
            for topic in hot.topics.all():
                for queue_id in range(topic.queues):
                    view = hot.queues.view(topic.topic_id, queue_id)
                    reached = queues.reached().get((topic.topic_id, queue_id))
                    if view is None or reached is None or snapshot.border > self.head.archived_to:
                        continue
                    goes_on = view.first_at_or_above(self.head.archived_to)
                    if goes_on != reached and not queues.leads((topic.topic_id, queue_id), reached, goes_on):
                        self.findings.add(
                            None, f"I2 queue {topic.name}/{queue_id}: the archive ends at {reached}, "
                            f"the hot tier goes on at {goes_on}",
                        )  # fmt: skip

    # the bucket

    def check_bucket(self) -> None:
        """Receipts, and objects that nobody names."""
        receipts = ReceiptStore(self.manifest.objects, self.manifest.keys)
        for name in list(receipts.ids()):
            try:
                receipts.find(name)
            except CorruptionError as error:
                self.findings.add(self.manifest.keys.receipt(name), error.message)
        if self._is_manifest_damaged:
            self.findings.note(self.manifest.keys.head, "orphans are not looked for while the manifest is damaged")
            return
        named = [entry.key for entry in self.log] + [entry.key for entry in self.index]
        reader = uncached_reader(self.manifest.objects)
        named += [ref.key for ref in self.manifest.pages(reader, self.head)]
        check_orphans(self.manifest, reader, self.head, named, self.findings)


def check_orphans(
    manifest: ManifestStore, reader: ArchiveReader, head: Head, named: Iterable[str], findings: Findings
) -> None:
    """Compares the bucket with ``named``, everything that ``head`` leads to.

    Lists orphans, leaks, pending uploads and foreign objects. What is not overdue is a note at most: a commit may be on
    its way, or the sweep.
    """
    objects, keys, most_ms = manifest.objects, manifest.keys, overdue_ms(manifest.options.grace_ms)
    now_ms = objects.now_ms()
    removed = dict(manifest.removed_names(reader, head))
    known = NameSet(named)
    for prefix in keys.swept:
        for info in objects.list(prefix):
            if info.key in known:
                if info.key in removed:
                    findings.add(info.key, "is named, and on the list of removed names as well")
                continue
            is_removed = info.key in removed
            age_ms = now_ms - removed.get(info.key, info.modified_ms)
            age = f"{age_ms / _HOUR_MS:.1f} h"
            text = f"left the manifest {age} ago" if is_removed else f"is named by nobody, {age} old"
            if age_ms > most_ms:
                findings.add(info.key, text + ": the sweep should have taken it")
            elif not is_removed:
                findings.note(info.key, text)
        for pending in objects.list_uploads(prefix):
            age_ms = now_ms - pending.started_ms
            text = f"an upload of it has been pending for {age_ms / _HOUR_MS:.1f} h"
            if age_ms <= most_ms:
                findings.note(pending.key, text)
            else:
                findings.add(pending.key, text + ": the sweep should have aborted it")
    places = (*keys.swept, keys.tails, keys.receipts)
    for info in objects.list(f"{keys.store_id}/"):
        if info.key != keys.head and not info.key.startswith(places):
            findings.note(info.key, "is no object of tierlog")


class QueueStretch(NamedTuple):
    """Records of one queue that follow each other, of one segment; ``first_queue_offset`` is -1 without units."""

    topic: str
    queue_id: int
    first_queue_offset: int
    records: int


def stretches(runs: Iterable[DirectoryRow]) -> Iterator[QueueStretch]:
    """The rows of a directory with those that go on where the one before ends put together: a few for each queue."""
    last: QueueStretch | None = None
    for run in runs:
        goes_on = (
            last is not None
            and (last.topic, last.queue_id) == (run.topic, run.queue_id)
            and last.first_queue_offset >= 0
            and run.first_queue_offset == last.first_queue_offset + last.records
        )
        if last is not None and goes_on:
            last = last._replace(records=last.records + run.records)
            continue
        if last is not None:
            yield last
        last = QueueStretch(run.topic, run.queue_id, run.first_queue_offset, run.records)
    if last is not None:
        yield last


class QueueOrder:
    """Follows every queue through the segments: no offset is missing but declared gaps (I2 in docs/invariants.md).

    Segments are seen in ascending order. Memory: a number for each queue.
    """

    def __init__(self, head: Head, state: StoreState, gaps: Sequence[QueueGap]) -> None:
        self._starts = {0, state.first_offset}
        self._whole_log = head.cold_min == 0
        self._gaps = {(gap.topic_id, gap.queue_id, gap.first_missing): gap.next_present for gap in gaps}
        self._next: dict[tuple[int, int], int] = {}
        self._missed = False
        self._after_miss: set[tuple[int, int]] = set()

    def miss(self) -> None:
        """A segment could not be read: where its queues go on is not known."""
        self._missed = True
        self._after_miss.clear()

    def see(self, runs: Iterable[QueueStretch], entry: LogEntry, topic_ids: Mapping[str, int], find: Find) -> None:
        """Takes in what the directory of the next segment says."""
        for run in runs:
            topic_id = topic_ids.get(run.topic)
            if topic_id is None or run.first_queue_offset < 0:
                continue
            queue = topic_id, run.queue_id
            if not self.is_next(queue, run.first_queue_offset, is_first_segment=entry.base == 0):
                find(
                    f"I2: queue {run.topic}/{run.queue_id} goes on at {run.first_queue_offset} in segment "
                    f"{entry.base}, expected {self._next.get(queue, 0)}"
                )
            self._next[queue] = run.first_queue_offset + run.records

    def is_next(self, queue: tuple[int, int], offset: int, *, is_first_segment: bool) -> bool:
        """Whether a queue may go on at an offset."""
        expected = self._next.get(queue)
        if self._missed and queue not in self._after_miss:
            self._after_miss.add(queue)
            return expected is None or offset >= expected
        if expected is None:
            known = offset in self._starts or any(self._leads(queue, start, offset) for start in self._starts)
            return known or not (is_first_segment and self._whole_log)
        return offset == expected or self._leads(queue, expected, offset)

    def _leads(self, queue: tuple[int, int], offset: int, target: int) -> bool:
        while offset < target:
            following = self._gaps.get((*queue, offset))
            if following is None:
                return False
            offset = following
        return offset == target

    def reached(self) -> Mapping[tuple[int, int], int]:
        """Returns the next offset of each queue, where nothing of it was missed."""
        if self._missed:
            return {queue: offset for queue, offset in self._next.items() if queue in self._after_miss}
        return self._next

    def leads(self, queue: tuple[int, int], offset: int, target: int) -> bool:
        """Whether declared gaps alone lie between two offsets."""
        return self._leads(queue, offset, target)


def _decode_page(kind: str, level: int, data: bytes, key: str) -> list[Any]:
    return decode_page(data, kind, level, path=key)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The queue rows of a segment as the manifest leads to them, and in which object they are."""

    key: str
    rows: QueueRows | None
    """None if they cannot be read."""


@dataclass(frozen=True, slots=True)
class SegmentSeen:
    """The part of a checked segment that the segments after it have to agree with."""

    queues: tuple[QueueStretch, ...] | None
    """None if its directory cannot be read."""
    is_complete: bool
    """Whether the directory leads to all of its records: it does not to those of topics that are not archived."""


def check_segment(
    objects: ObjectStore, reader: ArchiveReader, entry: LogEntry, *, topic_ids: Mapping[str, int], stored: StoredRows,
    add: Add, visit: Callable[[WholeSegment], None], copy: ByteArray | None = None,
) -> SegmentSeen:  # fmt: skip
    """Checks one segment by itself, with its metadata.

    ``add`` is called with each finding, ``visit`` with the segment if it could be read; ``copy`` is the hot one.
    """
    find = partial(add, entry.key)
    try:
        segment = SegmentReader(reader, entry)
        whole = read_whole(objects, segment, entry, list(topic_ids), find)
        if whole is None:
            return SegmentSeen(None, False)
        unknown = sorted({run.topic for run in whole.runs} - topic_ids.keys())
        if unknown and topic_ids:
            find(f"holds topic {unknown[0]!r}, which the state object lacks")
        compare_segment(segment, whole, find)
        if stored.rows is not None and whole.runs and not unknown:
            compare_queue_rows(whole, stored.rows, topic_ids, partial(add, stored.key))
        if copy is not None:
            compare_with_hot(whole, copy, find)
        visit(whole)
        if not whole.runs and entry.records:
            return SegmentSeen(None, False)
        is_complete = sum(run.records for run in whole.runs) >= len(whole.items)
        return SegmentSeen(tuple(stretches(whole.runs)), is_complete)
    except (CorruptionError, ObjectNotFoundError) as error:
        find(error.message)
        return SegmentSeen(None, False)


class SegmentOrder:
    """Sees the segments of a check in ascending order: what one of them says of the next, and their queue rows."""

    def __init__(self, check: ColdCheck) -> None:
        self.queues = QueueOrder(check.head, check.state, check._gaps)
        self._check = check
        self._rows = _StoredRowsReader(check)
        self._expected = check.head.cold_min
        self.topic_ids = check.topic_ids

    def stored_rows(self, entry: LogEntry) -> StoredRows:
        """Returns the stored queue rows of the next segment."""
        rows, key = self._rows.of(entry)
        return StoredRows(key, rows)

    def see(self, entry: LogEntry, seen: SegmentSeen) -> None:
        """The next segment; tells where its queues do not go on."""
        check = self._check
        if entry.base > self._expected and check.lost_ranges:
            self.queues.miss()  # a page of the manifest is lost
        self._expected = entry.next
        if seen.queues is not None:
            self.queues.see(seen.queues, entry, self.topic_ids, partial(check.findings.add, entry.key))
        if seen.queues is None or not seen.is_complete:
            self.queues.miss()


class _StoredRowsReader:
    """Queue rows of one segment after the other: the companion of a page is read once."""

    def __init__(self, check: ColdCheck) -> None:
        self._check = check
        self._key = ""
        self._rows: QueueRows | None = None
        self._bases = {entry.base for entry in check.log}

    def of(self, entry: LogEntry) -> tuple[QueueRows | None, str]:
        """Returns the stored rows of a segment and the object that holds them; None if they cannot be read."""
        found = next((ref for (first, end), ref in self._check._rows if first <= entry.base < end), None)
        ref = entry.rows or found
        if ref is None:
            return (np.empty(0, QUEUE_ROW), entry.key) if not self._check.lost_ranges else (None, entry.key)
        if ref.key != self._key:
            self._key, self._rows = ref.key, self._check._read(ref, _decode_rows)
            if self._rows is not None:
                foreign = sorted(set(np.unique(self._rows["segment"]).tolist()) - self._bases)
                if foreign:
                    self._check.findings.add(ref.key, f"names segment {foreign[0]}, which the manifest lacks")
        if self._rows is None:
            return None, ref.key
        return self._rows[self._rows["segment"] == entry.base], ref.key


def _decode_rows(data: bytes, key: str) -> QueueRows:
    head = decode_queue_rows_head(data, path=key)
    pages = [decode_rows_page(data[page.position : page.position + page.length], page, path=key) for page in head.pages]
    for page, rows in zip(head.pages, pages, strict=True):
        ends = [[int(row["topic_id"]), int(row["queue_id"]), int(row["segment"])] for row in (rows[0], rows[-1])]
        if [page.info["first"], page.info["last"]] != ends:
            raise CorruptionError("a page of queue rows holds other rows than its table says", path=key)
    return np.concatenate([np.empty(0, QUEUE_ROW), *pages])
