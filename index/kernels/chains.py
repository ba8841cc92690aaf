"""Puts items into chained index files and links them. ``tests.support.oracles.plain_index`` is the oracle.

Field positions come from ``ItemLayout.kernel_offsets``: hash, topic id, queue id, offset, size, seconds,
previous, hash_high (-1 = absent), bytes of an item. Nothing read from a file is used before it was checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tierlog.index.kernels.keys import KEY_ROW
from tierlog.tiering.kernels.primitives import (
    called,
    int64,
    intrinsic,
    kernel,
    load_be32,
    load_be64,
    load_i32,
    load_i64,
    load_u32,
    prefetch,
    store_be32,
    store_be64,
    store_i64,
    types,
    uint32,
)
from tierlog.tiering.kernels.scan import SCAN_ROW, row_offset
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

FULL = -1
BAD_INPUT = -2
CORRUPT = -1

_ROW_BYTES = SCAN_ROW.itemsize
#: A literal, so that numba's cache, which looks at this file only, notices a change.
_KEY_BYTES = 12
assert KEY_ROW.itemsize == _KEY_BYTES
_PHYSICAL = row_offset("physical_offset")
_STORE_MS = row_offset("store_ms")
_BORN_MS = row_offset("born_ms")
_SIZE = row_offset("size")
_TOPIC_NUMBER = row_offset("topic_number")
_QUEUE_ID = row_offset("queue_id")

#: Items written before their slots are linked: by then the slots' cache lines have arrived.
PENDING = 64
PENDING_BYTES = PENDING * 8
#: Times beyond this are nonsense; cutting them keeps differences inside 64 bits.
_TIME_LIMIT = 1 << 61


@intrinsic
def publish_be32(typing_context, address, value):
    """Stores an aligned int32 after everything stored before it, as seen by every other thread."""

    def codegen(context, builder, signature, args):
        word = ir.IntType(32)
        stored = builder.bswap(builder.trunc(args[1], word))
        builder.store_atomic(stored, builder.inttoptr(args[0], word.as_pointer()), "release", 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@called
def _link(pending: int, count: int, number: int, previous: int, item_bytes: int) -> Any:
    """Makes ``count`` complete items the newest of their slots; returns how many of these were empty.

    Addresses of the slots are in ``pending``. The first item's number and the address of its ``previous`` are given.
    """
    used = int64(0)
    for place in range(count):
        slot = load_i64(pending + 8 * place)
        newest = max(load_be32(slot), int64(0))
        used += newest == 0
        store_be32(previous, newest)
        publish_be32(slot, number)
        previous += item_bytes
        number += 1
    return used


@kernel
def batch_bounds(*, rows: int, row_count: int, topic_count: int, keys: int, start: int, end: int, out: int) -> Any:
    """Least and greatest store and born time over the messages of keys ``[start, end)``; checks them."""
    min_store = min_born = int64(0x7FFFFFFFFFFFFFFF)
    max_store = max_born = ~int64(0x7FFFFFFFFFFFFFFF)
    for at in range(start, end):
        number = load_i32(keys + at * _KEY_BYTES)
        if number < 0 or number >= row_count or load_i32(keys + at * _KEY_BYTES + 4) < 0:
            return BAD_INPUT
        row = rows + number * _ROW_BYTES
        topic = load_i32(row + _TOPIC_NUMBER)
        if topic < 0 or topic >= topic_count:
            return BAD_INPUT
        store = load_i64(row + _STORE_MS)
        born = load_i64(row + _BORN_MS)
        min_store, max_store = min(min_store, store), max(max_store, store)
        min_born, max_born = min(min_born, born), max(max_born, born)
    store_i64(out, min_store)
    store_i64(out + 8, max_store)
    store_i64(out + 16, min_born)
    store_i64(out + 24, max_born)
    return 0


@called
def _seconds(begin_ms: int, store_ms: int) -> Any:
    difference = min(max(store_ms, -_TIME_LIMIT), _TIME_LIMIT) - begin_ms
    seconds = difference // 1000 if difference >= 0 else -(-difference // 1000)
    return min(max(seconds, int64(-(1 << 31))), int64((1 << 31) - 1))


@struct_kernel("file file_bytes slots items begin_ms offsets rows topic_ids keys start end pending")
def put_items(job: int) -> Any:
    """Puts keys ``[start, end)`` into the file; returns the new item count, or FULL or BAD_INPUT, nothing changed.

    The keys are those of a ``batch_bounds`` that did not refuse them: they are not checked again.
    """
    file, file_bytes, slots, items, begin_ms, offsets, rows, topic_ids, keys, start, end, pending = load_fields(job, 12)
    hash_at = load_i64(offsets)
    topic_at = load_i64(offsets + 8)
    queue_at = load_i64(offsets + 16)
    offset_at = load_i64(offsets + 24)
    size_at = load_i64(offsets + 32)
    seconds_at = load_i64(offsets + 40)
    previous_at = load_i64(offsets + 48)
    high_at = load_i64(offsets + 56)
    item_bytes = load_i64(offsets + 64)
    # whether all of them fit
    table = file + 28
    first_item = table + 8 * slots
    if slots < 1 or items < 2 or start < 0 or 28 + 8 * slots + item_bytes * items > file_bytes:
        return BAD_INPUT
    count = load_be32(file + 24)
    if count < 0 or count + end - start > items - 1:
        return FULL
    greatest = load_be64(file + 12)
    used = int64(0)
    waiting = int64(0)
    for at in range(start, end):
        key = keys + at * _KEY_BYTES
        row = rows + load_i32(key) * _ROW_BYTES
        # the item, whose slot is asked for meanwhile
        low = load_i32(key + 4)
        count += 1
        slot = table + 8 * int64(uint32(low) % uint32(slots))
        prefetch(slot)
        item = first_item + item_bytes * count
        store_ms = load_i64(row + _STORE_MS)
        store_be32(item + hash_at, low)
        store_be64(item + offset_at, load_i64(row + _PHYSICAL))
        store_be32(item + seconds_at, _seconds(begin_ms, store_ms))
        if topic_at >= 0:
            store_be32(item + topic_at, load_i32(topic_ids + 4 * load_i32(row + _TOPIC_NUMBER)))
        if queue_at >= 0:
            store_be32(item + queue_at, load_i32(row + _QUEUE_ID))
        if size_at >= 0:
            store_be32(item + size_at, load_i32(row + _SIZE))
        if high_at >= 0:
            store_be32(item + high_at, load_u32(key + 8))
        if store_ms > greatest:
            greatest = store_ms
        # link some at a time, once complete
        store_i64(pending + 8 * waiting, slot)
        waiting += 1
        if waiting == PENDING or at + 1 == end:
            first = count - waiting + 1
            used += _link(pending, waiting, first, first_item + item_bytes * first + previous_at, item_bytes)
            waiting = int64(0)
    # the header; a full file takes no further key
    store_be64(file + 12, greatest)
    store_be32(file + 20, load_be32(file + 20) + used)
    store_be32(file + 24, count)
    if count + 1 == items:
        store_be32(file, -1127939451)
    return count


@kernel
def link_again(file: int, file_bytes: int, slots: int, count: int, offsets: int) -> Any:
    """Puts items ``1..count`` into their slots' chains in order, over slots that are zero; returns the slots used.

    CORRUPT if an item has a hash that no put writes, or the file is too short.
    """
    hash_at = load_i64(offsets)
    previous_at = load_i64(offsets + 48)
    item_bytes = load_i64(offsets + 64)
    first_item = file + 28 + 8 * slots
    if slots < 1 or count < 0 or 28 + 8 * slots + item_bytes * (count + 1) > file_bytes:
        return CORRUPT
    used = int64(0)
    for number in range(1, count + 1):
        item = first_item + item_bytes * number
        low = load_be32(item + hash_at)
        if low < 0:
            return CORRUPT
        slot = file + 28 + 8 * (low % slots)
        newest = load_be32(slot)
        if newest == 0:
            used += 1
        store_be32(item + previous_at, newest)
        store_be32(slot, number)
    return used
