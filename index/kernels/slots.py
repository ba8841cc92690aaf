"""Lays chained items out slot by slot, and compares the result with the items by number. Oracle: ``index.plain``.

Field positions come from ``ItemLayout.kernel_offsets``, as in ``index.kernels.chains``. Nothing read from a file is
used before it was checked.
"""

from __future__ import annotations

from typing import Any

from numba import int64

from tiering.kernels.primitives import (
    called,
    inlined,
    kernel,
    load_be32,
    load_i32,
    load_i64,
    prefetch,
    same_bytes,
    store_be32,
    store_i32,
    store_i64,
)

CORRUPT = -1

#: Chains walked side by side: enough for each item to have arrived when its turn comes.
GROUP = 64
#: Items of a chain that are collected before any is copied; the rest of a longer chain is walked alone.
ROUNDS = 32
#: For each chain of a group the number of its next item and how many were collected; the chains that go on; the numbers
#: collected.
GATHER_SCRATCH_BYTES = GROUP * (24 + 4 * ROUNDS)
#: Items between the steps that ask for a slot's place, for the item at that place, and compare it.
_AHEAD = 32
_RING = 4 * _AHEAD
COMPARE_SCRATCH_BYTES = 4 * _RING
_PREVIOUS_BYTES = 4


@inlined
def _copy_words(target, source, length):
    """Copy a multiple of 4 bytes: the pieces are too short to pay for a call of memcpy."""
    at = 0
    while at + 8 <= length:
        store_i64(target + at, load_i64(source + at))
        at += 8
    if at < length:
        store_i32(target + at, load_i32(source + at))


@called
def _copy_item(target: int, item: int, before: int, after: int) -> None:
    """An item without its ``previous``, which has ``before`` bytes in front of it and ``after`` behind."""
    _copy_words(target, item, before)
    _copy_words(target + before, item + before + _PREVIOUS_BYTES, after)


@called
def _previous_of(item: int, number: int, slot: int, slots: int, hash_at: int, previous_at: int) -> Any:
    """The number that follows in the chain of ``slot``, 0 at its end, or CORRUPT."""
    low = load_be32(item + hash_at)
    if low < 0 or low % slots != slot:
        return int64(CORRUPT)
    previous = load_be32(item + previous_at)
    return previous if 0 <= previous < number else int64(CORRUPT)


@called
def _follow(
    items: int, item_bytes: int, number: int, slot: int, slots: int, hash_at: int, previous_at: int, target: int,
    end: int,
) -> Any:  # fmt: skip
    """Copy a chain from ``number`` on while there is room up to ``end``: the next number or CORRUPT, the new target."""
    width = item_bytes - _PREVIOUS_BYTES
    while number > 0 and target + width <= end:
        item = items + item_bytes * number
        number = _previous_of(item, number, slot, slots, hash_at, previous_at)
        _copy_item(target, item, previous_at, width - previous_at)
        target += width
    return number, target


@kernel
def gather_slots(
    file: int, file_bytes: int, slots: int, count: int, offsets: int, state: int, scratch: int,
    table: int, table_slots: int, out: int, out_bytes: int,
) -> Any:  # fmt: skip
    """Go on laying out chains in slot order: compacted items to ``out``, compacted slots to ``table``.

    ``state`` (int64 each) is the next slot, the number of its next item (0 = not begun), the position in the compacted
    file where that slot's items begin, and the position that comes next; at the start 0, 0 and twice the position of
    the first item. Ends when all slots, ``table_slots`` of them or as many items as ``out`` takes are done: at least
    one if ``out`` takes ``ROUNDS`` items. Returns the bytes written to ``out``, or CORRUPT for a chain whose numbers do
    not fall or leave ``1..count``, and for an item that is not of its slot.
    """
    hash_at = load_i64(offsets)
    previous_at = load_i64(offsets + 48)
    item_bytes = load_i64(offsets + 64)
    width = item_bytes - _PREVIOUS_BYTES
    items = file + 28 + 8 * slots
    first = load_i64(state)
    number = load_i64(state + 8)
    start = load_i64(state + 16)
    shift = load_i64(state + 24) - out
    if (
        slots < 1
        or count < 0
        or 28 + 8 * slots + item_bytes * (count + 1) > file_bytes
        or number < 0
        or number > count
        or first < 0
    ):
        return int64(CORRUPT)
    alive = scratch + 16 * GROUP
    numbers = scratch + 24 * GROUP
    slot = first
    target = out
    end = out + out_bytes
    while slot < slots and slot - first < table_slots:
        if number > 0:  # left over from a full ``out``
            number, target = _follow(
                items, item_bytes, number, slot, slots, hash_at, previous_at, target, end
            )  # fmt: skip
            if number < 0:
                return int64(CORRUPT)
            if number > 0:
                break
            store_be32(table + 8 * (slot - first), start)
            store_be32(table + 8 * (slot - first) + 4, target + shift - start)
            slot += 1
            continue
        group = min(min(int64(GROUP), slots - slot), table_slots - (slot - first))
        group = min(group, (end - target) // (ROUNDS * width))
        if group < 1:
            break
        live = int64(0)
        for k in range(group):
            prefetch(file + 28 + 8 * (slot + group + k))
            next = load_be32(file + 28 + 8 * (slot + k))
            if next < 0 or next > count:
                return int64(CORRUPT)
            prefetch(items + item_bytes * next)
            prefetch(items + item_bytes * next + item_bytes - 1)
            store_i64(scratch + 16 * k, next)
            store_i64(scratch + 16 * k + 8, 0)
            store_i64(alive + 8 * live, k)
            live += next > 0
        round = int64(0)
        while live > 0 and round < ROUNDS:
            going = int64(0)
            for place in range(live):
                k = load_i64(alive + 8 * place)
                here = load_i64(scratch + 16 * k)
                next = _previous_of(items + item_bytes * here, here, slot + k, slots, hash_at, previous_at)
                if next < 0:
                    return int64(CORRUPT)
                prefetch(items + item_bytes * next)
                prefetch(items + item_bytes * next + item_bytes - 1)
                store_i32(numbers + 4 * (ROUNDS * k + round), here)
                store_i64(scratch + 16 * k, next)
                store_i64(scratch + 16 * k + 8, round + 1)
                store_i64(alive + 8 * going, k)
                going += next > 0
            live = going
            round += 1
        for k in range(group):
            collected = load_i64(scratch + 16 * k + 8)
            if target + width * collected > end:
                break  # longer chains before it took its room: it begins anew
            start = target + shift
            for place in range(collected):
                here = load_i32(numbers + 4 * (ROUNDS * k + place))
                _copy_item(target, items + item_bytes * here, previous_at, width - previous_at)
                target += width
            number, target = _follow(
                items, item_bytes, load_i64(scratch + 16 * k), slot, slots, hash_at, previous_at, target, end
            )  # fmt: skip
            if number < 0:
                return int64(CORRUPT)
            if number > 0:
                break
            store_be32(table + 8 * (slot - first), start)
            store_be32(table + 8 * (slot - first) + 4, target + shift - start)
            slot += 1
    store_i64(state, slot)
    store_i64(state + 8, number)
    store_i64(state + 16, start)
    store_i64(state + 24, target + shift)
    return target - out


@kernel
def compare_slots(
    chained: int, chained_bytes: int, slots: int, count: int, offsets: int, compacted: int, compacted_bytes: int,
    cursors: int, scratch: int,
) -> Any:  # fmt: skip
    """The slots in use if every slot of a compacted file holds the chained items of that slot, newest first.

    Chains are not looked at: the items 1 to ``count`` are taken by number, and each has to be the last of its slot's
    run that was not taken yet. Otherwise -1 - the first slot that differs. ``cursors`` is an int32 for each slot.
    """
    hash_at = load_i64(offsets)
    previous_at = load_i64(offsets + 48)
    item_bytes = load_i64(offsets + 64)
    width = item_bytes - _PREVIOUS_BYTES
    after = width - previous_at
    first = 28 + 8 * slots
    if slots < 1 or first + item_bytes * (count + 1) > chained_bytes or first + width * count > compacted_bytes:
        return int64(-1)
    place = int64(0)
    used = int64(0)
    for slot in range(slots):
        length = load_be32(compacted + 28 + 8 * slot + 4)
        if load_be32(compacted + 28 + 8 * slot) != first + width * place or length < 0 or length % width != 0:
            return -1 - slot
        used += length > 0
        place += length // width
        if place > count:
            return -1 - slot
        store_i32(cursors + 4 * slot, place)
    if place != count:
        return -1 - slots
    items = chained + first
    for ahead in range(1, count + 1 + 2 * _AHEAD):
        if ahead <= count:
            low = load_be32(items + item_bytes * ahead + hash_at)
            if low < 0:
                return int64(-1)
            slot = low % slots
            store_i32(scratch + 4 * (ahead % _RING), slot)
            prefetch(cursors + 4 * slot)
        near = ahead - _AHEAD
        if near >= 1 and near <= count:
            slot = load_i32(scratch + 4 * (near % _RING))
            target = compacted + first + width * (load_i32(cursors + 4 * slot) - 1)
            prefetch(target)
            prefetch(target + width - 1)
        number = ahead - 2 * _AHEAD
        if number >= 1:
            slot = load_i32(scratch + 4 * (number % _RING))
            place = load_i32(cursors + 4 * slot) - 1
            if place < 0:
                return -1 - slot
            item = items + item_bytes * number
            target = compacted + first + width * place
            if not same_bytes(item, target, previous_at) or not same_bytes(
                item + previous_at + _PREVIOUS_BYTES, target + previous_at, after
            ):
                return -1 - slot
            store_i32(cursors + 4 * slot, place)
    place = int64(0)
    for slot in range(slots):  # a run of which too many were taken eats into the one before
        if load_i32(cursors + 4 * slot) != place:
            return -1 - slot
        place += load_be32(compacted + 28 + 8 * slot + 4) // width
    return used
