"""Hashes every key of a batch of scanned records. ``tests.support.oracles.plain_index.plain_keys`` is the oracle.

A message is found by its UNIQ_KEY, then by each non-empty piece of KEYS split at single spaces; a rolled-back
transaction by nothing; keys of one message that are equal in both hashes count once.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.kernels.primitives import (
    called,
    copy,
    copy_short,
    inlined,
    int64,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    prefetch,
    same_bytes,
    store_i32,
    store_i64,
    store_u8,
)
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows, row_offset
from tierlog.tiering.kernels.structs import load_fields, struct_kernel
from tierlog.tiering.kernels.text import java_hash, key_hash, xxh32_begun, xxh32_ended

#: One row a key: the message's row in the batch and both hashes.
KEY_ROW = np.dtype([("row", "<i4"), ("hash", "<i4"), ("hash_high", "<u4")])
KeyRows = NDArray[np.void]


_ROW_BYTES = SCAN_ROW.itemsize
_KEY_BYTES = KEY_ROW.itemsize
_SYS_FLAG = row_offset("sys_flag")
_TOPIC_AT = row_offset("topic_at")
_KEYS_AT = row_offset("keys_at")
_UNIQUE_AT = row_offset("unique_at")

#: Up to this many keys of a message are compared one by one, more through a hash table.
_FEW_KEYS = 16
#: More than twice the keys that a 16-bit property length allows, so the table never fills.
_TABLE_ENTRIES = 1 << 16
_SCRATCH_BYTES = 2 << 16
#: How many records ahead keys are asked for: what was scanned a whole batch ago has left the caches.
_AHEAD = 8


@inlined
def _next_space(address, end):
    """Returns where the first space is, or ``end``."""
    while address + 8 <= end:
        others = load_i64(address) ^ 0x2020202020202020
        if (others - 0x0101010101010101) & ~others & -9187201950435737472 != 0:  # one of these eight is a space
            break
        address += 8
    while address < end and load_u8(address) != 32:
        address += 1
    return address


@called
def _inside(row: int, span: int, data_bytes: int) -> Any:
    """Whether the (position, length) at ``row + span`` lies in the data."""
    at = load_i32(row + span)
    length = load_i32(row + span + 4)
    return at >= 0 and length >= 0 and at + length <= data_bytes


@called
def _remember(table: int, out: int, first: int, number: int) -> None:
    """Enters output row ``number`` into the hash table of the message that starts at output row ``first``."""
    place = load_u32(out + number * _KEY_BYTES + 8) & (_TABLE_ENTRIES - 1)
    while load_i32(table + 4 * place) > first:  # entries are row + 1; lower ones are left from earlier messages
        place = (place + 1) & (_TABLE_ENTRIES - 1)
    store_i32(table + 4 * place, number + 1)


@called
def _seen(table: int, out: int, first: int, count: int, hashes: tuple[int, int]) -> Any:
    """Whether output rows ``first..count`` hold both hashes."""
    low, high = hashes
    if count - first < _FEW_KEYS:
        for number in range(first, count):
            row = out + number * _KEY_BYTES
            if load_i32(row + 4) == low and load_u32(row + 8) == high:
                return True
        return False
    place = high & (_TABLE_ENTRIES - 1)
    while True:
        number = load_i32(table + 4 * place) - 1
        if number < first:
            return False
        row = out + number * _KEY_BYTES
        if load_i32(row + 4) == low and load_u32(row + 8) == high:
            return True
        place = (place + 1) & (_TABLE_ENTRIES - 1)


@struct_kernel("data data_bytes rows row_count scratch scratch_bytes table out capacity result")
def _hash_keys(job: int) -> None:
    """``result``: keys emitted, or -1 if ``out`` is too small, -2 if a row leaves the data; then that row.

    The table is cleared here, when a message first needs it: hardly any does.
    """
    data, data_bytes, rows, row_count, scratch, scratch_bytes, table, out, capacity, result = load_fields(job, 10)
    count = int64(0)
    seed = int64(0)
    topic_length = int64(-1)
    sums = xxh32_begun(scratch, 0)
    taken = int64(0)
    is_table_clear = False
    for number in range(row_count):
        row = rows + number * _ROW_BYTES
        # ask ahead, and leave rolled-back transactions out
        if number + _AHEAD < row_count:
            coming = data + load_i32(row + _AHEAD * _ROW_BYTES + _KEYS_AT)
            prefetch(coming)
            prefetch(coming + 64)
        if load_i32(row + _SYS_FLAG) & 0xC == 0xC:
            continue
        # every span inside the data, and the longest text inside the scratch
        store_i64(result, -2)
        store_i64(result + 8, number)
        if not (
            _inside(row, _TOPIC_AT, data_bytes)
            and _inside(row, _KEYS_AT, data_bytes)
            and _inside(row, _UNIQUE_AT, data_bytes)
        ):
            return
        topic = data + load_i32(row + _TOPIC_AT)
        length = load_i32(row + _TOPIC_AT + 4)
        unique_length = load_i32(row + _UNIQUE_AT + 4)
        keys_length = load_i32(row + _KEYS_AT + 4)
        if length + 1 + max(unique_length, keys_length) > scratch_bytes:
            return
        # the beginning of both hashes, of "topic#", which the next row mostly shares
        if length != topic_length or not same_bytes(scratch, topic, length):
            copy(scratch, topic, length)
            store_u8(scratch + length, 35)
            topic_length = length
            seed = java_hash(0, scratch, length + 1)
            sums = xxh32_begun(scratch, length + 1)
            taken = (length + 1) & -16
        # the unique key, then each piece of the keys
        first = count
        at = data + load_i32(row + _KEYS_AT)
        end = at + keys_length
        piece = data + load_i32(row + _UNIQUE_AT)
        piece_length = unique_length
        while True:
            if piece_length > 0:
                low = key_hash(java_hash(seed, piece, piece_length))
                copy_short(scratch + topic_length + 1, piece, piece_length)
                high = xxh32_ended(sums, taken, scratch + taken, topic_length + 1 - taken + piece_length)
                if not _seen(table, out, first, count, (low, high)):
                    if count == capacity:
                        store_i64(result, -1)
                        return
                    target = out + count * _KEY_BYTES
                    store_i32(target, number)
                    store_i32(target + 4, low)
                    store_i32(target + 8, high)
                    count += 1
                    # from so many keys on, repeated ones are found by the table
                    if count - first == _FEW_KEYS:
                        if not is_table_clear:
                            for entry in range(_TABLE_ENTRIES):
                                store_i32(table + 4 * entry, 0)
                            is_table_clear = True
                        for earlier in range(first, count):
                            _remember(table, out, first, earlier)
                    elif count - first > _FEW_KEYS:
                        _remember(table, out, first, count - 1)
            if at >= end:
                break
            piece = at
            at = _next_space(at, end)
            piece_length = at - piece
            at += 1
    store_i64(result, count)


class _Scratch(threading.local):
    """The memory that one thread hashes with, batch after batch: new memory would be faulted in each time."""

    def __init__(self) -> None:
        self.text = np.empty(_SCRATCH_BYTES, np.uint8)
        self.table = np.empty(_TABLE_ENTRIES, np.int32)


_SCRATCH = _Scratch()


def hash_keys(data: ByteArray, rows: ScanRows) -> KeyRows:
    """Keys of all messages of ``rows``, in row order; :class:`InvalidRequestError` for rows of other data."""
    rows = np.ascontiguousarray(rows)
    capacity = 2 * len(rows) + 64
    text, table = _SCRATCH.text, _SCRATCH.table
    result = np.zeros(2, np.int64)
    while True:
        out = np.empty(capacity, KEY_ROW)
        _hash_keys(
            data=data.ctypes.data, data_bytes=len(data), rows=rows.ctypes.data, row_count=len(rows),
            scratch=text.ctypes.data, scratch_bytes=len(text), table=table.ctypes.data, out=out.ctypes.data,
            capacity=capacity, result=result.ctypes.data,
        )  # fmt: skip
        count, row = int(result[0]), int(result[1])
        if count >= 0:
            return out[:count]
        if count == -2:
            raise InvalidRequestError(f"row {row} points outside the scanned bytes")
        capacity *= 4
