"""Repairs an archive: finds what is wrong by a deep check, restores what can be derived, and checks again.

Repeatable, and safe to kill anywhere: every repair is one commit, or stores the very bytes that the manifest names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from tierlog.index.maintenance.check import check_archive_deep
from tierlog.index.maintenance.rebuild import IndexRebuild
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.base.errors import ConflictError, CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.checks.archive import ColdCheck
from tierlog.tiering.checks.findings import Finding, Findings
from tierlog.tiering.checks.repair import ColdRepair
from tierlog.tiering.cold.manifest.change import ManifestChange, MendedPage
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader, uncached_reader
from tierlog.tiering.cold.segment.derivation import entry_of_segment
from tierlog.tiering.format.manifest import Entry, Head, IndexEntry, LogEntry, ObjectRef, PageNode, decode_page
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.tombstones import ErasureSource, KnownErasures
from tierlog.tiering.objects.transfer import ObjectStream

Progress = Callable[[int, int], None]
#: What one round repairs may be what the next one needs.
_ROUNDS = 3


@dataclass(slots=True)
class RepairReport:
    """A report of what was done, or would be, and what is still wrong."""

    done: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Returns both lists."""
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
        *,
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
        """Checks, repairs and checks again; with ``dry_run`` only says what would be tried."""
        report = RepairReport()
        tried: set[str] = set()
        for _ in range(1 if dry_run else _ROUNDS):
            findings = Findings()
            check_archive_deep(self._manifest, self._hot, findings, progress)
            report.left = findings.found
            broken = {finding.object for finding in findings.found if finding.object is not None}
            attempts = [attempt for attempt in self._attempts(broken) if attempt.what not in tried]
            if not attempts:
                break
            for attempt in attempts:
                if dry_run:
                    report.done.append(Finding(attempt.about, f"would be {attempt.plan}"))
                else:
                    self._take(attempt, report, tried)
        else:
            if not dry_run:
                findings = Findings()
                check_archive_deep(self._manifest, self._hot, findings, progress)
                report.left = findings.found
        return report

    def _take(self, attempt: _Attempt, report: RepairReport, tried: set[str]) -> None:
        try:
            report.done.append(Finding(attempt.about, attempt.run()))
        except (CorruptionError, ObjectNotFoundError, ConflictError):
            return  # what is left says what is missing; another attempt may bring it
        tried.add(attempt.what)

    def _attempts(self, broken: set[str]) -> Iterator[_Attempt]:
        """Yields the repairs to try for the objects with findings, in the order in which one needs the other."""
        if not broken or (self._manifest.keys.head in broken and self._manifest.head is None):
            return
        head = self._manifest.refresh()
        if head.state is not None and head.state.key in broken and self._renew_state is not None:
            yield _Attempt(head.state.key, "state", "written anew from the hot tier", self._state)
        check = ColdCheck(self._manifest, head, Findings())
        check.check_manifest()
        topic_ids = {topic.name: topic.topic_id for topic in check.state.topics}
        for kind, node in check.lost_nodes:
            yield _Attempt(
                node.ref.key, f"page {node.ref.key}", "made again from the objects that it named",
                partial(self._page, kind, node, check, topic_ids),
            )  # fmt: skip
        for ref, entries in self._rows(head, check):
            if ref.key in broken:
                yield _Attempt(
                    ref.key, f"rows {ref.key}", "made again from the directories of its segments",
                    lambda ref=ref, entries=entries: self._cold.rows(ref, entries, topic_ids),  # type: ignore[misc]
                )  # fmt: skip
        for entry in check.log:
            if entry.key in broken:
                yield from self._of_segment(head, entry, check)
        for old in check.index:
            if old.key in broken:
                yield _Attempt(
                    old.key, f"index {old.key}", "made again from the segments it covers",
                    lambda old=old: self._rebuilt(self._index.replace(self._manifest.refresh(), old)),  # type: ignore[misc]
                )  # fmt: skip

    def _of_segment(self, head: Head, entry: LogEntry, check: ColdCheck) -> Iterator[_Attempt]:
        is_hot = self._hot is not None and any(
            each.base_offset == entry.base and entry.base >= self._hot.border for each in self._hot.log.segments()
        )
        if check.is_segment_damaged(entry):
            if self._hot is not None and is_hot:
                hot = self._hot
                yield _Attempt(
                    entry.key, f"segment {entry.key}", "archived again from the hot copy",
                    lambda: self._cold.segment(self._manifest.refresh(), entry, hot, self._known.current()),
                )  # fmt: skip
        elif not check.lost_index:
            known = [each for each in check.index if each.first < entry.next and entry.base < each.next]
            yield _Attempt(
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
        reader = uncached_reader(self._manifest.objects)
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
class _Attempt:
    about: str
    what: str
    plan: str
    run: Callable[[], str]


class LostPage:
    """Finds the entries of a manifest page that cannot be read, from the objects that it named.

    Only what is certain is taken: objects that nothing else names and that never left the manifest, as many as the
    page's reference says, over the very range and times that it says.
    """

    def __init__(self, manifest: ManifestStore, check: ColdCheck) -> None:
        """``check`` has read all of the manifest that can be read."""
        self._manifest = manifest
        self._objects = manifest.objects
        self._head = check.head
        removed = {key for key, _ in manifest.removed_names(uncached_reader(manifest.objects), check.head)}
        self._known = {entry.key for entry in check.log} | {entry.key for entry in check.index} | removed
        self._known |= check.page_names

    def entries(self, kind: str, lost: PageNode) -> list[Entry]:
        """Returns what the page held, all levels below it included; :class:`CorruptionError` if that is not certain."""
        folder = "log" if kind == "log" else "index"
        if lost.level:
            pages = [page for page in self._pages(kind) if self._fits(page, lost)]
            found = [entry for page in pages for entry in page]
            count = len(pages)
        else:
            found = [entry for entry in self._objects_of(folder) if self._fits([entry], lost)]
            count = len(found)
        found.sort(key=lambda entry: entry.first)
        bounds = [entry.bounds for entry in found if entry.bounds is not None]
        if (
            count != lost.count
            or (min(entry.first for entry in found), max(entry.next for entry in found)) != (lost.first, lost.next)
            or (reduce(TimeBounds.union, bounds) if bounds else None) != lost.bounds
            or (kind == "log" and len({entry.first for entry in found}) != len(found))
        ):
            raise CorruptionError("what the page held is not certain", path=lost.ref.key)
        return found

    @staticmethod
    def _fits(entries: Sequence[Entry], lost: PageNode) -> bool:
        return all(lost.first <= entry.first and entry.next <= lost.next for entry in entries)

    def _unnamed(self, prefix: str) -> Iterator[str]:
        for info in self._objects.list(f"{self._manifest.keys.store_id}/{prefix}"):
            if info.key not in self._known:
                yield info.key

    def _pages(self, kind: str) -> Iterator[list[Entry]]:
        for key in self._unnamed(f"manifest/{kind}0-"):
            data, _ = self._objects.get(key)
            yield decode_page(data, kind, 0, path=key)

    def _objects_of(self, folder: str) -> Iterator[Entry]:
        for key in self._unnamed(f"{folder}/"):
            if folder == "log":
                yield entry_of_segment(self._objects, key, self._head.version)
            else:
                yield self._index_entry(key)

    def _index_entry(self, key: str) -> IndexEntry:
        size = self._objects.head(key).size_bytes
        reader, meta = IndexObjectReader.from_tail(lambda start, end: self._objects.get_range(key, start, end), size)
        stream = ObjectStream(self._objects, key, size)
        stream.take_rest()
        bounds = TimeBounds(*(meta[f"{end}_{axis}_ms"] for axis in ("store", "born") for end in ("min", "max")))
        level = int(key.split("/index/L")[1].split("/")[0])
        slot_from, slot_end = meta["slot_range"]
        return IndexEntry(
            key=key, level=level, first=meta["first"], next=meta["next"], begin_ms=meta["begin_ms"], size_bytes=size,
            crc32=stream.crc32, items=meta["items"], slots=meta["slots"], slot_from=slot_from, slot_end=slot_end,
            layout=meta["layout"], bounds=bounds, sections=dict(reader.sections), added=self._head.version,
            times_fall=meta.get("times_fall", False),
        )  # fmt: skip
