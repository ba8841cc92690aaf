"""Searches a store whose hot tier another process has: that process's answer, and the archive below its border.

The answers of all stores are there before the search begins. Messages that became archived since are in the page that
was given, so the border of the answer decides, whatever moves meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.search.hot_search import HotPage, Pinned
from tierlog.index.search.query import Failure, Query, StoreCoverage, TierCoverage
from tierlog.index.search.results import place_before
from tierlog.index.search.searcher import StoreSearch
from tierlog.index.search.store_search import ArchiveSearch, work_below
from tierlog.index.search.task import IndexOutcome, SearchContext, SearchTask
from tierlog.tiering.base.errors import CorruptionError, StoreError, TopicNotFoundError, UnavailableError
from tierlog.tiering.base.types import ALL_TIME, Order, Tier, TimeRange
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.stored_message import Place, StoredMessage


class RemoteSearch(StoreSearch):
    """A store that answered."""

    looks_at_head = False

    def __init__(self, page: HotPage, url: str, cold: ColdIndex | None) -> None:
        """``cold``: its archive, None if this process does not read it."""
        self.store_id = page.store_id
        self._page = page
        self._url = url
        self._cold = cold

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[SearchTask]:
        """Yields the messages of the answer, and tasks on the archive below its border."""
        page = self._page
        (said,) = page.coverage.stores
        covered.hot, covered.error = said.hot, said.error
        if covered.hot is not None:
            covered.hot.as_meant(query)
        covered.page_end, covered.examined_to_ms = page_end(page, query), page.coverage.examined_to_ms
        if page.coverage.cut_by == "timeout" and not page.more:  # its time did not suffice for the first messages
            covered.examined_to_ms = within.to_ms if query.order is Order.NEWEST else within.from_ms
        times = [message.time_ms(query.axis) for message in page.messages]
        bounds = (min(times), max(times)) if times else ALL_TIME
        yield SearchTask(bounds, self._url, "segments_unreachable", TierCoverage(0, 0), self._take, is_local=True)
        for failure in page.coverage.failures:
            yield _failing(failure)
        if page.cold_url is None or page.border == 0:
            return
        if self._cold is None:
            covered.error = f"its archive {page.cold_url} is not one that is read here"
            yield _failing(Failure(page.cold_url, covered.error))
            return
        pinned = Pinned(page.border, page.end, page.generations, page.first_ms, Erasures(page.tombstones))
        yield work_below(
            self.store_id, self._cold, pinned, query=query, within=within, covered=covered,
            version=page.manifest_version or 0, by_head=True,
        )  # fmt: skip

    def _take(self, context: SearchContext) -> Iterator[StoredMessage]:
        """Yields the messages; the answer gives only numbers of what was searched for them."""
        coverage = self._page.coverage
        for number in range(coverage.index_searched):
            context.index_file((f"{self.store_id}/hot", 0), str(number), IndexOutcome.SEARCHED)
        context.segments_read.update((self.store_id, Tier.HOT, number) for number in range(coverage.segments_read))
        context.segments_erased.update((f"{self.store_id}/hot", number) for number in range(coverage.segments_erased))
        context.messages_read += coverage.messages_read
        context.messages_matched += coverage.messages_matched
        yield from self._page.messages


class UnansweredSearch(StoreSearch):
    """A store whose service gave no answer: its archive is searched as far as it goes, and the answer is incomplete."""

    looks_at_head = False

    def __init__(self, store_id: str, url: str, error: StoreError, cold: ColdIndex | None, *, max_age_s: float) -> None:
        self.store_id = store_id
        self._url = url
        self._error = error
        self._archive = (
            None if cold is None else ArchiveSearch(store_id, cold, max_age_s=max_age_s, may_lack_topic=True)
        )

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[SearchTask]:
        """Yields the failure, then tasks on the archive."""
        covered.error = str(self._error)
        yield _failing(Failure(self._url, covered.error))
        if self._archive is not None:
            yield from self._archive.plan(query, within, stack, covered)


class UnknownTopicSearch(StoreSearch):
    """A store that answered that it does not have the topic."""

    looks_at_head = False

    def __init__(self, store_id: str, error: TopicNotFoundError) -> None:
        self.store_id = store_id
        self._error = error

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[SearchTask]:
        """Raises the :class:`TopicNotFoundError` of the answer."""
        raise self._error
        yield


def page_end(page: HotPage, query: Query) -> Place | None:
    """Returns the place behind which an answer knows nothing; None if it has everything."""
    if not page.more:
        return None
    if page.coverage.examined_to_ms is not None:
        return place_before(page.coverage.examined_to_ms, query.order)
    return page.messages[-1].place(query.axis)


def check_page(page: HotPage, query: Query, within: TimeRange) -> None:
    """Raises :class:`CorruptionError` if an answer is not one to the query: other services are not trusted."""
    places = [message.place(query.axis) for message in page.messages]
    is_newest, after = query.order is Order.NEWEST, query.after
    in_order = sorted(set(places), reverse=is_newest) == places
    behind = after is None or all(place < after if is_newest else place > after for place in places)
    fits = all(
        message.record.topic == record_topic(query.topic)
        and (query.key is None or message.has_key(query.key))
        and (query.filters is None or query.filters.match(message))
        and within.contains(message.time_ms(query.axis))
        and page.border <= message.record.physical_offset < page.end
        for message in page.messages
    )
    examined_ms = page.coverage.examined_to_ms
    if examined_ms is not None:
        end = place_before(examined_ms, query.order)
        is_inside = within.from_ms < examined_ms < within.to_ms and page.more and query.filters is not None
        fits = fits and is_inside and not any(place < end if is_newest else place > end for place in places)
    if not (in_order and behind and fits and len(places) <= query.limit) or (
        page.more and not places and examined_ms is None
    ):
        raise CorruptionError(f"store {page.store_id} answered with something else than was asked")


def _failing(failure: Failure) -> SearchTask:
    """Yields tasks that fail for what the other process could not read; it has taken that from its claim."""
    counter = "index_unreachable" if failure.object.endswith("/index") else "segments_unreachable"

    def run(context: SearchContext) -> Iterator[StoredMessage]:
        raise UnavailableError(failure.error)
        yield

    return SearchTask(ALL_TIME, failure.object, counter, TierCoverage(0, 0), run, is_local=True)
