"""What runs the queries of a process, as its settings say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from index.dry_run import dry_run
from index.query import Answer, Query
from index.results import PAGE_BYTES
from index.search import Searcher, StoreSearch
from service.settings import Settings
from tiering.clock import Clock
from tiering.cold.caching.fetch_pool import FetchPool


def make_searcher(settings: Settings, clock: Clock) -> Searcher:
    """A searcher with threads of its own, which it starts when it needs them; nobody waits for their end."""
    return Searcher(FetchPool(settings.query.threads, "tierlog-query"), settings.query.concurrency, clock)


def answer(
    searcher: Searcher,
    stores: Sequence[StoreSearch],
    query: Query,
    settings: Settings,
    page_bytes: int = PAGE_BYTES,
) -> Answer:
    """Search, or say what that may cost; with the time-out of the settings if the query has none."""
    if query.dry_run:
        return dry_run(stores, query)
    if query.timeout_ms is None and settings.query.timeout_ms:
        query = replace(query, timeout_ms=settings.query.timeout_ms)
    return searcher.search(stores, query, page_bytes=page_bytes)
