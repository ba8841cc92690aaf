"""The read path of a process, as its settings say: where the caches of an archive lie, and what runs its queries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

from tierlog.index.objects.resident_filters import ResidentFilters
from tierlog.index.search.counts import CountedStore, CountQuery, IntervalCounts, count_messages
from tierlog.index.search.dry_run import dry_run
from tierlog.index.search.query import Answer, AxisHint, Query
from tierlog.index.search.results import PAGE_BYTES
from tierlog.index.search.searcher import Searcher, StoreSearch
from tierlog.service.config.settings import ColdSettings, Settings
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.types import EVER, TimeAxis
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache
from tierlog.tiering.cold.reading.disk_cache import DiskCache
from tierlog.tiering.objects.object_store import ObjectStore

_LOG = logging.getLogger("tierlog")
_FILTERS = "filters"
#: What a look at the other time may take: requests, ms, and messages of each hot queue.
_LOOK_REQUESTS, _LOOK_MS, _LOOK_MESSAGES = 16, 500, 1 << 14


def open_caches(
    cache: ArchiveCache,
    objects: ObjectStore,
    *,
    clock: Clock,
    fs: FileSystem,
    settings: ColdSettings,
    cold_url: str,
    default: Path | None,
    max_used_percent: int = 95,
) -> ResidentFilters:
    """Gives a cache what is kept beside its memory, and returns the key filters among it.

    The disk cache lies in ``default`` unless the settings name another place; there is none without either. Of its
    room key filters may take as much as of memory, half of it at most. A cache that cannot be opened is done without:
    another process has it, or the disk refused.
    """
    folder = default
    if settings.cache_dir is not None:  # several archives may share the place
        folder = Path(settings.cache_dir).absolute() / blake2b(cold_url.encode(), digest_size=8).hexdigest()
    for_filters = min(settings.filter_bytes, settings.disk_cache_bytes // 2)

    def disk(folder: Path | None, limit_bytes: int) -> DiskCache | None:
        if folder is None or limit_bytes == 0:
            return None
        try:
            return DiskCache(fs, folder, limit_bytes, max_used_percent=max_used_percent)
        except StoreError as error:
            _LOG.warning("the archive is read without a disk cache: %s", error)
            return None

    cache.disk = disk(folder, settings.disk_cache_bytes - for_filters)
    kept = None if cache.disk is None or folder is None else disk(folder / _FILTERS, for_filters)
    filters = ResidentFilters(objects, settings.filter_bytes, clock, disk=kept)
    cache.others[_FILTERS] = filters
    return filters


def cache_stats(cache: ArchiveCache) -> dict[str, dict[str, int]]:
    """Returns the counters of each layer by name."""
    return {name: asdict(counters) for name, counters in cache.counters().items()}


def make_searcher(settings: Settings, clock: Clock) -> Searcher:
    """Makes a searcher with threads of its own, which it starts when it needs them; nobody waits for their end."""
    return Searcher(WorkerPool(settings.query.threads, "tierlog-query"), settings.query.concurrency, clock)


def answer(
    searcher: Searcher,
    stores: Sequence[StoreSearch],
    query: Query,
    settings: Settings,
    page_bytes: int = PAGE_BYTES,
) -> Answer:
    """Searches, or estimates what that may cost; with the time-out of the settings if the query has none."""
    if query.dry_run:
        return dry_run(stores, query)
    if query.timeout_ms is None and settings.query.timeout_ms:
        query = replace(query, timeout_ms=settings.query.timeout_ms)
    return searcher.search(stores, query, page_bytes=page_bytes)


def count(
    stores: Sequence[CountedStore], query: CountQuery, searcher: Searcher, settings: Settings, clock: Clock
) -> IntervalCounts:
    """Counts messages per interval, with the time-out of the settings if the query has none."""
    if query.timeout_ms is None and settings.query.timeout_ms:
        query = replace(query, timeout_ms=settings.query.timeout_ms)
    return count_messages(searcher, stores, query, clock)


def with_hint(ask: Callable[[Query], Answer], query: Query, settings: Settings, clock: Clock) -> Answer:
    """Asks; where a bounded range certainly has nothing, looks once whether it has something by the other time.

    The look asks for one message, with few requests and little time of those that the query has left; its requests are
    in the bill of the answer. If it fails, the answer is as it would be without it.
    """
    begun_s = clock.monotonic_s()
    found = ask(query)
    is_bounded = query.time_range != EVER
    if found.count or not found.coverage.complete or not is_bounded or query.cursor is not None or query.dry_run:
        return found
    requests, time_ms = _LOOK_REQUESTS, _LOOK_MS
    if query.max_requests is not None:
        requests = min(requests, query.max_requests - found.coverage.requests)
    whole_ms = query.timeout_ms or settings.query.timeout_ms
    if whole_ms:
        time_ms = min(time_ms, whole_ms - round((clock.monotonic_s() - begun_s) * 1000))
    if requests < 0 or time_ms <= 0:
        return found
    other = TimeAxis.BORN if query.axis is TimeAxis.STORE else TimeAxis.STORE
    look_for_one = replace(
        query, axis=other, limit=1, by_columns=False, max_requests=requests, timeout_ms=time_ms,
        most_by_born_time=_LOOK_MESSAGES,
    )  # fmt: skip
    try:
        look = ask(look_for_one)
    except StoreError:
        return found
    found.coverage.bill(look.coverage)
    return replace(found, hint=AxisHint(other)) if look.messages else found
