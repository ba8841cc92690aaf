"""Sizes, lags and counts of one open store, in bytes, ms and numbers since it was opened; the archive is not asked."""

from __future__ import annotations

import contextlib

from service.archived_appends import TailNumbers
from service.caching import cache_stats
from service.opening import StoreParts
from tiering.clock import Clock
from tiering.errors import NotFoundError, UnavailableError
from tiering.group_offsets import Queue
from tiering.hot.lag import waiting_ms


def stats_of(parts: StoreParts, clock: Clock) -> dict[str, object]:
    """Each number under the name that ``tierlog stats`` and the metrics have for it; None where nothing is known."""
    hot, head = parts.hot, parts.manifest.head if parts.manifest else None
    asked = parts.meter.reading()
    archive_lag_bytes, archive_lag_ms = _archive_lag(parts, clock)
    tails = TailNumbers() if parts.archived is None else parts.archived.numbers()
    return {
        "store_id": parts.identity.store_id,
        "volume_id": parts.identity.volume_id,
        "cold_url": parts.identity.cold_url,
        "topics": len(hot.topics.listed()),
        "log_begin": hot.border,
        "log_end": hot.log.end,
        "flushed_to": hot.log.flushed,
        "dispatched_to": hot.dispatched_to,
        "mended_queue_units": hot.mended_units,
        "dispatch_lag_bytes": max(0, hot.log.visible - hot.dispatched_to),
        "dispatch_lag_ms": waiting_ms(hot, hot.dispatched_to, clock),
        "recover_from": hot.recover_from,
        "archived_to": head.archived_to if head else None,
        "indexed_to": head.indexed_to if head else None,
        "archive_lag_bytes": archive_lag_bytes,
        "archive_lag_ms": archive_lag_ms,
        "cold_min": head.cold_min if head else None,
        "cold_held_at": parts.removal.held_at,
        "open_erasures": len(head.tombstones) if head else None,
        "manifest_version": head.version if head else None,
        "index_behind_bytes": max(0, hot.log.visible - parts.index.next_offset()),
        "index_sealed_to": parts.index.covered_to(),
        "index_files_waiting": parts.index.waiting(),
        "index_files_damaged": parts.index.damaged_files,
        "hot_bytes": hot.log.end - hot.border,
        "unflushed_bytes": hot.log.end - hot.log.flushed,
        "unarchived_bytes": hot.log.end - (tails.covered_to or head.archived_of(hot.log.end)) if head else None,
        "tailed_to": tails.covered_to,
        "tail_lag_bytes": tails.lag_bytes,
        "tails_written": tails.written_count,
        "tail_bytes_written": tails.written_bytes,
        **dict(zip(("appended_messages", "appended_bytes"), hot.appended, strict=True)),
        "flushes": hot.log.flushes,
        "produce_window_requests": hot.producers.size,
        "produce_window_from_ms": hot.producers.since_ms,
        "last_store_ms": hot.last_store_ms,
        "disk_free_bytes": parts.disk.free_bytes(),
        "disk_total_bytes": parts.disk.total_bytes(),
        "clock_behind_ms": hot.clock_behind_ms,
        "archive_requests": asked.requests,
        "archive_failures": asked.failures,
        "archive_bytes_read": asked.bytes_read,
        "archive_bytes_written": asked.bytes_written,
        "cache": cache_stats(parts.manifest.cache) if parts.manifest else None,
    }


def _archive_lag(parts: StoreParts, clock: Clock) -> tuple[int | None, int | None]:
    """Bytes of log that no archived segment holds, and ms since the oldest of them was stored."""
    if parts.manifest is None:
        return None, None
    head = parts.manifest.head
    archived_to = max(parts.hot.border, head.archived_to if head else 0)
    return max(0, parts.hot.log.end - archived_to), waiting_ms(parts.hot, archived_to, clock)


def group_lags(parts: StoreParts, most: int) -> dict[str, int]:
    """Messages that each group has not committed in the queues that it has committed in, of ``most`` groups.

    What expired or was never given out counts too. Of queues of other stores, what those told last; they are asked
    beside this, and a group with a queue in one that does not answer is left out.
    """
    groups = sorted(parts.groups.all_committed().items())[:most]
    own, elsewhere = parts.identity.store_id, parts.groups.elsewhere
    elsewhere.refresh({topic for _, state in groups for topic, store, _ in state.offsets if store != own}, wait=False)
    found = {}
    for name, state in groups:
        with contextlib.suppress(UnavailableError):
            found[name] = sum(_lag(parts, queue, offset) for queue, offset in state.offsets.items())
    return found


def _lag(parts: StoreParts, queue: Queue, offset: int) -> int:
    topic, store_id, queue_id = queue
    with contextlib.suppress(NotFoundError):
        if store_id != parts.identity.store_id:
            return parts.groups.elsewhere.told(queue).lag(offset)
        there = parts.hot.topics.get(topic)
        return max(0, parts.hot.next_offset(there, queue_id) - max(offset, there.begin(queue_id)))
    return 0
