"""Sorts items inside their slots; ``tests.support.oracles.plain_objects.plain_order`` is the oracle.

Field positions are those of compacted items: hash, hash_high (-1 = absent), offset, bytes of an item.
"""

from __future__ import annotations

from typing import Any

from tierlog.tiering.kernels.primitives import (
    called,
    inlined,
    int64,
    kernel,
    load_be32,
    load_be64,
    load_i32,
    store_i32,
    store_i64,
    uint32,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

#: Up to this many items are sorted by insertion; slots are short, but for a hot key's.
_RUN = 16
#: How items lie: the address of number 0, bytes of an item, and positions of hash, hash_high and offset in it.
Lying = tuple[int, int, int, int, int]


@inlined
def _slot(hash_address, slots):
    """Returns the slot of the item whose hash lies there; a division of 32 bits takes less than one of 64."""
    return int64((uint32(load_be32(hash_address)) & uint32(0x7FFFFFFF)) % uint32(slots))


@kernel
def rising_slots(*, items: int, count: int, width: int, hash_at: int, slots: int, slot_from: int, out: int) -> Any:
    """Returns where the run of the last item's slot begins, or -1 unless slots rise from ``slot_from`` on.

    There is at least one item. ``out`` gets the first and the last slot (int64).
    """
    start = int64(0)
    slot = int64(slot_from)
    for at in range(count):
        low = load_be32(items + width * at + hash_at)
        here = int64(uint32(low) % uint32(slots))
        if low < 0 or here < slot:
            return int64(-1)
        if at == 0:
            store_i64(out, here)
        if here > slot:
            start = int64(at)
        slot = here
    store_i64(out + 8, slot)
    return start


@called
def _is_before(left: int, right: int, hash_at: int, high_at: int, offset_at: int) -> Any:
    """Whether an item goes strictly before another of its slot: lower hashes, then the higher offset."""
    low, other = load_be32(left + hash_at), load_be32(right + hash_at)
    if low != other:
        return low < other
    if high_at >= 0:
        low, other = load_be32(left + high_at) & 0xFFFFFFFF, load_be32(right + high_at) & 0xFFFFFFFF
        if low != other:
            return low < other
    return load_be64(left + offset_at) > load_be64(right + offset_at)


@called
def _insert(lying: Lying, order: int, start: int, end: int) -> Any:
    """Sorts the numbers ``[start, end)`` of the order in place."""
    items, width, hash_at, high_at, offset_at = lying
    for at in range(start + 1, end):
        number = load_i32(order + 4 * at)
        place = at
        while place > start:
            earlier = load_i32(order + 4 * (place - 1))
            if not _is_before(items + width * number, items + width * earlier, hash_at, high_at, offset_at):
                break
            store_i32(order + 4 * place, earlier)
            place -= 1
        store_i32(order + 4 * place, number)
    return int64(0)


@called
def _merge(lying: Lying, source: int, target: int, runs: tuple[int, int, int]) -> Any:
    """Merges two sorted runs of numbers, (start, middle, end), into another array, stably."""
    items, width, hash_at, high_at, offset_at = lying
    start, middle, end = runs
    left, right = start, middle
    for place in range(start, end):
        take_right = left >= middle
        if not take_right and right < end:
            take_right = _is_before(
                items + width * load_i32(source + 4 * right), items + width * load_i32(source + 4 * left),
                hash_at, high_at, offset_at,
            )  # fmt: skip
        if take_right:
            store_i32(target + 4 * place, load_i32(source + 4 * right))
            right += 1
        else:
            store_i32(target + 4 * place, load_i32(source + 4 * left))
            left += 1
    return int64(0)


@struct_kernel("items count width hash_at high_at offset_at slots order scratch")
def sort_slots(job: int) -> Any:
    """Fills ``order`` (int32) with the numbers of ``count`` items whose slots ascend, sorted inside each slot.

    ``scratch`` is another array of int32 of that length.
    """
    items, count, width, hash_at, high_at, offset_at, slots, order, scratch = load_fields(job, 9)
    lying = (items, width, hash_at, high_at, offset_at)
    start = int64(0)
    while start < count:
        slot = _slot(items + width * start + hash_at, slots)
        end = start
        while end < count and _slot(items + width * end + hash_at, slots) == slot:
            store_i32(order + 4 * end, end)
            end += 1
        for run in range(start, end, _RUN):
            _insert(lying, order, run, min(run + _RUN, end))
        length = int64(_RUN)
        source, target = order, scratch
        while length < end - start:
            for run in range(start, end, 2 * length):
                middle = min(run + length, end)
                _merge(lying, source, target, (run, middle, min(middle + length, end)))
            source, target = target, source
            length *= 2
        if source != order:
            for at in range(start, end):
                store_i32(order + 4 * at, load_i32(source + 4 * at))
        start = end
    return int64(0)
