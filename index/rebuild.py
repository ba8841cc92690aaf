"""Makes index objects of archived segments again: what takes the place of one that is lost, damaged or wrong.

Killed before the commit: objects that nobody names, which the sweep removes after grace; after it, the archive has the
new ones in place of the old. No watermark moves, and no reader sees both or neither: objects come and go in one commit,
which is refused if the range has other objects by then than those it was planned on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from index.compacted_file import CompactedIndexFile
from index.from_archive import archived_ranges
from index.layout import TIERLOG
from index.local_index import LocalIndex
from index.object_order import SlotOrder
from index.publish import Workbench, upload_file
from index.ranges import uncovered
from index.rebuild_plan import IndexShape, Range, Stretch
from index.snapshot import IndexFileEntry
from tiering.cold.manifest_change import ManifestChange
from tiering.cold.manifest_store import ManifestStore
from tiering.errors import ConflictError, CorruptionError
from tiering.format.manifest import Head, IndexEntry, LogEntry
from tiering.fs import FileSystem
from tiering.hot.dispatch import LogRange
from tiering.overlay import OverlayFileSystem
from tiering.paths import StorePaths
from tiering.randomness import Randomness

_FOLDER = Path("/tierlog-rebuild")
_MOST_ITEMS = 1 << 20


def build_objects(
    manifest: ManifestStore, head: Head, span: Range, shape: IndexShape, fs: FileSystem, folder: Path,
    randomness: Randomness, slot_range: Range | None = None,
) -> tuple[IndexEntry, ...]:  # fmt: skip
    """Store index objects of the records in the physical range ``span``; who commits the entries names them.

    The objects' ranges lie in ``span`` in ascending order; what has no keys has no object. ``slot_range`` leaves out
    what other objects hold of the same records. Everything local happens in ``folder``: one segment, and the index
    files that are not uploaded yet. Raises :class:`CorruptionError` if a segment cannot be read or is missing,
    :class:`InvalidRequestError` for a shape that no file can have, the object store's errors.
    """
    first, end = span
    paths = StorePaths(folder)
    for place in (paths.tmp, paths.tierlog):
        fs.make_dirs(place)
    index = LocalIndex.open(
        fs, paths, slots=shape.slots, items=shape.items, layout=shape.layout,
        border=first, indexed_to=first, log_start=first,
    )  # fmt: skip
    names = {topic.topic_id: topic.name for topic in manifest.state(manifest.reader(), head).topics}
    workbench = Workbench(fs, paths.tmp, contextlib.nullcontext)
    built: list[IndexEntry] = []

    def upload() -> None:
        index.keep_house()
        for entry in index.pending():
            assert entry.next is not None
            if slot_range is None or _has_items(entry, slot_range):
                built.append(upload_file(manifest, randomness, entry, head, names, workbench, slot_range=slot_range))
            index.set_indexed_to(entry.next)
            index.remove_below(entry.next)
        index.keep_house()

    for records in _until(end, archived_ranges(manifest, head, first, names, fs, paths.tmp)):
        index.on_records(records)
        if records.end % len(records.data) == 0:
            upload()
    index.seal()
    upload()
    return tuple(built)


def replace_stretch(manifest: ManifestStore, stretch: Stretch, built: tuple[IndexEntry, ...], begun_s: float) -> Head:
    """Name ``built`` in place of the old objects of a stretch, in one commit.

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
        """Another object in the place of ``old``, over the same range; several small ones in that of a merged one.

        Raises :class:`CorruptionError` if a segment of the range cannot be read, :class:`ConflictError` if ``old`` has
        left the manifest.
        """
        if old.layout != TIERLOG.name:
            raise CorruptionError(f"objects of layout {old.layout} are not made again", path=old.key)
        first = max(old.first, head.cold_min)  # what lies below has expired, and its segments are gone
        items = min(old.items + 2, _MOST_ITEMS) if old.level else old.items + 2
        part = None if (old.slot_from, old.slot_end) == (0, old.slots) else (old.slot_from, old.slot_end)
        return self._commit(head, first, old.next, old.slots, items, (old,), part)

    def fill(self, head: Head, segment: LogEntry, known: list[IndexEntry]) -> Head:
        """Objects for what no object covers of a segment; :class:`CorruptionError` if all of it is covered."""
        end = min(segment.next, head.indexed_to)
        covered = sorted((entry.first, entry.next) for entry in known)
        like = known[-1] if known else None
        missing = uncovered(covered, segment.base, end)
        if not missing:
            raise CorruptionError("index objects cover all of it", path=segment.key)
        for first, following in missing:
            slots, items = (like.slots, like.items + 2) if like else (_MOST_ITEMS, _MOST_ITEMS)
            head = self._commit(head, first, following, slots, items, ())
        return head

    def _commit(
        self, head: Head, first: int, following: int, slots: int, items: int, remove: tuple[IndexEntry, ...],
        slot_range: Range | None = None,
    ) -> Head:  # fmt: skip
        begun_s = self._manifest.begin_upload()
        shape, fs = IndexShape(slots, max(items, 2), TIERLOG), OverlayFileSystem(self._fs)
        built = build_objects(
            self._manifest, head, (first, following), shape, fs, _FOLDER, self._randomness, slot_range
        )
        return self._manifest.commit_other(ManifestChange(index=built, remove=remove, begun_s=begun_s))


def _has_items(entry: IndexFileEntry, slot_range: Range) -> bool:
    assert isinstance(entry.reader, CompactedIndexFile)
    items = np.ascontiguousarray(entry.reader.all_items(), entry.reader.layout.compacted)  # a view of the file's map
    return len(SlotOrder(items, entry.reader.slots, *slot_range)) > 0


def _until(end: int, ranges: Iterator[LogRange]) -> Iterator[LogRange]:
    """The records below ``end``."""
    for records in ranges:
        if records.end < end:
            yield records
            continue
        rows = records.rows[records.rows["physical_offset"] < end]
        yield LogRange(records.data, records.base_offset, records.start, end, rows, records.topic_ids)
        return
