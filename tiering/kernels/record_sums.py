"""Sums of records, by which what is stored is compared with what was read.

Any one flipped bit of a record changes its sum, because each step takes eight bytes in and is a bijection of them and
of what came before; four such rows of steps go side by side. The sums of records are added up, modulo 2^64, so that
their order does not matter.
"""

from __future__ import annotations

from tierlog.tiering.kernels.primitives import called, inlined, int64, load_i64, uint64

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
