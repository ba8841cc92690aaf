"""Makes index objects of archived segments again: what takes the place of one that is lost, damaged or wrong.

Everything local happens in memory: one segment and one index file. Killed before the commit: objects that nobody
names; after it, the archive has the new ones. No watermark moves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from index.from_archive import archived_ranges
from index.layout import TIERLOG
from index.local_index import LocalIndex
from index.publish import Workbench, upload_file
from index.ranges import uncovered
from tiering.cold.manifest_change import ManifestChange
from tiering.cold.manifest_store import ManifestStore
from tiering.errors import CorruptionError
from tiering.format.manifest import Head, IndexEntry, LogEntry
from tiering.fs import FileSystem
from tiering.hot.dispatch import LogRange
from tiering.overlay import OverlayFileSystem
from tiering.paths import StorePaths
from tiering.randomness import Randomness

_FOLDER = Path("/tierlog-rebuild")
_MOST_ITEMS = 1 << 20


class IndexRebuild:
    """Rebuilds parts of one archive's index; for anybody, not only the store's owner."""

    def __init__(self, manifest: ManifestStore, fs: FileSystem, randomness: Randomness) -> None:
        """Nothing reaches ``fs``: a layer in memory lies over it."""
        self._manifest = manifest
        self._fs = fs
        self._randomness = randomness

    def replace(self, head: Head, old: IndexEntry) -> Head:
        """Another object in the place of ``old``, over the same range.

        Raises :class:`CorruptionError` if a segment of the range cannot be read, :class:`ConflictError` if ``old`` has
        left the manifest.
        """
        if old.level or old.layout != TIERLOG.name:
            raise CorruptionError("a merged object is made again by merging", path=old.key)
        first = max(old.first, head.cold_min)  # what lies below has expired, and its segments are gone
        return self._commit(head, first, old.next, old.slots, old.items + 2, (old,))

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
        self, head: Head, first: int, following: int, slots: int, items: int, remove: tuple[IndexEntry, ...]
    ) -> Head:
        begun_s = self._manifest.begin_upload()
        built = self._build(head, first, following, slots, items)
        return self._manifest.commit_other(ManifestChange(index=built, remove=remove, begun_s=begun_s))

    def _build(self, head: Head, first: int, following: int, slots: int, items: int) -> tuple[IndexEntry, ...]:
        fs = OverlayFileSystem(self._fs)
        paths = StorePaths(_FOLDER)
        for place in (paths.tmp, paths.tierlog):
            fs.make_dirs(place)
        index = LocalIndex.open(
            fs, paths, slots=slots, items=max(items, 2), layout=TIERLOG,
            border=first, indexed_to=first, log_start=first,
        )  # fmt: skip
        names = {topic.topic_id: topic.name for topic in self._manifest.state(self._manifest.reader(), head).topics}
        for records in _until(following, archived_ranges(self._manifest, head, first, names, fs, paths.tmp)):
            index.on_records(records)
        index.seal()
        index.compact_sealed()
        workbench = Workbench(fs, paths.tmp, contextlib.nullcontext)
        return tuple(
            upload_file(self._manifest, self._randomness, entry, head, names, workbench) for entry in index.pending()
        )


def _until(end: int, ranges: Iterator[LogRange]) -> Iterator[LogRange]:
    """The records below ``end``."""
    for records in ranges:
        if records.end < end:
            yield records
            continue
        rows = records.rows[records.rows["physical_offset"] < end]
        yield LogRange(records.data, records.base_offset, records.start, end, rows, records.topic_ids)
        return
