"""Makes index objects of archived segments again: what takes the place of one that is lost, damaged or wrong.

:func:`plan_rebuild` says what of an archive's index is to be made again, and in which stretches. The log is cut into
**blocks**: ranges that no index object reaches out of, so that the objects of a block can be replaced without a look at
any other. A block is a run of objects that overlap each other (one object, the parts of a merge), or a range without
any. Neighbouring blocks that are to be made again make a **stretch**, which is replaced in one commit; a stretch that
is more work than one task may have is shared by several, cut where segments begin.

Killed before the commit: objects that nobody names, which the sweep removes after grace; after it, the archive has the
new ones in place of the old. No watermark moves, and no reader sees both or neither: objects come and go in one commit,
which is refused if the range has other objects by then than those it was planned on.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from tierlog.index.format.layout import TIERLOG, ItemLayout
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import IndexFileEntry
from tierlog.index.objects.derivation import archived_ranges
from tierlog.index.objects.item_order import SlotOrder
from tierlog.index.objects.publisher import AssemblyFolder, upload_file
from tierlog.tiering.base.errors import ConflictError, CorruptionError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import uncovered
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.cold.manifest.change import ManifestChange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry
from tierlog.tiering.hot.dispatch import LogRange

_FOLDER = Path("/tierlog-rebuild")
_MOST_ITEMS = 1 << 20

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IndexShape:
    """The shape of index objects: capacity of the file that each is made of, and layout of its items."""

    slots: int
    items: int
    layout: ItemLayout


@dataclass(frozen=True, slots=True)
class Stretch:
    """A physical range whose index objects are replaced in one commit."""

    first: int
    next: int
    old: tuple[IndexEntry, ...]
    """Every object that touches the range; none reaches out of it, but for below ``cold_min``."""
    pieces: tuple[Range, ...]
    """The range in order without declared gaps, a task each."""


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """Stretches in ascending order, and how many objects stay as they are."""

    stretches: tuple[Stretch, ...]
    kept: int


@dataclass(frozen=True, slots=True)
class _Block:
    first: int
    next: int
    entries: tuple[IndexEntry, ...]


def plan_rebuild(
    head: Head,
    log: Sequence[LogEntry],
    index: Iterable[IndexEntry],
    is_right: Callable[[IndexEntry], bool],
    *,
    within: Sequence[Range],
    most_bytes: int,
) -> RebuildPlan:
    """Plans what in the ranges ``within`` has no index, or a wrong one, from ``cold_min`` to ``indexed_to``.

    ``log`` ascends. A block counts that touches one of the ranges. A block without objects counts always: whether its
    records have keys only reading tells. So does a merge of which a range of slots is missing. A task gets about
    ``most_bytes`` of records, but one segment at least.
    """
    chosen: list[_Block] = []
    kept = 0
    for block in _blocks(head, index):
        if any(block.first < end and first < block.next for first, end in within) and not (
            block.entries and _has_all_slots(block.entries) and all(map(is_right, block.entries))
        ):
            chosen.append(block)
        else:
            kept += len(block.entries)
    segments = _Log(log)
    groups = _grouped(chosen, segments, most_bytes)
    return RebuildPlan(tuple(_stretch(group, head, segments, most_bytes) for group in groups), kept)


def _blocks(head: Head, index: Iterable[IndexEntry]) -> Iterator[_Block]:
    """Yields the blocks from ``cold_min`` to ``indexed_to`` without a hole."""
    reached, end = head.cold_min, head.indexed_to
    entries: list[IndexEntry] = []
    first = reached
    for entry in sorted(index, key=lambda each: (each.first, each.next)):
        if entry.next <= head.cold_min:
            continue
        if entries and entry.first >= reached:
            yield _Block(first, reached, tuple(entries))
            entries = []
        if not entries:
            if entry.first > reached:
                yield _Block(reached, entry.first, ())
            first = max(reached, entry.first)
        entries.append(entry)
        reached = max(reached, entry.next)
    if entries:
        yield _Block(first, reached, tuple(entries))
    if reached < end:
        yield _Block(reached, end, ())


def _has_all_slots(entries: Sequence[IndexEntry]) -> bool:
    """Whether everywhere in a block the parts of a merge, which may be cut by slots and by time, make up all slots."""
    if all(entry.slot_from == 0 and entry.slot_end == entry.slots for entry in entries):
        return True
    edges = sorted({edge for entry in entries for edge in (entry.first, entry.next)})
    for first, end in pairwise(edges):
        here = [entry for entry in entries if entry.first <= first and end <= entry.next]
        for slots in {entry.slots for entry in here}:
            parts = [(entry.slot_from, entry.slot_end) for entry in here if entry.slots == slots]
            if uncovered(parts, 0, slots):
                return False
    return True


class _Log:
    """The segments of a range, and about how many bytes of records each has."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        self._entries = entries

    def over(self, first: int, end: int) -> Iterator[tuple[LogEntry, int]]:
        """Returns the segments of a range, ascending."""
        for at in range(bisect_right(self._entries, first, key=lambda each: each.next), len(self._entries)):
            entry = self._entries[at]
            if entry.first >= end:
                return
            yield entry, entry.raw_bytes * (min(end, entry.next) - max(first, entry.first)) // entry.segment_bytes


def _grouped(blocks: Sequence[_Block], log: _Log, most_bytes: int) -> Iterator[list[_Block]]:
    """Yields neighbours together, as long as they are one task's work."""
    group: list[_Block] = []
    filled = 0
    for block in blocks:
        size = sum(size for _, size in log.over(block.first, block.next))
        if group and (group[-1].next != block.first or filled + size > most_bytes):
            yield group
            group, filled = [], 0
        group.append(block)
        filled += size
    if group:
        yield group


def _stretch(group: Sequence[_Block], head: Head, log: _Log, most_bytes: int) -> Stretch:
    first, end = group[0].first, group[-1].next
    pieces = [
        piece for start, stop in uncovered(head.log_gaps, first, end) for piece in _pieces(start, stop, log, most_bytes)
    ]
    return Stretch(first, end, tuple(entry for block in group for entry in block.entries), tuple(pieces))


def _pieces(first: int, end: int, log: _Log, most_bytes: int) -> Iterator[Range]:
    """Yields a range cut where segments begin."""
    filled = 0
    for entry, size in log.over(first, end):
        if entry.first > first and filled + size > most_bytes:
            yield first, entry.first
            first, filled = entry.first, 0
        filled += size
    yield first, end


def build_objects(
    manifest: ManifestStore, head: Head, span: Range, *, shape: IndexShape, fs: FileSystem, folder: Path,
    randomness: Randomness, slot_range: Range | None = None,
) -> tuple[IndexEntry, ...]:  # fmt: skip
    """Stores index objects of the records in the physical range ``span``; committing the entries names them.

    The objects' ranges lie in ``span`` in ascending order; what has no keys has no object. ``slot_range`` leaves out
    what other objects hold of the same records. Everything local happens in ``folder``: one segment, and the index
    files that are not uploaded yet. Raises :class:`CorruptionError` if a segment cannot be read or is missing,
    :class:`InvalidRequestError` for a shape that no file can have, the object store's errors.
    """
    # an empty index in the folder, which begins where the range does
    first, end = span
    paths = StorePaths(folder)
    for place in (paths.tmp, paths.tierlog):
        fs.make_dirs(place)
    index = LocalIndex.open(
        fs, paths, slots=shape.slots, items=shape.items, layout=shape.layout,
        border=first, indexed_to=first, log_start=first,
    )  # fmt: skip
    names = {topic.topic_id: topic.name for topic in manifest.state(manifest.reader(), head).topics}
    assembly = AssemblyFolder(fs, paths.tmp, contextlib.nullcontext)
    built: list[IndexEntry] = []

    # stores what is compacted, and forgets it here
    def upload() -> None:
        index.maintain()
        for entry in index.pending():
            assert entry.next is not None
            if slot_range is None or _has_items(entry, slot_range):
                built.append(
                    upload_file(
                        manifest,
                        randomness,
                        entry,
                        head=head,
                        topic_names=names,
                        assembly=assembly,
                        slot_range=slot_range,
                    )
                )
            index.set_indexed_to(entry.next)
            index.remove_below(entry.next)
        index.maintain()

    # index segment by segment, so that few files wait
    for records in _until(end, archived_ranges(manifest, head, first, names=names, fs=fs, folder=paths.tmp)):
        index.on_records(records)
        if records.end % len(records.data) == 0:
            upload()
    index.seal()
    upload()
    return tuple(built)


def replace_stretch(manifest: ManifestStore, stretch: Stretch, built: tuple[IndexEntry, ...], begun_s: float) -> Head:
    """Names ``built`` in place of the old objects of a stretch, in one commit.

    Raises :class:`ConflictError` if the range has other objects than the stretch, or has partly expired, since it was
    planned: plan again.
    """
    planned = {entry.key for entry in stretch.old}

    def refuse(head: Head) -> None:
        over = manifest.index_entries_over(manifest.reader(), head, stretch.first, stretch.next)
        if {entry.key for entry in over} != planned or not head.cold_min <= stretch.first < head.indexed_to:
            raise ConflictError(
                f"the index of [{stretch.first}, {stretch.next}) has changed since it was planned to be made again",
                path=manifest.keys.head,
            )

    change = ManifestChange(index=built, remove=stretch.old, begun_s=begun_s)
    return manifest.commit_other(change, refuse=refuse)


class IndexRebuild:
    """Rebuilds parts of one archive's index in memory; for anybody, not only the store's owner."""

    def __init__(self, manifest: ManifestStore, fs: FileSystem, randomness: Randomness) -> None:
        """Nothing reaches ``fs``: a layer in memory lies over it."""
        self._manifest = manifest
        self._fs = fs
        self._randomness = randomness

    def replace(self, head: Head, old: IndexEntry) -> Head:
        """Puts another object in the place of ``old``, over the same range; several small ones in that of a merged one.

        Raises :class:`CorruptionError` if a segment of the range cannot be read, :class:`ConflictError` if ``old`` has
        left the manifest.
        """
        if old.layout != TIERLOG.name:
            raise CorruptionError(f"objects of layout {old.layout} are not made again", path=old.key)
        first = max(old.first, head.cold_min)  # what lies below has expired, and its segments are gone
        items = min(old.items + 2, _MOST_ITEMS) if old.level else old.items + 2
        part = None if (old.slot_from, old.slot_end) == (0, old.slots) else (old.slot_from, old.slot_end)
        return self._commit(
            head, first=first, following=old.next, slots=old.slots, items=items, remove=(old,), slot_range=part
        )

    def fill(self, head: Head, segment: LogEntry, known: list[IndexEntry]) -> Head:
        """Makes objects for what no object covers of a segment; :class:`CorruptionError` if all of it is covered."""
        end = min(segment.next, head.indexed_to)
        covered = sorted((entry.first, entry.next) for entry in known)
        like = known[-1] if known else None
        missing = uncovered(covered, segment.base, end)
        if not missing:
            raise CorruptionError("index objects cover all of it", path=segment.key)
        for first, following in missing:
            slots, items = (like.slots, like.items + 2) if like else (_MOST_ITEMS, _MOST_ITEMS)
            head = self._commit(head, first=first, following=following, slots=slots, items=items, remove=())
        return head

    def _commit(
        self, head: Head, *, first: int, following: int, slots: int, items: int, remove: tuple[IndexEntry, ...],
        slot_range: Range | None = None,
    ) -> Head:  # fmt: skip
        begun_s = self._manifest.begin_upload()
        shape, fs = IndexShape(slots, max(items, 2), TIERLOG), OverlayFileSystem(self._fs)
        built = build_objects(
            self._manifest,
            head,
            (first, following),
            shape=shape,
            fs=fs,
            folder=_FOLDER,
            randomness=self._randomness,
            slot_range=slot_range,
        )
        return self._manifest.commit_other(ManifestChange(index=built, remove=remove, begun_s=begun_s))


def _has_items(entry: IndexFileEntry, slot_range: Range) -> bool:
    assert isinstance(entry.reader, CompactedIndexFile)
    items = np.ascontiguousarray(entry.reader.all_items(), entry.reader.layout.compacted)  # a view of the file's map
    return len(SlotOrder(items, entry.reader.slots, *slot_range)) > 0


def _until(end: int, ranges: Iterator[LogRange]) -> Iterator[LogRange]:
    """Yields the records below ``end``."""
    for records in ranges:
        if records.end < end:
            yield records
            continue
        rows = records.rows[records.rows["physical_offset"] < end]
        yield LogRange(
            data=records.data,
            base_offset=records.base_offset,
            start=records.start,
            end=end,
            rows=rows,
            topic_ids=records.topic_ids,
        )
        return
