"""Writes an archived segment again under a new name, with chosen records replaced by fillers of the same length.

Positions do not move, so the offset map is the old one, byte for byte, and index items stay valid. The directory
differs in where frames lie; a row's times still say where the removed records lay too. Only frames that hold a chosen
record are compressed again; the others are copied as they are. Nothing is named here. Killed before the caller commits:
an unnamed object, which only costs its space.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import zstandard

from tierlog.tiering.base.errors import ChecksumMismatchError
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.segment.directory import frame_columns
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader, items_in
from tierlog.tiering.format.filler import Filler, make_filler
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.record import Record
from tierlog.tiering.format.section import Page, SectionRef, encode_section, whole_section
from tierlog.tiering.format.sorted_segment import (
    MAGIC_DIRECTORY,
    SKIPPABLE,
    SKIPPABLE_DIRECTORY,
    VERSION,
    FramePlace,
    decode_directory_page,
    decompress_frame,
    encode_directory_page,
    encode_seek_table,
    frame_checksum,
    skippable,
)
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.transfer import ObjectStream, verify_object


@dataclass(frozen=True, slots=True)
class ChosenRecords:
    """Records of one archived segment that are to go: where they begin in each decompressed frame."""

    frames: dict[int, array[int]]

    @property
    def records(self) -> int:
        """Number of the records."""
        return sum(map(len, self.frames.values()))


def choose_records(
    reader: ArchiveReader,
    entry: LogEntry,
    may_hold: Callable[[DirectoryRow], bool],
    is_chosen: Callable[[Record], bool],
) -> ChosenRecords:
    """Returns the records that ``is_chosen`` takes; only frames with a run that ``may_hold`` takes are read.

    Records that are in no queue are asked about like all others; records that were removed before are not.
    """
    segment = SegmentReader(reader, entry)
    frames: dict[int, array[int]] = {}
    for (number, place), rows in groupby(filter(may_hold, segment.runs()), key=lambda row: (row.frame, row.place)):
        frame = segment.frame(place)
        for row in rows:
            position = row.position
            for item in items_in(frame, row):
                if not isinstance(item, Filler) and is_chosen(item):
                    frames.setdefault(number, array("i")).append(position)
                position += item.size
    return ChosenRecords(frames)


def rewrite_segment(
    objects: ObjectStore, reader: ArchiveReader, entry: LogEntry, *, chosen: ChosenRecords, key: str, level: int
) -> LogEntry:
    """Stores the segment of ``entry`` under ``key`` without the chosen records, verified; the entry that names it.

    Memory: one read of 8 MiB, the directory, and what an upload takes. Raises :class:`CorruptionError`, and stores
    nothing, if the old object is not what its entry says.
    """
    writer = _Rewriter(objects, reader, entry, chosen, level)
    objects.upload(key, writer.pieces())
    verify_object(objects, key, writer.size_bytes, writer.crc32)
    return replace(entry, key=key, size_bytes=writer.size_bytes, crc32=writer.crc32, sections=writer.sections)


class _Rewriter:
    """The new object's bytes in order; sizes and sections are known once all were taken."""

    def __init__(
        self, objects: ObjectStore, reader: ArchiveReader, entry: LogEntry, chosen: ChosenRecords, level: int
    ) -> None:
        self.size_bytes = 0
        self.crc32 = 0
        self.sections: dict[str, SectionRef] = {}
        self._reader = reader
        self._entry = entry
        self._chosen = chosen
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        self._old = ObjectStream(objects, entry.key, entry.size_bytes)

    def pieces(self) -> Iterator[bytes]:
        """Frames, the two sections as they were, and a new seek table."""
        segment = SegmentReader(self._reader, self._entry)
        old = segment.seek_table()
        places: list[FramePlace] = []
        for number, end in enumerate(old.compressed[1:].tolist()):
            data = piece = self._old.take_until(end)
            place = old.place(number)
            if number in self._chosen.frames:
                raw = bytearray(decompress_frame(data, place.raw_bytes, path=self._entry.key, position=place.position))
                for position in self._chosen.frames[number]:
                    size = int.from_bytes(raw[position : position + 4], "big")
                    raw[position : position + size] = make_filler(bytes(raw[position : position + size]))
                place = place._replace(checksum=frame_checksum(raw))
                piece = self._compressor.compress(raw)
            places.append(place._replace(position=self.size_bytes, length=len(piece)))
            yield self._written(piece)
        seek = [place[1:] for place in places]
        for name in ("offset_map", "directory"):
            ref = self._entry.sections[name]
            data = self._old.take_until(ref.position + ref.length)
            if name == "directory":
                data, ref = self._directory(data[SKIPPABLE.size :], places)
            self.sections[name] = ref.at(self.size_bytes + SKIPPABLE.size)
            seek.append((len(data), 0, frame_checksum(b"")))
            yield self._written(data)
        self._old.take_rest()
        if self._old.crc32 != self._entry.crc32:
            raise ChecksumMismatchError("archive object differs from its checksum", path=self._entry.key)
        table = encode_seek_table(seek)
        self.sections["seek_table"] = SectionRef(self.size_bytes, len(table), len(table), zlib.crc32(table))
        yield self._written(table)

    def _directory(self, data: bytes, places: list[FramePlace]) -> tuple[bytes, SectionRef]:
        """Returns the skippable frame of a directory whose rows say where the frames lie now."""
        table, old_pages = whole_section(data, MAGIC_DIRECTORY, VERSION, path=self._entry.key)
        pages: list[Page] = []
        for page, info in zip(old_pages, table.pop("pages"), strict=True):
            rows = decode_directory_page(page)
            for name, column in frame_columns(places, rows["frame"].to_numpy()).items():
                index = rows.schema.get_field_index(name)
                rows = rows.set_column(index, rows.schema.field(index), [column])
            pages.append((encode_directory_page(rows), info))
        content, ref = encode_section(MAGIC_DIRECTORY, VERSION, table, pages)
        return skippable(SKIPPABLE_DIRECTORY, content), ref

    def _written(self, piece: bytes) -> bytes:
        self.size_bytes += len(piece)
        self.crc32 = zlib.crc32(piece, self.crc32)
        return piece
