"""Checks across the packages: what the index must hold of the log it was derived from (I3 in docs/invariants.md).

:func:`repair_local` rebuilds what a store derives from its log on the local disk: a damaged kind of files is removed as
a whole, and the next open derives it from the log, as it does with files that are missing. Killed anywhere: fewer
files, and the next open derives them. :func:`repair_log` puts segments of the log itself back from the archive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import LAYOUTS, ItemLayout, Items
from tierlog.index.kernels.classic import hash_classic_items
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import IndexReader, IndexSnapshot
from tierlog.index.maintenance.check import check_archive_deep
from tierlog.index.maintenance.repair import RepairReport
from tierlog.index.objects.derivation import remove_tree
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.service.engine.opening import open_archive, open_manifest
from tierlog.service.engine.parts import Components
from tierlog.tiering.base.errors import (
    CorruptionError,
    FencedError,
    InvalidRequestError,
    ObjectNotFoundError,
    StoreError,
    UnavailableError,
)
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths, base_offset_name
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.checks import invariants as store_checks
from tierlog.tiering.checks.findings import Finding, Findings
from tierlog.tiering.checks.invariants import check_store, segment_rows
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.damage import DAMAGE_FILE, LogDamage
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.log_files import LogFiles
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.kernels.scan import ScanRows
from tierlog.tiering.lifecycle.log_repair import LogRepair
from tierlog.tiering.rocketmq.adoption import is_broker_store
from tierlog.tiering.rocketmq.check import check_broker

__all__ = ["broker_findings", "check_archive", "check_classic", "check_index", "check_store", "repair_local"]

#: One key of one record: the record's physical offset, and both hashes of the key in one number.
_KEY = np.dtype([("offset", "<i8"), ("hashes", "<i8")])
_Keys = NDArray[np.void]
_Offsets = NDArray[np.int64]

#: Beginnings of the lines of ``check`` about derived files.
_QUEUE_FINDINGS = ("I2 queue", "I3 queue")
_INDEX_FINDINGS = ("I3 index",)
_LOG_FINDINGS = ("I1 log",)
_PROCEDURE = "all else can be read: docs/disaster.md says how to go on (Part of the log is damaged)"


def broker_findings(root: Path) -> list[str] | None:
    """Returns one line a finding in the directory of a RocketMQ broker, None for any other directory.

    The store is not opened for it, so that damage which opening refuses is found as well.
    """
    fs, paths = LocalFileSystem(), StorePaths(root.absolute())
    return check_broker(fs, paths) if is_broker_store(fs, paths) else None


def check_archive(
    manifest: ManifestStore,
    hot: HotStore | None,
    findings: Findings,
    *,
    deep: bool,
    progress: Callable[[int, int], None] | None = None,
    layouts: Mapping[int, ItemLayout] = LAYOUTS,
) -> None:
    """Checks manifest and sizes; ``deep`` reads every byte and compares everything with everything.

    With a hot tier an object store that does not answer is told in ``unasked``; for an archive alone it is an error.
    """
    try:
        if deep:
            check_archive_deep(manifest, hot, findings, progress or (lambda done, of: None), layouts)
        else:
            findings.extend(store_checks.check_archive(manifest, hot))
    except UnavailableError as error:
        if hot is None:
            raise
        findings.unasked.append(f"the archive was not checked: {error}")


def check_index(hot: HotStore, index: LocalIndex) -> list[str]:
    """Checks that every key of every hot record is found in the index, and that the index holds no more than that."""
    missing, extra, twice = _Tally(), _Tally(), _Tally()
    with hot.snapshot() as snapshot:
        files = index.snapshot()
        held = _Index([_items_of(entry.reader) for entry in (*files.files, *files.writing)])
        for wanted, have in _by_segment(hot, snapshot, held, _keys_of if held.has_high else _low_keys_of):
            offsets, keys_of_each, items_of_each = _counted(wanted, have)
            missing.add(offsets[items_of_each == 0])
            extra.add(offsets[keys_of_each == 0])
            twice.add(offsets[items_of_each > 1])
    findings = [f"I3 index: {error}" for error in _damaged_files(files)]
    if twice.count:
        findings.append("I3 index: an item is there twice")
    if missing.count:
        findings.append(f"I3 index: {missing.count} keys are missing, the first of the record at {missing.first}")
    if extra.count:
        findings.append(f"I3 index: {extra.count} items belong to no key, the first at {extra.first}")
    return findings


def _damaged_files(snapshot: IndexSnapshot) -> Iterator[CorruptIndexError]:
    """Finds files whose bytes are not those that were written: their items may be right, yet look-ups fail."""
    for entry in (*snapshot.files, *snapshot.writing):
        try:
            entry.reader.verify()
        except CorruptIndexError as error:
            yield error


def check_classic(hot: HotStore, classic: ClassicIndex) -> list[str]:
    """Checks that RocketMQ's index holds each item of every hot record as often as the record has it, and no other."""
    missing, extra = _Tally(), _Tally()
    with hot.snapshot() as snapshot:
        held = _Index([file.all_items() for file in classic.files()])
        for wanted, have in _by_segment(hot, snapshot, held, _classic_keys_of):
            offsets, items_wanted, items_there = _counted(wanted, have)
            missing.add(np.repeat(offsets, np.maximum(items_wanted - items_there, 0)))
            extra.add(np.repeat(offsets, np.maximum(items_there - items_wanted, 0)))
    findings = []
    if missing.count:
        findings.append(f"I3 classic index: {missing.count} items are missing, the first of record {missing.first}")
    if extra.count:
        findings.append(f"I3 classic index: {extra.count} items belong to no key, the first of record {extra.first}")
    return findings


def _classic_keys_of(hot: HotStore, segment: Segment, rows: ScanRows) -> _Keys:
    items = hash_classic_items(segment.data, rows)
    return _keys(rows["physical_offset"][items["row"]], items["hash"], np.zeros(len(items), np.int64))


class _Tally:
    """A count of findings and the offset of the first; offsets come in rising order."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None

    def add(self, offsets: _Offsets) -> None:
        if self.first is None and len(offsets):
            self.first = int(offsets[0])
        self.count += len(offsets)


class _Index:
    """The items of all files, read where they lie."""

    def __init__(self, pieces: list[Items]) -> None:
        self._pieces = [(items["offset"].min(), items["offset"].max(), items) for items in pieces if len(items)]
        #: Whether every layout has the second hash; otherwise no item is asked for it.
        self.has_high = all("hash_high" in (items.dtype.names or ()) for _, _, items in self._pieces)

    def keys(self, start: int, end: int) -> _Keys:
        """Returns the keys that are there of the records in ``[start, end)``."""
        found = [np.empty(0, _KEY)]
        for least, greatest, items in self._pieces:
            if least < end and start <= greatest:
                chosen = items[(items["offset"] >= start) & (items["offset"] < end)]
                high = chosen["hash_high"] if self.has_high else np.zeros(len(chosen), np.int64)
                found.append(_keys(chosen["offset"], chosen["hash"], high))
        return np.concatenate(found)


def _items_of(reader: IndexReader) -> Items:
    items = reader.all_items()
    return items[1 : reader.item_count + 1] if isinstance(reader, ChainedIndexFile) else items  # item 0 is no item


def _by_segment(
    hot: HotStore, snapshot: HotSnapshot, held: _Index, keys_of: Callable[[HotStore, Segment, ScanRows], _Keys]
) -> Iterator[tuple[_Keys, _Keys]]:
    """Yields the keys that the index must hold and those it holds, segment by segment: a log may have billions."""
    for base, segment in sorted(snapshot.segments.items()):
        if base >= snapshot.border:
            end = min(segment.end, snapshot.end)
            try:
                wanted = keys_of(hot, segment, segment_rows(hot, segment, end))
            except CorruptionError:
                continue  # the log's own check names it, and what the index has of it may be right
            yield wanted, held.keys(base, end)


def _keys_of(hot: HotStore, segment: Segment, rows: ScanRows) -> _Keys:
    topic_ids = np.array([topic.topic_id for topic in hot.topics.all()], np.int32)
    batch = KeyBatch.of(segment.data, rows, topic_ids)
    return _keys(batch.rows["physical_offset"][batch.keys["row"]], batch.keys["hash"], batch.keys["hash_high"])


def _low_keys_of(hot: HotStore, segment: Segment, rows: ScanRows) -> _Keys:
    keys = _keys_of(hot, segment, rows)
    return _keys(keys["offset"], keys["hashes"] >> 32, np.zeros(len(keys), np.int64))


def _keys(offsets: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> _Keys:
    keys = np.empty(len(offsets), _KEY)
    keys["offset"] = offsets
    keys["hashes"] = low.astype(np.int64) << 32 | high
    return keys


def _counted(wanted: _Keys, have: _Keys) -> tuple[_Offsets, NDArray[np.int64], NDArray[np.int64]]:
    """Returns the offset of every distinct key, ascending, how often it is wanted and how often it is there."""
    both = np.concatenate((wanted, have))
    order = np.lexsort((both["hashes"], both["offset"]))
    both = both[order]
    starts = np.flatnonzero(np.append(True, both[1:] != both[:-1])[: len(both)])
    there = np.add.reduceat(order >= len(wanted), starts, dtype=np.int64)
    return both["offset"][starts], np.diff(starts, append=len(both)) - there, there


def repair_local(fs: FileSystem, root: Path, lines: Sequence[str], *, dry_run: bool) -> list[Finding]:
    """Removes local files that are not what the log implies, as ``lines`` of a check say; returns a line for each.

    Nothing is removed while the log itself is damaged: it could not be derived again, and the store would not open. The
    store must not be in use: raises :class:`StoreLockedError`.
    """
    paths, done = StorePaths(root.absolute()), list[Finding]()
    if any(line.startswith(_LOG_FINDINGS) for line in lines):
        return done
    for starts, what, places in (
        (_QUEUE_FINDINGS, "consume queues", (paths.consumequeue,)),
        (_INDEX_FINDINGS, "key index", (paths.index, paths.index_json)),
    ):
        about = [line for line in lines if line.startswith(starts)]
        if about:
            text = f"{what} {'would be ' if dry_run else ''}derived again from the log ({len(about)} findings)"
            done.append(Finding(None, text))
            if not dry_run:
                _remove(fs, paths, places)
    return done


def repair_log(root: Path, components: Components, *, dry_run: bool, progress: Progress) -> RepairReport:
    """Puts damaged segments of a store's log back from its archive; see :class:`LogRepair` for a kill on the way.

    It takes the files as they lie, so that a log which opening refuses is repaired as well. Raises
    :class:`StoreLockedError` while the store is in use, :class:`FencedError` where another volume took it over,
    the object store's error if it does not answer.
    """
    fs, paths, report = components.fs, StorePaths(root.absolute()), RepairReport()
    identity = StoreIdentity.read(fs, paths)
    if identity is None or identity.cold_url is None or identity.restoring_from is not None:
        raise InvalidRequestError("no store with an archive is in this directory", path=str(root))
    with fs.lock(paths.lock), contextlib.ExitStack() as resources:
        objects = components.objects
        if objects is None:
            objects = open_archive(identity.cold_url, components.settings, components.clock, make=False)
            resources.callback(objects.close)
        manifest = open_manifest(objects, identity.store_id, components)
        head = manifest.refresh()
        if head.volume_id != identity.volume_id:
            raise FencedError(
                f"volume {head.volume_id} has taken the archive of store {identity.store_id} over",
                path=manifest.keys.head,
                hint="what only this volume holds is appended there by `tierlog salvage`, which reads beyond damage",
            )
        files = LogFiles(fs, paths, identity.segment_bytes)
        repair = LogRepair(files, manifest, head, fs=fs, paths=paths, randomness=components.randomness)
        for done in repair.run(dry_run=dry_run, progress=progress):
            segment = f"segment {base_offset_name(done.base_offset)} of the log"
            if done.left != done.damaged:
                ranges = ", ".join(f"[{first}, {following})" for first, following in done.damaged)
                text = f"{segment}, damaged in {ranges}, {'would be' if dry_run else 'was'} put back from the archive"
                report.done.append(Finding(None, text))
            if done.problem is not None:
                report.left.append(Finding(None, f"{segment}: {done.problem}"))
    return report


def remember_damage(fs: FileSystem, root: Path, found: Sequence[LogDamage]) -> None:
    """Makes what a check of a log found known to the next open.

    Not while the store is in use, nor on a disk that takes nothing: whoever meets the damage finds it again.
    """
    paths = StorePaths(root.absolute())
    with contextlib.suppress(StoreError, OSError), fs.lock(paths.lock):
        if found or fs.exists(paths.damage_json):
            DAMAGE_FILE.replace(fs, paths.damage_json, found, paths.tmp)


def damage_left(damaged: Sequence[LogDamage], manifest: ManifestStore | None, *, tried: bool) -> list[Finding]:
    """Says for each damaged range of the log what is lost and what to do; ``tried``: the archive was used already."""
    return [Finding(None, f"{each}; {_next_step(each, manifest, tried=tried)}") for each in damaged]


def _next_step(damage: LogDamage, manifest: ManifestStore | None, *, tried: bool) -> str:
    if manifest is None:
        return f"there is no archive to put it back from; {_PROCEDURE}"
    try:
        entry = manifest.segment_of(manifest.reader(), manifest.refresh(), damage.first)
    except ObjectNotFoundError:
        if manifest.had_head:
            return "whether the archive has it is not known: its head is lost"
        entry = None
    except StoreError as error:
        return f"whether the archive has it is not known: {error}"
    if entry is None:
        return f"the archive does not have it; {_PROCEDURE}"
    if tried:
        return f"the archive could not give it back; {_PROCEDURE}"
    return "the archive has it: `tierlog repair --root DIR --from-archive` puts it back"


def _remove(fs: FileSystem, paths: StorePaths, places: Iterable[Path]) -> None:
    with fs.lock(paths.lock):
        for place in places:
            if fs.is_dir(place):
                remove_tree(fs, place)
            elif fs.exists(place):
                fs.unlink(place)
            fs.flush_dir(place.parent)
