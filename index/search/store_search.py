"""Searches one store: hot tier from the border up, archive below, within one snapshot (I7 in docs/invariants.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from tierlog.index.local.local_index import LocalIndex
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.search.cold_search import ColdSearch, generations_of
from tierlog.index.search.hot_search import HotTierSearch, Pinned
from tierlog.index.search.query import Query, StoreCoverage, TierCoverage
from tierlog.index.search.searcher import StoreSearch
from tierlog.index.search.segment_search import COUNTER
from tierlog.index.search.task import SearchContext, SearchTask
from tierlog.tiering.base.errors import StoreError, TopicNotFoundError
from tierlog.tiering.base.types import ALL_TIME, EVER, TimeAxis, TimeRange
from tierlog.tiering.cold.reading.bill import BudgetSpentError
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.format.manifest import Head, LostRange
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.tombstones import Erasures, ErasureSource, KnownErasures, reaching


class TieredStoreSearch(StoreSearch):
    """A store with a hot tier, and an archive if it has one."""

    looks_at_head = False

    def __init__(
        self,
        store_id: str,
        hot: HotStore,
        index: LocalIndex,
        cold: ColdIndex | None,
        known: ErasureSource | None = None,
    ) -> None:
        """``known``: what the store has to hide beside what its archive's head says."""
        self.store_id = store_id
        self._tier = HotTierSearch(store_id, hot, index, known or KnownErasures(cold.manifest if cold else None))
        self._cold = cold

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[SearchTask]:
        """Pins the hot tier and searches it; the archive below its border is read at a version that covers it."""
        yield from self._tier.plan(query, within, stack, covered)
        pinned = self._tier.pinned
        if self._cold is not None and pinned.border:
            yield work_below(self.store_id, self._cold, pinned, query=query, within=within, covered=covered)


def work_below(
    store_id: str,
    cold: ColdIndex,
    pinned: Pinned,
    *,
    query: Query,
    within: TimeRange,
    covered: StoreCoverage,
    version: int = 0,
    by_head: bool = False,
) -> SearchTask:
    """Yields tasks on the archive below a border, at a manifest that covers it and is not older than ``version``.

    What is pinned hides its messages; with ``by_head`` also what the head says that is read by, for who pinned it
    elsewhere. A store by itself knows its head, and looks past an erasure to count what it hides.
    """
    manifest = cold.manifest
    covered.cold = claim = TierCoverage(within.from_ms, within.to_ms)
    search = ColdSearch(store_id, cold, query.of_records, within, claim)
    bounds = ALL_TIME
    if query.axis is TimeAxis.STORE and pinned.first_ms is not None:
        bounds = ALL_TIME[0], pinned.first_ms

    def run(context: SearchContext) -> Iterator[SearchTask]:
        with _reporting_failures(covered, context):
            head = manifest.covering(pinned.border, context.chain.bill, version=version)
            yield from _lost(head, query, within, claim)
            if head.cold_min < pinned.border:
                erased = pinned.erased
                if by_head:
                    erased = erased.joined(reaching(head.tombstones, record_topic(search.query.topic)))
                yield from search.plan(head, pinned.border, pinned.generations, erased, context)
            # an archive that holds nothing below the border has no version to claim anything at

    return SearchTask(bounds, manifest.keys.head, COUNTER, claim, run)


class ArchiveSearch(StoreSearch):
    """A store of which only the archive is read; what is still hot there is not searched, and not claimed.

    On the store axis the claim ends with the newest archived message, and a message of that very millisecond may still
    be hot; on the born axis, where nothing tells what times are still hot, it is the range asked for. ``complete``
    speaks of what is claimed: ``hot`` being None says that the hot tier was not searched.
    """

    def __init__(
        self, store_id: str, cold: ColdIndex, *, max_age_s: float | None = None, may_lack_topic: bool = False
    ) -> None:
        """``max_age_s``: a head that was looked for so long ago will do; None: every search looks for a newer one.

        ``may_lack_topic``: the store may have the topic though its archive does not know it.
        """
        self.store_id = store_id
        self.looks_at_head = max_age_s is None
        self._cold = cold
        self._max_age_s = max_age_s
        self._may_lack_topic = may_lack_topic

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[SearchTask]:
        """Searches everything published."""
        manifest = self._cold.manifest
        covered.cold = claim = TierCoverage(within.from_ms, within.to_ms)
        search = ColdSearch(self.store_id, self._cold, query.of_records, within, claim)

        def run(context: SearchContext) -> Iterator[SearchTask]:
            with _reporting_failures(covered, context):
                recent = None if self._max_age_s is None else manifest.recent(self._max_age_s)
                head = recent or manifest.refresh(context.chain.bill)
                if query.axis is TimeAxis.STORE:
                    end_ms = head.newest_ms + 1 or EVER.from_ms  # where nothing is archived, nothing is claimed
                    context.when_counted(lambda: claim.end_before(end_ms))
                reader = manifest.reader(context.chain.for_manifest())
                try:
                    generations = query.within_log(generations_of(manifest, reader, head, query.topic))
                except TopicNotFoundError:
                    if self._may_lack_topic:
                        return
                    raise
                yield from _lost(head, query, within, claim)
                yield from search.plan(head, head.archived_to, generations, Erasures(head.tombstones), context)

        yield SearchTask(ALL_TIME, manifest.keys.head, COUNTER, claim, run)


def _lost(head: Head, query: Query, within: TimeRange, claim: TierCoverage) -> Iterator[SearchTask]:
    """Yields a task that fails for each range of a followed log that nobody has, where its messages may be wanted."""
    by_store = query.axis is TimeAxis.STORE
    for each in head.lost_in(within if by_store else None):
        bounds = (each.from_ms, each.to_ms - 1) if by_store else ALL_TIME
        yield SearchTask(bounds, str(each), COUNTER, claim, partial(_raise_lost, each))


def _raise_lost(lost: LostRange, _: SearchContext) -> Iterator[SearchTask]:
    raise lost.error()


@contextlib.contextmanager
def _reporting_failures(covered: StoreCoverage, context: SearchContext) -> Iterator[None]:
    """Adds to the store's coverage why an archive cannot be read at all."""
    try:
        yield
    except (TopicNotFoundError, BudgetSpentError):
        raise
    except StoreError as error:
        text = str(error)

        def report() -> None:
            covered.error = text if covered.error is None else f"{covered.error}; {text}"

        context.when_counted(report)
        raise
