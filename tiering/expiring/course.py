"""Lets archived messages expire: hidden at once by a rule in the head, overwritten or dropped when it is worth it.

The expiry of topics rises, then the least kept segment, and segments of which half or all has expired since are written
again. Neither mark ever goes back. The store's own process and jobs may do this beside each other: what one has
replaced the other finds gone, and plans again.

Killed before a commit: nothing happened, or unnamed objects. After it: the rule holds, names that left the manifest
are on its removed list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.erasing.rewriting import BatchMaker, commit_batch
from tiering.expiring.retention import ColdRetention, ExpiredRecords
from tiering.format.manifest import Head, TopicExpiry
from tiering.store_view import Committer, StoreView


@dataclass(frozen=True, slots=True)
class Marks:
    """What has expired by the rules at one moment."""

    topics: tuple[TopicExpiry, ...]
    """Topics whose expiry rises."""
    cold_min: int
    held_at: int | None
    """The segment at which a hold keeps the rest of the archive from being dropped, None if none does."""


@dataclass(frozen=True, slots=True)
class Overwritten:
    """What one batch came to."""

    reached: int
    """Every published segment below was looked at, from where the batch began."""
    segments: int = 0
    records: int = 0
    unreadable: tuple[str, ...] = ()
    """Objects that cannot be read, which may hold what has expired."""


class ExpiryCourse:
    """Expiry as one process carries it out. For one thread."""

    def __init__(
        self,
        manifest: ManifestStore,
        view: StoreView,
        retention: ColdRetention,
        committer: Committer,
        maker: BatchMaker,
    ) -> None:
        self._manifest = manifest
        self._view = view
        self._retention = retention
        self._committer = committer
        self._maker = maker

    def plan(self, head: Head, now_ms: int) -> Marks:
        """What would rise now; topics first, so that the least kept segment counts what they let expire."""
        topics = self._retention.topics(head, now_ms)
        below = {**dict(head.expired), **dict(topics)}
        kept = self._retention.least_kept(replace(head, expired=tuple(map(TopicExpiry._make, below.items()))), now_ms)
        return Marks(topics, kept.cold_min, kept.held_at)

    def raise_marks(self, head: Head, now_ms: int) -> Marks:
        """Raise what has to; what has risen. Raises :class:`ConflictError` if a topic was put on hold meanwhile.

        ``now_ms`` is not believed if the server's clock is behind it: what goes here goes for good.
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
        """The expiries in force, by topic, of topics that are not on hold."""
        return self._retention.expired_by_name(head)

    def overwrite(self, head: Head, first: int, goal: Mapping[str, int], looked: Mapping[str, int]) -> Overwritten:
        """Write again one batch of segments from ``first`` on, of those that hold enough of what has expired.

        Raises :class:`ConflictError` if a topic was put on hold meanwhile.
        """
        batch = self._maker.batch(head, max(first, head.cold_min), head.archived_to, ExpiredRecords(goal, looked))
        if batch.replacements:
            batch = commit_batch(self._manifest, self._committer, batch, list(goal))
        return Overwritten(
            batch.reached,
            len(batch.replacements),
            sum(each.records for each in batch.replacements),
            tuple(entry.key for entry in batch.unreadable),
        )
