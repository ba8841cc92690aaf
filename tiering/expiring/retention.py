"""Decides what of an archive has expired: by topic a store time, for the whole a segment start.

Ages are taken of the newest record of a segment, and exactly of each message for a topic: a message stored at
``now - retention`` is kept, one stored a millisecond before is not. Nothing that is still hot leaves the archive,
nothing that is not indexed yet, and no segment with a message of a topic on hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import ArchiveReader
from tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tiering.erasing.rewriting import Unwanted
from tiering.expiring.rules import Rules
from tiering.format.manifest import Head, LogEntry, TopicExpiry
from tiering.store_view import RetainedTopic, StoreView
from tiering.types import EVER, TimeRange


@dataclass(frozen=True, slots=True)
class LeastKept:
    """Where the kept part of an archive may begin, and at which segment a hold stopped it."""

    cold_min: int
    held_at: int | None


class ColdRetention:
    """Plans for one store; reads directories and queue rows where bounds do not decide."""

    def __init__(self, view: StoreView, manifest: ManifestStore, rules: Rules) -> None:
        self._view = view
        self._manifest = manifest
        self._rules = rules

    def topics(self, head: Head, now_ms: int) -> tuple[TopicExpiry, ...]:
        """Topics of which something archived has grown too old since the last time."""
        expired = dict(head.expired)
        found = []
        for topic in self._view.topics():
            below_ms = self._rules.topic_below_ms(topic, now_ms)
            if below_ms is None or topic.hold:
                continue
            before_ms = expired.get(topic.topic_id, EVER.from_ms)
            if below_ms - before_ms >= self._rules.step_ms(topic) and self._holds_between(
                head, topic, TimeRange(before_ms, below_ms)
            ):
                found.append(TopicExpiry(topic.topic_id, below_ms))
        return tuple(found)

    def _holds_between(self, head: Head, topic: RetainedTopic, stored: TimeRange) -> bool:
        pieces = self._manifest.queue_row_pieces(self._manifest.reader(), head, topic.topic_id, stored=stored)
        return any(
            ((rows["min_store_ms"] < stored.to_ms) & (rows["max_store_ms"] >= stored.from_ms)).any() for rows in pieces
        )

    def least_kept(self, head: Head, now_ms: int) -> LeastKept:
        """Where the archive may begin: behind whole segments that are too old, too much, or expired by topic."""
        reader, most_bytes = self._manifest.reader(), self._rules.most_bytes
        indexed_segment = head.indexed_to - head.indexed_to % self._view.segment_bytes
        limit = min(head.archived_to, indexed_segment, self._view.log_begin)
        below_ms = self._rules.archive_below_ms(now_ms)
        over = self._bytes(head) - most_bytes if most_bytes else 0
        expired = self.expired_by_name(head)
        held = {topic.name for topic in self._view.topics() if topic.hold}
        cold_min = head.cold_min
        for entry in self._manifest.log_entries(reader, head):
            if entry.next > limit:
                break
            is_old = entry.bounds is None or (below_ms is not None and entry.bounds.max_store_ms < below_ms)
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
        if entry.bounds is None or entry.bounds.max_store_ms >= max(expired.values(), default=EVER.from_ms):
            return False
        runs = SegmentReader(self._manifest.reader(), entry).runs()
        return all(_is_over(run, expired) for run in runs)

    def expired_by_name(self, head: Head) -> dict[str, int]:
        """The expiries in force, by topic, of topics that are not on hold."""
        expired = dict(head.expired)
        return {
            topic.name: expired[topic.topic_id]
            for topic in self._view.topics()
            if topic.topic_id in expired and not topic.hold
        }


@dataclass(frozen=True, slots=True)
class ExpiredRecords:
    """What is to be overwritten: of segments of which half has expired now, or all, and had not by ``looked``."""

    expired: Mapping[str, int]
    """By topic: what was stored before has expired."""
    looked: Mapping[str, int]
    """The expiries up to which all segments were looked at."""

    def concerns(self, entry: LogEntry) -> bool:
        """Whether anything of it may have expired since."""
        if entry.bounds is None:
            return False
        stored = entry.bounds.min_store_ms, entry.bounds.max_store_ms
        return any(
            TimeRange(self.looked.get(name, EVER.from_ms), ms).overlaps(*stored) for name, ms in self.expired.items()
        )

    def unwanted(self, reader: ArchiveReader, entry: LogEntry) -> Unwanted | None:
        """What has expired, if overwriting it is worth it."""
        expired, looked = self.expired, self.looked
        runs = list(SegmentReader(reader, entry).runs())
        whole, now, then = entry.raw_bytes, _bytes_over(runs, expired), _bytes_over(runs, looked)
        live = sum(run.bytes for run in runs)
        is_half = 2 * now >= whole > 2 * then
        is_all = now == live > then
        if not (is_half or is_all):
            return None
        return Unwanted(
            lambda run: run.min_store_ms < expired.get(run.topic, EVER.from_ms),
            lambda record: record.store_ms < expired.get(record.topic, EVER.from_ms),
        )


def _is_over(run: DirectoryRow, expired: Mapping[str, int]) -> bool:
    return run.max_store_ms < expired.get(run.topic, EVER.from_ms)


def _bytes_over(runs: Iterable[DirectoryRow], expired: Mapping[str, int]) -> int:
    return sum(run.bytes for run in runs if _is_over(run, expired))
