"""The frames of a seekable zstd file: from its seek table, or without one, from the start."""

from __future__ import annotations

import numpy as np
import zstandard
from numpy.typing import NDArray

from service.dump.records import MAX_RECORD_BYTES
from service.dump.source import Source
from tiering.errors import CorruptionError
from tiering.format.sorted_segment import SEEK_ROW, SKIPPABLE, decode_seek_table

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


def seek_rows(source: Source) -> NDArray[np.void]:
    """The rows of the seek table but its own; :class:`CorruptionError` unless they make up the object."""
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
    """The same from the frames themselves, as far as whole ones follow each other; checksums are 0."""
    rows: list[tuple[int, int, int]] = []
    position = 0
    while position < source.size:
        head = source.read(position, position + _FRAME_HEAD_BYTES)
        if len(head) >= SKIPPABLE.size and int.from_bytes(head[:4], "little") in _SKIPPABLE_MAGICS:
            found = SKIPPABLE.size + int.from_bytes(head[4:8], "little"), 0
        elif head[:4] == ZSTD_MAGIC:
            found = _frame(source, position, head)
        else:
            break
        if not 0 < found[0] <= source.size - position:
            break
        rows.append((*found, 0))
        position += found[0]
    return np.array(rows, SEEK_ROW)


def _frame(source: Source, position: int, head: bytes) -> tuple[int, int]:
    """Compressed and decompressed length of a zstd frame; 0 for one that is not whole."""
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
