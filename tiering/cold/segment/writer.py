"""Lays one scanned log segment out as a sorted segment and yields its bytes piece by piece.

A frame holds part of one queue's run, or several queues' whole runs. What a frame compresses to is decompressed at once
and compared with what the scan read, so that no byte changes unnoticed between log and object
(``docs/formats/sorted_segment.md``). All of that is one thread's work, for some frames at a time: another thread takes
longer to begin than a frame takes to compress.

Memory: what the scan kept of the records, the offset map, and some megabytes of frames.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import zstandard
from numpy.typing import NDArray

from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.cold.segment.directory import DirectoryBuilder
from tierlog.tiering.cold.segment.scan import ScannedSegment, in_order
from tierlog.tiering.format.compression import decompress_neighbours
from tierlog.tiering.format.queue_rows import QueueRows
from tierlog.tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from tierlog.tiering.format.section import Page, SectionRef, section_head
from tierlog.tiering.format.sorted_segment import (
    MAGIC_DIRECTORY,
    MAGIC_OFFSET_MAP,
    MAP_PAGE_RECORDS,
    SKIPPABLE,
    SKIPPABLE_DIRECTORY,
    SKIPPABLE_OFFSET_MAP,
    VERSION,
    FramePlace,
    checksum_in_frame,
    decode_map_page,
    decompress_frame,
    encode_map_page,
    encode_seek_table,
    frame_checksum,
)
from tierlog.tiering.kernels.checksum import crc32_of, joined_crc32
from tierlog.tiering.kernels.frame_headers import leading_frames
from tierlog.tiering.kernels.frames import FrameBatch, FrameGatherer, FrameRoom
from tierlog.tiering.kernels.sorting import parts_of, starts_of

#: Of records: what is gathered stays in a processor's own cache until it is compressed.
_BATCH_BYTES = 1 << 20
_TAIL_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The facts about a written sorted segment that the manifest needs."""

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
        topic_ids: NDArray[np.int32],
        options: ColdOptions,
        *,
        left_out: Collection[int] = (),
    ) -> None:
        """``topic_ids`` is indexed by topic number; of topics whose id is ``left_out`` nothing but fillers is stored,
        which neither directory nor queue rows lead to.
        """
        self._segment = segment
        self._ids = topic_ids
        self._options = options
        topics, _, _ = parts_of(segment.groups["key"])
        self._left_out = np.isin(topic_ids[topics], list(left_out))
        self._size_bytes = 0
        self._crc32 = 0
        self._mapped_sum = 0
        self._seek: list[tuple[int, int, int]] = []
        self._summary: SegmentSummary | None = None

    def summary(self) -> SegmentSummary:
        """Sizes, checksums and places; only after :meth:`pieces` is exhausted."""
        if self._summary is None:
            raise RuntimeError("the segment is not written yet")
        return self._summary

    def pieces(self) -> Iterator[bytes]:
        """Yields the object's bytes in order; :class:`ChecksumMismatchError` if they are not what the scan read."""
        segment = self._segment
        directory = DirectoryBuilder(segment.base_offset, segment.groups, segment.topic_names, self._ids)
        yield from self._frames(directory)
        sections: dict[str, SectionRef] = {}
        yield from self._section(
            sections, "offset_map", skippable=SKIPPABLE_OFFSET_MAP, magic=MAGIC_OFFSET_MAP,
            table={"base": segment.base_offset}, pages=self._offset_map_pages(),
        )  # fmt: skip
        pages, queue_rows, bounds = directory.finish()
        yield from self._section(
            sections, "directory", skippable=SKIPPABLE_DIRECTORY, magic=MAGIC_DIRECTORY, table=self._directory_table(),
            pages=pages,
        )  # fmt: skip
        table = encode_seek_table(self._seek)
        sections["seek_table"] = SectionRef(self._size_bytes, len(table), len(table), zlib.crc32(table))
        yield self._account(table)
        self._summary = SegmentSummary(
            size_bytes=self._size_bytes, crc32=self._crc32, raw_bytes=int(segment.records.positions[-1]),
            records=len(segment.order), bounds=bounds, sections=sections, queue_rows=queue_rows,
        )  # fmt: skip

    def _account(self, piece: bytes, crc32: int | None = None) -> bytes:
        """Counts a piece, whose CRC may be known."""
        self._size_bytes += len(piece)
        self._crc32 = int(joined_crc32(self._crc32, zlib.crc32(piece) if crc32 is None else crc32, len(piece)))
        return piece

    def _frames(self, directory: DirectoryBuilder) -> Iterator[bytes]:
        """Compressed frames, some at a time, each compared with what was read; further ones are made meanwhile."""
        segment = self._segment
        gatherer = FrameGatherer(
            segment.data, segment.base_offset, groups=segment.records, order=segment.order,
            sorted_groups=segment.groups, left_out=self._left_out, removed=segment.removed,
        )  # fmt: skip
        planned = gatherer.plan(np.array(list(self._spans()), np.int64).reshape(-1, 3), self._options.frame_bytes)
        maker = FrameMaker(gatherer, self._options.compression_level)
        for made in in_order(maker.make, batches(planned), "tierlog-compress"):
            gatherer.take_in(made.batch, made.record_sum)
            places = self._places(made)
            directory.add(made.batch.runs, places)
            self._seek += [place[1:] for place in places]
            yield self._account(made.piece, made.crc32)
        gatherer.compare(segment.record_sum)
        self._mapped_sum = gatherer.mapped_sum

    def _places(self, made: MadeFrames) -> list[FramePlace]:
        """Returns where frames lie that come next in the object."""
        places, position = [], self._size_bytes
        for length, size, checksum in zip(
            made.lengths, made.batch.frames["bytes"].tolist(), made.checksums, strict=True
        ):
            places.append(FramePlace(position, length, size, checksum))
            position += length
        return places

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Yields what shares frames, one queue or small ones together.

        (first group, first and last place in the order). Whole queues are put together as long as they fit into one
        frame; records without queue units belong to their queue here. A topic that fits into one frame lies in one, and
        a larger one begins in one of its own, so that reading a topic reads at most one frame that holds others.
        """
        groups, room = self._segment.groups, self._options.frame_bytes
        starts = starts_of(groups)
        queues = np.flatnonzero(np.diff(groups["key"] >> 1, prepend=-1))
        if not len(queues):
            return
        sizes = np.add.reduceat(groups["bytes"], queues).tolist()
        topics = np.flatnonzero(np.diff(groups["key"][queues] >> 33, prepend=-1)).tolist()
        cuts: list[int] = []
        open_bytes = 0  # of an open frame that holds whole queues only
        for first, end in pairwise([*topics, len(queues)]):
            total = sum(sizes[first:end])
            if open_bytes and open_bytes + total <= room:
                open_bytes += total
                continue
            open_bytes = 0
            for queue in range(first, end):
                if not open_bytes or open_bytes + sizes[queue] > room:
                    cuts.append(int(queues[queue]))
                    open_bytes = 0
                open_bytes = open_bytes + sizes[queue] if sizes[queue] <= room else 0
        for group, following in pairwise([*cuts, len(groups)]):
            yield group, int(starts[group]), int(starts[following])

    def _section(
        self,
        sections: dict[str, SectionRef],
        name: str,
        *,
        skippable: int,
        magic: bytes,
        table: dict[str, object],
        pages: list[Page],
    ) -> Iterator[bytes]:
        head, ref = section_head(magic, VERSION, table, pages)
        sections[name] = ref.at(self._size_bytes + SKIPPABLE.size)
        yield self._account(SKIPPABLE.pack(skippable, ref.length) + head)
        for data, _ in pages:
            yield self._account(data)
        self._seek.append((SKIPPABLE.size + ref.length, 0, frame_checksum(b"")))

    def _offset_map_pages(self) -> list[Page]:
        positions, cold = self._segment.records.positions, self._segment.records.places
        pages: list[Page] = []
        mapped_sum = 0
        for start in range(0, len(cold), MAP_PAGE_RECORDS):
            end = min(start + MAP_PAGE_RECORDS, len(cold))
            info = {"records": end - start, "first_physical": int(positions[start]), "first_cold": int(cold[start])}
            page = encode_map_page(np.diff(positions[start : end + 1]), cold[start:end])
            mapped_sum += sum(int(each.sum()) for each in decode_map_page(page, *info.values()))
            pages.append((page, info))
        if mapped_sum != self._mapped_sum:
            raise ChecksumMismatchError("the offset map does not say where the records were put")
        return pages

    def _directory_table(self) -> dict[str, object]:
        """Returns what restoring the segment needs besides the records: its blank record and any bytes after it."""
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


@dataclass(slots=True)
class MadeFrames:
    """Compressed frames that hold their records: ``piece`` joins them, ``crc32`` is its CRC.

    ``record_sum`` is that of the records that they were found to hold.
    """

    batch: FrameBatch
    piece: bytes
    crc32: int
    lengths: list[int]
    checksums: list[int]
    record_sum: int


class FrameMaker:
    """Makes the compressed frames of one segment, and looks at each once more before it counts.

    Any thread may call it, each has memory and contexts of its own.
    """

    def __init__(self, gatherer: FrameGatherer, level: int) -> None:
        self._gatherer = gatherer
        self._level = level
        self._of_thread = threading.local()

    def make(self, batch: tuple[int, NDArray[np.void]]) -> MadeFrames:
        """Planned frames, the first of which has the number before them, compressed, and compared.

        Raises :class:`ChecksumMismatchError` if they do not hold their records.
        """
        room, compressor = self._own()
        gathered = self._gatherer.gather(batch[1], batch[0], room)
        compressed = [compressor.compress(part.data) for part in gathered.parts()]
        piece, lengths = b"".join(compressed), list(map(len, compressed))
        # the checksum first: what becomes of the bytes from here on is seen below, or by the server
        crc32 = crc32_of(piece)
        checksums = list(map(checksum_in_frame, compressed))
        try:
            held = _decompressed(piece, lengths, gathered.frames["bytes"], checksums, room.held)
            record_sum = self._gatherer.inspect(gathered.frames, held)
        except CorruptionError as error:
            raise ChecksumMismatchError(f"a compressed frame is not what was read: {error}") from error
        return MadeFrames(
            batch=gathered, piece=piece, crc32=crc32, lengths=lengths, checksums=checksums, record_sum=record_sum
        )

    def _own(self) -> tuple[FrameRoom, zstandard.ZstdCompressor]:
        """Memory and compressor of this thread."""
        if not hasattr(self._of_thread, "own"):
            compressor = zstandard.ZstdCompressor(level=self._level, write_checksum=True, write_content_size=True)
            self._of_thread.own = FrameRoom(), compressor
        own: tuple[FrameRoom, zstandard.ZstdCompressor] = self._of_thread.own
        return own


def _decompressed(
    piece: bytes, lengths: list[int], raw_bytes: NDArray[np.int64], checksums: list[int], room: ByteArray
) -> ByteArray:
    """Returns what frames that follow each other hold; each must be of its length, and end in its checksum.

    They are decompressed by one call, if a look at their headers says that it ends each where it should.
    """
    starts = np.cumsum([0, *lengths])
    places = np.column_stack([starts[:-1], lengths, raw_bytes, checksums])
    wanted = int(raw_bytes.sum())
    if leading_frames(piece, 0, places) == len(places):
        if decompress_neighbours(memoryview(piece), room[: wanted + 1].data) != wanted:
            raise ChecksumMismatchError("frames of another length")
        return room[:wanted]
    alone = []
    for start, length, size, checksum in places.tolist():
        frame = piece[start : start + length]
        if checksum_in_frame(frame) != checksum:
            raise ChecksumMismatchError("a frame that ends in another checksum", path="frame", position=start)
        alone.append(decompress_frame(frame, size, path="frame", position=start))
    return np.frombuffer(b"".join(alone), np.uint8)


def batches(frames: NDArray[np.void]) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Planned frames and the number of the first of them, about a megabyte of records at a time."""
    first = 0
    ends = frames["cold"] + frames["bytes"]
    while first < len(frames):
        end = int(np.searchsorted(ends, int(frames["cold"][first]) + _BATCH_BYTES, side="right"))
        end = max(end, first + 1)
        yield first, frames[first:end]
        first = end


def _without_trailing_zeros(data: ByteArray) -> bytes:
    """Cuts zeros off the end, piece by piece: the rest of a segment rolled early is a hole of up to 1 GiB."""
    end = len(data)
    while end:
        start = max(0, end - _TAIL_PIECE_BYTES)
        found = np.flatnonzero(data[start:end])
        if len(found):
            return bytes(data[: start + int(found[-1]) + 1])
        end = start
    return b""
