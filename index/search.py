"""Answers queries over both tiers of any number of stores.

A query becomes pieces of work, each with bounds on the times it can yield. The piece that may hold the next result in
the order asked for is taken first; taking it gives messages or smaller pieces. The search ends when the results on
hand are certain: no piece left can yield anything that belongs before them. One result more than the limit is
looked for, so that a cursor is given exactly when there is a next page.

Every hit is verified on its record: topic, key and time. A piece that fails makes the answer incomplete, never short
in silence.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Protocol

from index.query import (
    Answer,
    Coverage,
    Failure,
    Query,
    StoreCoverage,
    TierCoverage,
    encode_cursor,
)
from tiering.cold.reading import BudgetSpentError, ReadBill
from tiering.errors import StoreError, TopicNotFoundError
from tiering.message import Place, StoredMessage
from tiering.types import END_OF_TIME_MS, Order, TimeRange

ALL_TIME = (-END_OF_TIME_MS, END_OF_TIME_MS)
PAGE_BYTES = 32 << 20
"""Records in one page, their bodies included; one message is always given."""


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work: inclusive bounds of the times it may yield, and how to do it.

    ``name`` says what is read, for the failure list; ``counter`` is the coverage field that counts a failure;
    ``claim`` is what is not true in full until the work is done.
    """

    bounds: tuple[int, int]
    name: str
    counter: str
    claim: TierCoverage
    run: Callable[[], Iterable[StoredMessage | Work]]

    def give_up(self, order: Order) -> None:
        """Leave of the claim only what comes before anything that this work may yield."""
        low, high = self.bounds
        self.claim.end_at(high + 1 if order is Order.NEWEST else low - 1, order)


class StoreSearch(Protocol):
    """What a store must be able to do to be searched; one instance serves one query."""

    store_id: str

    def plan(self, query: Query, within: TimeRange, context: SearchContext, covered: StoreCoverage) -> Iterable[Work]:
        """Pin a snapshot in ``context.stack``, list the work for ``within`` and claim in ``covered`` what it covers.

        Raises :class:`TopicNotFoundError`, or :class:`BudgetSpentError` where the list cannot go on.
        """
        ...


@dataclass(slots=True)
class SearchContext:
    """What all pieces of one query share."""

    bill: ReadBill
    coverage: Coverage
    stack: contextlib.ExitStack
    segments_read: set[tuple[str, str, int]] = field(default_factory=set)
    segments_erased: set[tuple[str, int]] = field(default_factory=set)
    segments_expired: set[tuple[str, int]] = field(default_factory=set)

    def failed(self, name: str, counter: str, error: Exception) -> None:
        """Note what could not be read."""
        self.coverage.complete = False
        self.coverage.failures.append(Failure(name, str(error)))
        setattr(self.coverage, counter, getattr(self.coverage, counter) + 1)

    def spent(self) -> None:
        """Note that the budget did not suffice."""
        self.coverage.complete = False
        self.coverage.cut_by = "budget"


def search(stores: Sequence[StoreSearch], query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
    """One page of answers over all ``stores``: at most the query's limit, and about ``page_bytes``, of messages.

    Raises :class:`TopicNotFoundError` if none of the stores knows the topic.
    """
    coverage = Coverage()
    within = _after_cursor(query)
    bill = ReadBill(max_requests=query.max_requests)
    with contextlib.ExitStack() as stack:
        context = SearchContext(bill, coverage, stack)
        queue = _Queue(query.order)
        unknown: list[TopicNotFoundError] = []
        for store in stores:
            covered = StoreCoverage(store.store_id)
            coverage.stores.append(covered)
            try:
                for work in store.plan(query, within, context, covered):
                    queue.push(work)
            except TopicNotFoundError as error:
                unknown.append(error)
            except BudgetSpentError:
                context.spent()
        if len(unknown) == len(stores):
            raise unknown[0] if unknown else TopicNotFoundError(f"no store holds topic {query.topic!r}")
        results = _Results(query, within, page_bytes)
        _collect(queue, results, context, query.order)
    page, has_more = results.page()
    cursor = None
    if has_more:
        cursor = encode_cursor(page[-1].place(query.axis), query.axis, query.order)
        coverage.cut_by = coverage.cut_by or "limit"
        _end_claims(coverage, page[-1].time_ms(query.axis), query.order)
    for covered in coverage.stores:
        covered.drop_empty_claims()
    coverage.segments_read, coverage.segments_erased = len(context.segments_read), len(context.segments_erased)
    coverage.segments_expired = len(context.segments_expired)
    coverage.requests, coverage.bytes, coverage.round_trips = bill.requests, bill.bytes, len(bill.stages)
    return Answer(page, cursor, coverage)


def _after_cursor(query: Query) -> TimeRange:
    after = query.after
    if after is None:
        return query.time_range
    if query.order is Order.NEWEST:
        return TimeRange(query.from_ms, min(query.to_ms, after[0] + 1))
    return TimeRange(max(query.from_ms, after[0]), query.to_ms)


def _end_claims(coverage: Coverage, time_ms: int, order: Order) -> None:
    """A page cut by the limit covers the range only as far as its last message."""
    for store in coverage.stores:
        for claim in (store.hot, store.cold):
            if claim is not None:
                claim.end_at(time_ms, order)


def object_of(error: Exception) -> str | None:
    """What an error says could not be read."""
    return error.path if isinstance(error, StoreError) else None


class _Queue:
    """Work in the order in which it may yield the next result."""

    def __init__(self, order: Order) -> None:
        self._newest = order is Order.NEWEST
        self._heap: list[tuple[int, int, Work]] = []
        self._tie = count()

    def push(self, work: Work) -> None:
        first = -work.bounds[1] if self._newest else work.bounds[0]
        heapq.heappush(self._heap, (first, next(self._tie), work))

    def pop_unless_behind(self, time_ms: int | None) -> Work | None:
        """The next piece, unless nothing that is left can yield a time at or before ``time_ms`` in the order."""
        if not self._heap:
            return None
        if time_ms is not None and self._heap[0][0] > (-time_ms if self._newest else time_ms):
            return None
        return heapq.heappop(self._heap)[2]


def _collect(queue: _Queue, results: _Results, context: SearchContext, order: Order) -> None:
    """Do the work that may matter; what fails ends its tier's claim, and the rest, which may cost nothing, goes on."""
    while (work := queue.pop_unless_behind(results.certain_time())) is not None:
        try:
            for item in work.run():
                if isinstance(item, Work):
                    queue.push(item)
                else:
                    results.add(item)
        except BudgetSpentError:
            context.spent()
            work.give_up(order)
        except (StoreError, OSError) as error:
            context.failed(object_of(error) or work.name, work.counter, error)
            work.give_up(order)


class _Results:
    """Verified messages, each once, the best ones known so far; bodies of about two pages at most."""

    def __init__(self, query: Query, within: TimeRange, page_bytes: int) -> None:
        self._query = query
        self._within = within
        self._page_bytes = page_bytes
        self._after = query.after
        self._newest = query.order is Order.NEWEST
        self._found: dict[Place, StoredMessage] = {}
        self._sizes: dict[Place, int] = {}
        self._bytes = 0
        self._certain: int | None = None
        self._fresh = False

    def add(self, message: StoredMessage) -> None:
        place = message.place(self._query.axis)
        if not self._within.contains(place[0]) or not self._is_behind_cursor(place):
            return
        if place in self._found:
            return
        self._found[place] = message
        self._sizes[place] = message.shown_bytes
        self._bytes += self._sizes[place]
        self._fresh = True
        if self._bytes > 2 * self._page_bytes:
            self._keep_the_best()

    def _is_behind_cursor(self, place: Place) -> bool:
        if self._after is None:
            return True
        return place < self._after if self._newest else place > self._after

    def page(self) -> tuple[list[StoredMessage], bool]:
        """The page in order, and whether there is a message behind it."""
        self._keep_the_best()
        page = [self._found[place] for place in self._fitting(sorted(self._found, reverse=self._newest))]
        return page, len(page) < len(self._found)

    def certain_time(self) -> int | None:
        """Time of the last message wanted, if there are enough; work that can only yield later ones may rest."""
        if self._fresh and (len(self._found) > self._query.limit or self._bytes > self._page_bytes):
            self._keep_the_best()
            self._fresh = False
        return self._certain

    def _keep_the_best(self) -> None:
        """Forget what lies behind the page by more than the one message that tells whether there is another page."""
        ordered = sorted(self._found, reverse=self._newest)
        wanted = len(self._fitting(ordered)) + 1
        if len(ordered) >= wanted:
            self._certain = ordered[wanted - 1][0]
        for place in ordered[wanted:]:
            del self._found[place]
            self._bytes -= self._sizes.pop(place)

    def _fitting(self, ordered: list[Place]) -> list[Place]:
        """As many of the places as a page takes, at least one if there is one."""
        ends = accumulate(self._sizes[place] for place in ordered[: self._query.limit])
        return ordered[: max(1, sum(end <= self._page_bytes for end in ends))]
