"""Searches one store: its hot tier from the border up, its archive below, within one snapshot (invariant I7)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from index.cold_search import ColdSearch
from index.hot_search import HotSearch
from index.local_index import LocalIndex
from index.query import Query, StoreCoverage, TierCoverage
from index.search import SearchContext, StoreSearch, Work, object_of
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import BudgetSpentError
from tiering.erasing.known import KnownErasures
from tiering.erasing.tombstones import Erasures, ErasureSource
from tiering.errors import StoreError, TopicNotFoundError
from tiering.format.manifest import Head
from tiering.hot.store import HotStore
from tiering.types import TimeAxis, TimeRange


class TieredStoreSearch(StoreSearch):
    """A store with a hot tier, and an archive if it has one."""

    def __init__(
        self,
        store_id: str,
        hot: HotStore,
        index: LocalIndex,
        manifest: ManifestStore | None,
        known: ErasureSource | None = None,
    ) -> None:
        """``known``: what the store has to hide beside what its archive's head says."""
        self.store_id = store_id
        self._known = known or KnownErasures(manifest)
        self._hot = hot
        self._index = index
        self._manifest = manifest

    def plan(self, query: Query, within: TimeRange, context: SearchContext, covered: StoreCoverage) -> Iterator[Work]:
        """Pin the hot tier, then read the archive below its border at a version that covers it."""
        snapshot = context.stack.enter_context(self._hot.snapshot())
        topic = self._hot.topics.get(query.topic)
        erased = self._known.current()
        if max(snapshot.end, snapshot.flushed) > snapshot.border:
            covered.hot = claim = TierCoverage(within.from_ms, within.to_ms)
            hot = HotSearch(self.store_id, self._hot, self._index, snapshot, claim, erased)
            yield from hot.plan(query, within, context)
        manifest = self._manifest
        if manifest is None or snapshot.border == 0:
            return
        with _telling_failures(covered, context, manifest):
            head = manifest.covering(snapshot.border, context.bill)
            if head.cold_min < snapshot.border:
                claim = TierCoverage(within.from_ms, within.to_ms, head.version)
                cold = ColdSearch(self.store_id, manifest, head, snapshot.border, context, claim, erased)
                work = list(cold.plan(query, within, topic.topic_id))
                covered.cold = claim
                yield from work


class ArchiveSearch(StoreSearch):
    """A store of which only the archive is read; what is still hot there is not searched, and not claimed.

    On the store axis the claim ends with the newest archived message, and a message of that very millisecond may still
    be hot; on the born axis, where nothing tells what times are still hot, it is the range asked for. ``complete``
    speaks of what is claimed: ``hot`` being None says that the hot tier was not searched.
    """

    def __init__(self, store_id: str, manifest: ManifestStore) -> None:
        self.store_id = store_id
        self._manifest = manifest

    def plan(self, query: Query, within: TimeRange, context: SearchContext, covered: StoreCoverage) -> Iterator[Work]:
        """Search everything published."""
        manifest = self._manifest
        with _telling_failures(covered, context, manifest):
            head = manifest.refresh(context.bill)
            to_ms = within.to_ms
            if query.axis is TimeAxis.STORE:
                to_ms = min(to_ms, _newest_ms(head) + 1)
            claim = TierCoverage(within.from_ms, to_ms, head.version)
            erased = Erasures(head.tombstones)
            cold = ColdSearch(self.store_id, manifest, head, head.archived_to, context, claim, erased)
            work = list(cold.plan(query, within, cold.topic_id(query.topic)))
            covered.cold = claim
            yield from work


def _newest_ms(head: Head) -> int:
    """Store time of the newest archived message, -1 if there is none."""
    parts = [node.bounds for node in head.log_tree] + [entry.bounds for entry in head.log]
    return max((bounds.max_store_ms for bounds in parts if bounds is not None), default=-1)


@contextlib.contextmanager
def _telling_failures(covered: StoreCoverage, context: SearchContext, manifest: ManifestStore) -> Iterator[None]:
    """An archive that cannot be read makes the answer incomplete instead of ending the query."""
    try:
        yield
    except (TopicNotFoundError, BudgetSpentError):
        raise
    except StoreError as error:
        covered.error = str(error)
        context.failed(object_of(error) or manifest.keys.head, "segments_unreachable", error)
