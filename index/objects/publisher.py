"""Publishes compacted index files as index objects and raises ``indexed_to`` (I5 in docs/invariants.md).

An object is put together in a file of ``tmp/`` and uploaded from there. Killed before the commit: that file, which the
next try writes anew, and perhaps an object nobody names. Killed after it: the watermark says that the file is
published, and the local file moves to its folder at the next open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.object_sections import FILTER
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import IndexFileEntry
from tierlog.index.objects.builder import write_index_object
from tierlog.index.objects.resident_filters import ResidentFilters
from tierlog.index.objects.writer import IndexMeta, Written
from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.fs import File, FileSystem
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, IndexEntry
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.transfer import verify_object

#: What one upload sends at a time.
_PIECE_BYTES = 1 << 20
LocalStep = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class AssemblyFolder:
    """A folder in which objects are assembled before they are uploaded."""

    fs: FileSystem
    tmp_dir: Path
    local_step: LocalStep
    """Surrounds every change of a file."""

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[AssemblyFile]:
        """Opens an empty file, gone afterwards; if the store is closed meanwhile, when its name is used again."""
        path = self.tmp_dir / name
        with self.local_step():
            self.fs.make_dirs(self.tmp_dir)
            self.fs.unlink(path)
            file = self.fs.open(path)
        try:
            yield AssemblyFile(file, self.local_step)
        finally:
            file.close()
            with contextlib.suppress(StoreError), self.local_step():
                self.fs.unlink(path)


class AssemblyFile:
    """The bytes of an object that is being assembled, or of what it is made from."""

    def __init__(self, file: File, local_step: LocalStep) -> None:
        self._file = file
        self._local_step = local_step

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Puts bytes at a place."""
        with self._local_step():
            self._file.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        """Returns the bytes at a place."""
        return self._file.read_at(position, length)

    def pieces(self, size_bytes: int) -> Iterator[bytes]:
        """Yields the first so many bytes, some at a time."""
        for start in range(0, size_bytes, _PIECE_BYTES):
            yield self._file.read_at(start, min(_PIECE_BYTES, size_bytes - start))


class IndexPublisher:
    """Publishes one store's index files in ascending order; used by one thread at a time, after a claim."""

    def __init__(
        self,
        index: LocalIndex,
        manifest: ManifestStore,
        *,
        randomness: Randomness,
        fs: FileSystem,
        tmp_dir: Path,
        local_step: LocalStep,
        filters: ResidentFilters | None = None,
    ) -> None:
        """``local_step`` surrounds every change of local files, and refuses it once the store is closing.

        ``filters`` are given those of the objects that are published.
        """
        self._filters = filters
        self._assembly = AssemblyFolder(fs, tmp_dir, local_step)
        self._local_step = local_step
        self._index = index
        self._manifest = manifest
        self._randomness = randomness

    def has_work(self, head: Head) -> bool:
        """Whether :meth:`publish` would commit anything."""
        waiting = self._index.pending()
        if waiting and (waiting[0].next or 0) <= head.archived_to:
            return True
        return min(self._index.published_to(), head.archived_to) > head.indexed_to

    def publish(self, head: Head, topic_names: dict[int, str]) -> tuple[Head, int]:
        """Publishes every compacted file whose segments are all archived; the new head and how many objects."""
        published = 0
        for entry in self._index.pending():
            assert entry.next is not None
            if entry.next > head.archived_to:
                break
            begun_s = self._manifest.begin_upload()
            indexed = upload_file(
                self._manifest, self._randomness, entry, head=head, topic_names=topic_names, assembly=self._assembly,
                filters=self._filters,
            )  # fmt: skip
            change = ManifestChange(index=(indexed,), indexed_to=entry.next, begun_s=begun_s)
            head = self._manifest.commit(change, head)
            with self._local_step():
                self._index.set_indexed_to(head.indexed_to)
            published += 1
        reached = min(self._index.published_to(), head.archived_to)
        if reached > head.indexed_to:  # a range without items needs no object
            head = self._manifest.commit(ManifestChange(indexed_to=reached), head)
            with self._local_step():
                self._index.set_indexed_to(head.indexed_to)
        return head, published


def upload_file(
    manifest: ManifestStore, randomness: Randomness, entry: IndexFileEntry, *, head: Head, topic_names: dict[int, str],
    assembly: AssemblyFolder, filters: ResidentFilters | None = None, slot_range: tuple[int, int] | None = None,
) -> IndexEntry:  # fmt: skip
    """Stores a compacted file as an object under a name of this attempt, verified; committing the entry names it.

    Of ``slot_range``, where there are items, those slots only.
    """
    assert isinstance(entry.reader, CompactedIndexFile)
    assert entry.next is not None
    segments = _SegmentMaps(manifest, head)
    meta = IndexMeta(manifest.keys.store_id, segments.segment_bytes, topic_names)
    with assembly.file(f"object-{entry.begin_ms}") as draft:
        written = write_index_object(draft, entry.reader, segments.to_cold, meta, slot_range=slot_range)
        key = manifest.keys.index(
            0,
            begin_ms=entry.begin_ms,
            first_physical=entry.first,
            epoch=head.epoch,
            nonce=randomness.token_hex(4),
            slots=slot_range,
        )
        upload_assembled(manifest.objects, key, draft, written)
        if filters is not None:  # of an object that nobody will name it stays unused, and goes first
            ref = written.sections[FILTER]
            filters.offer(key, ref, lambda: draft.read_at(ref.position, ref.length))
    return IndexEntry(
        key=key, level=0, first=entry.first, next=entry.next, begin_ms=entry.begin_ms, size_bytes=written.size_bytes,
        crc32=written.crc32, items=written.items, slots=entry.reader.slots, slot_from=written.slot_from,
        slot_end=written.slot_end, layout=entry.reader.layout.name, bounds=entry.bounds,
        sections=dict(written.sections), times_fall=written.times_fall,
    )  # fmt: skip


def upload_assembled(objects: ObjectStore, key: str, draft: AssemblyFile, written: Written) -> None:
    """Stores an assembled object, and verifies it."""
    objects.upload(key, draft.pieces(written.size_bytes))
    verify_object(objects, key, written.size_bytes, written.crc32)


class _SegmentMaps:
    """Physical to cold offsets through the archived segments' own maps."""

    def __init__(self, manifest: ManifestStore, head: Head) -> None:
        self._manifest = manifest
        self._head = head
        self._reader = manifest.reader(scan=True)
        first = next(iter(head.log), None) or next(manifest.log_entries(self._reader, head), None)
        if first is None:
            raise CorruptionError("nothing is archived, but an index file is to be published")
        self.segment_bytes = first.segment_bytes

    def to_cold(self, physical: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the cold offset of each record; :class:`CorruptionError` for an offset that is no archived record."""
        cold = np.empty_like(physical)
        bases = physical - physical % self.segment_bytes
        for base in np.unique(bases).tolist():
            mine = bases == base
            entry = self._manifest.log_entry(self._reader, self._head, base)
            if entry is None:
                raise CorruptionError(f"segment {base} is not archived, but index items point into it")
            known, cold_of = SegmentReader(self._reader, entry).offset_map()
            place = np.searchsorted(known, physical[mine])
            if not len(known) or (known[np.minimum(place, len(known) - 1)] != physical[mine]).any():
                raise CorruptionError(f"index items point to no record of segment {base}", path=entry.key)
            cold[mine] = cold_of[place]
        return cold
