"""Derives the manifest entry and the queue rows of a sorted segment, for a manifest that has lost them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import reduce

import numpy as np

from tierlog.tiering.base.errors import TornRecordError
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.cold.reading.archive_reader import uncached_reader
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.queue_rows import QUEUE_ROW, QueueRows
from tierlog.tiering.format.section import HEADER, SectionRef
from tierlog.tiering.format.sorted_segment import (
    MAGIC_DIRECTORY,
    MAGIC_OFFSET_MAP,
    SEEK_ROW,
    SKIPPABLE,
    decode_seek_table,
)
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.transfer import ObjectStream

#: uint32 frames, a descriptor byte and a magic end the seek table.
_FOOTER_BYTES = 9


def rows_of_directory(runs: Iterable[DirectoryRow], base: int, topic_ids: Mapping[str, int]) -> QueueRows:
    """Returns the queue rows that a directory implies, which checking compares and repairing writes.

    There is one for each run of consecutive queue offsets, over all frames; topics without an id are left out.
    """
    found: list[tuple[int, ...]] = []
    last: tuple[int, int, int] | None = None
    first, count, bounds = 0, 0, TimeBounds(0, 0, 0, 0)

    def end() -> None:
        if last is not None:
            found.append(
                (last[0], last[1], base, first, count, bounds.min_store_ms, bounds.max_store_ms,
                 bounds.min_born_ms, bounds.max_born_ms)
            )  # fmt: skip

    for run in runs:
        topic_id = topic_ids.get(run.topic)
        if topic_id is None or run.first_queue_offset < 0:
            continue
        if last == (topic_id, run.queue_id, run.first_queue_offset):
            count, bounds = count + run.records, bounds.union(run.bounds)
        else:
            end()
            first, count, bounds = run.first_queue_offset, run.records, run.bounds
        last = topic_id, run.queue_id, run.first_queue_offset + run.records
    end()
    return np.array(found, QUEUE_ROW)


def entry_of_segment(objects: ObjectStore, key: str, added: int) -> LogEntry:
    """Returns the entry of a sorted segment, without queue rows; reads all of the object.

    Raises :class:`CorruptionError` for a damaged one.
    """
    # size and checksum of the whole object
    size = objects.head(key).size_bytes
    stream = ObjectStream(objects, key, size)
    stream.take_rest()
    # the seek table, from its footer
    frames = int.from_bytes(objects.get_range(key, max(0, size - _FOOTER_BYTES), size)[:4], "little")
    seek_bytes = SKIPPABLE.size + frames * SEEK_ROW.itemsize + _FOOTER_BYTES
    if seek_bytes > size:
        raise TornRecordError("no seek table at the end", path=key)
    table = objects.get_range(key, size - seek_bytes, size)
    seek = decode_seek_table(table, path=key)
    # the two sections behind the record frames, which follow each other
    offset_map = _section(objects, key, size, int(seek.compressed[-1]) + SKIPPABLE.size)
    directory = _section(objects, key, size, offset_map.position + offset_map.length + SKIPPABLE.size)
    sections = {
        "offset_map": offset_map,
        "directory": directory,
        "seek_table": SectionRef(size - seek_bytes, len(table), len(table), zlib.crc32(table)),
    }
    # enough of an entry to read the directory, which tells the rest
    entry = LogEntry(
        key=key,
        base=0,
        segment_bytes=0,
        size_bytes=size,
        crc32=stream.crc32,
        raw_bytes=int(seek.decompressed[-1]),
        records=0,
        bounds=None,
        sections=sections,
        rows=None,
        added=added,
    )
    segment = SegmentReader(uncached_reader(objects), entry)
    said, runs = segment.directory_table(), list(segment.runs())
    bounds = reduce(TimeBounds.union, [run.bounds for run in runs]) if runs else None
    return LogEntry(
        key=key, base=said["base"], segment_bytes=said["segment_bytes"], size_bytes=size, crc32=stream.crc32,
        raw_bytes=entry.raw_bytes, records=len(segment.offset_map()[0]), bounds=bounds, sections=sections, rows=None,
        added=added,
    )  # fmt: skip


def _section(objects: ObjectStore, key: str, size: int, position: int) -> SectionRef:
    if position + HEADER.size > size:
        raise TornRecordError("section lies outside of the object", path=key)
    magic, _, table_length, length, _ = HEADER.unpack(objects.get_range(key, position, position + HEADER.size))
    if magic not in (MAGIC_OFFSET_MAP, MAGIC_DIRECTORY) or position + max(length, HEADER.size + table_length) > size:
        raise TornRecordError("no section where the frames end", path=key, position=position)
    head = objects.get_range(key, position, position + HEADER.size + table_length)
    return SectionRef(position, length, len(head), zlib.crc32(head))
