"""The cold half of a store's search: index objects and frames, or queue rows, directories and frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeVar

import numpy as np

from index.hits import in_groups, may_lie_in
from index.index_object import DIRECTORY, IndexObjectReader
from index.query import Query, TierCoverage
from index.search import ALL_TIME, SearchContext, Work
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reloading import newer_head
from tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tiering.erasing.tombstones import Erasures
from tiering.errors import CorruptionError, ObjectNotFoundError, StoreError, TopicNotFoundError
from tiering.format.filler import Filler
from tiering.format.hashing import key_hash, key_hash_high
from tiering.format.manifest import Head, IndexEntry, LogEntry, PageNode
from tiering.format.queue_rows import QUEUE_ROW
from tiering.message import StoredMessage
from tiering.types import END_OF_TIME_MS, Tier, TimeAxis, TimeRange

_T = TypeVar("_T")


class _LostParts:
    """Parts of the manifest that cannot be read, each as work that fails: what they may hold is not claimed."""

    def __init__(self, axis: TimeAxis, counter: str, claim: TierCoverage, from_offset: int = 0) -> None:
        self.work: list[Work] = []
        self._axis = axis
        self._counter = counter
        self._claim = claim
        self._from_offset = from_offset

    def note(self, part: LogEntry | PageNode, error: StoreError) -> None:
        """A part of the manifest failed; one below the offset asked from has no matter."""
        if part.next <= self._from_offset:
            return

        def run() -> Iterator[StoredMessage]:
            raise error
            yield

        bounds = part.bounds.on(self._axis) if part.bounds else ALL_TIME
        self.work.append(Work(bounds, "manifest", self._counter, self._claim, run))


class ColdSearch:
    """Work on the archive of one store for one query, below ``border``, at the version of ``head``."""

    def __init__(
        self,
        store_id: str,
        manifest: ManifestStore,
        head: Head,
        border: int,
        context: SearchContext,
        claim: TierCoverage,
        erased: Erasures,
    ) -> None:
        self._store_id = store_id
        self._erased = erased
        self._present_from_ms: int | None = None
        self._claim = claim
        self._manifest = manifest
        self._head = head
        self._border = border
        self._context = context
        self._is_reloaded = False
        self._reader = manifest.reader(context.bill)
        self._scanner = manifest.reader(context.bill, scan=True)

    def topic_id(self, topic: str) -> int:
        """The archive's id of a topic; :class:`TopicNotFoundError` if it never saw one."""
        for state in self._manifest.state(self._reader, self._head).topics:
            if state.name == topic:
                return state.topic_id
        raise TopicNotFoundError(f"no such topic {topic!r} in the archive")

    def plan(self, query: Query, within: TimeRange, topic_id: int) -> Iterator[Work]:
        """Work that finds every archived message of the query inside ``within``; what has expired is counted.

        Work that meets an object which is gone reads the head once more; if there is a newer one, everything is planned
        again from it. What was found before is found again, and counts once.
        """
        self._plan_again = partial(self._plan, query, within, topic_id)
        yield from map(self._despite_deletion, self._plan_again())

    def _despite_deletion(self, work: Work) -> Work:
        """The same work, with what it leads to."""
        planned_from = self._head.version

        def run() -> Iterator[StoredMessage | Work]:
            try:
                for item in work.run():
                    yield self._despite_deletion(item) if isinstance(item, Work) else item
                return
            except ObjectNotFoundError as error:
                if planned_from != self._head.version:
                    return  # it is planned again already
                if self._is_reloaded:
                    raise
                self._head = newer_head(self._manifest, self._head, error)
                self._claim.manifest_version, self._is_reloaded = self._head.version, True
            yield from map(self._despite_deletion, self._plan_again())

        return replace(work, run=run)

    def _plan(self, query: Query, within: TimeRange, topic_id: int) -> Iterator[Work]:
        self._present_from_ms = dict(self._head.expired).get(topic_id)
        if query.key is None:
            yield from self._by_time(query, within, topic_id, 0)
            return
        lost = _LostParts(query.axis, "index_unreachable", self._claim)
        for entry in self._manifest.index_entries(self._reader, self._head, query.axis, within, lost.note):
            if entry.first < self._border:
                self._context.coverage.index_considered += 1
                if entry.bounds is not None and self._has_expired(entry.bounds.max_store_ms):
                    self._context.coverage.index_expired += 1
                    continue
                yield self._index_work(entry, query, within)
        yield from lost.work
        # what is archived but not indexed yet is searched record by record
        yield from self._by_time(query, within, topic_id, self._head.indexed_to)

    # by key

    def _index_work(self, entry: IndexEntry, query: Query, within: TimeRange) -> Work:
        assert entry.bounds is not None
        assert query.key is not None
        key = query.key
        low, high = entry.bounds.on(query.axis)

        def run() -> Iterator[Work]:
            items = self._open(entry).lookup(key_hash(query.topic, key), key_hash_high(query.topic, key))
            self._context.coverage.index_searched += 1
            items = items[items["offset"] < self._border]
            second_ms = entry.begin_ms + items["seconds"].astype(np.int64) * 1000
            if query.axis is TimeAxis.STORE:
                inside = may_lie_in(within, second_ms, items["seconds"])
                items, second_ms = items[inside], second_ms[inside]
            if self._present_from_ms is not None:
                present = may_lie_in(TimeRange(self._present_from_ms, END_OF_TIME_MS), second_ms, items["seconds"])
                gone = items["offset"][~present]
                bases = np.unique(gone - gone % self._segment_bytes()).tolist() if len(gone) else []
                self._context.segments_expired.update((self._store_id, base) for base in bases)
                items, second_ms = items[present], second_ms[present]
            for bounds, group in in_groups(query.axis, second_ms, items["seconds"], items["offset"]):
                yield from self._hits(bounds, group, query)

        return Work((low, high), entry.key, "index_unreachable", self._claim, run)

    def _open(self, entry: IndexEntry) -> IndexObjectReader:
        """A reader over the caches: of the page directory decoded, of pages as they are stored."""

        def read(start: int, end: int, decode: Callable[[bytes], _T]) -> _T:
            if start == entry.sections[DIRECTORY].position:
                return self._reader.metadata(entry.key, start, end, "page directory", decode)
            return self._reader.data(entry.key, start, end, "index page", decode)

        return IndexObjectReader(self._reader.fetcher(entry.key, "index"), entry.sections, read=read)

    def _hits(self, bounds: tuple[int, int], offsets: Iterable[int], query: Query) -> Iterator[Work]:
        """One piece of work a segment."""
        segment_bytes = self._segment_bytes()
        for base, group in groupby(sorted(offsets), key=lambda offset: offset - offset % segment_bytes):
            yield self._hit_work(base, bounds, list(group), query)

    def _hit_work(self, base: int, bounds: tuple[int, int], offsets: list[int], query: Query) -> Work:
        def run() -> Iterator[StoredMessage]:
            entry = self._manifest.log_entry(self._reader, self._head, base)
            if entry is None and base < self._head.cold_min:
                self._context.segments_expired.add((self._store_id, base))
                return
            if entry is None:
                raise CorruptionError(f"an index object points into segment {base}, which the manifest lacks")
            for _, record in SegmentReader(self._reader, entry).records_at(offsets):
                if record is None:
                    self._context.segments_erased.add((self._store_id, entry.base))
                    continue
                message = StoredMessage(record, self._store_id, Tier.COLD)
                if record.topic == query.topic and (query.key is None or message.has_key(query.key)):
                    yield from self._unless_gone(message, entry)
            self._context.segments_read.add((self._store_id, Tier.COLD, entry.base))

        return Work(bounds, f"segment {base}", "segments_unreachable", self._claim, run)

    def _unless_gone(self, message: StoredMessage, entry: LogEntry) -> Iterator[StoredMessage]:
        """The message, unless it has expired or is erased: its bytes may be there for a while yet."""
        if self._has_expired(message.record.store_ms):
            self._context.segments_expired.add((self._store_id, entry.base))
        elif self._erased.hides(message.record):
            self._context.segments_erased.add((self._store_id, entry.base))
        else:
            yield message

    def _has_expired(self, store_ms: int) -> bool:
        return self._present_from_ms is not None and store_ms < self._present_from_ms

    def _segment_bytes(self) -> int:
        for entry in self._head.log or self._manifest.log_entries(self._reader, self._head, lambda *_: None):
            return entry.segment_bytes
        raise CorruptionError("the manifest names index objects but no segment")

    # by time

    def _by_time(self, query: Query, within: TimeRange, topic_id: int, from_offset: int) -> Iterator[Work]:
        """Segments from ``from_offset`` to the border that hold the topic in the range."""
        if from_offset >= min(self._border, self._head.archived_to):
            return
        lost = _LostParts(query.axis, "segments_unreachable", self._claim, from_offset)
        pieces = list(self._manifest.queue_row_pieces(self._scanner, self._head, topic_id, lost=lost.note))
        yield from lost.work
        rows = np.concatenate(pieces) if pieces else np.empty(0, QUEUE_ROW)
        low, high = ("min_store_ms", "max_store_ms")
        if query.axis is TimeAxis.BORN:
            low, high = ("min_born_ms", "max_born_ms")
        rows = rows[(rows["segment"] < self._border) & (rows[low] < within.to_ms) & (rows[high] >= within.from_ms)]
        segment_bytes = self._segment_bytes() if len(rows) else 0
        for base in np.unique(rows["segment"]).tolist():
            if base + segment_bytes > from_offset:
                mine = rows[rows["segment"] == base]
                bounds = int(mine[low].min()), int(mine[high].max())
                if self._has_expired(int(mine["max_store_ms"].max())):
                    self._context.segments_expired.add((self._store_id, base))
                    continue
                yield self._segment_work(base, bounds, query, within)

    def _segment_work(self, base: int, bounds: tuple[int, int], query: Query, within: TimeRange) -> Work:
        def run() -> Iterator[Work]:
            entry = self._manifest.entry_of_rows(self._scanner, self._head, base)
            rows = SegmentReader(self._scanner, entry).directory_rows(query.topic)
            rows = [row for row in rows if row.overlaps(query.axis, within)]
            for _, group in groupby(sorted(rows, key=lambda row: row.frame), key=lambda row: row.frame):
                yield self._frame_work(entry, list(group), query)

        return Work(bounds, f"segment {base}", "segments_unreachable", self._claim, run)

    def _frame_work(self, entry: LogEntry, rows: list[DirectoryRow], query: Query) -> Work:
        bounds = [row.bounds.on(query.axis) for row in rows]

        def run() -> Iterator[StoredMessage]:
            for item in SegmentReader(self._scanner, entry).items_of(rows):
                if isinstance(item, Filler):
                    self._context.segments_erased.add((self._store_id, entry.base))
                    continue
                message = StoredMessage(item, self._store_id, Tier.COLD)
                if query.key is None or message.has_key(query.key):
                    yield from self._unless_gone(message, entry)
            self._context.segments_read.add((self._store_id, Tier.COLD, entry.base))

        return Work(
            (min(low for low, _ in bounds), max(high for _, high in bounds)),
            entry.key, "segments_unreachable", self._claim, run,
        )  # fmt: skip
