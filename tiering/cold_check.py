"""Verifies an archive: its manifest, and every segment with all that is said of it.

Everything is read from the object store, past every cache. Memory: one segment, and a few numbers for each object of
the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.queue_order import QueueOrder
from tiering.cold.reading import ArchiveReader, MetadataCache
from tiering.cold.segment_check import compare_queue_rows, compare_segment, compare_with_hot
from tiering.cold.segment_reader import SegmentReader
from tiering.cold.whole_segment import WholeSegment, read_whole
from tiering.errors import CorruptionError, ObjectNotFoundError
from tiering.findings import Findings
from tiering.format.manifest import Head, IndexEntry, LogEntry, ObjectRef, PageNode, decode_page
from tiering.format.queue_rows import QUEUE_ROW, QueueRows, decode_queue_rows_head, decode_rows_page
from tiering.format.store_state import StoreState
from tiering.hot.store import HotStore
from tiering.types import TimeBounds

Progress = Callable[[int, int], None]


class ColdCheck:
    """One deep check of one archive at one version of its manifest."""

    def __init__(self, manifest: ManifestStore, head: Head, findings: Findings) -> None:
        self.manifest = manifest
        self.head = head
        self.findings = findings
        self.reader = ArchiveReader(manifest.objects, MetadataCache(0))
        self.log: list[LogEntry] = []
        self.index: list[IndexEntry] = []
        self.lost_ranges: list[tuple[int, int]] = []
        """Physical ranges of which the manifest itself cannot be read."""
        self._rows: list[tuple[tuple[int, int], ObjectRef]] = []
        self.state = StoreState()

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
        for ref in (head.gaps, *(page.ref for page in head.removed)):
            self._read(ref, lambda data, _: data)

    def _finder(self, key: str) -> Callable[[str], None]:
        return lambda text: self.findings.add(key, text)

    def _read(self, ref: ObjectRef | None, decode: Callable[[bytes, str], Any]) -> Any | None:
        """A whole object of the manifest; None once it is told what is wrong with it."""
        if ref is None:
            return None
        try:
            data, _ = self.manifest.objects.get(ref.key)
            return decode(ref.check(data), ref.key)
        except (CorruptionError, ObjectNotFoundError) as error:
            self.findings.add(ref.key, error.message)
            return None

    def _walk(self, kind: str, nodes: Sequence[PageNode]) -> Iterator[Any]:
        for node in nodes:
            items = self._read(node.ref, lambda data, key: decode_page(data, kind, node.level, path=key))  # noqa: B023
            if items is None:
                if kind == "log":
                    self.lost_ranges.append((node.first, node.next))
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
                self.findings.add(entry.key, f"covers [{entry.first}, {entry.next}), indexed_to is {self.head.indexed_to}")

    def _check_names(self, find: Callable[[str], None]) -> None:
        prefix, seen = f"{self.manifest.keys.store_id}/", set()
        for entry in (*self.log, *self.index):
            if entry.key in seen:
                find(f"{entry.key} is named twice")
            seen.add(entry.key)
            if not entry.key.startswith(prefix) or entry.added > self.head.version:
                find(f"{entry.key} is no name of this store, or newer than the manifest")

    # the segments

    def check_segments(self, hot: HotStore | None, visit: Callable[[WholeSegment], None], progress: Progress) -> None:
        """Every segment in ascending order; ``visit`` gets what could be read of it."""
        topic_ids = {topic.name: topic.topic_id for topic in self.state.topics}
        kept = {segment.base_offset: segment for segment in hot.log.segments()} if hot else {}
        queues = QueueOrder(self.head, self.state, self.manifest.gaps(self.reader, self.head))
        rows = _StoredRows(self)
        for number, entry in enumerate(self.log):
            find = self._finder(entry.key)
            stored, rows_key = rows.of(entry)
            try:
                segment = SegmentReader(self.reader, entry)
                whole = read_whole(self.manifest.objects, segment, entry, list(topic_ids), find)
                if whole is not None:
                    for name in sorted({run.topic for run in whole.runs} - topic_ids.keys()):
                        find(f"holds topic {name!r}, which the state object lacks")
                    compare_segment(segment, whole, find)
                    if stored is not None and whole.runs:
                        compare_queue_rows(whole, stored, topic_ids, self._finder(rows_key))
                    if entry.base in kept:
                        compare_with_hot(whole, kept[entry.base].data, find)
                    visit(whole)
                    queues.see(whole.runs, entry, topic_ids, find)
                else:
                    queues.miss()
            except (CorruptionError, ObjectNotFoundError) as error:
                find(error.message)
                queues.miss()
            progress(number + 1, len(self.log))
        rows.check_rest()
        if hot is not None:
            queues.meet_hot(hot, lambda text: self.findings.add(None, text))


class _StoredRows:
    """Queue rows of one segment after the other: the companion of a page is read once."""

    def __init__(self, check: ColdCheck) -> None:
        self._check = check
        self._key = ""
        self._rows: QueueRows | None = None
        self._bases = {entry.base for entry in check.log}

    def of(self, entry: LogEntry) -> tuple[QueueRows | None, str]:
        """The stored rows of a segment and the object that holds them; None if they cannot be read."""
        found = next(
            (ref for (first, end), ref in self._check._rows if first <= entry.base < end), None
        )
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

    def check_rest(self) -> None:
        """Objects with rows of no readable segment."""


def _decode_rows(data: bytes, key: str) -> QueueRows:
    head = decode_queue_rows_head(data, path=key)
    pages = [
        decode_rows_page(data[page.position : page.position + page.length], page, path=key) for page in head.pages
    ]
    for page, rows in zip(head.pages, pages, strict=True):
        ends = [[int(row["topic_id"]), int(row["queue_id"]), int(row["segment"])] for row in (rows[0], rows[-1])]
        if [page.info["first"], page.info["last"]] != ends:
            raise CorruptionError("a page of queue rows holds other rows than its table says", path=key)
    return np.concatenate([np.empty(0, QUEUE_ROW), *pages])
