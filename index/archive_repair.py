"""Repairs an archive: finds what is wrong by a deep check, restores what can be derived, and checks again.

Repeatable, and safe to kill anywhere: every step is one commit, or stores the very bytes that the manifest names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from index.archive_check import check_archive_deep
from index.lost_page import LostPage
from index.rebuild import IndexRebuild
from tiering.checks.archive import ColdCheck
from tiering.checks.findings import Finding, Findings
from tiering.checks.repair import ColdRepair
from tiering.cold.manifest_change import ManifestChange, MendedPage
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import ArchiveCache, ArchiveReader
from tiering.erasing.known import KnownErasures
from tiering.erasing.tombstones import ErasureSource
from tiering.errors import ConflictError, CorruptionError, ObjectNotFoundError
from tiering.format.manifest import Entry, Head, LogEntry, ObjectRef, PageNode
from tiering.fs import FileSystem
from tiering.hot.store import HotStore
from tiering.randomness import Randomness

Progress = Callable[[int, int], None]
#: What one step repairs may be what the next one needs.
_ROUNDS = 3


@dataclass(slots=True)
class RepairReport:
    """What was done, or would be, and what is still wrong."""

    done: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Both lists."""
        return {
            name: [{"object": finding.object, "text": finding.text} for finding in found]
            for name, found in (("done", self.done), ("left", self.left))
        }


class ArchiveRepair:
    """Repairs one archive with its hot tier, or alone."""

    def __init__(
        self,
        manifest: ManifestStore,
        hot: HotStore | None,
        renew_state: Callable[[], object] | None,
        fs: FileSystem,
        randomness: Randomness,
        known: ErasureSource | None = None,
    ) -> None:
        """``renew_state`` makes the owner write the state object anew; without one it cannot be. ``known`` says what is
        hidden in the hot tier, and must not come back from there."""
        self._manifest = manifest
        self._hot = hot
        self._renew_state = renew_state
        self._known = known or KnownErasures(manifest)
        self._cold = ColdRepair(manifest, randomness)
        self._index = IndexRebuild(manifest, fs, randomness)

    def run(self, *, dry_run: bool, progress: Progress) -> RepairReport:
        """Check, repair, check again; with ``dry_run`` only say what would be tried."""
        report = RepairReport()
        tried: set[str] = set()
        for _ in range(1 if dry_run else _ROUNDS):
            findings = Findings()
            check_archive_deep(self._manifest, self._hot, findings, progress)
            report.left = findings.found
            broken = {finding.object for finding in findings.found if finding.object is not None}
            steps = [step for step in self._steps(broken) if step.what not in tried]
            if not steps:
                break
            for step in steps:
                if dry_run:
                    report.done.append(Finding(step.about, f"would be {step.plan}"))
                else:
                    self._take(step, report, tried)
        else:
            if not dry_run:
                findings = Findings()
                check_archive_deep(self._manifest, self._hot, findings, progress)
                report.left = findings.found
        return report

    def _take(self, step: _Step, report: RepairReport, tried: set[str]) -> None:
        try:
            report.done.append(Finding(step.about, step.run()))
        except (CorruptionError, ObjectNotFoundError, ConflictError):
            return  # what is left says what is missing; another step may bring it
        tried.add(step.what)

    def _steps(self, broken: set[str]) -> Iterator[_Step]:
        """What can be tried for the objects with findings, in the order in which one needs the other."""
        if not broken or (self._manifest.keys.head in broken and self._manifest.head is None):
            return
        head = self._manifest.refresh()
        if head.state is not None and head.state.key in broken and self._renew_state is not None:
            yield _Step(head.state.key, "state", "written anew from the hot tier", self._state)
        check = ColdCheck(self._manifest, head, Findings())
        check.check_manifest()
        topic_ids = {topic.name: topic.topic_id for topic in check.state.topics}
        for kind, node in check.lost_nodes:
            yield _Step(
                node.ref.key, f"page {node.ref.key}", "made again from the objects that it named",
                partial(self._page, kind, node, check, topic_ids),
            )  # fmt: skip
        for ref, entries in self._rows(head, check):
            if ref.key in broken:
                yield _Step(
                    ref.key, f"rows {ref.key}", "made again from the directories of its segments",
                    lambda ref=ref, entries=entries: self._cold.rows(ref, entries, topic_ids),  # type: ignore[misc]
                )  # fmt: skip
        for entry in check.log:
            if entry.key in broken:
                yield from self._of_segment(head, entry, check)
        for old in check.index:
            if old.key in broken:
                yield _Step(
                    old.key, f"index {old.key}", "made again from the segments it covers",
                    lambda old=old: self._rebuilt(self._index.replace(self._manifest.refresh(), old)),  # type: ignore[misc]
                )  # fmt: skip

    def _of_segment(self, head: Head, entry: LogEntry, check: ColdCheck) -> Iterator[_Step]:
        is_hot = self._hot is not None and any(
            each.base_offset == entry.base and entry.base >= self._hot.border for each in self._hot.log.segments()
        )
        if check.is_segment_damaged(entry):
            if self._hot is not None and is_hot:
                hot = self._hot
                yield _Step(
                    entry.key, f"segment {entry.key}", "archived again from the hot copy",
                    lambda: self._cold.segment(self._manifest.refresh(), entry, hot, self._known.current()),
                )  # fmt: skip
        elif not check.lost_index:
            known = [each for each in check.index if each.first < entry.next and entry.base < each.next]
            yield _Step(
                entry.key, f"fill {entry.base}", "given the index objects that it lacks",
                lambda: self._rebuilt(self._index.fill(self._manifest.refresh(), entry, known)),
            )  # fmt: skip

    @staticmethod
    def _rebuilt(head: Head) -> str:
        return f"index made again from the segments, manifest version {head.version}"

    def _page(self, kind: str, node: PageNode, check: ColdCheck, topic_ids: dict[str, int]) -> str:
        begun_s = self._manifest.begin_upload()
        found = LostPage(self._manifest, check).entries(kind, node)
        logs = [entry for entry in found if isinstance(entry, LogEntry)]
        entries: list[Entry] = [*self._cold.with_rows(logs, topic_ids)] if kind == "log" else list(found)
        page = MendedPage("log" if kind == "log" else "index", node, tuple(entries))
        self._manifest.commit_other(ManifestChange(pages=(page,), begun_s=begun_s))
        return "made again from the objects that it named"

    def _state(self) -> str:
        assert self._renew_state is not None
        self._renew_state()
        return "written anew from the hot tier"

    def _rows(self, head: Head, check: ColdCheck) -> Iterator[tuple[ObjectRef, list[LogEntry]]]:
        """Objects with queue rows, and the segments that each is about."""
        for entry in head.log:
            if entry.rows is not None:
                yield entry.rows, [entry]
        reader = ArchiveReader(self._manifest.objects, ArchiveCache(0), scan=True)
        for node in head.log_tree:
            for leaf in self._leaves(reader, head, node):
                if leaf.rows is not None:
                    entries = [entry for entry in check.log if leaf.first <= entry.base < leaf.next]
                    if len(entries) == leaf.count:
                        yield leaf.rows, entries

    def _leaves(self, reader: ArchiveReader, head: Head, node: PageNode) -> list[PageNode]:
        try:
            return self._manifest.leaves(reader, node)
        except (CorruptionError, ObjectNotFoundError):
            return []


@dataclass(frozen=True, slots=True)
class _Step:
    about: str
    what: str
    plan: str
    run: Callable[[], str]
