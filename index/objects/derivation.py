"""Derives index objects from archived segments, for a volume that lost its disk before it indexed them.

A segment is put together again in a temporary file, in the order of the log, and goes the way of every segment from
there: scan kernel, local index files, compaction, publication. Memory stays that of one index file, disk that of one
segment and the index files not published yet.

Killed anywhere: ``indexed_to`` says where to go on; the files are garbage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.header import DEFAULT_ITEMS, DEFAULT_SLOTS
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.objects.publisher import IndexPublisher
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import ByteArray, FileSystem
from tierlog.tiering.base.paths import StorePaths, base_offset_name
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanStop, TopicTable, scan


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """Capacity of the files that become objects."""

    slots: int = DEFAULT_SLOTS
    items: int = DEFAULT_ITEMS


def index_from_archive(
    manifest: ManifestStore, head: Head, *, sizes: IndexSizes, fs: FileSystem, folder: Path, randomness: Randomness
) -> Head:
    """Indexes and publishes what is archived but not indexed, as the volume that may write; returns the new head.

    Everything local happens in ``folder``, which is gone afterwards.
    """
    remove_tree(fs, folder)
    if head.indexed_to >= head.archived_to:
        return head
    paths = StorePaths(folder)
    for place in (paths.tmp, paths.tierlog):
        fs.make_dirs(place)
    index = LocalIndex.open(
        fs, paths, slots=sizes.slots, items=sizes.items, layout=TIERLOG,
        border=head.indexed_to, indexed_to=head.indexed_to, log_start=head.indexed_to,
    )  # fmt: skip
    publisher = IndexPublisher(
        index, manifest, randomness=randomness, fs=fs, tmp_dir=paths.tmp, local_step=contextlib.nullcontext
    )
    names = {topic.topic_id: topic.name for topic in manifest.state(manifest.reader(), head).topics}
    for records in archived_ranges(manifest, head, head.indexed_to, names=names, fs=fs, folder=paths.tmp):
        index.on_records(records)
        if records.end % len(records.data) == 0:
            head = _publish(index, publisher, head, names)
    index.seal()
    head = _publish(index, publisher, head, names)
    remove_tree(fs, folder)
    return head


def _publish(index: LocalIndex, publisher: IndexPublisher, head: Head, names: dict[int, str]) -> Head:
    index.maintain()
    return publisher.publish(head, names)[0]


def archived_ranges(
    manifest: ManifestStore, head: Head, start: int, *, names: dict[int, str], fs: FileSystem, folder: Path
) -> Iterator[LogRange]:
    """Yields the archived records from ``start`` on in the order of the log; removed ones are passed over.

    Raises :class:`CorruptionError` for a segment that is missing or holds a topic that has no name.
    """
    reader = manifest.reader(scan=True)
    table, topic_ids = TopicTable(list(names.values())), np.array(list(names), np.int32)
    while start < head.archived_to:
        entry = manifest.segment_of(reader, head, start)
        if entry is None:
            raise CorruptionError(f"no archived segment holds {start}, below archived_to")
        path = folder / base_offset_name(entry.base)
        fs.create(path, entry.segment_bytes, prewrite=False)
        data = fs.map_write(path)
        fs.unlink(path)
        for _ in SegmentReader(reader, entry).put_together(data):
            pass
        for piece in _scanned(data, entry, start, table, topic_ids):
            yield piece
            start = piece.end


def _scanned(
    data: ByteArray, entry: LogEntry, start: int, table: TopicTable, topic_ids: NDArray[np.int32]
) -> Iterator[LogRange]:
    position, end = start - entry.base, entry.raw_bytes
    while position < end:
        found = scan(data, position, end, entry.base, table, check_crc=True, pass_fillers=True)
        if found.stop in (ScanStop.INVALID, ScanStop.UNKNOWN_TOPIC, ScanStop.BLANK):
            raise CorruptionError(
                f"archived record is {found.stop.name.lower().replace('_', ' ')}",
                path=entry.key, position=entry.base + found.position,
            )  # fmt: skip
        yield LogRange(
            data=data,
            base_offset=entry.base,
            start=entry.base + position,
            end=entry.base + found.position,
            rows=found.rows,
            topic_ids=topic_ids,
        )
        position = found.position
    yield LogRange(
        data=data,
        base_offset=entry.base,
        start=entry.base + position,
        end=entry.next,
        rows=np.empty(0, SCAN_ROW),
        topic_ids=topic_ids,
    )


def remove_tree(fs: FileSystem, folder: Path) -> None:
    """Removes a folder and what is in it; one already gone is no error."""
    for name in fs.list_dir(folder):
        path = folder / name
        if fs.is_dir(path):
            remove_tree(fs, path)
        else:
            fs.unlink(path)
    fs.remove_dir(folder)
