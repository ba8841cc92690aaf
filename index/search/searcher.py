"""Answers queries over both tiers of any number of stores.

Each store lists tasks with bounds on the times that they can yield; a schedule runs those that may matter, and the
page is made of the best results. Every hit is verified on its record: topic, key and time. A task that fails makes the
answer incomplete, never short in silence.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from tierlog.index.search.column_results import ColumnResults
from tierlog.index.search.query import Answer, Coverage, Failure, Query, StoreCoverage, encode_cursor
from tierlog.index.search.results import PAGE_BYTES, Results, place_before
from tierlog.index.search.schedule import EndedTask, Schedule, ScheduleResult
from tierlog.index.search.task import IndexOutcome, SearchContext, SearchTask
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import StoreError, TopicNotFoundError
from tierlog.tiering.base.types import Order, TimeRange
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.reading.bill import BudgetSpentError, ReadBill, RequestChain
from tierlog.tiering.message.stored_message import Place, StoredMessage


class StoreSearch(Protocol):
    """A store that can be searched; one instance serves one query."""

    store_id: str
    #: Whether every search looks whether there is a newer head of the archive.
    looks_at_head: bool

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterable[SearchTask]:
        """Pins a snapshot in ``stack``, yields the tasks for ``within`` and claims in ``covered`` what they cover.

        Asks the archive for nothing: that is left to tasks too. Raises :class:`TopicNotFoundError`, here or in a task
        that every search of this store runs.
        """
        ...


class Searcher:
    """Runs the queries of a process, which share it. Thread safe."""

    def __init__(self, pool: WorkerPool | None = None, concurrency: int = 1, clock: Clock | None = None) -> None:
        """At most ``concurrency`` tasks of one query ask the archive at once, on threads of ``pool``.

        Without a pool, or with a concurrency of 1, each query runs on the thread of its caller, in an order that
        depends on nothing else; the time-out of a query is then seen between requests only.
        """
        self._pool = pool
        self._concurrency = concurrency if pool is not None else 1
        self._clock = clock or SystemClock()

    @property
    def concurrency(self) -> int:
        """The most tasks of one query that ask the archive at once."""
        return self._concurrency

    def run(self, tasks: Iterable[SearchTask], bill: ReadBill, deadline_s: float | None) -> ScheduleResult:
        """Runs tasks that yield no messages, within budget and time, as those of a search."""
        query = Query("tasks", order=Order.OLDEST)
        schedule = Schedule(
            query.order, query.limit, Results(query), bill,
            pool=self._pool, concurrency=self._concurrency, clock=self._clock, deadline_s=deadline_s,
        )  # fmt: skip
        for task in tasks:
            schedule.push(task)
        return schedule.run()

    def search(self, stores: Sequence[StoreSearch], query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """Answers with one page over all ``stores``: at most the query's limit, and about ``page_bytes``, of messages.

        Messages, cursor, completeness and claims do not depend on how threads follow each other, unless budget or time
        run out. Raises :class:`TopicNotFoundError` if none of the stores knows the topic.
        """
        # what bounds the search
        deadline_s = None if query.timeout_ms is None else self._clock.monotonic_s() + query.timeout_ms / 1000
        coverage = Coverage()
        results = ColumnResults(query, page_bytes) if query.by_columns else Results(query, page_bytes)
        bill = ReadBill(query.max_requests)
        schedule = Schedule(
            query.order, query.limit + 1, results, bill,
            pool=self._pool, concurrency=self._concurrency, clock=self._clock, deadline_s=deadline_s,
            waits=query.by_columns,
        )  # fmt: skip
        # plan all stores in one snapshot each, and run the tasks
        unknown: list[TopicNotFoundError] = []
        with contextlib.ExitStack() as stack:
            for store in stores:
                covered = StoreCoverage(store.store_id)
                coverage.stores.append(covered)
                try:
                    for task in store.plan(query, results.within, stack, covered):
                        schedule.push(task)
                except TopicNotFoundError as error:
                    unknown.append(error)
                if covered.page_end is not None:
                    results.end_at(covered.page_end)
            outcome = schedule.run()
        unknown += [each.error for each in outcome.ended if isinstance(each.error, TopicNotFoundError)]
        if len(unknown) == len(stores):
            raise unknown[0] if unknown else TopicNotFoundError(f"no store holds topic {query.topic!r}")
        fill_coverage(coverage, outcome, query.order, RequestChain(bill))
        # the page, and claims that go no further than it
        if query.filters is not None and isinstance(results, Results):
            page, end = _filtered_page(results, coverage, outcome, query)
        else:
            page, end = results.page()
        cursor = None
        if end is not None:
            cursor = encode_cursor(end, query.axis, query.order)
            coverage.cut_by = coverage.cut_by or "limit"
            last_ms, examined_ms = end[0], coverage.examined_to_ms
            if examined_ms is not None and end == place_before(examined_ms, query.order):  # between two times
                last_ms = examined_ms - (query.order is Order.OLDEST)
            _end_claims(coverage, last_ms, query.order)
        for covered in coverage.stores:
            covered.drop_empty_claims()
            for claim in covered.claims():
                claim.as_asked(query)
        coverage.requests, coverage.manifest_requests = bill.requests, bill.manifest_requests
        coverage.bytes, coverage.cost_usd = bill.bytes, bill.cost_usd
        coverage.round_trips, coverage.waves = bill.round_trips, bill.waves(self._concurrency)
        if isinstance(page, list):
            return Answer(page, cursor, coverage)
        return Answer([], cursor, coverage, rows=page)


def search(stores: Sequence[StoreSearch], query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
    """Searches as :meth:`Searcher.search` does, on the caller's thread alone."""
    return Searcher().search(stores, query, page_bytes=page_bytes)


def _filtered_page(
    results: Results, coverage: Coverage, outcome: ScheduleResult, query: Query
) -> tuple[list[StoredMessage], Place | None]:
    """Ends the page where budget or time ended the examining, so that the next goes on there and nothing is left out.

    Where they did not suffice for a single time, there is no next page: it would begin where this one did.
    """
    is_newest = query.order is Order.NEWEST
    left = [*outcome.left, *(each.task for each in outcome.ended if isinstance(each.error, BudgetSpentError))]
    times = [task.bounds[1] + 1 if is_newest else task.bounds[0] for task in left]
    told = [covered.examined_to_ms for covered in coverage.stores if covered.examined_to_ms is not None]
    times += [time_ms for time_ms in told if not results.is_certain_before(time_ms - is_newest)]
    if not times:
        return results.page()
    time_ms = max(times) if is_newest else min(times)
    coverage.complete, coverage.cut_by = False, coverage.cut_by or "timeout"
    if time_ms >= results.within.to_ms if is_newest else time_ms <= results.within.from_ms:
        return results.page()[0], None
    coverage.examined_to_ms = time_ms
    results.cut_at(place_before(time_ms, query.order))
    return results.page()


def fill_coverage(coverage: Coverage, outcome: ScheduleResult, order: Order, chain: RequestChain) -> None:
    """Puts into the coverage what tasks noted, where they failed and which were left."""
    notes = SearchContext(chain)
    failed: dict[tuple[str, str], Failure] = {}
    for ended in outcome.ended:
        notes.add(ended.context)
        if ended.error is not None and not isinstance(ended.error, TopicNotFoundError):
            _fail(coverage, failed, ended, order)
    for task in outcome.left:
        task.give_up(order)
    if outcome.left:
        coverage.complete, coverage.cut_by = False, "timeout"
    unreachable = Counter(counter for counter, _ in failed)
    coverage.failures = [failed[place] for place in sorted(failed)]
    coverage.index_unreachable = unreachable["index_unreachable"]
    coverage.segments_unreachable = unreachable["segments_unreachable"]
    unreached = {name for counter, name in failed if counter == "index_unreachable"}
    _count_index_outcomes(coverage, notes.index_outcomes(but=unreached))
    coverage.segments_read, coverage.segments_erased = len(notes.segments_read), len(notes.segments_erased)
    coverage.segments_expired = len(notes.segments_expired)
    coverage.messages_read, coverage.messages_matched = notes.messages_read, notes.messages_matched


def _fail(coverage: Coverage, failed: dict[tuple[str, str], Failure], ended: EndedTask, order: Order) -> None:
    """Ends the claim of a tier in which a task failed; each thing that cannot be read is reported once."""
    error, task = ended.error, ended.task
    coverage.complete = False
    if isinstance(error, BudgetSpentError):
        coverage.cut_by = "budget"
    else:
        assert error is not None
        name = _object_of(error) or task.name
        failure = failed.setdefault((task.counter, name), Failure(name, str(error)))
        failure.error = min(failure.error, str(error))
    task.give_up(order)


def _count_index_outcomes(coverage: Coverage, outcomes: list[IndexOutcome]) -> None:
    counts = Counter(outcomes)
    coverage.index_skipped, coverage.index_searched = counts[IndexOutcome.SKIPPED], counts[IndexOutcome.SEARCHED]
    coverage.index_filtered, coverage.index_expired = counts[IndexOutcome.FILTERED], counts[IndexOutcome.EXPIRED]
    coverage.index_considered = len(outcomes) + coverage.index_unreachable


def _end_claims(coverage: Coverage, time_ms: int, order: Order) -> None:
    """Ends claims at the last time of a page that was cut."""
    for store in coverage.stores:
        for claim in store.claims():
            claim.end_at(time_ms, order)


def _object_of(error: Exception) -> str | None:
    """Returns the object that an error says could not be read."""
    return error.path if isinstance(error, StoreError) else None
