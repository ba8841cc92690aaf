"""Says what a query may cost. Asks for the manifest and nothing else.

The pieces of the query are done in their order, on a bill that refuses every request but those for the manifest. What
is hot, or kept of the archive, is so read as it would be; a piece that would have asked is guessed.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Hashable, Sequence
from itertools import count

from index.estimate import Estimate, Span
from index.guess import Guess, Kind
from index.query import Answer, Coverage, Query, StoreCoverage
from index.results import Results
from index.schedule import Ended, Outcome
from index.search import StoreSearch, tell
from index.work import SearchContext, Work
from tiering.cold.bill import BudgetSpentError, ReadBill, RequestChain
from tiering.cold.caching.memory import Range
from tiering.errors import StoreError, TopicNotFoundError
from tiering.message import Place, StoredMessage
from tiering.types import Order, Tier, TimeAxis


class _ManifestOnly(ReadBill):
    """A bill that refuses everything but the manifest."""

    def charge(self, place: Range, stage: str, depth: int = 0) -> None:
        if depth:
            raise BudgetSpentError(f"a dry run does not fetch the {stage}", path=place[0])
        super().charge(place, stage, depth)


def dry_run(stores: Sequence[StoreSearch], query: Query) -> Answer:
    """No messages, what was looked at, and the estimate. Raises :class:`TopicNotFoundError` as a search does.

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
                for work in store.plan(query, run.counted.within, stack, covered):
                    run.push(work)
            except TopicNotFoundError as error:
                unknown.append(error)
            if covered.page_end is not None:
                run.end_at(covered.page_end)
        run.walk()
    unknown += [each.error for each in run.ended if isinstance(each.error, TopicNotFoundError)]
    if len(unknown) == len(stores):
        raise unknown[0] if unknown else TopicNotFoundError(f"no store holds topic {query.topic!r}")
    tell(coverage, Outcome(run.ended, []), query.order, RequestChain(run.bill))
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
        self.ended: list[Ended] = []
        #: What decides how far the real run may go: what is hot is found before the archive is asked; what is kept of
        #: the archive may be found after other pieces were begun beside it.
        self.counted = Results(query)
        self._all = Results(query)
        self._heap: list[tuple[int, int, Work]] = []
        self._numbers = count()
        self._known: set[Hashable] = set()
        self._guesses: list[Guess] = []
        self._likely: list[Guess] = []
        self._expected = 0
        self._sure_at: int | None = None
        self._sure: set[str] = set()
        self._is_whole = True

    def end_at(self, place: Place) -> None:
        """The page ends here at the latest."""
        self.counted.end_at(place)
        self._all.end_at(place)

    def push(self, work: Work) -> None:
        """Add a piece, as a schedule does."""
        if not self.counted.within.overlaps(*work.bounds) or (work.once is not None and work.once in self._known):
            return
        self._known.add(work.once)
        heapq.heappush(self._heap, (self._first(work), next(self._numbers), work))

    def _first(self, work: Work) -> int:
        return -work.bounds[1] if self._newest else work.bounds[0]

    def walk(self) -> None:
        """Do or guess every piece that may be begun."""
        while self._heap:
            first, _, work = heapq.heappop(self._heap)
            time_ms = work.bounds[1] if self._newest else work.bounds[0]
            if self.counted.is_certain_before(time_ms):
                return
            context = SearchContext(RequestChain(self.bill))
            error: Exception | None = None
            try:
                for item in work.run(context):
                    self._take(item)
            except BudgetSpentError:
                self._guess(work, first, time_ms)
            except (StoreError, OSError) as failure:
                error = failure
                self._is_whole = self._is_whole and isinstance(failure, TopicNotFoundError)
            self.ended.append(Ended(work, context, error))

    def _take(self, item: StoredMessage | Work) -> None:
        if isinstance(item, Work):
            self.push(item)
            return
        self._all.add(item)
        if item.tier is Tier.HOT:
            self.counted.add(item)

    def _guess(self, work: Work, first: int, time_ms: int) -> None:
        if work.guess is None:  # the budget did not suffice for the manifest
            self._is_whole = False
            return
        try:
            guess = work.guess(SearchContext(RequestChain(self.bill)))
        except (StoreError, OSError):
            self._is_whole = False
            return
        self._guesses.append(guess)
        if self._sure_at is None and not self._all.is_certain_before(time_ms):
            self._sure_at = first
        if first == self._sure_at:
            self._sure.add(work.name)  # whatever comes of others, this is asked
        if self._expected + self._all.before(time_ms) <= self._query.limit:
            self._expected += guess.results
            self._likely.append(guess)

    def estimate(self, heads: int) -> Estimate:
        """All together; ``heads`` of the manifest are looked at by every search."""
        likely, all_of_them, sure = self._likely, self._guesses, heads + len(self._sure)
        most = self.bill.requests + sum(guess.most for guess in all_of_them)
        found = Estimate(
            Span(sure, min(most, max(sure, heads + sum(guess.likely for guess in likely))), most),
            sum(guess.bytes for guess in likely),
            max((guess.depth for guess in likely), default=0),
            self._is_whole,
        )
        objects = [guess for guess in all_of_them if guess.kind is Kind.OBJECT]
        found.objects_asked = len(objects)
        found.filters_resident = sum(guess.has_filter for guess in objects)
        found.directories_resident = sum(guess.has_directory for guess in objects)
        found.segments_by_hits = sum(guess.kind in (Kind.SEGMENT_OF_HITS, Kind.FRAMES) for guess in all_of_them)
        found.segments_by_time = sum(guess.kind is Kind.SEGMENT_BY_TIME for guess in all_of_them)
        found.notes = self._notes(found)
        return found

    def _notes(self, found: Estimate) -> list[str]:
        notes = []
        if not found.is_whole:
            notes.append("the manifest could not be read in full: there may be more to ask")
        if found.objects_asked and self._query.axis is TimeAxis.BORN:
            notes.append(
                "the index holds store times: by born time, the record of every hit is read before the page is cut"
            )
        if found.segments_by_time and self._query.key is not None:
            notes.append("what is archived and not indexed yet is searched record by record")
        if found.objects_asked > found.filters_resident:
            notes.append(
                "likely: the key is in no object without a filter in memory; most: it is in all items of each of them"
            )
        return notes
