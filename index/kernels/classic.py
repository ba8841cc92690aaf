"""Finds the items of a classic index in scanned records, puts them and walks chains. Oracle:
``tests.support.oracles.plain_classic``.

Unlike the keys of our own index, items repeat if a key does, and the tags of a message are one more item. Nothing
read from a file is used before it was checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierlog.index.kernels.chains import publish_be32
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.kernels.primitives import (
    called,
    int64,
    kernel,
    load_be32,
    load_be64,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    same_bytes,
    store_be32,
    store_be64,
    store_i32,
    store_i64,
)
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows, row_offset
from tierlog.tiering.kernels.structs import load_fields, struct_kernel
from tierlog.tiering.kernels.text import java_hash, key_hash

BAD_INPUT = -2
#: One row an item: the message's row in the batch and the hash.
ITEM_ROW = np.dtype([("row", "<i4"), ("hash", "<i4")])
ItemRows = NDArray[np.void]


_ROW_BYTES = SCAN_ROW.itemsize
#: A literal, so that numba's cache, which looks at this file only, notices a change.
_ITEM_ROW_BYTES = 8
assert ITEM_ROW.itemsize == _ITEM_ROW_BYTES
_PHYSICAL = row_offset("physical_offset")
_STORE_MS = row_offset("store_ms")
_SYS_FLAG = row_offset("sys_flag")
_TOPIC_AT = row_offset("topic_at")
_KEYS_AT = row_offset("keys_at")
_UNIQUE_AT = row_offset("unique_at")
_TAGS_AT = row_offset("tags_at")

_SPACE = 32
#: Items whose slots are asked for before they are put.
_AHEAD = 32


@called
def _inside(row: int, span: int, data_bytes: int) -> Any:
    """Whether the (position, length) at ``row + span`` lies in the data."""
    at = load_i32(row + span)
    length = load_i32(row + span + 4)
    return at >= 0 and length >= 0 and at + length <= data_bytes


@called
def _emit(out: int, count: int, capacity: int, row: int, hash: int) -> Any:
    """Stores one item row if there is room; returns the new count."""
    if count < capacity:
        store_i32(out + count * _ITEM_ROW_BYTES, row)
        store_i32(out + count * _ITEM_ROW_BYTES + 4, key_hash(hash))
    return count + 1


@kernel
def _hash_items(
    *, data: int, data_bytes: int, rows: int, row_count: int, mark: int, out: int, capacity: int, bad_row: int
) -> Any:
    """Item rows of all records, of which ``capacity`` are stored; their number, or BAD_INPUT and the bad row.

    ``mark`` holds ``#`` and ``T#``.
    """
    count = int64(0)
    topic = int64(0)
    topic_length = int64(-1)
    seed = int64(0)
    for number in range(row_count):
        row = rows + number * _ROW_BYTES
        if load_i32(row + _SYS_FLAG) & 0xC == 0xC:
            continue
        # every span inside the data
        store_i64(bad_row, number)
        if not (
            _inside(row, _TOPIC_AT, data_bytes)
            and _inside(row, _KEYS_AT, data_bytes)
            and _inside(row, _UNIQUE_AT, data_bytes)
            and _inside(row, _TAGS_AT, data_bytes)
        ):
            return BAD_INPUT
        # the beginning of every hash, of "topic#", which the next row mostly shares
        at = data + load_i32(row + _TOPIC_AT)
        length = load_i32(row + _TOPIC_AT + 4)
        if length != topic_length or not same_bytes(topic, at, length):
            topic, topic_length = at, length
            seed = java_hash(java_hash(0, at, length), mark, 1)
        # in this order: the unique key, each piece of the keys, the tags
        length = load_i32(row + _UNIQUE_AT + 4)
        if length > 0:
            unique = java_hash(seed, data + load_i32(row + _UNIQUE_AT), length)
            count = _emit(out, count, capacity, number, unique)
        at = data + load_i32(row + _KEYS_AT)
        end = at + load_i32(row + _KEYS_AT + 4)
        while at < end:
            piece = at
            while at < end and load_u8(at) != _SPACE:
                at += 1
            if at > piece:
                count = _emit(out, count, capacity, number, java_hash(seed, piece, at - piece))
            at += 1
        length = load_i32(row + _TAGS_AT + 4)
        if length > 0:
            tags = java_hash(java_hash(seed, mark + 1, 2), data + load_i32(row + _TAGS_AT), length)
            count = _emit(out, count, capacity, number, tags)
    return count


_MARK = np.frombuffer(b"#T#", np.uint8)


def hash_classic_items(data: ByteArray, rows: ScanRows) -> ItemRows:
    """Items of all messages of ``rows``, in row order; :class:`InvalidRequestError` for rows of other data."""
    rows = np.ascontiguousarray(rows)
    bad_row = np.zeros(1, np.int64)
    capacity = 4 * len(rows) + 64
    while True:
        out = np.empty(capacity, ITEM_ROW)
        count = _hash_items(
            data=data.ctypes.data, data_bytes=len(data), rows=rows.ctypes.data, row_count=len(rows),
            mark=_MARK.ctypes.data, out=out.ctypes.data, capacity=capacity, bad_row=bad_row.ctypes.data,
        )  # fmt: skip
        if count < 0:
            raise InvalidRequestError(f"row {bad_row[0]} points outside the scanned bytes")
        if count <= capacity:
            return out[:count]
        capacity = int(count)


@struct_kernel("file file_bytes slots items rows row_count keys start end")
def put_classic(job: int) -> Any:
    """Puts item rows ``[start, end)`` until the file is full; returns how many, or BAD_INPUT, nothing changed."""
    file, file_bytes, slots, items, rows, row_count, keys, start, end = load_fields(job, 9)
    first_item = file + 40 + 4 * slots
    counter = max(load_be32(file + 36), int64(1))
    if slots < 1 or items < 2 or counter > items or start < 0 or 40 + 4 * slots + 20 * items > file_bytes:
        return BAD_INPUT
    # look at all of them before anything changes
    last = min(end, start + items - counter)
    for at in range(start, last):
        number = load_i32(keys + at * _ITEM_ROW_BYTES)
        if number < 0 or number >= row_count or load_i32(keys + at * _ITEM_ROW_BYTES + 4) < 0:
            return BAD_INPUT
    for at in range(start, last):
        ahead = at + _AHEAD
        if ahead < last:
            prefetch(file + 40 + 4 * (load_i32(keys + ahead * _ITEM_ROW_BYTES + 4) % slots))
        key = keys + at * _ITEM_ROW_BYTES
        row = rows + load_i32(key) * _ROW_BYTES
        hash = load_i32(key + 4)
        offset = load_i64(row + _PHYSICAL)
        store_ms = load_i64(row + _STORE_MS)
        # the item
        slot = file + 40 + 4 * (hash % slots)
        previous = load_be32(slot)
        if previous <= 0 or previous > counter:
            previous = int64(0)
        begin_ms = load_be64(file)
        seconds = int64(0)
        if 0 < begin_ms < store_ms:
            seconds = min((store_ms - begin_ms) // 1000, int64((1 << 31) - 1))
        item = first_item + 20 * counter
        store_be32(item, hash)
        store_be64(item + 4, offset)
        store_be32(item + 12, seconds)
        store_be32(item + 16, previous)
        # the header as RocketMQ keeps it, and last the slot, by which readers find the item
        if counter == 1:
            store_be64(file, store_ms)
            store_be64(file + 16, offset)
        store_be64(file + 8, store_ms)
        store_be64(file + 24, offset)
        if previous == 0:
            store_be32(file + 32, load_be32(file + 32) + 1)
        store_be32(file + 36, counter + 1)
        publish_be32(slot, counter)
        counter += 1
    return last - start


@kernel
def relink_classic(file: int, file_bytes: int, slots: int, items: int, count: int) -> Any:
    """Links items ``1..count`` into empty slots; returns how many slots they use, or BAD_INPUT.

    It is also BAD_INPUT if an item does not say itself what came before it in its slot.
    """
    if slots < 1 or count < 0 or count >= items or 40 + 4 * slots + 20 * items > file_bytes:
        return BAD_INPUT
    first_item = file + 40 + 4 * slots
    used = int64(0)
    for number in range(1, count + 1):
        item = first_item + 20 * number
        ahead = min(number + _AHEAD, count)
        prefetch(file + 40 + 4 * ((load_be32(first_item + 20 * ahead) & 0x7FFFFFFF) % slots))
        hash = load_be32(item)
        if hash < 0:
            return BAD_INPUT
        slot = file + 40 + 4 * (hash % slots)
        previous = load_be32(slot)
        if load_be32(item + 16) != previous:
            return BAD_INPUT
        if previous == 0:
            used += 1
        store_be32(slot, number)
    return used


@struct_kernel("file file_bytes slots items hash begin_ms end_ms out capacity")
def walk_classic(job: int) -> Any:
    """Offsets (int64) of items with this hash and a time in the closed range, newest first, at most ``capacity``.

    A chain ends at a number that does not fall. It may start above a counter that was read before the last put,
    so the capacity bounds it.
    """
    file, file_bytes, slots, items, hash, begin_ms, end_ms, out, capacity = load_fields(job, 9)
    if slots < 1 or hash < 0 or 40 + 4 * slots + 20 * items > file_bytes:
        return BAD_INPUT
    first_ms = load_be64(file)
    number = load_be32(file + 40 + 4 * (hash % slots))
    if number >= items:
        number = int64(0)
    found = int64(0)
    while number > 0 and found < capacity:
        item = file + 40 + 4 * slots + 20 * number
        seconds = load_be32(item + 12)
        if seconds < 0:
            break
        time = first_ms + seconds * 1000
        if load_be32(item) == hash and begin_ms <= time and time <= end_ms:
            store_i64(out + 8 * found, load_be64(item + 4))
            found += 1
        previous = load_be32(item + 16)
        if time < begin_ms or previous >= number:
            break
        number = previous
    return found
