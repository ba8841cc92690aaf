"""Answers queries over both tiers of any number of stores.

Each store lists pieces of work with bounds on the times they can yield; a schedule does those that may matter, and the
page is made of the best results. Every hit is verified on its record: topic, key and time. A piece that fails makes the
answer incomplete, never short in silence.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from index.query import Answer, Coverage, Failure, Query, StoreCoverage, encode_cursor
from index.results import PAGE_BYTES, Results
from index.schedule import Ended, Outcome, Schedule
from index.work import Fate, SearchContext, Work
from tiering.clock import Clock, SystemClock
from tiering.cold.bill import BudgetSpentError, ReadBill, RequestChain
from tiering.cold.caching.fetch_pool import FetchPool
from tiering.errors import StoreError, TopicNotFoundError
from tiering.types import Order, TimeRange


class StoreSearch(Protocol):
    """What a store must be able to do to be searched; one instance serves one query."""

    store_id: str
    #: Whether every search looks whether there is a newer head of the archive.
    looks_at_head: bool

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterable[Work]:
        """Pin a snapshot in ``stack``, list the work for ``within`` and claim in ``covered`` what it covers.

        Asks the archive for nothing: that is work too. Raises :class:`TopicNotFoundError`, here or in a piece of work
        that every search of this store does.
        """
        ...


class Searcher:
    """Runs queries; what all queries of a process share. Thread safe."""

    def __init__(self, pool: FetchPool | None = None, concurrency: int = 1, clock: Clock | None = None) -> None:
        """At most ``concurrency`` pieces of one query ask the archive at once, on threads of ``pool``.

        Without a pool, or with a concurrency of 1, each query runs on the thread of its caller, in an order that
        depends on nothing else; the time-out of a query is then seen between requests only.
        """
        self._pool = pool
        self._concurrency = concurrency if pool is not None else 1
        self._clock = clock or SystemClock()

    def search(self, stores: Sequence[StoreSearch], query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """One page of answers over all ``stores``: at most the query's limit, and about ``page_bytes``, of messages.

        Messages, cursor, completeness and claims do not depend on how threads follow each other, unless budget or time
        run out. Raises :class:`TopicNotFoundError` if none of the stores knows the topic.
        """
        deadline_s = None if query.timeout_ms is None else self._clock.monotonic_s() + query.timeout_ms / 1000
        coverage = Coverage()
        results = Results(query, page_bytes)
        bill = ReadBill(query.max_requests)
        schedule = Schedule(
            query.order, query.limit + 1, results, bill,
            pool=self._pool, concurrency=self._concurrency, clock=self._clock, deadline_s=deadline_s,
        )  # fmt: skip
        unknown: list[TopicNotFoundError] = []
        with contextlib.ExitStack() as stack:
            for store in stores:
                covered = StoreCoverage(store.store_id)
                coverage.stores.append(covered)
                try:
                    for work in store.plan(query, results.within, stack, covered):
                        schedule.push(work)
                except TopicNotFoundError as error:
                    unknown.append(error)
                if covered.page_end is not None:
                    results.end_at(covered.page_end)
            outcome = schedule.run()
        unknown += [each.error for each in outcome.ended if isinstance(each.error, TopicNotFoundError)]
        if len(unknown) == len(stores):
            raise unknown[0] if unknown else TopicNotFoundError(f"no store holds topic {query.topic!r}")
        tell(coverage, outcome, query.order, RequestChain(bill))
        page, has_more = results.page()
        cursor = None
        if has_more:
            cursor = encode_cursor(page[-1].place(query.axis), query.axis, query.order)
            coverage.cut_by = coverage.cut_by or "limit"
            _end_claims(coverage, page[-1].time_ms(query.axis), query.order)
        for covered in coverage.stores:
            covered.drop_empty_claims()
            for claim in covered.claims():
                claim.as_asked(query)
        coverage.requests, coverage.manifest_requests = bill.requests, bill.manifest_requests
        coverage.bytes, coverage.cost_usd = bill.bytes, bill.cost_usd
        coverage.round_trips, coverage.waves = bill.round_trips, bill.waves(self._concurrency)
        return Answer(page, cursor, coverage)


def search(stores: Sequence[StoreSearch], query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
    """:meth:`Searcher.search` on the caller's thread alone."""
    return Searcher().search(stores, query, page_bytes=page_bytes)


def tell(coverage: Coverage, outcome: Outcome, order: Order, chain: RequestChain) -> None:
    """Put into the coverage what pieces noted, where they failed and which were left."""
    notes = SearchContext(chain)
    failed: dict[tuple[str, str], Failure] = {}
    for ended in outcome.ended:
        notes.add(ended.context)
        if ended.error is not None and not isinstance(ended.error, TopicNotFoundError):
            _fail(coverage, failed, ended, order)
    for work in outcome.left:
        work.give_up(order)
    if outcome.left:
        coverage.complete, coverage.cut_by = False, "timeout"
    unreachable = Counter(counter for counter, _ in failed)
    coverage.failures = [failed[place] for place in sorted(failed)]
    coverage.index_unreachable = unreachable["index_unreachable"]
    coverage.segments_unreachable = unreachable["segments_unreachable"]
    _count_fates(coverage, notes.fates({name for counter, name in failed if counter == "index_unreachable"}))
    coverage.segments_read, coverage.segments_erased = len(notes.segments_read), len(notes.segments_erased)
    coverage.segments_expired = len(notes.segments_expired)


def _fail(coverage: Coverage, failed: dict[tuple[str, str], Failure], ended: Ended, order: Order) -> None:
    """What fails ends its tier's claim; it is told once of each thing that cannot be read."""
    error, work = ended.error, ended.work
    coverage.complete = False
    if isinstance(error, BudgetSpentError):
        coverage.cut_by = "budget"
    else:
        assert error is not None
        name = _object_of(error) or work.name
        told = failed.setdefault((work.counter, name), Failure(name, str(error)))
        told.error = min(told.error, str(error))
    work.give_up(order)


def _count_fates(coverage: Coverage, fates: list[Fate]) -> None:
    counts = Counter(fates)
    coverage.index_skipped, coverage.index_searched = counts[Fate.SKIPPED], counts[Fate.SEARCHED]
    coverage.index_filtered, coverage.index_expired = counts[Fate.FILTERED], counts[Fate.EXPIRED]
    coverage.index_considered = len(fates) + coverage.index_unreachable


def _end_claims(coverage: Coverage, time_ms: int, order: Order) -> None:
    """A page cut by the limit covers the range only as far as its last message."""
    for store in coverage.stores:
        for claim in store.claims():
            claim.end_at(time_ms, order)


def _object_of(error: Exception) -> str | None:
    """What an error says could not be read."""
    return error.path if isinstance(error, StoreError) else None
