"""Sums of records, by which what is stored is compared with what was read.

Any one flipped bit of a record changes its sum, because each step takes eight bytes in and is a bijection of them and
of what came before; four such rows of steps go side by side. The sums of records are added up, modulo 2^64, so that
their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_BLANK
from tierlog.tiering.kernels.primitives import (
    address_of,
    called,
    inlined,
    int64,
    kernel,
    load_be32,
    load_i64,
    prefetch,
    store_i64,
    uint64,
)

SUM_MASK = (1 << 64) - 1


@inlined
def _with(value, word):
    mixed = (value ^ word) * uint64(0x9E3779B97F4A7C15)
    return mixed >> uint64(32) | mixed << uint64(32)


@called
def record_sum(address, length):
    """Returns the sum of the record of ``length`` bytes, eight at least, at an address."""
    first = uint64(length)
    second = third = fourth = uint64(0)
    end = address + length
    while address + 32 <= end:
        first = _with(first, uint64(load_i64(address)))
        second = _with(second, uint64(load_i64(address + 8)))
        third = _with(third, uint64(load_i64(address + 16)))
        fourth = _with(fourth, uint64(load_i64(address + 24)))
        address += 32
    while address + 8 <= end:
        first = _with(first, uint64(load_i64(address)))
        address += 8
    if address < end:
        second = _with(second, uint64(load_i64(end - 8)) >> uint64(64 - 8 * (end - address)))  # what is left, alone
    return int64(_with(_with(_with(first, second), third), fourth))


@kernel
def _measure(log, position, limit, most_bytes, out):
    start = position
    count = 0
    while limit - position >= 8 and position - start < most_bytes:
        size = load_be32(log + position)
        if load_be32(log + position + 4) == MAGIC_BLANK or size < FIXED_BYTES_V1 or size > limit - position:
            break
        prefetch(log + position + 3 * size)
        position += size
        count += 1
    store_i64(out, position)
    store_i64(out + 8, count)


@kernel
def _sum(log, position, end):
    total = int64(0)
    while position < end:
        size = load_be32(log + position)
        if size < FIXED_BYTES_V1 or size > end - position:
            break
        total += record_sum(log + position, size)
        position += size
    return total


class RecordRange(NamedTuple):
    """Records of a log segment, one behind the other in ``[start, end)``, as many as their sizes say."""

    start: int
    end: int
    records: int


def stretches(data: ByteArray, most_bytes: int) -> Iterator[RecordRange]:
    """The records of a segment up to its blank record, or to what cannot be one, in stretches of about ``most_bytes``.

    Sizes alone are read, and nothing is checked.
    """
    out, position = np.empty(2, np.int64), 0
    while True:
        _measure(address_of(data), position, len(data), most_bytes, address_of(out))
        end, records = out.tolist()
        if not records:
            return
        yield RecordRange(position, end, records)
        position = end


def sum_of(data: ByteArray, stretch: RecordRange) -> int:
    """Returns the sum of the records of a stretch."""
    return int(_sum(address_of(data), stretch.start, stretch.end))
