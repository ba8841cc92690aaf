"""CRC-32 (IEEE, reflected, as zlib's) by folding where the processor can, else by slicing 16 bytes at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, uint64

from tiering.kernels.addresses import address_of
from tiering.kernels.folding import can_fold, crc_fold
from tiering.kernels.primitives import called, kernel, load_i64, load_u8, load_u32


def _tables() -> np.ndarray:
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, 16):
        tables[row] = (tables[row - 1] >> 8) ^ tables[0, tables[row - 1] & 255]
    return tables


_TABLES = _tables()
#: Address of the tables, handed to kernels as an argument: a constant address would be frozen into cached code.
CRC_TABLES = _TABLES.ctypes.data


@called
def crc32(tables, address, length):
    """CRC of ``length`` bytes; ``tables`` is :data:`CRC_TABLES`."""
    return _continued(tables, address, length, int64(0))


@kernel
def continued_crc32(tables: int, address: int, length: int, crc: int) -> Any:
    """CRC of ``length`` bytes behind others whose CRC is ``crc``; with :data:`CRC_TABLES`."""
    return _continued(tables, address, length, crc)


def crc32_of(data: bytes) -> int:
    """CRC of some bytes."""
    return int(continued_crc32(CRC_TABLES, address_of(data), len(data), 0))


@called
def _product(left, right):
    """Of two polynomials modulo that of the CRC, whose bits are reversed: the highest is the coefficient of x^0."""
    product = int64(0)
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (0xEDB88320 if right & 1 else 0)
    return product


@kernel
def joined_crc32(first: int, second: int, second_bytes: int) -> Any:
    """CRC of two runs of bytes, one behind the other, of which each one's own is known."""
    power = int64(1 << 23)  # x^8: what a byte behind them does to the bits before it
    left = second_bytes
    while left:
        if left & 1:
            first = _product(first, power)
        power = _product(power, power)
        left >>= 1
    return first ^ second


@called
def _continued(tables, address, length, crc):
    value = uint64(crc ^ 0xFFFFFFFF)
    end = address + length
    if can_fold() and length >= 64:
        folded = length & -16
        value = uint64(crc_fold(address, folded, int64(value)))
        address += folded
    while address + 16 <= end:
        low = uint64(load_i64(address)) ^ value
        high = uint64(load_i64(address + 8))
        address += 16
        value = uint64(0)
        for k in range(8):
            value ^= uint64(load_u32(tables + (15 - k) * 1024 + int64((low >> uint64(8 * k)) & uint64(255)) * 4))
            value ^= uint64(load_u32(tables + (7 - k) * 1024 + int64((high >> uint64(8 * k)) & uint64(255)) * 4))
    if address + 8 <= end:
        low = uint64(load_i64(address)) ^ value
        address += 8
        value = uint64(0)
        for k in range(8):
            value ^= uint64(load_u32(tables + (7 - k) * 1024 + int64((low >> uint64(8 * k)) & uint64(255)) * 4))
    while address < end:
        byte = (value ^ uint64(load_u8(address))) & uint64(255)
        value = (value >> uint64(8)) ^ uint64(load_u32(tables + int64(byte) * 4))
        address += 1
    return int64(value ^ uint64(0xFFFFFFFF))


@called
def record_differs(tables, record, size, properties_length):
    """Whether a record ends in a checksum of all its other bytes, and they are not what it says."""
    tail = record + size - 20
    if properties_length < 20 or load_i64(tail) != 0x2332334352435F5F or load_u8(tail + 8) != 1:  # "__CRC32#"
        return False
    if load_u8(tail + 19) != 2:
        return False
    value = crc32(tables, record, size - 20) & 0x7FFFFFFF
    for i in range(10):
        if load_u8(tail + 9 + i) != 48 + value % 10:
            return True
        value //= 10
    return False
