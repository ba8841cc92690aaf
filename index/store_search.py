"""Searches one store: its hot tier from the border up, its archive below, within one snapshot (invariant I7)."""

from __future__ import annotations

from collections.abc import Iterator

from index.cold_search import ColdSearch
from index.hot_search import HotSearch
from index.local_index import LocalIndex
from index.query import Query, StoreCoverage
from index.search import SearchContext, StoreSearch, Work, tier_coverage
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import BudgetSpentError
from tiering.errors import StoreError, TopicNotFoundError
from tiering.hot.store import HotStore
from tiering.types import TimeRange


class TieredStoreSearch(StoreSearch):
    """A store with a hot tier, and an archive if it has one."""

    def __init__(self, store_id: str, hot: HotStore, index: LocalIndex, manifest: ManifestStore | None) -> None:
        self.store_id = store_id
        self._hot = hot
        self._index = index
        self._manifest = manifest

    def plan(self, query: Query, within: TimeRange, context: SearchContext) -> Iterator[Work]:
        """Pin the hot tier, then read the archive below its border at a version that covers it."""
        snapshot = context.stack.enter_context(self._hot.snapshot())
        topic = self._hot.topics.get(query.topic)
        covered = StoreCoverage(self.store_id)
        context.coverage.stores.append(covered)
        if max(snapshot.end, snapshot.flushed) > snapshot.border:
            covered.hot = tier_coverage(within)
            yield from HotSearch(self.store_id, self._hot, self._index, snapshot).plan(query, within, context)
        if self._manifest is None or snapshot.border == 0:
            return
        try:
            head = self._manifest.covering(snapshot.border, context.bill)
            if head.cold_min < snapshot.border:
                covered.cold = tier_coverage(within, head.version)
                cold = ColdSearch(self.store_id, self._manifest, head, snapshot.border, context)
                yield from list(cold.plan(query, within, topic.topic_id))
        except BudgetSpentError:
            raise
        except StoreError as error:
            _unreachable(covered, context, self._manifest, error)


class ArchiveSearch(StoreSearch):
    """A store of which only the archive is read; what is still hot there is not searched, and not claimed."""

    def __init__(self, store_id: str, manifest: ManifestStore) -> None:
        self.store_id = store_id
        self._manifest = manifest

    def plan(self, query: Query, within: TimeRange, context: SearchContext) -> Iterator[Work]:
        """Search everything published."""
        covered = StoreCoverage(self.store_id)
        try:
            head = self._manifest.refresh(context.bill)
            cold = ColdSearch(self.store_id, self._manifest, head, head.archived_to, context)
            topic_id = cold.topic_id(query.topic)
            covered.cold = tier_coverage(within, head.version)
            work = list(cold.plan(query, within, topic_id))
        except (TopicNotFoundError, BudgetSpentError):
            raise
        except StoreError as error:
            context.coverage.stores.append(covered)
            _unreachable(covered, context, self._manifest, error)
            return
        context.coverage.stores.append(covered)
        yield from work


def _unreachable(covered: StoreCoverage, context: SearchContext, manifest: ManifestStore, error: StoreError) -> None:
    covered.cold = None
    covered.error = str(error)
    context.failed(manifest.keys.head, "segments_unreachable", error)
