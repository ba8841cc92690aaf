"""Merges what is due in one archive: plans, has the parts built by a given runner, and replaces the inputs.

Killed anywhere: what is committed is merged, the rest is planned again by the next run, and parts that nobody names
are swept. Readers of an older manifest keep the inputs for the grace period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tierlog.index.maintenance.merge_plan import Level, MergeGroup, MergeOptions, due
from tierlog.index.maintenance.merge_task import MergedRange, MergeTask
from tierlog.index.objects.writer import IndexMeta
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ConflictError, CorruptionError, StoreError
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.cold.manifest.change import ManifestChange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, IndexEntry


@dataclass(frozen=True, slots=True)
class FailedRange:
    """A slot range that could not be merged."""

    message: str
    key: str | None
    """The object that is to blame, if one is."""

    @classmethod
    def of(cls, error: StoreError) -> FailedRange:
        """Returns the failure that an error stands for."""
        return cls(error.message, None if error.path is None else str(error.path))


RangeResult = MergedRange | FailedRange
#: Merges slot ranges and gives what became of each, in their order.
RunTasks = Callable[[Sequence[MergeTask]], Sequence[RangeResult]]
_Planned = tuple[MergeGroup, list[MergeTask]]


@dataclass(slots=True)
class MergeReport:
    """Counts of what a run did, and what it left."""

    groups: int = 0
    inputs: int = 0
    outputs: int = 0
    items: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    refused: list[str] = field(default_factory=list)
    """Groups whose inputs had gone at the commit, or whose upload took too long: another merge, expiry or repair came
    first. They were planned again."""
    failed: list[dict[str, str | None]] = field(default_factory=list)
    """Groups with an input that could not be read."""


class MergeJob:
    """The merges of one archive, run by any process beside the store and its readers."""

    def __init__(
        self, manifest: ManifestStore, options: MergeOptions, run_tasks: RunTasks, clock: Clock, *, at_once: int = 1
    ) -> None:
        """``at_once`` slot ranges are handed to ``run_tasks`` together, or all those of one group if it has more."""
        self._manifest = manifest
        self._options = options
        self._run_tasks = run_tasks
        self._clock = clock
        self._at_once = at_once

    def plan(self, levels: Sequence[Level] = tuple(Level)) -> list[MergeGroup]:
        """Returns what is due now; months wait for their days, so that there may be more once these are merged."""
        head = self._manifest.refresh()
        entries = self._entries(head)
        now_ms = self._clock.now_ms()
        return [group for level in levels for group in due(head, entries, level, now_ms, self._options)]

    def run(self, levels: Sequence[Level], progress: Progress = lambda done, of: None) -> MergeReport:
        """Merges what is due, level by level, until nothing is.

        A group with an unreadable input fails and the others go on. Raises what keeps the manifest from being read or
        committed.
        """
        report = MergeReport()
        blamed: set[str] = set()
        for level in sorted(levels):
            while True:
                merged = self._merge_level_once(level, report, blamed, progress)
                if not merged:
                    break
        return report

    def _merge_level_once(self, level: Level, report: MergeReport, blamed: set[str], progress: Progress) -> int:
        """Makes one plan and its merges; returns how many groups were committed."""
        head = self._manifest.refresh()
        groups = [
            group
            for group in due(head, self._entries(head), level, self._clock.now_ms(), self._options)
            if blamed.isdisjoint(entry.key for entry in group.inputs)
        ]
        tasks = self._tasks(head, groups)
        done, total, merged = 0, sum(map(len, tasks)), 0
        for wave in self._waves(list(zip(groups, tasks, strict=True))):
            begun_s = self._manifest.begin_upload()
            outcomes = iter(self._run_tasks([task for _, mine in wave for task in mine]))
            for group, mine in wave:
                merged += self._replace(group, [next(outcomes) for _ in mine], begun_s, report, blamed)
            done += sum(len(mine) for _, mine in wave)
            progress(done, total)
        return merged

    def _tasks(self, head: Head, groups: Sequence[MergeGroup]) -> list[list[MergeTask]]:
        if not groups:
            return []
        reader = self._manifest.reader()
        first = next(iter(head.log), None) or next(self._manifest.log_entries(reader, head), None)
        if first is None:
            raise CorruptionError("there are index objects, but no segments", path=self._manifest.keys.head)
        topics = {state.topic_id: state.name for state in self._manifest.state(reader, head).topics}
        whole = MergeTask(
            level=0, inputs=(), slot_from=0, slot_end=0, meta=IndexMeta(head.store_id, first.segment_bytes, topics),
            epoch=head.epoch, cold_min=head.cold_min, max_part_bytes=self._options.max_part_bytes,
        )  # fmt: skip
        return [
            [
                replace(
                    whole, level=group.level, inputs=_in_slots(group, *slots), slot_from=slots[0], slot_end=slots[1]
                )
                for slots in group.slot_ranges(self._options.max_part_bytes)
            ]
            for group in groups
        ]

    def _waves(
        self, groups: list[tuple[MergeGroup, list[MergeTask]]]
    ) -> Iterator[list[tuple[MergeGroup, list[MergeTask]]]]:
        """Yields groups whose tasks run together: each is committed soon after its start, and a kill costs one wave."""
        wave: list[_Planned] = []
        for group in groups:
            if wave and sum(len(tasks) for _, tasks in wave) + len(group[1]) > self._at_once:
                yield wave
                wave = []
            wave.append(group)
        if wave:
            yield wave

    def _replace(
        self, group: MergeGroup, outcomes: Sequence[RangeResult], begun_s: float, report: MergeReport, blamed: set[str]
    ) -> int:
        for outcome in outcomes:
            if isinstance(outcome, FailedRange):
                if not self._has_gone(outcome):
                    blamed.update([outcome.key] if outcome.key else [entry.key for entry in group.inputs])
                    report.failed.append({"group": group.name, "object": outcome.key, "text": outcome.message})
                else:
                    report.refused.append(group.name)
                return 0
        results = [entry for outcome in outcomes if isinstance(outcome, MergedRange) for entry in outcome.entries]
        change = ManifestChange(index=tuple(results), remove=group.inputs, begun_s=begun_s)
        try:
            self._manifest.commit_other(change)
        except ConflictError:
            report.refused.append(group.name)
            return 0
        report.groups += 1
        report.inputs += len(group.inputs)
        report.outputs += len(results)
        report.items += sum(entry.items for entry in results)
        report.bytes_before += group.size_bytes
        report.bytes_after += sum(entry.size_bytes for entry in results)
        return 1

    def _has_gone(self, failed: FailedRange) -> bool:
        """Whether the object has left the manifest since the plan, and with it perhaps the bucket."""
        head = self._manifest.refresh()
        return failed.key is not None and all(entry.key != failed.key for entry in self._entries(head))

    def _entries(self, head: Head) -> list[IndexEntry]:
        return list(self._manifest.all_index_entries(self._manifest.reader(scan=True), head))


def _in_slots(group: MergeGroup, slot_from: int, slot_end: int) -> tuple[IndexEntry, ...]:
    return tuple(entry for entry in group.inputs if entry.slot_from < slot_end and slot_from < entry.slot_end)
