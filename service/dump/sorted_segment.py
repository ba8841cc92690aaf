"""Archived segments: seek table, directory, offset map and records of a seekable zstd file.

Frames are found from the seek table or, without one, by walking over them from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import zstandard
from numpy.typing import NDArray

from tierlog.service.dump.log_files import base_of
from tierlog.service.dump.records import MAX_RECORD_BYTES, RECORD_COLUMNS, SHOWN, faults_of, filler_row, record_row
from tierlog.service.dump.result import Dump, DumpOptions, Json, columns_of, cut, window
from tierlog.service.dump.source import Source, pages_of, read_head, read_page
from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.format.record import BLANK, MAGIC_FILLER, decode_record
from tierlog.tiering.format.section import SectionHead
from tierlog.tiering.format.sorted_segment import (
    DIRECTORY_SCHEMA,
    MAGIC_DIRECTORY,
    MAGIC_OFFSET_MAP,
    MAP_PAGE_RECORDS,
    SEEK_ROW,
    SKIPPABLE,
    SKIPPABLE_DIRECTORY,
    SKIPPABLE_OFFSET_MAP,
    VERSION,
    decode_directory_page,
    decode_map_page,
    decode_seek_table,
    decompress_frame,
)

#: uint32 frames, a descriptor byte and the magic that ends every seekable zstd file.
_FOOTER_BYTES = 9
SEEKABLE_MAGIC = bytes.fromhex("b1ea928f")
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
#: A longer frame is taken for damage: it holds records of one run, or one record.
MAX_FRAME_BYTES = 2 * MAX_RECORD_BYTES
_SKIPPABLE_MAGICS = range(0x184D2A50, 0x184D2A60)
_FRAME_HEAD_BYTES = 18
#: Taken at a time to find the end of a frame; what comes out of so few bytes is bounded.
_STEP_BYTES = 1 << 10

_SECTIONS = {SKIPPABLE_OFFSET_MAP: ("map", MAGIC_OFFSET_MAP), SKIPPABLE_DIRECTORY: ("directory", MAGIC_DIRECTORY)}
_HEAD_BYTES = 36

_DIRECTORY_COLUMNS = {name: "text" if name == "topic" else "int" for name in DIRECTORY_SCHEMA.names}
_FRAME_COLUMNS = columns_of("frame kind:text position compressed_bytes decompressed_position bytes checksum:text")
_MAP_COLUMNS = columns_of("record physical_offset cold_offset size_bytes")
_RECORD_COLUMNS = {"cold_offset": "int", "frame": "int", **RECORD_COLUMNS}


def seek_rows(source: Source) -> NDArray[np.void]:
    """Reads the rows of the seek table but its own; :class:`CorruptionError` unless they make up the object."""
    footer = source.read(source.size - _FOOTER_BYTES, source.size)
    if len(footer) < _FOOTER_BYTES or footer[-4:] != SEEKABLE_MAGIC:
        raise CorruptionError("no seek table at the end: the object is cut short or damaged")
    count = int.from_bytes(footer[:4], "little")
    length = SKIPPABLE.size + SEEK_ROW.itemsize * count + _FOOTER_BYTES
    if length > source.size:
        raise CorruptionError(f"seek table says it has {count} frames")
    data = source.read(source.size - length, source.size)
    decode_seek_table(data, path=source.name)
    rows = np.frombuffer(data, SEEK_ROW, count, SKIPPABLE.size)
    if int(rows["compressed"].sum(dtype=np.int64)) + length != source.size:
        raise CorruptionError("frames of the seek table do not make up the object")
    return rows


def walk_frames(source: Source) -> NDArray[np.void]:
    """Makes those rows from the frames themselves, as far as whole ones follow each other; checksums are 0."""
    rows: list[tuple[int, int, int]] = []
    position = 0
    while position < source.size:
        head = source.read(position, position + _FRAME_HEAD_BYTES)
        if len(head) >= SKIPPABLE.size and int.from_bytes(head[:4], "little") in _SKIPPABLE_MAGICS:
            found = SKIPPABLE.size + int.from_bytes(head[4:8], "little"), 0
        elif head[:4] == ZSTD_MAGIC:
            found = _walked_frame(source, position, head)
        else:
            break
        if not 0 < found[0] <= source.size - position:
            break
        rows.append((*found, 0))
        position += found[0]
    return np.array(rows, SEEK_ROW)


def _walked_frame(source: Source, position: int, head: bytes) -> tuple[int, int]:
    """Returns compressed and decompressed length of a zstd frame; 0 for one that is not whole."""
    try:
        size = zstandard.frame_content_size(head)
        stream = zstandard.ZstdDecompressor().decompressobj()
        at, made = position, 0
        while 0 < size <= MAX_FRAME_BYTES and made <= size and at < source.size:
            data = source.read(at, at + _STEP_BYTES)
            made += len(stream.decompress(data))
            at += len(data)
            if stream.eof:
                return at - len(stream.unused_data) - position, size
    except zstandard.ZstdError:
        pass
    return 0, 0


@dataclass(slots=True)
class _Segment:
    source: Source
    options: DumpOptions
    dump: Dump
    rows: NDArray[np.void]
    """The seek table: a row for every frame but the seek table's own."""
    base: int = 0
    sections: dict[str, tuple[int, SectionHead]] = field(default_factory=dict)

    def starts(self, column: str) -> NDArray[np.int64]:
        """Returns where each frame begins, and the end of the last."""
        found = np.zeros(len(self.rows) + 1, np.int64)
        np.cumsum(self.rows[column], out=found[1:])
        return found


def dump_sorted_segment(source: Source, options: DumpOptions) -> Dump:
    """Dumps the head of the segment, and the part that was asked for."""
    dump = Dump("sorted-segment", {"bytes": source.size})
    with dump.surviving():
        segment = _Segment(source, options, dump, _rows_of(source, dump))
        _find_sections(segment)
        is_record = segment.rows["decompressed"] > 0
        dump.head |= {
            "frames": int(is_record.sum()), "raw_bytes": int(segment.rows["decompressed"].sum(dtype=np.int64)),
            "compressed_bytes": int(segment.rows["compressed"][is_record].sum(dtype=np.int64)),
        }  # fmt: skip
        _describe(segment)
        match options.part:
            case "frames":
                dump.name, dump.columns, dump.rows = "frames", _FRAME_COLUMNS, _frames(segment)
            case "map":
                dump.name, dump.columns, dump.rows = "records", _MAP_COLUMNS, cut(_map(segment), options)
            case "records":
                dump.name, dump.columns, dump.rows = "records", _RECORD_COLUMNS, _records(segment)
                dump.shown = ("cold_offset", *SHOWN)
            case _:
                dump.name, dump.columns = "directory", _DIRECTORY_COLUMNS
                dump.rows = cut(_directory(segment), options)
    return dump


def _rows_of(source: Source, dump: Dump) -> NDArray[np.void]:
    try:
        return seek_rows(source)
    except CorruptionError as error:
        dump.find(f"{error.message}; frames are taken one after the other")
        return walk_frames(source)


def _find_sections(segment: _Segment) -> None:
    source, starts = segment.source, segment.starts("compressed")
    for number in np.flatnonzero(segment.rows["decompressed"] == 0).tolist():
        start, end = int(starts[number]), int(starts[number + 1])
        head = source.read(start, min(end, start + SKIPPABLE.size))
        magic, length = SKIPPABLE.unpack(head) if len(head) == SKIPPABLE.size else (0, 0)
        name, section_magic = _SECTIONS.get(magic, ("", b""))
        if length != end - start - SKIPPABLE.size or not name:
            segment.dump.find(f"skippable frame {number} is not as long as the seek table says, or of an unknown kind")
            continue
        with segment.dump.surviving(name):
            at = start + SKIPPABLE.size
            segment.sections[name] = at, read_head(source, at, end, section_magic, VERSION)
    for name in {name for name, _ in _SECTIONS.values()} - segment.sections.keys():
        segment.dump.find(f"the {name} cannot be read")


def _describe(segment: _Segment) -> None:
    base = base_of(segment.source.parts[-1][:20])
    for name, keys in (
        ("map", ("base",)),
        ("directory", ("base", "segment_bytes", "blank_position", "blank_length")),
    ):
        if name in segment.sections:
            at, head = segment.sections[name]
            segment.dump.head |= {key: head.table.get(key) for key in keys}
            segment.dump.head[f"{name}_section"] = {"position": at, "bytes": head.length, "pages": _page_count(head)}
    stated = segment.dump.head.get("base", base)
    segment.base = stated if isinstance(stated, int) else base or 0


def _page_count(head: SectionHead) -> int | None:
    pages = head.table.get("pages")
    return len(pages) if isinstance(pages, list) else None


def _frames(segment: _Segment) -> Iterator[Json]:
    compressed, decompressed = segment.starts("compressed"), segment.starts("decompressed")
    start, stop = window(segment.options, 0, len(segment.rows))
    for number in range(start, stop):
        row = segment.rows[number]
        yield {
            "frame": number, "kind": "records" if row["decompressed"] else "section",
            "position": int(compressed[number]), "compressed_bytes": int(row["compressed"]),
            "decompressed_position": int(decompressed[number]), "bytes": int(row["decompressed"]),
            "checksum": f"{int(row['checksum']):08x}",
        }  # fmt: skip


def _directory(segment: _Segment) -> Iterator[Json]:
    if "directory" not in segment.sections:
        return
    at, head = segment.sections["directory"]
    with segment.dump.surviving("directory"):
        for page in pages_of(head):
            with segment.dump.surviving("directory page"):
                yield from decode_directory_page(read_page(segment.source, at, page)).to_pylist()


def _map(segment: _Segment) -> Iterator[Json]:
    if "map" not in segment.sections:
        return
    at, head = segment.sections["map"]
    number = 0
    with segment.dump.surviving("offset map"):
        for page in pages_of(head):
            with segment.dump.surviving("page of the offset map"):
                info = page.info
                if not 0 <= info["records"] <= MAP_PAGE_RECORDS:
                    raise CorruptionError(f"a page of {info['records']} records")
                data = read_page(segment.source, at, page)
                physical, cold = decode_map_page(data, info["records"], info["first_physical"], info["first_cold"])
                ends = np.append(physical[1:], -1)
                for place, offset in enumerate(physical.tolist()):
                    # the next record begins where one ends; the last of a page has no next here
                    size = int(ends[place]) - offset if ends[place] >= 0 else None
                    yield {
                        "record": number, "physical_offset": segment.base + offset,
                        "cold_offset": segment.base + int(cold[place]), "size_bytes": size,
                    }  # fmt: skip
                    number += 1


def _records(segment: _Segment) -> Iterator[Json]:
    """Yields every record in its order in the archive; ``--from`` is a cold offset."""
    options = segment.options
    first = -1 if options.start is None else options.start - segment.base
    compressed, decompressed = segment.starts("compressed"), segment.starts("decompressed")
    shown = 0
    for number in np.flatnonzero(segment.rows["decompressed"] > 0).tolist():
        position = int(decompressed[number])
        if int(decompressed[number + 1]) <= first:
            continue
        frame = b""
        with segment.dump.surviving(f"frame {number}"):
            frame = _frame(segment, int(compressed[number]), segment.rows[number])
        for row in _records_of(segment, frame, position, number):
            if row["cold_offset"] - segment.base < first:
                continue
            if shown == options.limit:
                return
            yield row
            shown += 1


def _frame(segment: _Segment, start: int, row: np.void) -> bytes:
    length = int(row["decompressed"])
    if length > MAX_FRAME_BYTES:
        raise CorruptionError(f"a frame of {length} bytes")
    data = segment.source.read(start, start + int(row["compressed"]))
    return decompress_frame(data, length, path=segment.source.name, position=start)


def _records_of(segment: _Segment, frame: bytes, position: int, number: int) -> Iterator[Json]:
    at = 0
    while at < len(frame):
        where = {"cold_offset": segment.base + position + at, "frame": number}
        head = frame[at : at + _HEAD_BYTES]
        try:
            if len(head) == _HEAD_BYTES and head[4:8] == MAGIC_FILLER.to_bytes(4, "big"):
                row = filler_row(position + at, head)
            else:
                record = decode_record(frame, at, verify=False)
                raw = frame[at : at + record.size]
                row = record_row(position + at, record, raw, segment.options)
        except StoreError as error:
            segment.dump.find(f"record at cold offset {where['cold_offset']}: {error.message}")
            return
        for name in faults_of(row):
            segment.dump.find(f"record at cold offset {where['cold_offset']}: {name} is bad")
        if row["physical_offset"] < segment.base:
            segment.dump.find(f"record at cold offset {where['cold_offset']} is of another segment")
        yield {**where, **row}
        if row["size_bytes"] < BLANK.size or at + row["size_bytes"] > len(frame):
            segment.dump.find(f"record at cold offset {where['cold_offset']} leaves its frame")
            return
        at += row["size_bytes"]
