"""Sizes, lags and counts of one open store, in bytes, ms and numbers since it was opened.

Nobody waits for the archive; only the lag of groups asks it anything.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import NamedTuple

from tierlog.index.local.local_index import LocalIndex
from tierlog.index.rocketmq.classic_format import file_bytes
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.service.engine.archived_appends import TailNumbers
from tierlog.service.engine.groups import Questions
from tierlog.service.engine.opening import StoreParts
from tierlog.service.engine.read_path import cache_stats
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import NotFoundError, UnavailableError
from tierlog.tiering.cold.manifest.catalogue import Total, Totals
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.consumer_groups import Queue
from tierlog.tiering.hot.store import HotStore, lag_ms


class FileState(NamedTuple):
    """Three of the columns that ``tierlog files`` has for a file."""

    kind: str
    tier: str
    state: str


def count_files(
    hot: HotStore, index: LocalIndex, classic: ClassicIndex | None, head: Head | None, held: Totals | None
) -> dict[FileState, Total]:
    """Counts files and bytes of both tiers; the archive is not listed, and left out while ``held`` is not known."""
    found: defaultdict[FileState, Total] = defaultdict(Total)
    for state in ("active", "rolled", "archived"):
        found[FileState("segment", "hot", state)] = Total()
    archived_to = head.archived_to if head else 0
    segments = [segment for segment in hot.log.segments() if segment.base_offset >= hot.border]
    for segment in segments:
        state = "archived" if segment.base_offset < archived_to else "rolled"
        place = FileState("segment", "hot", "active" if segment is segments[-1] else state)
        found[place] += Total(1, len(segment.data))
    for entry in index.files():
        found[FileState("index", "hot", entry.state.value)] += Total(1, entry.bytes)
    for file in () if classic is None else classic.files():
        place = FileState("classic index", "hot", "full" if file.is_full else "writing")
        found[place] += Total(1, file_bytes(file.slots, file.items))
    if held is not None:
        found[FileState("segment", "cold", "published")] = held.segments
        found[FileState("index", "cold", "published")] = held.index_objects
    return dict(found)


class DelayNumbers(NamedTuple):
    """Numbers of delayed messages, of whoever fires them; None: nobody does."""

    delayed_messages: int | None = None
    """Those that wait for their time."""
    delay_lag_ms: int | None = None
    """How long the one that is overdue longest is."""
    fired_messages: int | None = None
    """Those that were delivered since the start."""
    undeliverable_messages: int | None = None
    """Those that could go to no topic."""


class ReadinessProblem(NamedTuple):
    """The reason why a process cannot do its work at the moment."""

    reason: str
    part: str
    """The same without names of files and addresses."""
    hint: str


def stats_of(parts: StoreParts, clock: Clock) -> dict[str, object]:
    """Returns each number by the name that ``tierlog stats`` and the metrics have for it; None if not known."""
    hot, index, disk, archive = parts.hot.store, parts.hot.index, parts.hot.disk, parts.archive
    head = archive.manifest.head if archive else None
    asked = parts.meter.reading()
    archive_lag_bytes, archive_lag_ms = _archive_lag(parts, clock)
    tails = parts.writers.appends.numbers() if parts.writers else TailNumbers()
    lost = None if head is None else [each._asdict() for each in head.lost]
    return {
        # whose numbers these are
        "store_id": parts.identity.store_id,
        "volume_id": parts.identity.volume_id,
        "cold_url": parts.identity.cold_url,
        "topics": len(hot.topics.listed()),
        # marks in the log, and how far each part is behind it
        "log_begin": hot.border,
        "log_end": hot.log.end,
        "flushed_to": hot.log.flushed,
        "dispatched_to": hot.dispatched_to,
        "mended_queue_units": hot.mended_units,
        "damaged_ranges": len(hot.damage.found),
        "damaged_bytes": sum(each.next - each.first for each in hot.damage.found),
        "dispatch_lag_bytes": max(0, hot.log.visible - hot.dispatched_to),
        "dispatch_lag_ms": lag_ms(hot, hot.dispatched_to, clock),
        "recover_from": hot.recover_from,
        "archived_to": head.archived_to if head else None,
        "indexed_to": head.indexed_to if head else None,
        "archive_lag_bytes": archive_lag_bytes,
        "archive_lag_ms": archive_lag_ms,
        "cold_min": head.cold_min if head else None,
        "cold_held_at": parts.removal.held_at,
        "open_erasures": len(head.tombstones) if head else None,
        "manifest_version": head.version if head else None,
        "index_behind_bytes": max(0, hot.log.visible - index.next_offset()),
        "index_sealed_to": index.covered_to(),
        "index_files_waiting": index.waiting(),
        "index_files_damaged": index.damaged_files,
        # sizes, and how much depends on the volume alone
        "hot_bytes": hot.log.end - hot.border,
        "unflushed_bytes": hot.log.end - hot.log.flushed,
        "unarchived_bytes": hot.log.end - (tails.covered_to or head.archived_of(hot.log.end)) if head else None,
        "tailed_to": tails.covered_to,
        "tail_lag_bytes": tails.lag_bytes,
        "tails_written": tails.written_count,
        "tail_bytes_written": tails.written_bytes,
        # what was done since the store was opened, and the machine
        **dict(zip(("appended_messages", "appended_bytes"), hot.appended, strict=True)),
        "flushes": hot.log.flushes,
        "produce_window_requests": hot.producers.size,
        "produce_window_from_ms": hot.producers.since_ms,
        "produce_window_ms": hot.producers.window_ms,
        "last_store_ms": hot.last_store_ms,
        "disk_free_bytes": disk.free_bytes(),
        "disk_total_bytes": disk.total_bytes(),
        "clock_behind_ms": hot.clock_behind_ms,
        "archive_requests": asked.requests,
        "archive_failures": asked.failures,
        "archive_bytes_read": asked.bytes_read,
        "archive_bytes_written": asked.bytes_written,
        "cache": cache_stats(archive.manifest.cache) if archive else None,
        **({"lost": lost} if hot.followed_below else {}),
    }


def _archive_lag(parts: StoreParts, clock: Clock) -> tuple[int | None, int | None]:
    """Returns the bytes of log that no archived segment holds, and ms since the oldest of them was stored."""
    if parts.archive is None:
        return None, None
    hot, head = parts.hot.store, parts.archive.manifest.head
    archived_to = max(hot.border, head.archived_to if head else 0)
    return max(0, hot.log.end - archived_to), lag_ms(hot, archived_to, clock)


def group_lags(parts: StoreParts, most: int) -> dict[str, int]:
    """Counts the messages that each of ``most`` groups has not committed, in queues that it has offsets of or reads.

    Offsets that a restore left out are no messages, nor is what has expired, once the archive has told where a queue
    begins; that is asked about a few queues a call, and only where a group is so far behind. Of queues of other stores
    counts what those told last; they are asked beside this. A group is left out while a store does not answer, or the
    archive does not tell which offsets were left out.
    """
    questions = Questions()
    groups = sorted(parts.groups.all_committed().items())[:most]
    own, elsewhere = parts.identity.store_id, parts.groups.elsewhere
    queues = {name: {**dict.fromkeys(parts.groups.assigned(name), 0), **state.offsets} for name, state in groups}
    elsewhere.refresh({topic for each in queues.values() for topic, store, _ in each if store != own}, wait=False)
    found = {}
    for name, offsets in queues.items():
        with contextlib.suppress(UnavailableError):
            lags = [_lag(parts, queue, offset, questions) for queue, offset in offsets.items()]
            known = [lag for lag in lags if lag is not None]
            if len(known) == len(lags):
                found[name] = sum(known)
    return found


def _lag(parts: StoreParts, queue: Queue, offset: int, questions: Questions) -> int | None:
    topic, store_id, queue_id = queue
    with contextlib.suppress(NotFoundError):
        if store_id != parts.identity.store_id:
            return parts.groups.elsewhere.last_known(queue).lag(offset)
        return parts.fetcher.lag(topic, queue_id, offset, questions.may_ask)
    return 0
