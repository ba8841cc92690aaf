"""Lays items out in the pages of an index object, with their cold offsets. ``index.objects.pages`` reads them.

Field positions are those of compacted items.
"""

from __future__ import annotations

from typing import Any

from tierlog.tiering.kernels.primitives import (
    called,
    int64,
    kernel,
    load_be32,
    load_be64,
    load_i64,
    load_u8,
    load_u32,
    prefetch,
    store_be32,
    store_be64,
    store_i64,
    store_u8,
    uint32,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

#: Items between the steps that ask for an offset's bucket, for what is in it, and search there.
_AHEAD = 16
_RING = 4 * _AHEAD
#: Base of the segment, position in it, address of the bucket.
TRANSLATE_SCRATCH_BYTES = 24 * _RING


@kernel
def slot_starts(
    *, items: int, count: int, width: int, hash_at: int, slots: int, slot_from: int, slot_count: int, out: int
) -> Any:
    """The first item (int64) at or above each of ``slot_count`` slots and of the one behind them; slots ascend."""
    place = int64(0)
    for slot in range(slot_from, slot_from + slot_count + 1):
        while place < count and int64(
            (uint32(load_be32(items + width * place + hash_at)) & uint32(0x7FFFFFFF)) % uint32(slots)
        ) < slot:  # fmt: skip
            place += 1
        store_i64(out + 8 * (slot - slot_from), place)
    return place


@called
def _transpose(rows: int, count: int, width: int, out: int) -> int:
    """Writes the first bytes of all rows, then the second bytes of all, and so on; returns where that ends."""
    for column in range(width):
        for row in range(count):
            store_u8(out + row, load_u8(rows + width * row + column))
        out += count
    return out


@struct_kernel("items width item item_end starts slot slot_end first_slot head_bytes out entries")
def lay_page(job: int) -> Any:
    """Writes the page of the items ``[item, item_end)`` to ``out``; returns its bytes.

    ``starts`` has the first item (int64) of each slot from number 0 on; the page's are ``[slot, slot_end)``, of which
    number ``slot`` is the object's ``first_slot``. ``entries`` is scratch of 8 bytes a slot.
    """
    items, width, item, item_end, starts, slot, slot_end, first_slot, head_bytes, out, entries = load_fields(job, 11)
    slots = slot_end - slot
    store_be32(out, first_slot)
    store_be32(out + 4, slots)
    position = head_bytes + 8 * slots
    for number in range(slots):
        start = min(max(load_i64(starts + 8 * (slot + number)), item), item_end)
        end = min(max(load_i64(starts + 8 * (slot + number + 1)), item), item_end)
        store_be32(entries + 8 * number, position + width * (start - item))
        store_be32(entries + 8 * number + 4, width * (end - start))
    end = _transpose(entries, slots, 8, out + head_bytes)
    return _transpose(items + width * item, item_end - item, width, end) - out


@struct_kernel("items count width offset_at segment_bytes bases segments buckets buckets_each shift pairs scratch")
def translate(job: int) -> Any:
    """Rewrites the physical offsets of items as cold ones.

    Returns ``count``, or -1 - the number of the first item whose offset is not known.

    ``bases`` (int64) are those of the segments, ascending. ``pairs`` (uint32 each) are the positions of each segment,
    ascending, one segment after the other, each beside its cold one. Each segment has ``buckets_each`` (uint32),
    and one more for where it ends: the number of the first position of ``bucket << shift`` or above.
    """
    (
        items, count, width, offset_at, segment_bytes, bases, segments, buckets, buckets_each, shift, pairs, scratch,
    ) = load_fields(job, 12)  # fmt: skip
    base = load_i64(bases)
    row = buckets
    for ahead in range(count + 2 * _AHEAD):
        # ask for the bucket of an item's position; the segment is looked for only if it is another
        if ahead < count:
            physical = load_be64(items + width * ahead + offset_at)
            if physical < base or physical >= base + segment_bytes:
                low, high = int64(0), segments
                while high - low > 1:
                    middle = (low + high) // 2
                    if load_i64(bases + 8 * middle) <= physical:
                        low = middle
                    else:
                        high = middle
                base = load_i64(bases + 8 * low)
                row = buckets + 4 * (buckets_each + 1) * low
                if physical < base or physical >= base + segment_bytes:
                    return -1 - ahead
            place = scratch + 24 * (ahead % _RING)
            bucket = row + 4 * ((physical - base) >> shift)
            store_i64(place, base)
            store_i64(place + 8, physical - base)
            store_i64(place + 16, bucket)
            prefetch(bucket)
        # ask for what is in the bucket of an earlier one
        near = ahead - _AHEAD
        if near >= 0 and near < count:
            low = int64(load_u32(load_i64(scratch + 24 * (near % _RING) + 16)))
            prefetch(pairs + 8 * low)
        # find a still earlier position there, and put its cold offset in its place
        at = ahead - 2 * _AHEAD
        if at >= 0:
            place = scratch + 24 * (at % _RING)
            position = load_i64(place + 8)
            bucket = load_i64(place + 16)
            low, high = int64(load_u32(bucket)), int64(load_u32(bucket + 4))
            while high - low > 1:
                middle = (low + high) // 2
                if load_u32(pairs + 8 * middle) <= position:
                    low = middle
                else:
                    high = middle
            if low >= high or load_u32(pairs + 8 * low) != position:
                return -1 - at
            store_be64(items + width * at + offset_at, load_i64(place) + load_u32(pairs + 8 * low + 4))
    return count
