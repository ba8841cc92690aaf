"""What nobody can leave out who reads queues as Arrow, or archives a segment: programs of their own, for comparison.

They know before the clock starts where every record lies, so they look nothing up, sort nothing and keep no directory.
What is left is the work that the answer is made of: each record's checksum, one copy of what is asked for, and what
zstd takes. They share with the product the CRC-32 of bytes and the making of compiled loops, nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import zstandard
from numpy.typing import NDArray

from tierlog.tiering.kernels import checksum, primitives
from tierlog.tiering.kernels.checksum import CRC_TABLES, crc32_of, joined_crc32
from tierlog.tiering.kernels.primitives import address_of, made_by_numba


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a loop as the product's are compiled."""
    return numba.njit(nogil=True, boundscheck=False, error_model="numpy")(function)


crc32 = made_by_numba(checksum.crc32)
copy, prefetch, load_be32, load_be64, load_i64, store_i32, store_i64 = (
    made_by_numba(getattr(primitives, name))
    for name in ("copy", "prefetch", "load_be32", "load_be64", "load_i64", "store_i32", "store_i64")
)

#: Of a record with IPv4 hosts: where its parts lie.
_CRC, _QUEUE_OFFSET, _PHYSICAL, _BORN, _STORE, _BODY_LENGTH, _BODY = 8, 20, 28, 40, 56, 84, 88
_AHEAD = 10
_LINES = 7
_NUMBERS = ("queue_offset", "physical_offset", "store_ms", "born_ms")
_FRAMES_TOGETHER = 16
_BATCH_BYTES = 4 << 20


@kernel
def _is_sound(tables: int, at: int) -> bool:
    found: int = crc32(tables, at + _BODY, load_be32(at + _BODY_LENGTH)) & 0x7FFFFFFF
    is_sound: bool = found == load_be32(at + _CRC)
    return is_sound


@kernel
def _take(at: int, row: int, room: int, out: int) -> int:
    """Puts a record's body and four numbers behind those of the rows before; ``out`` has addresses."""
    ends = load_i64(out)
    end: int = load_be32(at + _BODY_LENGTH) + room
    copy(load_i64(out + 8) + room, at + _BODY, end - room)
    store_i32(ends + 4 * row + 4, end)
    store_i64(load_i64(out + 16) + 8 * row, load_be64(at + _QUEUE_OFFSET))
    store_i64(load_i64(out + 24) + 8 * row, load_be64(at + _PHYSICAL))
    store_i64(load_i64(out + 32) + 8 * row, load_be64(at + _STORE))
    store_i64(load_i64(out + 40) + 8 * row, load_be64(at + _BORN))
    return end


@kernel
def _take_places(tables: int, places: int, count: int, out: int) -> int:
    """Takes the records at addresses; bytes of bodies, or -1 where a checksum differs."""
    room = 0
    for row in range(count):
        if row + _AHEAD < count:
            for line in range(_LINES):
                prefetch(load_i64(places + 8 * (row + _AHEAD)) + 64 * line)
        at = load_i64(places + 8 * row)
        if not _is_sound(tables, at):
            return -1
        room = _take(at, row, room, out)
    return room


@kernel
def _take_run(tables: int, at: int, end: int, out: int, done: int) -> bool:
    """Takes the records between two addresses behind those that are ``done``: rows, bytes; False: one is damaged."""
    row = load_i64(done)
    room = load_i64(done + 8)
    while at < end:
        if not _is_sound(tables, at):
            return False
        room = _take(at, row, room, out)
        row += 1
        at += load_be32(at)
    store_i64(done, row)
    store_i64(done + 8, room)
    return True


@kernel
def _gather(tables: int, places: int, count: int, out: int) -> int:
    """Copies the records at addresses one behind the other; bytes, or -1 where a checksum differs."""
    begin = out
    for row in range(count):
        if row + _AHEAD < count:
            for line in range(_LINES):
                prefetch(load_i64(places + 8 * (row + _AHEAD)) + 64 * line)
        at = load_i64(places + 8 * row)
        size = load_be32(at)
        copy(out, at, size)
        if not _is_sound(tables, out):
            return -1
        out += size
    return out - begin


class _Columns:
    """Room for one batch of bodies and numbers, of memory from Arrow's pool."""

    def __init__(self, rows: int, body_bytes: int) -> None:
        sizes = [4 * (rows + 1), body_bytes, *[8 * rows] * len(_NUMBERS)]
        self._buffers = [pa.allocate_buffer(size) for size in sizes]
        self._addresses = np.array([buffer.address for buffer in self._buffers], np.int64)
        np.frombuffer(self._buffers[0], np.int32)[0] = 0
        self.out = address_of(self._addresses)

    def batch(self, rows: int, body_bytes: int) -> pa.RecordBatch:
        ends, body, *numbers = self._buffers
        arrays = [pa.Array.from_buffers(pa.int64(), rows, [None, each]) for each in numbers]
        bodies = pa.Array.from_buffers(pa.binary(), rows, [None, ends, body.slice(0, body_bytes)])
        return pa.RecordBatch.from_arrays([*arrays, bodies], [*_NUMBERS, "body"])


def pull_hot(queues: Sequence[NDArray[np.int64]], body_bytes: int, rows: int) -> int:
    """Pulls queues, addresses of whose records are given, in batches; how many rows those have."""
    got = 0
    for places in queues:
        for start in range(0, len(places), rows):
            mine = places[start : start + rows]
            columns = _Columns(len(mine), body_bytes * len(mine))
            size = int(_take_places(CRC_TABLES, address_of(mine), len(mine), columns.out))
            if size < 0:
                raise ValueError("a record is damaged")
            got += columns.batch(len(mine), size).num_rows
    return got


def pull_cold(frames: Sequence[bytes], least_record: int) -> int:
    """Decompresses frames one by one, and pulls what they hold; how many rows."""
    zstd, got, room = zstandard.ZstdDecompressor(), 0, 0
    columns, done = None, np.zeros(2, np.int64)
    for frame in frames:
        held = zstd.decompress(frame)
        if columns is None or len(held) > room:
            got += _closed(columns, done)
            room = max(_BATCH_BYTES, len(held))
            columns, done = _Columns(room // least_record + 1, room), np.zeros(2, np.int64)
        at = address_of(held)
        if not _take_run(CRC_TABLES, at, at + len(held), columns.out, address_of(done)):
            raise ValueError("a record is damaged")
        room -= len(held)
    return got + _closed(columns, done)


def _closed(columns: _Columns | None, done: NDArray[np.int64]) -> int:
    return 0 if columns is None else int(columns.batch(*done.tolist()).num_rows)


def archive(frames: Sequence[NDArray[np.int64]], frame_bytes: int, level: int, threads: int, path: Path) -> int:
    """Gathers the records of frames, at addresses, and compresses, tests and writes them; the CRC-32 of the file.

    Each record's checksum is compared, and each frame is decompressed again, which compares its checksum. The file is
    on the disk at the end.
    """
    own = threading.local()

    def made(some: Sequence[NDArray[np.int64]]) -> tuple[bytes, int]:
        if not hasattr(own, "room"):
            own.room = np.empty(frame_bytes, np.uint8)
            own.zstd = zstandard.ZstdCompressor(level=level, write_checksum=True), zstandard.ZstdDecompressor()
        compressor, decompressor = own.zstd
        done = []
        for places in some:
            size = int(_gather(CRC_TABLES, address_of(places), len(places), address_of(own.room)))
            done.append(compressor.compress(own.room[:size].data))
            decompressor.decompress(done[-1])
        piece = b"".join(done)
        return piece, crc32_of(piece)

    groups = [frames[at : at + _FRAMES_TOGETHER] for at in range(0, len(frames), _FRAMES_TOGETHER)]
    crc = 0
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:
        for piece, crc_of_piece in pool.map(made, groups):
            file.write(piece)
            crc = int(joined_crc32(crc, crc_of_piece, len(piece)))
        os.fsync(file.fileno())
    return crc
