"""Counts a topic's messages per interval of time, from what both tiers know without reading messages.

In the archive, queue rows say how many messages of a queue a segment holds, and between which times; where these lie
in one interval, nothing else is asked. Of other segments the directory is read, which says the same of each frame. What
lies across intervals even there is spread evenly over its times, and counted as estimated. Hot messages are counted by
their queue units and the times in the heads of their records.

Erased messages are counted: neither rows nor directories lose them. What expired is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tierlog.index.search.cold_search import generations_of
from tierlog.index.search.hot_times import HotTimes
from tierlog.index.search.query import Coverage, Failure, StoreCoverage, TierCoverage
from tierlog.index.search.searcher import Searcher
from tierlog.index.search.segment_search import COUNTER
from tierlog.index.search.task import SearchContext, SearchTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.base.types import ALL_TIME, EVER, TimeAxis, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.bill import BudgetSpentError, ReadBill
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.generation import Generation
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.queue_rows import QUEUE_ROW, QueueRows
from tierlog.tiering.format.queue_unit import is_gap
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue, shown_queues
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import validate_topic_or_generation

DEFAULT_BUCKETS = 60
MOST_BUCKETS = 1_000
_UNITS_AT_ONCE = 1 << 14
_RUNS_AT_ONCE = 512
_TIMES = ("min_store_ms", "max_store_ms", "min_born_ms", "max_born_ms")

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CountQuery:
    """A question how many messages a topic has in each interval; an end that is None is that of the topic."""

    topic: str
    from_ms: int | None = None
    to_ms: int | None = None
    axis: TimeAxis = TimeAxis.STORE
    buckets: int = DEFAULT_BUCKETS
    interval_ms: int | None = None
    """In place of ``buckets``."""
    max_requests: int | None = None
    timeout_ms: int | None = None

    def __post_init__(self) -> None:
        validate_topic_or_generation(self.topic)
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise InvalidRequestError(f"from ({self.from_ms}) is not before to ({self.to_ms})", hint="times are ms")
        if not 1 <= self.buckets <= MOST_BUCKETS:
            raise InvalidRequestError(f"{self.buckets} intervals are not 1 to {MOST_BUCKETS}")
        if self.interval_ms is not None and self.interval_ms < 1:
            raise InvalidRequestError("an interval has 1 ms or more")
        if self.max_requests is not None and self.max_requests < 0:
            raise InvalidRequestError("max_requests is negative")
        if self.timeout_ms is not None and self.timeout_ms <= 0:
            raise InvalidRequestError(f"timeout_ms {self.timeout_ms} is not positive")

    @property
    def within(self) -> TimeRange:
        """The half-open range asked for."""
        return TimeRange(
            EVER.from_ms if self.from_ms is None else self.from_ms, EVER.to_ms if self.to_ms is None else self.to_ms
        )

    def range_of(self, known: Sequence[tuple[int, int]]) -> TimeRange:
        """The range that is counted, given inclusive times between which there are messages; may be empty."""
        low = min((first for first, _ in known), default=None)
        high = max((last for _, last in known), default=None)
        from_ms = self.from_ms if self.from_ms is not None else low
        to_ms = self.to_ms if self.to_ms is not None else None if high is None else high + 1
        if from_ms is None or to_ms is None or from_ms >= to_ms:
            start_ms = next((each for each in (self.from_ms, self.to_ms) if each is not None), 0)
            return TimeRange(start_ms, start_ms)
        return TimeRange(from_ms, to_ms)

    def with_less(self, spent: Sequence[Coverage], share_of: int = 1) -> CountQuery:
        """Returns the question with what is left of its budget, or an equal share of that."""
        if self.max_requests is None:
            return self
        left = max(0, self.max_requests - sum(each.requests for each in spent))
        return replace(self, max_requests=left // share_of)

    def width_ms(self, span: TimeRange) -> int:
        """The length of an interval; raises :class:`InvalidRequestError` if the range has too many."""
        whole_ms = span.to_ms - span.from_ms
        if self.interval_ms is None:
            return max(1, -(-whole_ms // self.buckets))
        if -(-whole_ms // self.interval_ms) > MOST_BUCKETS:
            raise InvalidRequestError(
                f"{whole_ms} ms have more than {MOST_BUCKETS} intervals of {self.interval_ms} ms",
                hint="ask for longer intervals or a shorter range",
            )
        return self.interval_ms


@dataclass(slots=True)
class IntervalCounts:
    """Counts of the intervals that begin at ``from_ms``, each ``interval_ms`` long; the last ends at ``to_ms``."""

    topic: str
    axis: TimeAxis
    from_ms: int
    to_ms: int
    interval_ms: int
    counts: list[int]
    estimated: int
    """Messages that may lie elsewhere, in or out of the range: what holds them crosses a border between intervals, so
    they were spread evenly over its times."""
    coverage: Coverage

    @property
    def exact(self) -> bool:
        """Whether all messages were counted, and each in its interval."""
        return self.coverage.complete and not self.estimated

    def to_json(self) -> dict[str, object]:
        """Returns the answer of the REST API."""
        begins = range(self.from_ms, self.to_ms, self.interval_ms)
        counts = [{"from_ms": at, "messages": count} for at, count in zip(begins, self.counts, strict=True)]
        return {
            "topic": self.topic, "time": self.axis.value, "from_ms": self.from_ms, "to_ms": self.to_ms,
            "interval_ms": self.interval_ms, "exact": self.exact, "estimated": self.estimated,
            "total": sum(self.counts), "counts": counts, "coverage": self.coverage.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CountedStore:
    """What a store is counted by: its hot tier, its archive, or both."""

    store_id: str
    hot: HotStore | None
    manifest: ManifestStore | None
    max_age_s: float = 0.0
    """Without a hot tier: a head that was looked for so long ago will do."""


class IntervalHistogram:
    """Messages by interval of a range."""

    def __init__(self, edges: Numbers, present_from_ms: int = EVER.from_ms) -> None:
        """What lies before ``present_from_ms`` is not spread."""
        #: Where intervals begin, and where the last one ends.
        self.edges = edges
        self.counts: Numbers = np.zeros(len(self.edges) - 1, np.int64)
        self.estimated = 0
        self._present_from_ms = present_from_ms

    @classmethod
    def over(cls, span: TimeRange, width_ms: int) -> IntervalHistogram:
        """Makes one without messages; without intervals for an empty range."""
        return cls(np.array([*range(span.from_ms, span.to_ms, width_ms), span.to_ms], np.int64))

    def empty(self, present_from_ms: int | None = None) -> IntervalHistogram:
        """Makes one of the same intervals without messages."""
        return IntervalHistogram(self.edges, self._present_from_ms if present_from_ms is None else present_from_ms)

    def add(self, times_ms: Numbers) -> None:
        """Counts messages by their times."""
        self._add(np.ones(len(times_ms), np.int64), self._places(times_ms))

    def add_offsets(self, firsts: Sequence[int]) -> None:
        """Counts messages by the first queue offset at each edge."""
        self.counts += np.diff(np.array(firsts, np.int64)).astype(np.int64)

    def crosses(self, low_ms: Numbers, high_ms: Numbers) -> NDArray[np.bool_]:
        """Which runs between inclusive times lie in more than one interval, or partly outside."""
        return np.not_equal(self._places(low_ms), self._places(high_ms))

    def add_runs(self, runs: Runs) -> None:
        """Counts runs, spreading those that cross a border evenly over their times."""
        crosses = self.crosses(runs.low_ms, runs.high_ms) | runs.are_cut
        self._add(runs.counts[~crosses], self._places(runs.low_ms[~crosses]))
        crossing = np.flatnonzero(crosses)
        edges = np.maximum(self.edges, self._present_from_ms).astype(np.float64)
        for start in range(0, len(crossing), _RUNS_AT_ONCE):
            some = crossing[start : start + _RUNS_AT_ONCE]
            low = runs.low_ms[some].astype(np.float64)[:, None]
            length = runs.high_ms[some].astype(np.float64)[:, None] + 1 - low
            share = np.clip((edges[None, :] - low) / length, 0, 1)
            self.counts += np.diff(np.floor(share * runs.counts[some][:, None] + 0.5).astype(np.int64)).sum(axis=0)
            self.estimated += int(runs.counts[some].sum())

    def merge(self, other: IntervalHistogram) -> None:
        """Adds counts of the same intervals."""
        self.counts += other.counts
        self.estimated += other.estimated

    def _places(self, times_ms: Numbers) -> NDArray[np.intp]:
        return np.searchsorted(self.edges, times_ms, side="right") - 1

    def _add(self, counts: Numbers, places: NDArray[np.intp]) -> None:
        inside = (places >= 0) & (places < len(self.counts))
        np.add.at(self.counts, places[inside], counts[inside])


@dataclass(frozen=True, slots=True)
class Runs:
    """Messages between inclusive times; of those that ``are_cut`` some have expired."""

    counts: Numbers
    low_ms: Numbers
    high_ms: Numbers
    are_cut: NDArray[np.bool_]

    @classmethod
    def of(cls, columns: Mapping[str, Numbers], count: str, axis: TimeAxis, present_from_ms: int) -> Runs:
        """Takes the columns of queue rows or of a directory, without runs that have expired."""
        kept = columns["max_store_ms"] >= present_from_ms
        are_cut = columns["min_store_ms"][kept] < present_from_ms
        low, high = columns[f"min_{axis.value}_ms"][kept], columns[f"max_{axis.value}_ms"][kept]
        return cls(columns[count][kept], low, high, are_cut)


@dataclass(slots=True)
class _Part:
    """One store while it is counted."""

    store: CountedStore
    covered: StoreCoverage
    border: int | None = None
    """Of the hot tier; None without one."""
    generations: tuple[Generation, ...] = ()
    """Those that the query means."""
    queues: list[SnapshotQueue] = field(default_factory=list)
    times: HotTimes | None = None
    head: Head | None = None
    present_from_ms: int = EVER.from_ms
    rows: QueueRows = field(default_factory=lambda: np.empty(0, QUEUE_ROW))


def count_messages(
    searcher: Searcher, stores: Sequence[CountedStore], query: CountQuery, clock: Clock
) -> IntervalCounts:
    """Counts over all ``stores``; raises :class:`TopicNotFoundError` if none of them knows the topic.

    Budget and time bound the requests for rows and directories. Where they end among directories, everything is counted
    and more of it is estimated; where they end before, the answer is incomplete.
    """
    with contextlib.ExitStack() as stack:
        return _Counting(searcher, query, clock).run(stores, stack)


class _Counting:
    def __init__(self, searcher: Searcher, query: CountQuery, clock: Clock) -> None:
        self._searcher, self._query, self._clock = searcher, query, clock
        self._deadline_s = None if query.timeout_ms is None else clock.monotonic_s() + query.timeout_ms / 1000
        self._coverage = Coverage()

    def run(self, stores: Sequence[CountedStore], stack: contextlib.ExitStack) -> IntervalCounts:
        query, coverage = self._query, self._coverage
        # what there is
        parts, unknown = list[_Part](), list[TopicNotFoundError]()
        for store in stores:
            covered = StoreCoverage(store.store_id)
            coverage.stores.append(covered)
            try:
                parts.append(self._pinned(store, covered, stack))
            except TopicNotFoundError as error:
                unknown.append(error)
        tasks = [self._rows_task(part) for part in parts if part.store.manifest is not None and part.border != 0]
        unknown += self._do(tasks)
        if len(unknown) >= len(stores):
            raise unknown[0] if unknown else TopicNotFoundError(f"no store holds topic {query.topic!r}")
        # where the intervals are
        span = query.range_of([bounds for part in parts for bounds in self._bounds(part)])
        found = IntervalHistogram.over(span, query.width_ms(span))
        # how many are in each
        for part in parts:
            if part.times is not None:
                part.covered.hot = TierCoverage(span.from_ms, span.to_ms)
                self._count_hot(part, found)
            if part.head is not None:
                part.covered.cold = TierCoverage(span.from_ms, span.to_ms, part.head.version)
                if part.border is None and query.axis is TimeAxis.STORE:
                    part.covered.cold.end_before(part.head.newest_ms + 1)
                for lost in part.head.lost_in(span if query.axis is TimeAxis.STORE else None):
                    self._fail(str(lost), lost.error())
        self._count_cold(parts, span, found)
        for part in parts:
            part.covered.drop_empty_claims()
        return _answer(query, span, found, coverage)

    # hot

    def _pinned(self, store: CountedStore, covered: StoreCoverage, stack: contextlib.ExitStack) -> _Part:
        part = _Part(store, covered)
        if store.hot is None:
            return part
        snapshot = stack.enter_context(store.hot.snapshot())
        part.border, part.generations = snapshot.border, store.hot.topics.ranges(self._query.topic)
        if max(snapshot.end, snapshot.visible) > snapshot.border:
            part.times = HotTimes(snapshot)
            part.queues = [
                queue
                for generation in part.generations
                for queue in shown_queues(store.hot, snapshot, store.hot.topics.of_log(generation.name)).values()
                if queue.first < queue.next
            ]
            self._require_dispatched(snapshot, store.store_id)
        return part

    def _require_dispatched(self, snapshot: HotSnapshot, store_id: str) -> None:
        try:
            snapshot.require_dispatched()
        except StoreError as error:
            self._fail(f"{store_id}/hot", error)

    def _hot_times(self, part: _Part, queue: SnapshotQueue) -> Iterator[Numbers]:
        """Yields the times of a queue's messages, a stretch at a time; what cannot be read fails the answer."""
        assert part.times is not None
        start = queue.first
        while start < queue.next:
            if self._is_late():
                return
            units, failures = queue.checked(start, min(start + _UNITS_AT_ONCE, queue.next))
            if failures:
                self._fail(f"{part.store.store_id}/commitlog", failures[min(failures)])
            good = np.delete(units, [offset - start for offset in failures])
            yield part.times.of(good["physical_offset"][~is_gap(good)].astype(np.int64), self._query.axis)
            start = queue.behind_gap(start + len(units))

    def _count_hot(self, part: _Part, found: IntervalHistogram) -> None:
        assert part.times is not None
        for queue in part.queues:
            if self._is_late():
                return
            if not part.times.rise_on(self._query.axis) or queue.has_gaps:
                for times_ms in self._hot_times(part, queue):
                    found.add(times_ms)
                continue
            try:
                found.add_offsets(part.times.firsts_at(queue, found.edges.tolist()))
            except StoreError as error:
                self._fail(f"{part.store.store_id}/commitlog", error)

    # archive

    def _rows_task(self, part: _Part) -> SearchTask:
        manifest = part.store.manifest
        assert manifest is not None

        def run(context: SearchContext) -> Iterator[SearchTask]:
            chain = context.chain.for_manifest()
            reader, lost = manifest.reader(chain, scan=True), list[tuple[str, StoreError]]()
            if part.border is not None:
                head, end = manifest.covering(part.border, chain.bill), part.border
            else:
                head = (manifest.recent(part.store.max_age_s) if part.store.max_age_s else None) or manifest.refresh(
                    chain.bill
                )
                end = head.archived_to
            generations = part.generations or generations_of(manifest, reader, head, self._query.topic)
            stored = self._query.within if self._query.axis is TimeAxis.STORE else None
            pieces = [
                piece
                for generation in generations
                for piece in manifest.queue_row_pieces(
                    reader, head, generation.topic_id, stored=stored,
                    lost=lambda _, error: lost.append((error.path or "manifest", error)),
                )
            ]  # fmt: skip
            rows = np.concatenate(pieces) if pieces else np.empty(0, QUEUE_ROW)

            def take() -> None:
                part.head, part.rows = head, rows[rows["segment"] < end]
                part.generations = generations
                expired = dict(head.expired)  # their rules are the same
                part.present_from_ms = max(expired.get(each.topic_id, EVER.from_ms) for each in generations)
                for name, error in lost:
                    self._fail(name, error)

            context.when_counted(take)
            yield from ()

        return SearchTask(ALL_TIME, manifest.keys.head, COUNTER, TierCoverage(0, 0), run)

    def _count_cold(self, parts: Sequence[_Part], span: TimeRange, found: IntervalHistogram) -> None:
        """Counts by queue rows, and where they do not suffice by directories, as far as these can be read."""
        tasks: list[SearchTask] = []
        left: dict[tuple[str, int], IntervalHistogram] = {}
        for part in parts:
            low, high = f"min_{self._query.axis.value}_ms", f"max_{self._query.axis.value}_ms"
            rows = part.rows[(part.rows[low] < span.to_ms) & (part.rows[high] >= span.from_ms)]
            rows = rows[rows["max_store_ms"] >= part.present_from_ms]
            crosses = found.crosses(rows[low], rows[high]) | (rows["min_store_ms"] < part.present_from_ms)
            is_crossed = np.isin(rows["segment"], np.unique(rows["segment"][crosses]))
            found.merge(self._estimate(part, rows[~is_crossed], found))
            for base in np.unique(rows["segment"][is_crossed]).tolist():
                mine = rows[rows["segment"] == base]
                left[part.store.store_id, base] = self._estimate(part, mine, found)
                bounds = int(mine[low].min()), int(mine[high].max())
                tasks.append(self._directory_task(part, base, bounds, left))
        self._do(tasks, is_needed=False)
        for estimate in left.values():
            found.merge(estimate)

    def _directory_task(
        self, part: _Part, base: int, bounds: tuple[int, int], left: dict[tuple[str, int], IntervalHistogram]
    ) -> SearchTask:
        """Returns a task that replaces the estimate of a segment by what its directory says."""
        place, query = (part.store.store_id, base), self._query
        manifest, head = part.store.manifest, part.head
        assert manifest is not None
        assert head is not None

        def run(context: SearchContext) -> Iterator[SearchTask]:
            entry = manifest.entry_of_rows(manifest.reader(context.chain.for_manifest(), scan=True), head, base)
            better = left[place].empty()
            segment = SegmentReader(manifest.reader(context.chain, scan=True), entry)
            tables = (table for each in part.generations for table in segment.directory_tables(each.name))
            for table in tables:
                columns = {name: table[name].to_numpy().astype(np.int64) for name in ("records", *_TIMES)}
                better.add_runs(Runs.of(columns, "records", query.axis, part.present_from_ms))

            def take() -> None:
                left[place] = better
                self._coverage.segments_read += 1

            context.when_counted(take)
            yield from ()

        return SearchTask(bounds, f"segment {base}", COUNTER, TierCoverage(0, 0), run)

    def _estimate(self, part: _Part, rows: QueueRows, found: IntervalHistogram) -> IntervalHistogram:
        """Counts rows, of which some cross a border, for a segment whose directory is not read."""
        cut_ms = part.present_from_ms if self._query.axis is TimeAxis.STORE else EVER.from_ms
        estimate = found.empty(cut_ms)
        columns = {name: rows[name].astype(np.int64) for name in ("count", *_TIMES)}
        estimate.add_runs(Runs.of(columns, "count", self._query.axis, part.present_from_ms))
        return estimate

    def _bounds(self, part: _Part) -> Iterator[tuple[int, int]]:
        """Yields inclusive times between which the store has messages, for ends that were left open."""
        query = self._query
        if query.from_ms is not None and query.to_ms is not None:
            return
        rows = part.rows[part.rows["max_store_ms"] >= part.present_from_ms]
        if len(rows):
            low = int(rows[f"min_{query.axis.value}_ms"].min())
            if query.axis is TimeAxis.STORE:
                low = max(low, part.present_from_ms)
            yield low, int(rows[f"max_{query.axis.value}_ms"].max())
        for queue in part.queues:
            assert part.times is not None
            if not part.times.rise_on(query.axis):
                yield from ((int(each.min()), int(each.max())) for each in self._hot_times(part, queue) if len(each))
                continue
            try:
                yield part.times.store_ms(queue, queue.first), part.times.store_ms(queue, queue.next - 1)
            except StoreError as error:
                self._fail(f"{part.store.store_id}/commitlog", error)

    # both

    def _do(self, tasks: Sequence[SearchTask], *, is_needed: bool = True) -> list[TopicNotFoundError]:
        """Runs tasks within what is left of budget and time; what ``is_needed`` and fails makes the answer incomplete.

        Returns where a topic was not found.
        """
        if not tasks:
            return []
        coverage, left = self._coverage, self._query.max_requests
        bill = ReadBill(None if left is None else left - coverage.requests)
        outcome = self._searcher.run(tasks, bill, self._deadline_s)
        unknown = list[TopicNotFoundError]()
        for ended in outcome.ended:
            if ended.error is None:
                for effect in ended.context.effects:
                    effect()
            elif isinstance(ended.error, TopicNotFoundError):
                unknown.append(ended.error)
            elif is_needed or not isinstance(ended.error, BudgetSpentError):
                self._fail(ended.task.name, ended.error, is_needed=is_needed)
        if outcome.left and is_needed:
            coverage.complete, coverage.cut_by = False, "timeout"
        coverage.requests, coverage.bytes = coverage.requests + bill.requests, coverage.bytes + bill.bytes
        coverage.manifest_requests += bill.manifest_requests
        coverage.cost_usd += bill.cost_usd
        coverage.round_trips += bill.round_trips
        coverage.waves += bill.waves(self._searcher.concurrency)
        return unknown

    def _fail(self, name: str, error: Exception, *, is_needed: bool = True) -> None:
        coverage = self._coverage
        coverage.complete = coverage.complete and not is_needed
        if isinstance(error, BudgetSpentError):
            coverage.cut_by = "budget"
        else:
            path = error.path if isinstance(error, StoreError) else None
            coverage.failures.append(Failure(path or name, str(error)))

    def _is_late(self) -> bool:
        if self._deadline_s is None or self._clock.monotonic_s() < self._deadline_s:
            return False
        self._coverage.complete, self._coverage.cut_by = False, "timeout"
        return True


def sum_counts(
    query: CountQuery, span: TimeRange, found: Sequence[IntervalCounts], spent: Sequence[Coverage]
) -> IntervalCounts:
    """Adds counts of the same intervals; ``spent`` is what was asked before to find the range."""
    total, coverage = IntervalHistogram.over(span, query.width_ms(span)), Coverage()
    for one in found:
        if one.counts:
            total.counts += np.array(one.counts, np.int64)
        total.estimated += one.estimated
        told = one.coverage
        coverage.complete = coverage.complete and told.complete
        coverage.cut_by = coverage.cut_by or told.cut_by
        coverage.stores += [store for store in told.stores if not _is_named(coverage, store)]
        coverage.failures += told.failures
        coverage.segments_read += told.segments_read
    for told in [*(one.coverage for one in found), *spent]:
        coverage.requests += told.requests
        coverage.manifest_requests += told.manifest_requests
        coverage.bytes += told.bytes
        coverage.cost_usd += told.cost_usd
        coverage.round_trips += told.round_trips
        coverage.waves += told.waves
    coverage.stores.sort(key=lambda store: store.store_id)
    return _answer(query, span, total, coverage)


def _answer(query: CountQuery, span: TimeRange, found: IntervalHistogram, coverage: Coverage) -> IntervalCounts:
    return IntervalCounts(
        topic=query.topic, axis=query.axis, from_ms=span.from_ms, to_ms=span.to_ms, interval_ms=query.width_ms(span),
        counts=found.counts.tolist(), estimated=found.estimated, coverage=coverage,
    )  # fmt: skip


def _is_named(coverage: Coverage, store: StoreCoverage) -> bool:
    """Whether a store is in the coverage, which then takes over why it gave no answer."""
    for known in coverage.stores:
        if known.store_id == store.store_id:
            known.error = known.error or store.error
            return True
    return False


def unanswered_counts(query: CountQuery, errors: Mapping[str, StoreError]) -> IntervalCounts:
    """Makes the counts of stores that gave no answer: none, and why."""
    coverage = Coverage(complete=False)
    coverage.stores = [StoreCoverage(name, error=str(error)) for name, error in errors.items()]
    coverage.failures = [Failure(name, str(error)) for name, error in errors.items()]
    return IntervalCounts(query.topic, query.axis, 0, 0, 1, [], 0, coverage)
