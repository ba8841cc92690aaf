"""Estimates what a query may cost, and reads the manifest and nothing else for it.

The tasks of the query are done in their order, on a bill that refuses every request but those for the manifest. What
is hot, or kept of the archive, is so read as it would be; a task that would have sent others is estimated.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Hashable, Sequence
from itertools import count

from tierlog.index.search.cost import CostKind, TaskCost
from tierlog.index.search.query import Answer, CostEstimate, CostRange, Coverage, Query, StoreCoverage
from tierlog.index.search.results import Results
from tierlog.index.search.schedule import EndedTask, ScheduleResult
from tierlog.index.search.searcher import StoreSearch, fill_coverage
from tierlog.index.search.task import Found, SearchContext, SearchTask
from tierlog.tiering.base.errors import StoreError, TopicNotFoundError
from tierlog.tiering.base.types import Order, Tier, TimeAxis
from tierlog.tiering.cold.reading.bill import BudgetSpentError, ReadBill, RequestChain
from tierlog.tiering.cold.reading.memory_cache import Range
from tierlog.tiering.message.stored_message import Place, StoredMessage


class _ManifestOnly(ReadBill):
    """A bill that refuses everything but the manifest."""

    def charge(self, place: Range, stage: str, depth: int = 0) -> None:
        if depth:
            raise BudgetSpentError(f"a dry run does not fetch the {stage}", path=place[0])
        super().charge(place, stage, depth)


def dry_run(stores: Sequence[StoreSearch], query: Query) -> Answer:
    """Answers with no messages, what was looked at, and the estimate; :class:`TopicNotFoundError` as for a search.

    ``max_requests`` of the query bounds the requests for the manifest.
    """
    coverage = Coverage(complete=False)
    run = _DryRun(query)
    unknown: list[TopicNotFoundError] = []
    with contextlib.ExitStack() as stack:
        for store in stores:
            covered = StoreCoverage(store.store_id)
            coverage.stores.append(covered)
            try:
                for task in store.plan(query, run.counted.within, stack, covered):
                    run.push(task)
            except TopicNotFoundError as error:
                unknown.append(error)
            if covered.page_end is not None:
                run.end_at(covered.page_end)
        run.walk()
    unknown += [each.error for each in run.ended if isinstance(each.error, TopicNotFoundError)]
    if len(unknown) == len(stores):
        raise unknown[0] if unknown else TopicNotFoundError(f"no store holds topic {query.topic!r}")
    fill_coverage(coverage, ScheduleResult(run.ended, []), query.order, RequestChain(run.bill))
    coverage.complete, coverage.cut_by = False, "dry_run"
    for covered in coverage.stores:
        covered.hot = covered.cold = None
    coverage.requests = coverage.manifest_requests = run.bill.requests
    coverage.bytes, coverage.cost_usd = run.bill.bytes, run.bill.cost_usd
    heads = sum(store.looks_at_head for store in stores)
    return Answer([], None, coverage, run.estimate(heads))


class _DryRun:
    def __init__(self, query: Query) -> None:
        self._query = query
        self._newest = query.order is Order.NEWEST
        self.bill = _ManifestOnly(query.max_requests)
        self.ended: list[EndedTask] = []
        #: What decides how far the real run may go: what is hot is found before the archive is asked; what is kept of
        #: the archive may be found after other tasks were begun beside it.
        self.counted = Results(query)
        self._all = Results(query)
        self._heap: list[tuple[int, int, SearchTask]] = []
        self._numbers = count()
        self._known: set[Hashable] = set()
        self._costs: list[TaskCost] = []
        self._likely: list[TaskCost] = []
        self._expected = 0
        self._sure_at: int | None = None
        self._sure: set[str] = set()
        self._is_whole = True

    def end_at(self, place: Place) -> None:
        """Notes that the page ends here at the latest."""
        self.counted.end_at(place)
        self._all.end_at(place)

    def push(self, task: SearchTask) -> None:
        """Adds a task, as a schedule does."""
        if not self.counted.within.overlaps(*task.bounds) or (task.once is not None and task.once in self._known):
            return
        self._known.add(task.once)
        heapq.heappush(self._heap, (self._first(task), next(self._numbers), task))

    def _first(self, task: SearchTask) -> int:
        return -task.bounds[1] if self._newest else task.bounds[0]

    def walk(self) -> None:
        """Does, or estimates, every task that may be begun."""
        while self._heap:
            first, _, task = heapq.heappop(self._heap)
            time_ms = task.bounds[1] if self._newest else task.bounds[0]
            if self.counted.is_certain_before(time_ms):
                return
            context = SearchContext(RequestChain(self.bill))
            error: Exception | None = None
            try:
                for item in task.run(context):
                    self._take(item)
            except BudgetSpentError:
                self._add_cost(task, first, time_ms)
            except (StoreError, OSError) as failure:
                error = failure
                self._is_whole = self._is_whole and isinstance(failure, TopicNotFoundError)
            self.ended.append(EndedTask(task, context, error))

    def _take(self, item: Found | SearchTask) -> None:
        if isinstance(item, SearchTask):
            self.push(item)
            return
        assert isinstance(item, StoredMessage)  # a dry run never goes by columns
        self._all.add(item)
        if item.tier is Tier.HOT:
            self.counted.add(item)

    def _add_cost(self, task: SearchTask, first: int, time_ms: int) -> None:
        if task.cost is None:  # the budget did not suffice for the manifest
            self._is_whole = False
            return
        try:
            cost = task.cost(SearchContext(RequestChain(self.bill)))
        except (StoreError, OSError):
            self._is_whole = False
            return
        self._costs.append(cost)
        if self._sure_at is None and not self._all.is_certain_before(time_ms):
            self._sure_at = first
        if first == self._sure_at:
            self._sure.add(task.name)  # whatever comes of others, this is asked
        if self._expected + self._all.before(time_ms) <= self._query.limit:
            self._expected += cost.results if self._query.filters is None else 0
            self._likely.append(cost)

    def estimate(self, heads: int) -> CostEstimate:
        """Returns the estimate of all of them; ``heads`` of the manifest are looked at by every search."""
        likely, all_of_them, sure = self._likely, self._costs, heads + len(self._sure)
        most = self.bill.requests + sum(cost.most for cost in all_of_them)
        found = CostEstimate(
            CostRange(sure, min(most, max(sure, heads + sum(cost.likely for cost in likely))), most),
            sum(cost.bytes for cost in likely),
            max((cost.depth for cost in likely), default=0),
            self._is_whole,
        )
        objects = [cost for cost in all_of_them if cost.kind is CostKind.OBJECT]
        found.objects_asked = len(objects)
        found.filters_resident = sum(cost.has_filter for cost in objects)
        found.directories_resident = sum(cost.has_directory for cost in objects)
        found.segments_by_hits = sum(cost.kind in (CostKind.SEGMENT_OF_HITS, CostKind.FRAMES) for cost in all_of_them)
        found.segments_by_time = sum(cost.kind is CostKind.SEGMENT_BY_TIME for cost in all_of_them)
        found.notes = self._notes(found)
        return found

    def _notes(self, found: CostEstimate) -> list[str]:
        notes = []
        if not found.is_whole:
            notes.append("the manifest could not be read in full: there may be more to ask")
        if found.objects_asked and self._query.axis is TimeAxis.BORN:
            notes.append(
                "the index holds store times: by born time, the record of every hit is read before the page is cut"
            )
        if self._costs and self._query.filters is not None:
            notes.append("how many messages pass the filters is not known: likely takes it that all have to be read")
        if found.segments_by_time and self._query.key is not None:
            notes.append("what is archived and not indexed yet is searched record by record")
        if found.objects_asked > found.filters_resident:
            notes.append(
                "likely: the key is in no object without a filter in memory; most: it is in all items of each of them"
            )
        return notes
