"""Sorted segment: the archive object of one log segment. ``docs/formats/sorted_segment.md`` has the byte tables.

This module knows the bytes; ``tiering.cold.segment.writer`` lays records out, ``tiering.cold.segment.reader`` reads.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
import zstandard
from numpy.typing import NDArray

from tierlog.tiering.base.errors import BadMagicError, ChecksumMismatchError, TornRecordError
from tierlog.tiering.format.compression import decompress

VERSION = 1
MAGIC_OFFSET_MAP = b"TLSEGMAP"
MAGIC_DIRECTORY = b"TLSEGDIR"
SKIPPABLE_DIRECTORY = 0x184D2A51
SKIPPABLE_OFFSET_MAP = 0x184D2A52
SKIPPABLE_SEEK_TABLE = 0x184D2A5E
_SEEKABLE_MAGIC = 0x8F92EAB1
_CHECKSUM_FLAG = 0x80

_FRAME_CHECKSUM_BYTES = 4

SKIPPABLE = struct.Struct("<II")
_SEEK_FOOTER = struct.Struct("<IBI")
SEEK_ROW = np.dtype([("compressed", "<u4"), ("decompressed", "<u4"), ("checksum", "<u4")])

MAP_PAGE_RECORDS = 16_384
DIRECTORY_PAGE_ROWS = 1_024

DIRECTORY_SCHEMA = pa.schema(
    [
        ("frame", pa.int32()),
        ("frame_position", pa.int32()),
        ("frame_length", pa.int32()),
        ("frame_bytes", pa.int32()),
        ("frame_checksum", pa.uint32()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("first_queue_offset", pa.int64()),
        ("records", pa.int32()),
        ("position", pa.int32()),
        ("bytes", pa.int32()),
        ("min_store_ms", pa.int64()),
        ("max_store_ms", pa.int64()),
        ("min_born_ms", pa.int64()),
        ("max_born_ms", pa.int64()),
    ]
)


def skippable(magic: int, content: bytes) -> bytes:
    """Returns a zstd skippable frame, which decompressors pass over."""
    return SKIPPABLE.pack(magic, len(content)) + content


class FramePlace(NamedTuple):
    """The place of a record frame in the object, and what it decompresses to."""

    position: int
    length: int
    raw_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SeekTable:
    """The positions at which record frames begin, compressed and decompressed, and the end; and their checksums."""

    compressed: NDArray[np.int64]
    decompressed: NDArray[np.int64]
    checksums: NDArray[np.uint32]

    def place(self, number: int) -> FramePlace:
        """Returns where one frame lies."""
        start, end = self.compressed[number : number + 2].tolist()
        raw_bytes = int(self.decompressed[number + 1] - self.decompressed[number])
        return FramePlace(start, end - start, raw_bytes, int(self.checksums[number]))

    def places(self) -> list[FramePlace]:
        """Returns where all of them lie."""
        lengths, raw_bytes = np.diff(self.compressed), np.diff(self.decompressed)
        columns = self.compressed[:-1], lengths, raw_bytes, self.checksums
        return list(map(FramePlace, *(column.tolist() for column in columns)))

    def __len__(self) -> int:
        return len(self.checksums)

    def frame_of(self, position: int) -> int:
        """Returns the frame that holds a decompressed position."""
        return int(self.frames_of(np.array([position], np.int64))[0])

    def frames_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the frames that hold decompressed positions; :class:`TornRecordError` if one lies in none."""
        outside = (positions < 0) | (positions >= self.decompressed[-1])
        if outside.any():
            raise TornRecordError(f"position {positions[outside][0]} lies in no frame")
        return np.searchsorted(self.decompressed, positions, side="right") - 1


def frame_checksum(raw: bytes | bytearray | memoryview) -> int:
    """Returns what the seek table says of a frame: the low half of XXH64 of its decompressed bytes, as zstd's own."""
    return xxhash.xxh64_intdigest(raw) & 0xFFFFFFFF


def encode_seek_table(frames: Sequence[tuple[int, int, int]]) -> bytes:
    """Returns the closing skippable frame: (compressed, decompressed, checksum) of every frame before it."""
    rows = np.array(list(frames), dtype=[("c", "<u4"), ("d", "<u4"), ("x", "<u4")]).astype(SEEK_ROW)
    content = rows.tobytes() + _SEEK_FOOTER.pack(len(rows), _CHECKSUM_FLAG, _SEEKABLE_MAGIC)
    return skippable(SKIPPABLE_SEEK_TABLE, content)


def decode_seek_table(data: bytes, *, path: str) -> SeekTable:
    """Reads the closing frame; frames without decompressed bytes (skippable ones) are left out."""
    if len(data) < SKIPPABLE.size + _SEEK_FOOTER.size:
        raise TornRecordError("seek table cut short", path=path)
    magic, length = SKIPPABLE.unpack_from(data)
    count, descriptor, seekable = _SEEK_FOOTER.unpack_from(data, len(data) - _SEEK_FOOTER.size)
    if magic != SKIPPABLE_SEEK_TABLE or seekable != _SEEKABLE_MAGIC or descriptor != _CHECKSUM_FLAG:
        raise BadMagicError("not a seek table with checksums", path=path)
    if (
        length != len(data) - SKIPPABLE.size
        or count * SEEK_ROW.itemsize != len(data) - SKIPPABLE.size - _SEEK_FOOTER.size
    ):
        raise TornRecordError("seek table contradicts its own length", path=path)
    rows = np.frombuffer(data, SEEK_ROW, count, SKIPPABLE.size)
    rows = rows[rows["decompressed"] > 0]  # skippable frames follow all record frames
    return SeekTable(_starts(rows["compressed"]), _starts(rows["decompressed"]), rows["checksum"])


def frames_of_seek_table(length: int) -> int:
    """Returns how many frames a seek table of so many bytes names, the skippable ones among them."""
    return (length - SKIPPABLE.size - _SEEK_FOOTER.size) // SEEK_ROW.itemsize


def _starts(lengths: NDArray[np.uint32]) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def encode_map_page(sizes: NDArray[np.signedinteger], cold: NDArray[np.signedinteger]) -> bytes:
    """One page of the offset map: record sizes, then steps of the cold position, of records in physical order."""
    steps = np.diff(cold, prepend=cold[:1])
    return zstandard.ZstdCompressor(level=3).compress(sizes.astype(">i4").tobytes() + steps.astype(">i4").tobytes())


def decode_map_page(
    data: bytes, records: int, first_physical: int, first_cold: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Physical positions and cold positions of a page's records, both from the segment's start."""
    raw = decompress(data, 8 * records, "offset map page")
    if len(raw) != 8 * records:
        raise TornRecordError("offset map page has another number of records than its table says")
    sizes = np.frombuffer(raw, ">i4", records).astype(np.int64)
    steps = np.frombuffer(raw, ">i4", records, 4 * records).astype(np.int64)
    physical = first_physical + np.cumsum(sizes) - sizes
    return physical, first_cold + np.cumsum(steps)


def encode_directory_page(rows: pa.Table) -> bytes:
    """Directory rows as an Arrow stream with zstd buffers."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, DIRECTORY_SCHEMA, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def decode_directory_page(data: bytes) -> pa.Table:
    """Inverse of :func:`encode_directory_page`, for bytes whose checksum was compared: Arrow trusts their lengths."""
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ChecksumMismatchError("directory page is not an Arrow stream") from error


def is_frame_of(data: bytes, checksum: int) -> bool:
    """Whether a frame ends in the checksum of its row in the seek table: a sound frame may belong elsewhere."""
    return checksum_in_frame(data) == checksum


def checksum_in_frame(data: bytes) -> int:
    """Returns what a frame ends in: :func:`frame_checksum` of its content, which the decompressor compares."""
    return int.from_bytes(data[-_FRAME_CHECKSUM_BYTES:], "little")


def decompress_frame(data: bytes, length: int, *, path: str, position: int) -> bytes:
    """One record frame; its own checksum is verified by the decompressor."""
    raw = decompress(data, length, "frame", path=path, position=position)
    if len(raw) != length:
        raise TornRecordError(f"frame of {len(raw)} bytes, expected {length}", path=path, position=position)
    return raw
