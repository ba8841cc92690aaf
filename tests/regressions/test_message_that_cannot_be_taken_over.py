"""A piece that ran out of memory when its results were taken over was lost, and the answer was complete: true."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tests.support.stores.hot_stores import record
from tierlog.index.search.query import Query, StoreCoverage, TierCoverage
from tierlog.index.search.searcher import Searcher, StoreSearch
from tierlog.index.search.task import SearchContext, SearchTask
from tierlog.tiering.base.types import Tier, TimeRange
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.message.stored_message import StoredMessage


class TooLarge(StoredMessage):
    @property
    def shown_bytes(self) -> int:
        raise MemoryError


class OneMessage(StoreSearch):
    store_id = "store"
    looks_at_head = False

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[SearchTask]:
        covered.cold = claim = TierCoverage(within.from_ms, within.to_ms, 1)

        def run(context: SearchContext) -> Iterator[StoredMessage]:
            yield TooLarge(record(), self.store_id, Tier.COLD)

        yield SearchTask((0, within.to_ms), "one", "segments_unreachable", claim, run)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_query_fails(concurrency: int) -> None:
    searcher = Searcher(WorkerPool(4, "test-query"), concurrency)
    raised: list[type[BaseException]] = []

    def ask() -> None:
        with pytest.raises(MemoryError) as caught:
            searcher.search([OneMessage()], Query("t"))
        raised.append(caught.type)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(30)
    assert raised == [MemoryError]
