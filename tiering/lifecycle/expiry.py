"""Expires archived messages: hidden at once by a rule in the head, overwritten or dropped when it is worth it.

Ages are taken of the newest record of a segment, and exactly of each message for a topic: a message stored at
``now - retention`` is kept, one stored a millisecond before is not. Nothing that is still hot leaves the archive,
nothing that is not indexed yet, and no segment with a message of a topic on hold. :class:`ColdRetention` decides what
has expired by :class:`ExpiryRules`: by topic a store time, for the whole a segment start.

:class:`ExpiryRunner` carries it out. The expiry of topics rises, then the least kept segment, and segments of which
half or all has expired since are written again. Neither mark ever goes back. The store's own process and jobs may do
this beside each other: what one has replaced the other finds gone, and plans again.

Killed before a commit: nothing happened, or unnamed objects. After it: the rule holds, names that left the manifest are
on its removed list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from tierlog.tiering.base.options import RetentionOptions
from tierlog.tiering.base.types import EVER, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.format.generation import ByGeneration
from tierlog.tiering.format.manifest import Head, LogEntry, TopicExpiry
from tierlog.tiering.lifecycle.rewrite_batches import RewriteBatchMaker, UnwantedRecords, commit_batch
from tierlog.tiering.lifecycle.store_view import Committer, RetainedTopic, StoreView, names_of

_LEAST_STEP_MS = 60_000
_MOST_STEP_MS = 3_600_000


class ExpiryRules(Protocol):
    """The rules by which archived messages are too old, or too many."""

    def topic_below_ms(self, topic: RetainedTopic, now_ms: int) -> int | None:
        """Archived messages of the topic that were stored before count as expired; None: none do by this rule."""
        ...

    def step_ms(self, topic: RetainedTopic) -> int:
        """Returns the least step by which the expiry of a topic rises: each rise is a commit."""
        ...

    def archive_below_ms(self, now_ms: int) -> int | None:
        """Segments whose newest record was stored before leave the archive; None: none do for their age."""
        ...

    @property
    def most_bytes(self) -> int:
        """The oldest segments leave above so many bytes of segments and index objects; 0: no limit."""
        ...


@dataclass(frozen=True, slots=True)
class ConfiguredRules:
    """The rules that are set: of each topic, and for the whole archive those of the settings."""

    options: RetentionOptions = field(default_factory=RetentionOptions)

    def topic_below_ms(self, topic: RetainedTopic, now_ms: int) -> int | None:
        return None if topic.cold_retention_ms is None else now_ms - topic.cold_retention_ms

    def step_ms(self, topic: RetainedTopic) -> int:
        """Returns a 24th of the retention, a minute at least and an hour at most."""
        return min(_MOST_STEP_MS, max(_LEAST_STEP_MS, (topic.cold_retention_ms or 0) // 24))

    def archive_below_ms(self, now_ms: int) -> int | None:
        return now_ms - self.options.cold_retention_ms if self.options.cold_retention_ms else None

    @property
    def most_bytes(self) -> int:
        return self.options.cold_max_bytes


@dataclass(frozen=True, slots=True)
class GivenRules:
    """The rules of a single request: an age or a store time, for some topics or for the whole archive."""

    age_ms: int | None = None
    before_ms: int | None = None
    """In place of an age."""
    topics: Collection[str] = ()
    """Empty: the whole archive."""

    def topic_below_ms(self, topic: RetainedTopic, now_ms: int) -> int | None:
        """Returns the time that was asked for, for the topics that are named."""
        return self._below_ms(now_ms) if not names_of(topic).isdisjoint(self.topics) else None

    def step_ms(self, topic: RetainedTopic) -> int:
        """Returns a millisecond: what was asked for is exact."""
        return 1

    def archive_below_ms(self, now_ms: int) -> int | None:
        """Returns the time that was asked for, unless topics are named."""
        return None if self.topics else self._below_ms(now_ms)

    @property
    def most_bytes(self) -> int:
        return 0

    def _below_ms(self, now_ms: int) -> int:
        if self.before_ms is not None:
            return min(self.before_ms, now_ms)
        return now_ms - (self.age_ms or 0)


@dataclass(frozen=True, slots=True)
class KeptStart:
    """The place where the kept part of an archive may begin, and the segment at which a hold stopped it."""

    cold_min: int
    held_at: int | None


class ColdRetention:
    """Plans for one store; reads directories and queue rows where bounds do not decide."""

    def __init__(self, view: StoreView, manifest: ManifestStore, rules: ExpiryRules) -> None:
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

    def kept_start(self, head: Head, now_ms: int) -> KeptStart:
        """Returns where the archive may begin.

        Behind whole segments that are too old, too much, or expired by topic.
        """
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
                return KeptStart(cold_min, entry.base)
            cold_min = entry.next
            over -= entry.size_bytes
        return KeptStart(cold_min, None)

    def _bytes(self, head: Head) -> int:
        """Bytes of all segments and index objects."""
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
        """Returns the expiries in force, by topic, of topics that are not on hold."""
        expired = dict(head.expired)
        return {
            topic.name: expired[topic.topic_id]
            for topic in self._view.topics()
            if topic.topic_id in expired and not topic.hold
        }


@dataclass(frozen=True, slots=True)
class ExpiredRecords:
    """The records to overwrite: of segments of which half has expired now, or all, and had not by ``looked``."""

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

    def unwanted_records(self, reader: ArchiveReader, entry: LogEntry) -> UnwantedRecords | None:
        """Returns what has expired, if overwriting it is worth it."""
        expired, looked = self.expired, self.looked
        runs = list(SegmentReader(reader, entry).runs())
        whole, now, then = entry.raw_bytes, _bytes_over(runs, expired), _bytes_over(runs, looked)
        live = sum(run.bytes for run in runs)
        is_half = 2 * now >= whole > 2 * then
        is_all = now == live > then
        if not (is_half or is_all):
            return None
        of_record = ByGeneration(expired)
        return UnwantedRecords(
            lambda run: run.min_store_ms < expired.get(run.topic, EVER.from_ms),
            lambda record: record.store_ms < of_record.of(record.topic, record.physical_offset, EVER.from_ms),
        )


def _is_over(run: DirectoryRow, expired: Mapping[str, int]) -> bool:
    return run.max_store_ms < expired.get(run.topic, EVER.from_ms)


def _bytes_over(runs: Iterable[DirectoryRow], expired: Mapping[str, int]) -> int:
    return sum(run.bytes for run in runs if _is_over(run, expired))


@dataclass(frozen=True, slots=True)
class ExpiryMarks:
    """The expiry that the rules demand at one moment."""

    topics: tuple[TopicExpiry, ...]
    """Topics whose expiry rises."""
    cold_min: int
    held_at: int | None
    """The segment at which a hold keeps the rest of the archive from being dropped, None if none does."""


@dataclass(frozen=True, slots=True)
class OverwriteResult:
    """The outcome of one batch."""

    reached: int
    """Every published segment below was looked at, from where the batch began."""
    segments: int = 0
    records: int = 0
    unreadable: tuple[str, ...] = ()
    """Objects that cannot be read, which may hold what has expired."""


class ExpiryRunner:
    """Expiry as one process carries it out. For one thread."""

    def __init__(
        self,
        manifest: ManifestStore,
        view: StoreView,
        retention: ColdRetention,
        committer: Committer,
        maker: RewriteBatchMaker,
    ) -> None:
        self._manifest = manifest
        self._view = view
        self._retention = retention
        self._committer = committer
        self._maker = maker

    def plan(self, head: Head, now_ms: int) -> ExpiryMarks:
        """Returns what would rise now; topics first, so that the least kept segment counts what they let expire."""
        topics = self._retention.topics(head, now_ms)
        below = {**dict(head.expired), **dict(topics)}
        kept = self._retention.kept_start(replace(head, expired=tuple(map(TopicExpiry._make, below.items()))), now_ms)
        return ExpiryMarks(topics, kept.cold_min, kept.held_at)

    def raise_marks(self, head: Head, now_ms: int) -> ExpiryMarks:
        """Raises the marks that are due; returns those raised.

        ``now_ms`` is not believed if the server's clock is behind it: what goes here goes for good. Raises
        :class:`ConflictError` if a topic was put on hold meanwhile.
        """
        marks = self.plan(head, now_ms)
        if not marks.topics and marks.cold_min == head.cold_min:
            return marks
        now_ms = min(now_ms, self._manifest.objects.now_ms())
        free = [topic.name for topic in self._view.topics() if not topic.hold]
        marks = self.plan(head, now_ms)
        names = {topic.topic_id: topic.name for topic in self._view.topics()}
        if marks.topics:
            rising = [names[topic_id] for topic_id, _ in marks.topics]
            head = self._committer.commit(ManifestChange(expired=marks.topics), rising)
        if marks.cold_min > head.cold_min:
            self._committer.commit(ManifestChange(cold_min=marks.cold_min), free)
        return marks

    def goal(self, head: Head) -> dict[str, int]:
        """Returns the expiries in force, by topic, of topics that are not on hold."""
        return self._retention.expired_by_name(head)

    def overwrite(self, head: Head, first: int, goal: Mapping[str, int], looked: Mapping[str, int]) -> OverwriteResult:
        """Writes again one batch of segments from ``first`` on, of those that hold enough of what has expired.

        Raises :class:`ConflictError` if a topic was put on hold meanwhile.
        """
        batch = self._maker.batch(head, max(first, head.cold_min), head.archived_to, ExpiredRecords(goal, looked))
        if batch.replacements:
            batch = commit_batch(self._manifest, self._committer, batch, list(goal))
        return OverwriteResult(
            batch.reached,
            len(batch.replacements),
            sum(each.records for each in batch.replacements),
            tuple(entry.key for entry in batch.unreadable),
        )
