"""Expiry in bulk: marks rise by one commit each, expired runs are overwritten by executors where that is worth it.

1. **Hide.** The expiry of topics rises, then the least kept segment: what lies below leaves the manifest.
2. **Overwrite.** Segments of which half or all has expired by topic are written again, each batch one commit.

Killed before a commit: nothing happened, or unnamed objects. After it: the mark holds. Run again: marks stay where
they are, and segments that were written again hold nothing that is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tierlog.pipeline.base.archive import retried
from tierlog.pipeline.removal.tasks import ArchiveAccess, ExecutorRewriter, FanOut, SegmentCount, count_segment
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, TopicExpiry
from tierlog.tiering.format.record import Record
from tierlog.tiering.lifecycle.expiry import (
    ColdRetention,
    ExpiredRecords,
    ExpiryMarks,
    ExpiryRules,
    ExpiryRunner,
    OverwriteResult,
)
from tierlog.tiering.lifecycle.store_view import ArchiveView

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class ExpiryReport:
    """A report of what was done, or would be."""

    store_id: str
    cold_min_before: int
    topics: dict[str, int] = field(default_factory=dict)
    """Topics whose expiry rose: what was stored before has expired."""
    cold_min: int = 0
    held_at: int | None = None
    """The segment at which a hold keeps the rest of the archive from being dropped."""
    segments_dropped: int = 0
    index_objects_dropped: int = 0
    bytes_dropped: int = 0
    segments_rewritten: int = 0
    messages_overwritten: int = 0
    unreadable: set[str] = field(default_factory=set)
    """Segments that cannot be read, which may hold what has expired."""

    def to_json(self) -> dict[str, Any]:
        """Returns all fields by name."""
        return {
            "store_id": self.store_id, "topics": self.topics, "cold_min_before": self.cold_min_before,
            "cold_min": self.cold_min, "held_at": self.held_at, "segments_dropped": self.segments_dropped,
            "index_objects_dropped": self.index_objects_dropped, "bytes_dropped": self.bytes_dropped,
            "segments_rewritten": self.segments_rewritten, "messages_overwritten": self.messages_overwritten,
            "unreadable": sorted(self.unreadable), "findings": len(self.unreadable),
        }  # fmt: skip


class BulkExpiry:
    """Lets one archive's messages expire by some rules. For one thread."""

    def __init__(
        self,
        archive: ArchiveAccess,
        fan_out: FanOut,
        clock: Clock,
        rules: ExpiryRules,
        *,
        most: int,
        has_volume: bool = True,
    ) -> None:
        """``most`` segments go into one commit; ``has_volume`` False is the operator's word that no volume exists."""
        self._archive = archive
        self._fan_out = fan_out
        self._clock = clock
        self._manifest: ManifestStore = archive.manifest
        self.view = ArchiveView(self._manifest, has_volume=has_volume)
        self._retention = ColdRetention(self.view, self._manifest, rules)
        maker = ExecutorRewriter(archive, fan_out, most)
        self._course = ExpiryRunner(self._manifest, self.view, self._retention, self.view, maker)
        self._rules = rules

    def plan(self) -> ExpiryReport:
        """Reports what :meth:`run` would do; nothing is changed."""
        head, now_ms = self._begin()
        marks = self._course.plan(head, min(now_ms, self._manifest.objects.now_ms()))
        report = self._report(head, marks)
        below = {**dict(head.expired), **dict(marks.topics)}
        planned = replace(head, expired=tuple(TopicExpiry(*pair) for pair in below.items()))
        selection = ExpiredRecords(self._course.goal(planned), {})
        kept = (entry for entry in self._manifest.log_entries(self._manifest.reader(), head))
        wanted = [entry for entry in kept if entry.base >= marks.cold_min and selection.concerns(entry)]
        found: list[SegmentCount] = self._fan_out(partial(count_segment, self._archive, selection, _is_any), wanted)
        report.segments_rewritten = sum(each.all > 0 for each in found)
        report.messages_overwritten = sum(each.all for each in found)
        named = {entry.base: entry.key for entry in wanted}
        report.unreadable = {named[each.base] for each in found if each.error is not None}
        return report

    def run(self, progress: Progress) -> ExpiryReport:
        """Raises the expiry marks, and overwrites what has expired.

        What a hold protects is left out from the moment of the hold on. Raises :class:`ConflictError` if others keep
        changing the archive: what was done holds, and a further run goes on.
        """
        report = retried(self._manifest, self._raise_marks)
        reached = self._manifest.refresh().cold_min
        while True:
            head = self._manifest.refresh()
            goal = self._course.goal(head)
            if not goal or reached >= head.archived_to:
                return report
            done = retried(self._manifest, partial(self._overwrite, reached))
            report.segments_rewritten += done.segments
            report.messages_overwritten += done.records
            report.unreadable.update(done.unreadable)
            reached = done.reached
            progress(reached, head.archived_to)

    def _begin(self) -> tuple[Head, int]:
        head, now_ms = self._manifest.refresh(), self._clock.now_ms()
        is_whole = self._rules.archive_below_ms(now_ms) is not None
        if is_whole and self.view.has_volume and self.view.state().log_begin is None:
            raise InvalidRequestError(
                "the archive does not tell what is still hot, which may not leave it",
                hint="let the store's service run once more, or give --no-volume if there is none",
            )
        return head, now_ms

    def _raise_marks(self) -> ExpiryReport:
        head, now_ms = self._begin()
        return self._report(head, self._course.raise_marks(head, now_ms))

    def _overwrite(self, first: int) -> OverwriteResult:
        head = self._manifest.refresh()
        return self._course.overwrite(head, first, self._course.goal(head), {})

    def _report(self, before: Head, marks: ExpiryMarks) -> ExpiryReport:
        names = {topic.topic_id: topic.name for topic in self.view.topics()}
        report = ExpiryReport(
            before.store_id, before.cold_min, {names[topic_id]: below_ms for topic_id, below_ms in marks.topics},
            marks.cold_min, marks.held_at,
        )  # fmt: skip
        if marks.cold_min > before.cold_min:
            reader = self._manifest.reader()
            segments = [each for each in self._manifest.log_entries(reader, before) if each.next <= marks.cold_min]
            objects = [each for each in self._manifest.all_index_entries(reader, before) if each.next <= marks.cold_min]
            report.segments_dropped, report.index_objects_dropped = len(segments), len(objects)
            report.bytes_dropped = sum(each.size_bytes for each in segments) + sum(each.size_bytes for each in objects)
        return report


def _is_any(record: Record) -> bool:
    return True
