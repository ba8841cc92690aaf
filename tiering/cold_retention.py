"""Decides what of an archive has expired: by topic a store time, for the whole a segment start.

Ages are taken of the newest record of a segment, and exactly of each message for a topic: a message stored at
``now - retention`` is kept, one stored a millisecond before is not. Nothing that is still hot leaves the archive,
nothing that is not indexed yet, and no segment with a message of a topic on hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tiering.erasing.rewriting import Unwanted
from tiering.format.manifest import Head, LogEntry, TopicExpiry
from tiering.hot.store import HotStore
from tiering.hot.topics import Topic
from tiering.options import RetentionOptions
from tiering.types import TimeRange

_EVER_MS = 1 << 62
_LEAST_STEP_MS = 60_000
_MOST_STEP_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class LeastKept:
    """Where the kept part of an archive may begin, and at which segment a hold stopped it."""

    cold_min: int
    held_at: int | None


class ColdRetention:
    """Plans for one open store; reads directories and queue rows where bounds do not decide."""

    def __init__(self, hot: HotStore, manifest: ManifestStore, options: RetentionOptions) -> None:
        self._hot = hot
        self._manifest = manifest
        self._options = options

    def topics(self, head: Head, now_ms: int) -> tuple[TopicExpiry, ...]:
        """Topics of which something archived has grown too old since the last time.

        An expiry moves by a 24th of the retention, a minute at least and an hour at most: each is a commit.
        """
        expired = dict(head.expired)
        found = []
        for topic in self._hot.topics.all():
            retention_ms = topic.cold_retention_ms
            if retention_ms is None or topic.hold:
                continue
            below_ms, before_ms = now_ms - retention_ms, expired.get(topic.topic_id, -_EVER_MS)
            step_ms = min(_MOST_STEP_MS, max(_LEAST_STEP_MS, retention_ms // 24))
            if below_ms - before_ms >= step_ms and self._holds_between(head, topic, TimeRange(before_ms, below_ms)):
                found.append(TopicExpiry(topic.topic_id, below_ms))
        return tuple(found)

    def _holds_between(self, head: Head, topic: Topic, stored: TimeRange) -> bool:
        pieces = self._manifest.queue_row_pieces(self._manifest.reader(), head, topic.topic_id, stored=stored)
        return any(
            ((rows["min_store_ms"] < stored.to_ms) & (rows["max_store_ms"] >= stored.from_ms)).any() for rows in pieces
        )

    def least_kept(self, head: Head, now_ms: int) -> LeastKept:
        """Where the archive may begin: behind whole segments that are too old, too much, or expired by topic."""
        reader, options = self._manifest.reader(), self._options
        indexed_segment = head.indexed_to - head.indexed_to % self._hot.log.segment_bytes
        limit = min(head.archived_to, indexed_segment, self._hot.log.begin)
        below_ms = now_ms - options.cold_retention_ms if options.cold_retention_ms else -_EVER_MS
        over = self._bytes(head) - options.cold_max_bytes if options.cold_max_bytes else 0
        expired = self.expired_by_name(head)
        held = {topic.name for topic in self._hot.topics.all() if topic.hold}
        cold_min = head.cold_min
        for entry in self._manifest.log_entries(reader, head):
            if entry.next > limit:
                break
            is_old = entry.bounds is None or entry.bounds.max_store_ms < below_ms
            if not (is_old or over > 0 or self._has_expired(entry, expired)):
                break
            if held and any(run.topic in held for run in SegmentReader(reader, entry).runs()):
                return LeastKept(cold_min, entry.base)
            cold_min = entry.next
            over -= entry.size_bytes
        return LeastKept(cold_min, None)

    def _bytes(self, head: Head) -> int:
        """Of all segments and index objects."""
        reader = self._manifest.reader()
        segments = sum(entry.size_bytes for entry in self._manifest.log_entries(reader, head))
        return segments + sum(entry.size_bytes for entry in self._manifest.all_index_entries(reader, head))

    def _has_expired(self, entry: LogEntry, expired: Mapping[str, int]) -> bool:
        """Whether every message of the segment has expired by its topic."""
        if entry.bounds is None or entry.bounds.max_store_ms >= max(expired.values(), default=-_EVER_MS):
            return False
        runs = SegmentReader(self._manifest.reader(), entry).runs()
        return all(_is_over(run, expired) for run in runs)

    def expired_by_name(self, head: Head) -> dict[str, int]:
        """The expiries in force, by topic, of topics that are not on hold."""
        expired = dict(head.expired)
        return {
            topic.name: expired[topic.topic_id]
            for topic in self._hot.topics.all()
            if topic.topic_id in expired and not topic.hold
        }

    def unwanted(self, entry: LogEntry, expired: Mapping[str, int], looked: Mapping[str, int]) -> Unwanted | None:
        """What is to be overwritten in a segment of which half has expired now, or all, and had not by ``looked``."""
        if entry.bounds is None:
            return None
        stored = entry.bounds.min_store_ms, entry.bounds.max_store_ms
        if not any(TimeRange(looked.get(name, -_EVER_MS), ms).overlaps(*stored) for name, ms in expired.items()):
            return None  # without a request: nothing of it has expired since
        runs = list(SegmentReader(self._manifest.reader(), entry).runs())
        whole, now, then = entry.raw_bytes, _bytes_over(runs, expired), _bytes_over(runs, looked)
        live = sum(run.bytes for run in runs)
        is_half = 2 * now >= whole > 2 * then
        is_all = now == live > then
        if not (is_half or is_all):
            return None
        return Unwanted(
            lambda run: run.min_store_ms < expired.get(run.topic, -_EVER_MS),
            lambda record: record.store_ms < expired.get(record.topic, -_EVER_MS),
        )


def _is_over(run: DirectoryRow, expired: Mapping[str, int]) -> bool:
    return run.max_store_ms < expired.get(run.topic, -_EVER_MS)


def _bytes_over(runs: Iterable[DirectoryRow], expired: Mapping[str, int]) -> int:
    return sum(run.bytes for run in runs if _is_over(run, expired))
