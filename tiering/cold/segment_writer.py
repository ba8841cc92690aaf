"""Lays one log segment out as a sorted segment and yields its bytes piece by piece.

Order: topic (unsigned UTF-8 bytes), queue id, records without a queue unit last, queue offset, physical
offset. A frame holds part of one queue's run, or several queues' whole runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import zstandard
from numpy.typing import NDArray

from tiering.errors import CorruptionError
from tiering.format.queue_rows import QUEUE_ROW, QueueRows
from tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from tiering.format.section import SectionRef, encode_section
from tiering.format.sorted_segment import (
    DIRECTORY_PAGE_ROWS,
    DIRECTORY_SCHEMA,
    MAGIC_DIRECTORY,
    MAGIC_OFFSET_MAP,
    MAP_PAGE_RECORDS,
    SKIPPABLE,
    SKIPPABLE_DIRECTORY,
    SKIPPABLE_OFFSET_MAP,
    VERSION,
    encode_directory_page,
    encode_map_page,
    encode_seek_table,
    frame_checksum,
    skippable,
)
from tiering.fs import ByteArray
from tiering.kernels.gather import gather
from tiering.kernels.scan import ScanRows, ScanStop, TopicTable, in_queues, scan_all
from tiering.options import ColdOptions
from tiering.types import TimeBounds

_TAIL_PIECE_BYTES = 1 << 20
_TIME_COLUMNS = {"store": "store_ms", "born": "born_ms"}


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """A whole rolled segment: its bytes, one row a record, and where its blank record lies."""

    data: ByteArray
    base_offset: int
    rows: ScanRows
    blank_position: int


def scan_segment(data: ByteArray, base_offset: int, topics: TopicTable) -> ScannedSegment:
    """Read a rolled segment with every checksum verified; :class:`CorruptionError` where it is damaged."""
    found = scan_all(data, len(data), base_offset, topics)
    if found.stop is not ScanStop.BLANK:
        raise CorruptionError(
            f"segment is damaged ({found.stop.name.lower()})", path="commitlog", position=base_offset + found.position
        )
    return ScannedSegment(data, base_offset, found.rows, found.position)


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What the manifest needs to know about a written sorted segment."""

    size_bytes: int
    crc32: int
    raw_bytes: int
    records: int
    bounds: TimeBounds | None
    sections: dict[str, SectionRef]
    queue_rows: QueueRows


class SegmentWriter:
    """One attempt to write one sorted segment; :meth:`summary` is known once all pieces were taken."""

    def __init__(
        self,
        segment: ScannedSegment,
        topic_names: Sequence[str],
        topic_ids: NDArray[np.int32],
        options: ColdOptions,
    ) -> None:
        """``topic_names`` and ``topic_ids`` are indexed by the rows' topic numbers."""
        self._segment = segment
        self._names = topic_names
        self._ids = topic_ids
        self._options = options
        self._summary: SegmentSummary | None = None

    def summary(self) -> SegmentSummary:
        """Sizes, checksums and places; only after :meth:`pieces` is exhausted."""
        if self._summary is None:
            raise RuntimeError("the segment is not written yet")
        return self._summary

    def pieces(self) -> Iterator[bytes]:
        """The object's bytes in order."""
        rows = self._sorted_rows()
        sizes = rows["size"].astype(np.int64)
        cold = np.cumsum(sizes) - sizes
        groups = _cuts(rows["topic_number"], rows["queue_id"])
        frames = _cut_frames(groups, sizes, self._options.frame_bytes)
        size_bytes = crc = 0
        seek: list[tuple[int, int, int]] = []

        def account(piece: bytes, decompressed: int, checksum: int) -> bytes:
            nonlocal size_bytes, crc
            size_bytes += len(piece)
            crc = zlib.crc32(piece, crc)
            seek.append((len(piece), decompressed, checksum))
            return piece

        compressor = zstandard.ZstdCompressor(
            level=self._options.compression_level, write_checksum=True, write_content_size=True
        )
        positions = rows["position"].astype(np.int64)
        for first, last in pairwise(frames):
            length = int(sizes[first:last].sum())
            raw = gather(self._segment.data, positions, sizes, int(first), int(last), length)
            yield account(compressor.compress(raw.data), length, frame_checksum(raw.data))

        sections: dict[str, SectionRef] = {}
        for name, magic, (content, ref) in (
            ("offset_map", SKIPPABLE_OFFSET_MAP, self._offset_map(rows, sizes, cold)),
            ("directory", SKIPPABLE_DIRECTORY, self._directory(rows, sizes, cold, groups, frames)),
        ):
            sections[name] = ref.at(size_bytes + SKIPPABLE.size)
            yield account(skippable(magic, content), 0, frame_checksum(b""))
        table = encode_seek_table(seek)
        sections["seek_table"] = SectionRef(size_bytes, len(table), len(table), zlib.crc32(table))
        yield account(table, 0, 0)
        self._summary = SegmentSummary(
            size_bytes,
            crc,
            int(sizes.sum()),
            len(rows),
            _bounds(rows),
            sections,
            self._queue_rows(rows, groups),
        )

    def _sorted_rows(self) -> ScanRows:
        rows = self._segment.rows
        rank = np.argsort(np.argsort(np.array([name.encode() for name in self._names] or [b""], object)))
        without_unit = ~in_queues(rows)
        order = np.lexsort(
            (
                rows["physical_offset"], rows["queue_offset"], without_unit, rows["queue_id"],
                rank[rows["topic_number"]],
            )
        )  # fmt: skip
        rows = rows[order]
        rows["queue_offset"][without_unit[order]] = -1
        return rows

    def _offset_map(
        self, rows: ScanRows, sizes: NDArray[np.int64], cold: NDArray[np.int64]
    ) -> tuple[bytes, SectionRef]:
        order = np.argsort(rows["position"])
        physical, sizes, cold = rows["position"][order], sizes[order], cold[order]
        pages = []
        for start in range(0, len(order), MAP_PAGE_RECORDS):
            end = min(start + MAP_PAGE_RECORDS, len(order))
            info = {
                "records": end - start,
                "first_physical": int(physical[start]),
                "first_cold": int(cold[start]),
            }
            pages.append((encode_map_page(sizes[start:end], cold[start:end]), info))
        return encode_section(MAGIC_OFFSET_MAP, VERSION, {"base": self._segment.base_offset}, pages)

    def _directory(
        self,
        rows: ScanRows,
        sizes: NDArray[np.int64],
        cold: NDArray[np.int64],
        groups: NDArray[np.int64],
        frames: NDArray[np.int64],
    ) -> tuple[bytes, SectionRef]:
        starts = np.unique(np.concatenate((_runs(rows, groups), frames[:-1]))).astype(np.int64)
        frame = np.searchsorted(frames, starts, side="right") - 1
        columns: dict[str, object] = {
            "frame": frame,
            "topic": [self._names[number] for number in rows["topic_number"][starts]],
            "queue_id": rows["queue_id"][starts],
            "first_queue_offset": rows["queue_offset"][starts],
            "records": np.diff(np.append(starts, len(rows))),
            "position": cold[starts] - cold[frames[frame]],
            "bytes": np.add.reduceat(sizes, starts) if len(starts) else sizes,
        }
        for axis, column in _TIME_COLUMNS.items():
            values = rows[column]
            columns[f"min_{axis}_ms"] = np.minimum.reduceat(values, starts) if len(starts) else values
            columns[f"max_{axis}_ms"] = np.maximum.reduceat(values, starts) if len(starts) else values
        table = pa.table(columns).cast(DIRECTORY_SCHEMA)
        pages = []
        for start in range(0, len(table), DIRECTORY_PAGE_ROWS):
            piece = table.slice(start, DIRECTORY_PAGE_ROWS)
            info = {"rows": len(piece), "first": _place(piece, 0), "last": _place(piece, len(piece) - 1)}
            pages.append((encode_directory_page(piece), info))
        return encode_section(MAGIC_DIRECTORY, VERSION, self._directory_table(), pages)

    def _directory_table(self) -> dict[str, object]:
        """What restoring the segment needs besides the records: its blank record and any bytes after it."""
        segment = self._segment
        tail_at = segment.blank_position + BLANK_BYTES
        tail = _without_trailing_zeros(segment.data[tail_at:])
        blank_length, magic = BLANK.unpack(bytes(segment.data[segment.blank_position : tail_at]))
        if magic != MAGIC_BLANK:
            raise CorruptionError("segment does not end in a blank record", position=segment.blank_position)
        return {
            "base": segment.base_offset,
            "segment_bytes": len(segment.data),
            "blank_position": segment.blank_position,
            "blank_length": blank_length,
            "tail": zstandard.ZstdCompressor().compress(tail).hex() if tail else "",
        }

    def _queue_rows(self, rows: ScanRows, groups: NDArray[np.int64]) -> QueueRows:
        starts = _runs(rows, groups)
        starts = starts[rows["queue_offset"][starts] >= 0] if len(starts) else starts
        found = np.empty(len(starts), QUEUE_ROW)
        ends = np.append(_runs(rows, groups), len(rows))
        for place, start in enumerate(starts):
            run = rows[start : ends[np.searchsorted(ends, start, side="right")]]
            bounds = _bounds(run)
            assert bounds is not None
            found[place] = (
                self._ids[run["topic_number"][0]], run["queue_id"][0], self._segment.base_offset,
                run["queue_offset"][0], len(run),
                bounds.min_store_ms, bounds.max_store_ms, bounds.min_born_ms, bounds.max_born_ms,
            )  # fmt: skip
        return found


def _without_trailing_zeros(data: ByteArray) -> bytes:
    """Looked at from the end in pieces: the rest of a segment rolled early is a hole of up to 1 GiB."""
    end = len(data)
    while end:
        start = max(0, end - _TAIL_PIECE_BYTES)
        found = np.flatnonzero(data[start:end])
        if len(found):
            return bytes(data[: start + int(found[-1]) + 1])
        end = start
    return b""


def _place(table: pa.Table, row: int) -> list[object]:
    return [table[name][row].as_py() for name in ("topic", "queue_id", "first_queue_offset")]


def _cuts(*columns: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where any of the columns changes, the first row included; the number of rows is not."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    changed = np.zeros(len(columns[0]), bool)
    changed[0] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def _runs(rows: ScanRows, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Starts of runs of consecutive queue offsets; records without a queue unit form runs of their own."""
    offsets = rows["queue_offset"]
    if not len(offsets):
        return groups
    broken = np.zeros(len(offsets), bool)
    step = np.diff(offsets)
    broken[1:] = ~((step == 1) & (offsets[1:] > 0) | (step == 0) & (offsets[1:] == -1))
    broken[groups] = True
    return np.flatnonzero(broken)


def _bounds(rows: ScanRows) -> TimeBounds | None:
    if not len(rows):
        return None
    store, born = rows["store_ms"], rows["born_ms"]
    return TimeBounds(int(store.min()), int(store.max()), int(born.min()), int(born.max()))


def _cut_frames(groups: NDArray[np.int64], sizes: NDArray[np.int64], frame_bytes: int) -> NDArray[np.int64]:
    """First record of every frame, and the number of records at the end."""
    ends = np.cumsum(sizes)
    frames: list[int] = []
    open_bytes = 0  # bytes of an open frame that so far holds whole runs only; 0 = none is open
    for start, end in zip(groups, np.append(groups, len(sizes))[1:], strict=True):
        before = int(ends[start - 1]) if start else 0
        total = int(ends[end - 1]) - before
        if open_bytes and open_bytes + total <= frame_bytes:
            open_bytes += total
            continue
        first = int(start)
        while first < end:
            before = int(ends[first - 1]) if first else 0
            frames.append(first)
            first = min(int(end), max(first + 1, int(np.searchsorted(ends, before + frame_bytes, side="right"))))
        open_bytes = total if total <= frame_bytes else 0
    return np.array([*frames, len(sizes)], np.int64)
