"""Collects the offsets of compacted items by segment, sorts them and finds where to look for one.

Oracles are in ``tests/property/test_cold_offsets.py``.

A segment's row is its base, where its next position goes, and where those of it end: int64 each, bases ascending.
"""

from __future__ import annotations

from typing import Any

from tierlog.tiering.kernels.primitives import (
    called,
    int64,
    kernel,
    load_be64,
    load_i32,
    load_i64,
    load_u32,
    store_i32,
    store_i64,
)

ROW_BYTES = 24
NEGATIVE = -1
FULL = -2

#: Bits that are sorted by at a time: three times these make 32, and the ends of their runs stay in the near caches.
_BITS = 11
_DIGITS = 1 << _BITS
SORT_SCRATCH_BYTES = 3 * 4 * _DIGITS


@called
def _rows_up_to(rows: int, known: int, physical: int) -> Any:
    """Returns how many segments begin at or below an offset."""
    low, high = int64(0), known
    while low < high:
        middle = (low + high) // 2
        if load_i64(rows + ROW_BYTES * middle) <= physical:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def count_offsets(
    *, items: int, count: int, width: int, offset_at: int, segment_bytes: int, rows: int, most: int, state: int
) -> Any:
    """Counts the offsets of items in the last field of their segments' rows, of which there is room for ``most``.

    ``state`` (int64 each) is the next item and how many rows there are. Returns 0, NEGATIVE for an offset below 0, or
    FULL where a row does not fit: with more room it goes on.
    """
    known = load_i64(state + 8)
    row = int64(0)
    base = int64(0)
    for at in range(load_i64(state), count):
        physical = load_be64(items + width * at + offset_at)
        if row == 0 or physical < base or physical - base >= segment_bytes:
            if physical < 0:
                return int64(NEGATIVE)
            place = _rows_up_to(rows, known, physical)
            row = rows + ROW_BYTES * (place - 1)
            if place == 0 or physical - load_i64(row) >= segment_bytes:
                if known == most:
                    store_i64(state, at)
                    store_i64(state + 8, known)
                    return int64(FULL)
                row = rows + ROW_BYTES * place
                above = rows + ROW_BYTES * known
                while above > row:  # make room
                    above -= 8
                    store_i64(above + ROW_BYTES, load_i64(above))
                store_i64(row, physical - physical % segment_bytes)
                store_i64(row + 8, 0)
                store_i64(row + 16, 0)
                known += 1
            base = load_i64(row)
        store_i64(row + 16, load_i64(row + 16) + 1)
    store_i64(state, count)
    store_i64(state + 8, known)
    return int64(0)


@kernel
def collect_offsets(
    *, items: int, count: int, width: int, offset_at: int, segment_bytes: int, rows: int, known: int, found: int
) -> Any:
    """Puts each item's position in its segment (uint32) where the segment's row says.

    Returns ``count``, or -1 - the number of an item that no row has room for.
    """
    row = int64(0)
    base = int64(0)
    for at in range(count):
        physical = load_be64(items + width * at + offset_at)
        if row == 0 or physical < base or physical - base >= segment_bytes:
            row = rows + ROW_BYTES * (_rows_up_to(rows, known, physical) - 1)
            if row < rows:
                return -1 - at
            base = load_i64(row)
            if physical - base >= segment_bytes:
                return -1 - at
        place = load_i64(row + 8)
        if place >= load_i64(row + 16):
            return -1 - at
        store_i32(found + 4 * place, physical - base)
        store_i64(row + 8, place + 1)
    return int64(count)


@called
def _sorted_by(shift: int, ends: int, source: int, target: int, count: int) -> None:
    """Sorts stably by one digit; ``ends`` has where the numbers of each digit begin."""
    for at in range(count):
        value = load_u32(source + 4 * at)
        end = ends + 4 * (value >> shift & (_DIGITS - 1))
        place = load_u32(end)
        store_i32(end, place + 1)
        store_i32(target + 4 * place, value)


@kernel
def sort_distinct(values: int, count: int, other: int, scratch: int) -> Any:
    """Sorts numbers (uint32, fewer than 2^31) and keeps each once; returns how many. ``other`` has as much room."""
    for at in range(3 * _DIGITS):
        store_i32(scratch + 4 * at, 0)
    for at in range(count):
        value = load_u32(values + 4 * at)
        for digit in range(3):
            seen = scratch + 4 * (digit * _DIGITS + (value >> digit * _BITS & (_DIGITS - 1)))
            store_i32(seen, load_i32(seen) + 1)
    for digit in range(3):
        start = int64(0)
        for at in range(digit * _DIGITS, (digit + 1) * _DIGITS):
            here = load_i32(scratch + 4 * at)
            store_i32(scratch + 4 * at, start)
            start += here
    _sorted_by(0, scratch, values, other, count)
    _sorted_by(_BITS, scratch + 4 * _DIGITS, other, values, count)
    _sorted_by(2 * _BITS, scratch + 8 * _DIGITS, values, other, count)
    kept = int64(0)
    before = int64(-1)
    for at in range(count):
        value = load_u32(other + 4 * at)
        if value != before:
            store_i32(values + 4 * kept, value)
            kept += 1
        before = value
    return kept


@kernel
def fill_buckets(pairs: int, *, start: int, end: int, shift: int, buckets: int, count: int) -> Any:
    """Finds the first of the pairs ``[start, end)`` at or above ``bucket << shift``, for each of ``count`` buckets.

    Positions (uint32) ascend, each beside another number.
    """
    place = start
    for bucket in range(count):
        while place < end and load_u32(pairs + 8 * place) < bucket << shift:
            place += 1
        store_i32(buckets + 4 * bucket, place)
    return place
