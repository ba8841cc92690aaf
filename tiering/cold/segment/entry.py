"""The manifest entry of a sorted segment as the object itself tells it, for a manifest that has lost it."""

from __future__ import annotations

import zlib
from functools import reduce

from tiering.cold.object_store import ObjectStore
from tiering.cold.object_stream import ObjectStream
from tiering.cold.reading import ArchiveCache, ArchiveReader
from tiering.cold.segment.reader import SegmentReader
from tiering.errors import TornRecordError
from tiering.format.manifest import LogEntry
from tiering.format.section import HEADER, SectionRef
from tiering.format.sorted_segment import MAGIC_DIRECTORY, MAGIC_OFFSET_MAP, SEEK_ROW, SKIPPABLE, decode_seek_table
from tiering.types import TimeBounds

#: uint32 frames, a descriptor byte and a magic end the seek table.
_FOOTER_BYTES = 9


def entry_of_segment(objects: ObjectStore, key: str, added: int) -> LogEntry:
    """The entry, without queue rows; reads all of the object. Raises :class:`CorruptionError` for a damaged one."""
    size = objects.head(key).size_bytes
    stream = ObjectStream(objects, key, size)
    stream.take_rest()
    frames = int.from_bytes(objects.get_range(key, max(0, size - _FOOTER_BYTES), size)[:4], "little")
    seek_bytes = SKIPPABLE.size + frames * SEEK_ROW.itemsize + _FOOTER_BYTES
    if seek_bytes > size:
        raise TornRecordError("no seek table at the end", path=key)
    table = objects.get_range(key, size - seek_bytes, size)
    seek = decode_seek_table(table, path=key)
    offset_map = _section(objects, key, size, int(seek.compressed[-1]) + SKIPPABLE.size)
    directory = _section(objects, key, size, offset_map.position + offset_map.length + SKIPPABLE.size)
    sections = {
        "offset_map": offset_map,
        "directory": directory,
        "seek_table": SectionRef(size - seek_bytes, len(table), len(table), zlib.crc32(table)),
    }
    entry = LogEntry(key, 0, 0, size, stream.crc32, int(seek.decompressed[-1]), 0, None, sections, None, added)
    segment = SegmentReader(ArchiveReader(objects, ArchiveCache(0), scan=True), entry)
    said, runs = segment.directory_table(), list(segment.runs())
    bounds = reduce(TimeBounds.union, [run.bounds for run in runs]) if runs else None
    return LogEntry(
        key, said["base"], said["segment_bytes"], size, stream.crc32, entry.raw_bytes, len(segment.offset_map()[0]),
        bounds, sections, None, added,
    )  # fmt: skip


def _section(objects: ObjectStore, key: str, size: int, position: int) -> SectionRef:
    if position + HEADER.size > size:
        raise TornRecordError("section lies outside of the object", path=key)
    magic, _, table_length, length, _ = HEADER.unpack(objects.get_range(key, position, position + HEADER.size))
    if magic not in (MAGIC_OFFSET_MAP, MAGIC_DIRECTORY) or position + max(length, HEADER.size + table_length) > size:
        raise TornRecordError("no section where the frames end", path=key, position=position)
    head = objects.get_range(key, position, position + HEADER.size + table_length)
    return SectionRef(position, length, len(head), zlib.crc32(head))
