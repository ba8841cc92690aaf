"""The cold half of a store's search: index objects and frames, or queue rows, directories and frames."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.layout import WIDEN_MS, Items, is_saturated, may_lie_in
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.lookup import KeyRun
from tierlog.index.search.cost import TaskCost, cost_of_object
from tierlog.index.search.query import Query, TierCoverage
from tierlog.index.search.segment_search import COUNTER, Hits, SegmentSearch
from tierlog.index.search.task import Bounds, Found, IndexOutcome, SearchContext, SearchTask
from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError, StoreError, TopicNotFoundError
from tierlog.tiering.base.types import ALL_TIME, EVER, Order, TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.reading.bill import BudgetSpentError, RequestChain
from tierlog.tiering.format.generation import Generation, ranges_of
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry, PageNode
from tierlog.tiering.format.queue_rows import QUEUE_ROW
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.stored_message import StoredMessage

INDEX_COUNTER = "index_unreachable"
_MOST_PAGES = 256
"""Pages of a long run in one task: 16 MiB of items before compression."""
_MOST_SEGMENTS = 64
"""Segments whose times are looked at to learn those of the rest of a run."""
_REQUESTS_FOR_TIMES = 8
"""With fewer left that is not looked for: it takes three or four, and messages are to come first."""


class ColdSearch:
    """Plans the search of one store's archive for one query, below ``border``.

    A task that meets an object which is gone reads the head once more; if there is a newer one, everything is planned
    again from it. What was found before is found again, and counts once.
    """

    def __init__(self, store_id: str, cold: ColdIndex, query: Query, within: TimeRange, claim: TierCoverage) -> None:
        self.store_id = store_id
        self.cold = cold
        self.query = query
        self.within = within
        self.claim = claim
        self._reloading = threading.Lock()
        self._newer: Head | None = None

    def plan(
        self, head: Head, border: int, generations: Sequence[Generation], erased: Erasures, context: SearchContext
    ) -> Iterator[SearchTask]:
        """Yields tasks that find every archived message of the query below ``border``; what has expired is counted.

        ``generations`` are those that the query means; it has the topic of their records.
        """

        def note_version() -> None:
            self.claim.manifest_version = max(self.claim.manifest_version or 0, head.version)

        def despite_deletion(task: SearchTask) -> SearchTask:
            def run(context: SearchContext) -> Iterator[Found | SearchTask]:
                try:
                    for item in task.run(context):
                        yield despite_deletion(item) if isinstance(item, SearchTask) else item
                except ObjectNotFoundError as error:
                    newer = self._reloaded(head, error, context.chain)
                    yield SearchTask(
                        ALL_TIME, self.cold.manifest.keys.head, COUNTER, self.claim,
                        lambda context: self.plan(newer, border, generations, erased, context),
                        once=(id(self), newer.version),
                    )  # fmt: skip

            return replace(task, run=run)

        context.when_counted(note_version)
        for generation in generations:
            yield from map(despite_deletion, _Plan(self, head, border, generation, erased).tasks(context))

    def _reloaded(self, head: Head, error: ObjectNotFoundError, chain: RequestChain) -> Head:
        """Returns the head that has replaced the one planned from, loaded once; raises ``error`` if none has."""
        with self._reloading:
            if self._newer is None:
                self._newer = self.cold.manifest.refresh(chain.bill)
        if self._newer.version <= head.version:
            raise error
        return self._newer


class _Plan:
    """The tasks of a search of one generation at one version of the manifest."""

    def __init__(self, search: ColdSearch, head: Head, border: int, generation: Generation, erased: Erasures) -> None:
        self._search = search
        self._cold, self._query, self._within = search.cold, search.query, search.within
        self._manifest: ManifestStore = search.cold.manifest
        self._head = head
        self._border = border
        self._generation = generation
        self._present_from_ms = dict(head.expired).get(generation.topic_id)
        self._id = search.store_id, head.version
        self._segments = SegmentSearch(
            search.store_id, self._manifest, head, generation, query=self._query, within=self._within,
            claim=search.claim, erased=erased, present_from_ms=self._present_from_ms,
        )  # fmt: skip

    def tasks(self, context: SearchContext) -> Iterator[SearchTask]:
        """Yields everything there is to do; the parts of the manifest that cannot be read are tasks that fail."""
        if self._query.key is None:
            yield from self._by_time(0, context)
            return
        # what is archived but not indexed yet is searched record by record
        if self._head.indexed_to < min(self._border, self._head.archived_to, self._generation.end):
            run = partial(self._by_time, self._head.indexed_to)
            yield SearchTask(ALL_TIME, self._manifest.keys.head, COUNTER, self._search.claim, run)
        yield from self._by_key(self._query.key, context)

    # by key

    def _by_key(self, key: str, context: SearchContext) -> Iterator[SearchTask]:
        query = self._query
        low, high = key_hash(query.topic, key), key_hash_high(query.topic, key)
        lost = _LostParts(query.axis, INDEX_COUNTER, self._search.claim)
        reader = self._manifest.reader(context.chain.for_manifest())
        for entry in self._cold.overlapping(
            reader, self._head, axis=query.axis, within=self._within, lost=lost.note, order=query.order
        ):
            if entry.first >= min(self._border, self._generation.end) or entry.next <= self._generation.begin:
                continue
            if entry.bounds is None:
                continue
            outcome = IndexOutcome.SKIPPED
            if self._has_expired(entry.bounds.max_store_ms):
                outcome = IndexOutcome.EXPIRED
            elif self._cold.rules_out(entry, low, high):
                outcome = IndexOutcome.FILTERED
            context.index_file(self._id, entry.key, outcome)
            if outcome is IndexOutcome.SKIPPED:
                yield self._run_pages(entry, low, high, bounds=entry.bounds.on(query.axis))
        yield from lost.tasks

    def _run_pages(
        self, entry: IndexEntry, low: int, high: int, *, bounds: Bounds, left: range | None = None, step: int = 1
    ) -> SearchTask:
        """The next pages of a key's run in an object, ``step`` of them in a request; ``left`` None = all of them."""

        def run(context: SearchContext) -> Iterator[SearchTask]:
            reader = self._manifest.reader(context.chain)
            key = KeyRun(reader, entry, low, high, self._cold.layouts)
            pages = key.pages() if left is None else left
            count = step if left is not None else -(-(self._query.limit + 1) // key.items_a_page)
            newest = self._query.order is Order.NEWEST
            now, rest = (pages[:count], pages[count:]) if newest else (pages[-count:], pages[:-count])
            items = key.items(now)
            if left is None:
                self._cold.looked_up(entry, found=len(items) > 0)
            context.index_file(self._id, entry.key, IndexOutcome.SEARCHED)
            if rest:
                yield self._run_pages(
                    entry,
                    low,
                    high,
                    bounds=self._rest_bounds(entry, items, bounds, context),
                    left=rest,
                    step=min(2 * count, _MOST_PAGES),
                )
            yield from self._hits(items, entry, context)

        def cost(context: SearchContext) -> TaskCost:
            key = KeyRun(self._manifest.reader(context.chain), entry, low, high, self._cold.layouts)
            places, items_a_page = None, None
            with contextlib.suppress(BudgetSpentError):
                places, items_a_page = key.places(key.pages() if left is None else left), key.items_a_page
            return cost_of_object(
                entry, self._segments_of(entry, context), self._manifest.reader(context.chain),
                pages=places, items_a_page=items_a_page, has_filter=self._cold.has_filter(entry),
                enough=self._segments.enough,
            )  # fmt: skip

        return SearchTask(bounds, entry.key, INDEX_COUNTER, self._search.claim, run, cost=cost)

    def _segments_of(self, entry: IndexEntry, context: SearchContext) -> Iterator[LogEntry]:
        size, reader = self._segment_bytes(context), self._manifest.reader(context.chain.for_manifest())
        for base in range(entry.first - entry.first % size, min(entry.next, self._border), size):
            segment = self._manifest.log_entry(reader, self._head, base)
            if segment is not None:
                yield segment

    def _rest_bounds(self, entry: IndexEntry, items: Items, bounds: Bounds, context: SearchContext) -> Bounds:
        """Returns bounds of the rest of a run, of which these items were read: a run is sorted by physical offset.

        Where store times of a key do not rise with it, or are not known, and on the born axis, that says nothing. Items
        have whole seconds: where those do not tell that the page is full, the segments tell their times.
        """
        is_known = not entry.times_fall and not is_saturated(items["seconds"]).any()
        if self._query.axis is TimeAxis.BORN or not len(items) or not is_known:
            return bounds
        second_ms = entry.begin_ms + items["seconds"].astype(np.int64) * 1000
        newest, enough = self._query.order is Order.NEWEST, self._segments.enough
        if newest:
            bounds = bounds[0], max(bounds[0], min(bounds[1], int(second_ms[-1]) + WIDEN_MS))
            is_full = len(items) >= enough and second_ms[enough - 1] > bounds[1]
        else:
            bounds = min(bounds[1], max(bounds[0], int(second_ms[0]) - WIDEN_MS)), bounds[1]
            is_full = len(items) >= enough and second_ms[-enough] + WIDEN_MS < bounds[0]
        left = context.chain.bill.left
        is_poor = left is not None and left < _REQUESTS_FOR_TIMES  # what is left is for messages
        if is_full or is_poor or len(items) < enough:
            return bounds
        with contextlib.suppress(StoreError, OSError):  # whoever reads the messages says so
            times = self._times_behind(entry, items["offset"].astype(np.int64), context)
            if times is not None and newest:
                bounds = bounds[0], max(bounds[0], min(bounds[1], times[1]))
            elif times is not None:
                bounds = min(bounds[1], max(bounds[0], times[0])), bounds[1]
        return bounds

    def _times_behind(self, entry: IndexEntry, offsets: NDArray[np.int64], context: SearchContext) -> Bounds | None:
        """Returns bounds on the times of what the log has behind cold offsets; None if too many segments have it."""
        if self._generation.name != self._query.topic:  # records in no queue may have either name
            return None
        size, newest = self._segment_bytes(context), self._query.order is Order.NEWEST
        bases = offsets - offsets % size
        last = int(bases.min() if newest else bases.max())
        others = (
            range(entry.first - entry.first % size, last, size)
            if newest
            else range(last + size, min(entry.next, self._border), size)
        )
        if len(others) > _MOST_SEGMENTS:
            return None
        found = [self._segments.times_behind(last, offsets[bases == last], context)]
        reader = self._manifest.reader(context.chain.for_manifest())
        for base in others:
            segment = self._manifest.log_entry(reader, self._head, base)
            if segment is None or segment.bounds is None:
                continue
            found.append(segment.bounds.on(TimeAxis.STORE))
        known = [times for times in found if times is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if known else None

    def _hits(self, items: Items, entry: IndexEntry, context: SearchContext) -> Iterator[SearchTask]:
        items = items[items["offset"] < self._border]
        second_ms = entry.begin_ms + items["seconds"].astype(np.int64) * 1000
        if self._query.axis is TimeAxis.STORE:
            inside = may_lie_in(self._within, second_ms, items["seconds"])
            items, second_ms = items[inside], second_ms[inside]
        if not len(items):
            return
        segment_bytes = self._segment_bytes(context)
        if self._present_from_ms is not None:
            present = may_lie_in(TimeRange(self._present_from_ms, EVER.to_ms), second_ms, items["seconds"])
            gone = items["offset"][~present].astype(np.int64)
            bases = np.unique(gone - gone % segment_bytes).tolist()
            context.segments_expired.update((self._search.store_id, base) for base in bases)
            items, second_ms = items[present], second_ms[present]
        assert entry.bounds is not None
        low_ms, high_ms = self._times(items, second_ms, entry.bounds.on(self._query.axis))
        yield from self._segments.by_hits(Hits(items["offset"].astype(np.int64), low_ms, high_ms), segment_bytes)

    def _times(
        self, items: Items, second_ms: NDArray[np.int64], bounds: Bounds
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns time bounds of each hit: on the born axis, and where seconds are saturated, those of the object."""
        is_unknown = is_saturated(items["seconds"])
        if self._query.axis is TimeAxis.BORN:
            is_unknown = np.full(len(items), True)
        low = np.where(is_unknown, bounds[0], np.clip(second_ms - WIDEN_MS, *bounds))
        high = np.where(is_unknown, bounds[1], np.clip(second_ms + WIDEN_MS, *bounds))
        return low, high

    def _has_expired(self, store_ms: int) -> bool:
        return self._present_from_ms is not None and store_ms < self._present_from_ms

    def _segment_bytes(self, context: SearchContext) -> int:
        reader = self._manifest.reader(context.chain.for_manifest())
        lost: list[StoreError] = []
        found = self._manifest.log_entries(reader, self._head, lambda _, error: lost.append(error))
        for entry in self._head.log or found:
            return entry.segment_bytes
        raise lost[0] if lost else CorruptionError("the manifest names index objects but no segment")

    # by time

    def _by_time(self, from_offset: int, context: SearchContext) -> Iterator[SearchTask]:
        """Yields tasks for the segments from ``from_offset`` to the border that hold the topic in the range."""
        if from_offset >= min(self._border, self._head.archived_to):
            return
        lost = _LostParts(self._query.axis, COUNTER, self._search.claim)
        reader = self._manifest.reader(context.chain.for_manifest(), scan=True)
        stored = self._within if self._query.axis is TimeAxis.STORE else None
        pieces = list(
            self._manifest.queue_row_pieces(
                reader, self._head, self._generation.topic_id, stored=stored, lost=lost.note, from_offset=from_offset
            )
        )
        yield from lost.tasks
        rows = np.concatenate(pieces) if pieces else np.empty(0, QUEUE_ROW)
        rows = rows[rows["segment"] < self._border]
        if len(rows):
            yield from self._segments.by_time(rows, self._segment_bytes(context), from_offset)


class _LostParts:
    """Parts of the manifest that cannot be read, each as a task that fails: what they may hold is not claimed."""

    def __init__(self, axis: TimeAxis, counter: str, claim: TierCoverage) -> None:
        self.tasks: list[SearchTask] = []
        self._axis = axis
        self._counter = counter
        self._claim = claim

    def note(self, part: LogEntry | PageNode, error: StoreError) -> None:
        """Notes that a part of the manifest failed."""

        def run(context: SearchContext) -> Iterator[StoredMessage]:
            raise error
            yield

        bounds = part.bounds.on(self._axis) if part.bounds else ALL_TIME
        self.tasks.append(SearchTask(bounds, "manifest", self._counter, self._claim, run))


def generations_of(manifest: ManifestStore, reader: ArchiveReader, head: Head, topic: str) -> tuple[Generation, ...]:
    """Returns what the archive knows by a name; :class:`TopicNotFoundError` if it never saw one."""
    state = manifest.state(reader, head)
    if state.find(topic) is not None:
        return ranges_of(state.topics, topic)
    raise TopicNotFoundError(f"no such topic {topic!r} in the archive")
