"""Searches one store: its hot tier from the border up, its archive below, within one snapshot (invariant I7)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from index.cold_index import ColdIndex
from index.cold_search import ColdSearch, topic_id_of
from index.cold_segments import COUNTER
from index.hot_search import HotSearch
from index.local_index import LocalIndex
from index.query import Query, StoreCoverage, TierCoverage
from index.search import StoreSearch
from index.work import ALL_TIME, SearchContext, Work
from tiering.cold.bill import BudgetSpentError
from tiering.erasing.known import KnownErasures
from tiering.erasing.tombstones import Erasures, ErasureSource
from tiering.errors import StoreError, TopicNotFoundError
from tiering.hot.store import HotStore
from tiering.types import TimeAxis, TimeRange


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
        self._known = known or KnownErasures(cold.manifest if cold else None)
        self._hot = hot
        self._index = index
        self._cold = cold

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[Work]:
        """Pin the hot tier; the archive below its border is read at a version that covers it."""
        snapshot = stack.enter_context(self._hot.snapshot())
        topic_id = self._hot.topics.get(query.topic).topic_id
        erased = self._known.current()
        bounds = ALL_TIME
        if max(snapshot.end, snapshot.flushed) > snapshot.border:
            covered.hot = claim = TierCoverage(within.from_ms, within.to_ms)
            hot = HotSearch(self.store_id, self._hot, self._index, snapshot, claim, erased)
            yield from hot.plan(query, within)
            if query.axis is TimeAxis.STORE and hot.first_ms is not None:
                bounds = ALL_TIME[0], hot.first_ms
        if self._cold is None or snapshot.border == 0:
            return
        manifest = self._cold.manifest
        covered.cold = claim = TierCoverage(within.from_ms, within.to_ms)
        search = ColdSearch(self.store_id, self._cold, query, within, claim)

        def run(context: SearchContext) -> Iterator[Work]:
            with _telling_failures(covered, context):
                head = manifest.covering(snapshot.border, context.chain.bill)
                if head.cold_min < snapshot.border:
                    yield from search.plan(head, snapshot.border, topic_id, erased, context)
                # an archive that holds nothing below the border has no version to claim anything at

        yield Work(bounds, manifest.keys.head, COUNTER, claim, run)


class ArchiveSearch(StoreSearch):
    """A store of which only the archive is read; what is still hot there is not searched, and not claimed.

    On the store axis the claim ends with the newest archived message, and a message of that very millisecond may still
    be hot; on the born axis, where nothing tells what times are still hot, it is the range asked for. ``complete``
    speaks of what is claimed: ``hot`` being None says that the hot tier was not searched.
    """

    looks_at_head = True

    def __init__(self, store_id: str, cold: ColdIndex) -> None:
        self.store_id = store_id
        self._cold = cold

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[Work]:
        """Search everything published."""
        manifest = self._cold.manifest
        covered.cold = claim = TierCoverage(within.from_ms, within.to_ms)
        search = ColdSearch(self.store_id, self._cold, query, within, claim)

        def run(context: SearchContext) -> Iterator[Work]:
            with _telling_failures(covered, context):
                head = manifest.refresh(context.chain.bill)
                if query.axis is TimeAxis.STORE:
                    context.when_counted(lambda: claim.end_before(head.newest_ms + 1))
                topic_id = topic_id_of(manifest, manifest.reader(context.chain.for_manifest()), head, query.topic)
                yield from search.plan(head, head.archived_to, topic_id, Erasures(head.tombstones), context)

        yield Work(ALL_TIME, manifest.keys.head, COUNTER, claim, run)


@contextlib.contextmanager
def _telling_failures(covered: StoreCoverage, context: SearchContext) -> Iterator[None]:
    """Why an archive cannot be read at all is said of the store too."""
    try:
        yield
    except (TopicNotFoundError, BudgetSpentError):
        raise
    except StoreError as error:
        text = str(error)

        def tell() -> None:
            covered.error = text

        context.when_counted(tell)
        raise
