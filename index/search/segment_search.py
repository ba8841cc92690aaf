"""Reads messages out of archived segments, by hits of an index or by time: frames in parallel, neighbours together.

Which frames are read together is decided by :func:`together`: as few requests as possible, and no more frames than may
matter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tierlog.index.search.column_results import FoundRows
from tierlog.index.search.cost import TaskCost, cost_of_frames, cost_of_hits, cost_of_segment, most_of_directory
from tierlog.index.search.query import Query, TierCoverage
from tierlog.index.search.row_filling import RowFilling, Span
from tierlog.index.search.task import Bounds, Found, SearchContext, SearchTask
from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.types import Order, Tier, TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.segment.reader import (
    FRAME_COLUMNS,
    DirectoryRow,
    SegmentReader,
    TopicRuns,
    item_at,
    items_in,
    tagged_items_in,
)
from tierlog.tiering.format.filler import Filler
from tierlog.tiering.format.generation import Generation
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.format.queue_rows import QueueRows
from tierlog.tiering.format.record import Record
from tierlog.tiering.format.sorted_segment import FramePlace
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.stored_message import StoredMessage

T = TypeVar("T")
TaskBody = Callable[[SearchContext], Iterable[Found | SearchTask]]

COUNTER = "segments_unreachable"
_GAP_BYTES = 64 << 10
_READ_BYTES = 1 << 20
"""Compressed frames that are read together: as much as thirty-two such pieces may hold in memory at once."""
_FILTERED_RECORDS = 1 << 16
"""Where most records may not pass a filter, the frames of so many follow each other in time, and of those neighbours
come together: many in a request, and what was examined when budget or time end is all but a stretch of the order."""
_ALL_RECORDS = 1 << 62
_DIRECTORY_SHARE = 2
"""Frames for each request that the directory takes, from which on it is asked for their times."""
_REST_SHARE = 8
"""Behind the frames that should make a page, frames of such a part of one are read at a time."""


@dataclass(frozen=True, slots=True)
class FrameWant(Generic[T]):
    """A frame that is wanted: bounds of the times in it, how many results to expect, and what of it is wanted."""

    place: FramePlace
    bounds: Bounds
    expects: int
    items: Sequence[T]


def together(
    wants: Sequence[FrameWant[T]], order: Order, enough: int, is_kept: Callable[[FramePlace], bool]
) -> Iterator[list[FrameWant[T]]]:
    """Wants that are read together, each list by position: the first lists hold what comes first in the order.

    Frames follow each other until ``enough`` results are to be expected of them; of those, the kept ones are read
    together, and the others where they are neighbours, in pieces of bounded size.
    """
    newest = order is Order.NEWEST
    ordered = sorted(wants, key=lambda want: -want.bounds[1] if newest else want.bounds[0])
    start = expected = 0
    for number, want in enumerate(ordered):
        expected += want.expects
        if expected >= enough or number + 1 == len(ordered):
            yield from _neighbours(ordered[start : number + 1], is_kept)
            start, expected = number + 1, 0


def _neighbours(wants: list[FrameWant[T]], is_kept: Callable[[FramePlace], bool]) -> Iterator[list[FrameWant[T]]]:
    kept: list[FrameWant[T]] = []
    missing: list[FrameWant[T]] = []
    for want in wants:
        (kept if is_kept(want.place) else missing).append(want)
    yield from _bounded(kept)
    joined: list[FrameWant[T]] = []
    for want in sorted(missing, key=_position):
        if joined:
            end = joined[-1].place.position + joined[-1].place.length
            whole = want.place.position + want.place.length - joined[0].place.position
            if want.place.position - end > _GAP_BYTES or whole > _READ_BYTES:
                yield joined
                joined = []
        joined.append(want)
    if joined:
        yield joined


def _bounded(kept: list[FrameWant[T]]) -> Iterator[list[FrameWant[T]]]:
    group: list[FrameWant[T]] = []
    size = 0
    for want in kept:
        if group and size + want.place.length > _READ_BYTES:
            yield sorted(group, key=_position)
            group, size = [], 0
        group.append(want)
        size += want.place.length
    if group:
        yield sorted(group, key=_position)


def _position(want: FrameWant[T]) -> int:
    return want.place.position


def bounds_of(wants: Sequence[FrameWant[T]]) -> Bounds:
    """Bounds of all of them."""
    return min(want.bounds[0] for want in wants), max(want.bounds[1] for want in wants)


@dataclass(frozen=True, slots=True)
class RunFrames:
    """Frames of a segment that hold runs of a topic, in the order in which a query wants them: all as columns."""

    runs: TopicRuns
    #: Of each frame: the numbers of its first run and of the one behind its last, and bounds of its times.
    first: NDArray[np.int64]
    end: NDArray[np.int64]
    low_ms: NDArray[np.int64]
    high_ms: NDArray[np.int64]
    expected: NDArray[np.int64]

    @classmethod
    def of(cls, runs: TopicRuns, query: Query, within: TimeRange) -> RunFrames:
        """Makes those of the runs that may hold a time within."""
        low, high = f"min_{query.axis.value}_ms", f"max_{query.axis.value}_ms"
        runs = runs[(runs[low] <= within.to_ms - 1) & (runs[high] >= within.from_ms)]
        first = np.flatnonzero(np.diff(runs["frame_position"], prepend=-1))
        if not len(first):
            return cls(runs, *[np.empty(0, np.int64)] * 5)
        end = np.append(first[1:], len(runs))
        low_ms, high_ms = np.minimum.reduceat(runs[low], first), np.maximum.reduceat(runs[high], first)
        expected = np.add.reduceat(runs["records"], first)
        order = np.argsort(-high_ms if query.order is Order.NEWEST else low_ms, kind="stable")
        return cls(runs, first[order], end[order], low_ms[order], high_ms[order], expected[order])

    def __len__(self) -> int:
        return len(self.first)

    @property
    def records(self) -> int:
        """The number of records in the runs."""
        return int(self.expected.sum())

    @property
    def bounds(self) -> Bounds:
        """Bounds of all of them."""
        return int(self.low_ms.min()), int(self.high_ms.max())

    def cut(self, enough: int) -> tuple[RunFrames, RunFrames]:
        """Returns the first frames, of which so many results are to be expected, and the others."""
        count = int(np.searchsorted(np.cumsum(self.expected), enough)) + 1
        return self._between(0, count), self._between(count, len(self))

    def wants(self) -> list[FrameWant[Span]]:
        """Returns the frames one by one."""
        found = []
        for number in range(len(self)):
            runs = self.runs[int(self.first[number]) : int(self.end[number])]
            place = FramePlace(*(int(runs[0][name]) for name in FRAME_COLUMNS))
            spans = [
                (start, start + size)
                for start, size in zip(runs["position"].tolist(), runs["bytes"].tolist(), strict=True)
            ]
            bounds = int(self.low_ms[number]), int(self.high_ms[number])
            found.append(FrameWant(place, bounds, int(self.expected[number]), spans))
        return found

    def _between(self, start: int, end: int) -> RunFrames:
        columns = (self.first, self.end, self.low_ms, self.high_ms, self.expected)
        return RunFrames(self.runs, *(column[start:end] for column in columns))


@dataclass(frozen=True, slots=True)
class Hits:
    """Cold offsets that an index gives, and bounds of the time of each."""

    offsets: NDArray[np.int64]
    low_ms: NDArray[np.int64]
    high_ms: NDArray[np.int64]

    @property
    def bounds(self) -> Bounds:
        """Bounds of all of them."""
        return int(self.low_ms.min()), int(self.high_ms.max())

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Hits:
        """Returns some of the hits."""
        return Hits(self.offsets[chosen], self.low_ms[chosen], self.high_ms[chosen])

    def within_runs(
        self, runs: TopicRuns, axis: TimeAxis, frames: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> Hits:
        """Returns the hits with bounds that are no wider than those of the runs in which they lie, if in any.

        ``frames`` are the positions of their frames in the object, ``positions`` theirs inside.
        """
        begins = runs["frame_position"] << 32 | runs["position"]
        order = np.argsort(begins)
        runs, begins = runs[order], begins[order]
        places = frames << 32 | positions
        chosen = np.searchsorted(begins, places, side="right") - 1
        low = np.maximum(self.low_ms, runs[f"min_{axis.value}_ms"][chosen])
        high = np.minimum(self.high_ms, runs[f"max_{axis.value}_ms"][chosen])
        is_known = (chosen >= 0) & (places < begins[chosen] + runs["bytes"][chosen]) & (low <= high)
        return Hits(self.offsets, np.where(is_known, low, self.low_ms), np.where(is_known, high, self.high_ms))


class SegmentSearch:
    """The archived segments of one head, for one query among the messages of one generation."""

    def __init__(
        self,
        store_id: str,
        manifest: ManifestStore,
        head: Head,
        generation: Generation,
        *,
        query: Query,
        within: TimeRange,
        claim: TierCoverage,
        erased: Erasures,
        present_from_ms: int | None,
    ) -> None:
        """``present_from_ms``: what was stored before has expired."""
        self._store_id = store_id
        self._manifest = manifest
        self._head = head
        self._generation = generation
        self._query = query
        self._within = within
        self._claim = claim
        self._erased = erased
        self._present_from_ms = present_from_ms
        #: So many records make a page certain, as far as that can be known before they are read.
        self.enough = query.limit + 1 if query.filters is None else _ALL_RECORDS

    # by key

    def by_hits(self, hits: Hits, segment_bytes: int) -> Iterator[SearchTask]:
        """Yields a task for each segment that hits point into."""
        bases = hits.offsets - hits.offsets % segment_bytes
        for base in np.unique(bases).tolist():
            mine = hits.at(bases == base)

            def run(context: SearchContext, base: int = base, mine: Hits = mine) -> Iterator[SearchTask]:
                return self._frames_of_hits(base, mine, context)

            def cost(context: SearchContext, base: int = base, count: int = len(mine.offsets)) -> TaskCost:
                return cost_of_hits(self._entry(base, context), count, self.enough)

            yield self._task(mine.bounds, f"segment {base}", run, len(mine.offsets), cost)

    def _frames_of_hits(self, base: int, hits: Hits, context: SearchContext) -> Iterator[SearchTask]:
        manifest = self._manifest
        entry = manifest.log_entry(manifest.reader(context.chain.for_manifest()), self._head, base)
        if entry is None and base < self._head.cold_min:
            context.segments_expired.add((self._store_id, base))
            return
        if entry is None:
            raise CorruptionError(f"an index object points into segment {base}, which the manifest lacks")
        reader = manifest.reader(context.chain)
        segment = SegmentReader(reader, entry)
        table = segment.seek_table()
        hits = hits.at(np.argsort(hits.offsets, kind="stable"))
        frames = table.frames_of(hits.offsets - base)
        starts = np.flatnonzero(np.diff(frames, prepend=-1))
        if len(hits.offsets) > self.enough and len(starts) > _DIRECTORY_SHARE * most_of_directory(entry):
            with contextlib.suppress(CorruptionError):  # it is not needed: seconds say nearly as much
                runs = segment.topic_runs(self._generation.name)
                inside = hits.offsets - base - table.decompressed[frames]
                if len(runs):
                    hits = hits.within_runs(runs, self._query.axis, table.compressed[frames], inside)
        wants = []
        for start, end in pairwise([*starts.tolist(), len(frames)]):
            mine, number = hits.at(slice(start, end)), int(frames[start])
            positions = np.unique(mine.offsets) - base - int(table.decompressed[number])
            wants.append(FrameWant(table.place(number), mine.bounds, len(positions), positions.tolist()))

        def items(frame: bytes, positions: Sequence[int]) -> Iterator[Record | Filler]:
            return (item_at(frame, position) for position in positions)

        yield from self._reads(wants, entry, reader, items)

    def times_behind(self, base: int, hits: NDArray[np.int64], context: SearchContext) -> Bounds | None:
        """Returns bounds on the store times of those records of the topic in a segment that lie behind some hits.

        ``hits`` are cold offsets; behind all of them lies what the log has before them if the newest come first, else
        after them. A queue's records lie in the order of the log, and a frame's directory row has their times; those in
        no queue all count as behind. None if there are none.
        """
        entry = self._entry(base, context)
        segment = SegmentReader(self._manifest.reader(context.chain), entry)
        table = segment.seek_table()
        runs = segment.topic_runs(self._generation.name, in_queues=False)
        if not len(runs):  # the hits are another generation's
            return None
        begins = base + runs["position"]
        begins += table.decompressed[np.searchsorted(table.compressed, runs["frame_position"])]
        order = np.argsort(begins)
        runs, begins = runs[order], begins[order]
        places = np.searchsorted(begins, hits, side="right") - 1
        # what lies in no run of the topic is no hit, and what is in no queue says nothing of where others of it lie
        is_hit = (places >= 0) & (hits < begins[places] + runs["bytes"][places])
        places = places[is_hit & (runs["first_queue_offset"][places] >= 0)]
        queues, queue = np.unique(runs["queue_id"], return_inverse=True)
        if self._query.order is Order.NEWEST:
            reached = np.full(len(queues), len(runs))
            np.minimum.at(reached, queue[places], places)
            is_behind = np.arange(len(runs)) <= reached[queue]
        else:
            reached = np.full(len(queues), -1)
            np.maximum.at(reached, queue[places], places)
            is_behind = np.arange(len(runs)) >= reached[queue]
        runs = runs[is_behind | (runs["first_queue_offset"] < 0)]
        return (int(runs["min_store_ms"].min()), int(runs["max_store_ms"].max())) if len(runs) else None

    # by time

    def by_time(self, rows: QueueRows, segment_bytes: int, from_offset: int) -> Iterator[SearchTask]:
        """Yields a task for each segment that queue rows name and that reaches above ``from_offset``."""
        low, high = ("min_store_ms", "max_store_ms")
        if self._query.axis is TimeAxis.BORN:
            low, high = ("min_born_ms", "max_born_ms")
        rows = rows[(rows[low] < self._within.to_ms) & (rows[high] >= self._within.from_ms)]
        for base in np.unique(rows["segment"]).tolist():
            if base + segment_bytes <= from_offset:
                continue
            mine = rows[rows["segment"] == base]
            bounds = int(mine[low].min()), int(mine[high].max())
            is_gone = self._has_expired(int(mine["max_store_ms"].max()))

            def run(context: SearchContext, base: int = base, is_gone: bool = is_gone) -> Iterator[SearchTask]:
                if is_gone:
                    context.segments_expired.add((self._store_id, base))
                    return iter(())
                return self._frames_in_range(base, context)

            count, queues = int(mine["count"].sum()), len(mine)
            expects = 0 if is_gone or self._query.key is not None or self._query.filters is not None else count

            def cost(
                context: SearchContext, base: int = base, of: tuple[int, int, int] = (queues, count, expects)
            ) -> TaskCost:
                entry = self._entry(base, context)
                return cost_of_segment(entry, of[0], of[1], self.enough, expects=of[2] > 0)

            yield self._task(bounds, f"segment {base}", run, expects, cost)

    def _frames_in_range(self, base: int, context: SearchContext) -> Iterator[SearchTask]:
        manifest = self._manifest
        entry = manifest.entry_of_rows(manifest.reader(context.chain.for_manifest(), scan=True), self._head, base)
        reader = manifest.reader(context.chain, scan=True)
        if self._query.by_columns:
            runs = SegmentReader(reader, entry).topic_runs(self._generation.name)
            frames_of_runs = RunFrames.of(runs, self._query, self._within)
            yield from self._column_reads(frames_of_runs, self._query.limit + 1, entry, reader)
            return
        frames: dict[FramePlace, list[DirectoryRow]] = {}
        for row in SegmentReader(reader, entry).directory_rows(self._generation.name):
            if row.overlaps(self._query.axis, self._within):
                frames.setdefault(row.place, []).append(row)
        wants = []
        for place, rows in frames.items():
            bounds = [row.bounds.on(self._query.axis) for row in rows]
            is_known = self._query.key is None or self._query.filters is not None
            expects = sum(row.records for row in rows) if is_known else 0
            whole = min(low for low, _ in bounds), max(high for _, high in bounds)
            wants.append(FrameWant(place, whole, expects, rows))

        tags = self._query.filters.tags if self._query.filters is not None else None

        def items(frame: bytes, rows: Sequence[DirectoryRow]) -> Iterator[Record | Filler]:
            if tags is None:
                return (item for row in rows for item in items_in(frame, row))
            return (item for row in rows for item in tagged_items_in(frame, row, tags.hashes))

        yield from self._reads(wants, entry, reader, items, scan=True)

    # by columns

    def _column_reads(
        self, frames: RunFrames, enough: int, entry: LogEntry, reader: ArchiveReader
    ) -> Iterator[SearchTask]:
        """Yields tasks that read the first frames in the order, and one for the rest: a page needs few of thousands.

        The first frames have results in part only, so a little of the rest is needed too.
        """

        def is_kept(place: FramePlace) -> bool:
            return reader.holds_data(entry.key, place.position, place.position + place.length)

        first, rest = frames.cut(enough)
        for group in together(first.wants(), self._query.order, enough, is_kept):

            def run(context: SearchContext, group: list[FrameWant[Span]] = group) -> Iterator[FoundRows]:
                return self._rows_of(group, entry, context)

            yield self._task(bounds_of(group), entry.key, run, sum(want.expects for want in group))
        if len(rest):
            more = max(1, self._query.limit // _REST_SHARE)
            yield self._task(
                rest.bounds, entry.key, lambda _: self._column_reads(rest, more, entry, reader), rest.records
            )

    def _rows_of(self, group: list[FrameWant[Span]], entry: LogEntry, context: SearchContext) -> Iterator[FoundRows]:
        segment = SegmentReader(self._manifest.reader(context.chain, scan=True), entry)
        filling = RowFilling(
            self._store_id, Tier.COLD, self._query, self._within, segment_bytes=entry.segment_bytes,
            erased=self._erased, present_from_ms=self._present_from_ms, context=context,
        )  # fmt: skip
        filling.expect(sum(want.place.raw_bytes for want in group))
        try:
            for want, frame in zip(group, segment.frames([want.place for want in group]), strict=True):
                yield from filling.add_frame(frame, want.items, entry.base)
        except (StoreError, OSError):
            yield from filling.finish()  # what was read before counts
            raise
        yield from filling.finish()
        context.segments_read.add((self._store_id, Tier.COLD, entry.base))

    # both

    def _reads(
        self,
        wants: list[FrameWant[T]],
        entry: LogEntry,
        reader: ArchiveReader,
        items: Callable[[bytes, Sequence[T]], Iterator[Record | Filler]],
        *,
        scan: bool = False,
    ) -> Iterator[SearchTask]:
        """Yields tasks that read frames of a segment, a request each; ``items`` takes what is wanted out of one."""

        def is_kept(place: FramePlace) -> bool:
            return reader.holds_data(entry.key, place.position, place.position + place.length)

        is_filtered = self._query.filters is not None
        for group in together(wants, self._query.order, _FILTERED_RECORDS if is_filtered else self.enough, is_kept):

            def run(context: SearchContext, group: list[FrameWant[T]] = group) -> Iterator[StoredMessage]:
                segment = SegmentReader(self._manifest.reader(context.chain, scan=scan), entry)
                for want, frame in zip(group, segment.frames([want.place for want in group]), strict=True):
                    for item in items(frame, want.items):
                        yield from self._verified(item, entry, context)
                context.segments_read.add((self._store_id, Tier.COLD, entry.base))

            expects = sum(want.expects for want in group)

            def cost(_: SearchContext, group: list[FrameWant[T]] = group, expects: int = expects) -> TaskCost:
                return cost_of_frames([want.place.length for want in group if not is_kept(want.place)], expects)

            yield self._task(bounds_of(group), entry.key, run, expects, cost)

    def _task(
        self,
        bounds: Bounds,
        name: str,
        run: TaskBody,
        expects: int,
        cost: Callable[[SearchContext], TaskCost] | None = None,
    ) -> SearchTask:
        is_inside = self._within.from_ms <= bounds[0] and bounds[1] < self._within.to_ms
        is_inside = is_inside and self._query.filters is None  # how many pass is not known
        return SearchTask(bounds, name, COUNTER, self._claim, run, expects=expects if is_inside else 0, cost=cost)

    def _entry(self, base: int, context: SearchContext) -> LogEntry:
        return self._manifest.entry_of_rows(self._manifest.reader(context.chain.for_manifest()), self._head, base)

    def _verified(self, item: Record | Filler, entry: LogEntry, context: SearchContext) -> Iterator[StoredMessage]:
        """The message, if it was asked for and is neither expired nor erased: its bytes may be there for a while."""
        place = self._store_id, entry.base
        if isinstance(item, Filler):
            context.segments_erased.add(place)
            return
        message = StoredMessage(item, self._store_id, Tier.COLD)
        is_mine = self._generation.begin <= item.physical_offset < self._generation.end
        if (
            item.topic != self._query.topic
            or not is_mine
            or not (self._query.key is None or message.has_key(self._query.key))
        ):
            return
        if self._has_expired(item.store_ms):
            context.segments_expired.add(place)
        elif self._erased.hides(item):
            context.segments_erased.add(place)
        elif context.matches(message, self._query, self._within):
            yield message

    def _has_expired(self, store_ms: int) -> bool:
        return self._present_from_ms is not None and store_ms < self._present_from_ms
