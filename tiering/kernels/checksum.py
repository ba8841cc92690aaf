"""CRC-32 (IEEE, reflected, as zlib's) by folding where the processor can, else by slicing 16 bytes at a time.

Folding is carry-less multiplication (PCLMULQDQ), 64 bytes a step: Intel, "Fast CRC Computation for Generic Polynomials
Using PCLMULQDQ Instruction", bit-reflected form. Where one instruction multiplies four pairs (VPCLMULQDQ on 512 bits),
a step takes a quarter of the instructions. Whether the code is compiled for such a processor is known when it is
compiled, not before: an image's kernels are for another machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from tierlog.tiering.kernels.primitives import (
    address_of,
    called,
    cgutils,
    int64,
    intrinsic,
    kernel,
    load_i64,
    load_u8,
    load_u32,
    types,
    uint64,
)

_I8, _I32, _I64, _I128 = (ir.IntType(bits) for bits in (8, 32, 64, 128))
_TWO_I64, _FOUR_I32, _EIGHT_I64 = ir.VectorType(_I64, 2), ir.VectorType(_I32, 4), ir.VectorType(_I64, 8)


def _is_compiled_for(feature: str) -> bool:
    import llvmlite.binding  # both late: whoever asks has kernels compiled
    import numba

    if numba.config.CPU_FEATURES is not None:
        return f"+{feature}" in str(numba.config.CPU_FEATURES).split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get(feature, False))


def is_compiled_for_folding() -> bool:
    """Whether kernels that are compiled now may use the instruction."""
    return _is_compiled_for("pclmul")


def is_compiled_for_wide_folding() -> bool:
    """Whether they may also use that for four pairs at once."""
    return is_compiled_for_folding() and _is_compiled_for("vpclmulqdq") and _is_compiled_for("avx512f")


@intrinsic
def can_fold(typing_context):
    """1 if :func:`crc_fold` may be called, a constant of the compiled code."""

    def codegen(context, builder, signature, args):
        return _I64(int(is_compiled_for_folding()))

    return types.int64(), codegen


def _pair(low, high):
    return ir.Constant(_TWO_I64, [low, high])


def _pairs(*halves):
    return ir.Constant(_EIGHT_I64, list(halves))


#: x^n modulo the polynomial, reflected, for 4 x 128, 3 x 128, 2 x 128 and for 128 bits, down to 64 and to 32; the
#: polynomial and its reciprocal for Barrett's reduction: the constants of the paper, or made as they are.
_BY_512 = _pair(0x154442BD4, 0x1C6E41596)
_FOUR_BY_512 = _pairs(*(0x154442BD4, 0x1C6E41596) * 4)
_TO_LAST = _pairs(0x03DB1ECDC, 0x174359406, 0x0F1DA05AA, 0x15A546366, 0x1751997D0, 0x0CCAA009E, 0, 0)
_BY_128 = _pair(0x1751997D0, 0x0CCAA009E)
_TO_64 = _pair(0x163CD6124, 0)
_BARRETT = _pair(0x1DB710641, 0x1F7011641)
_LOW_HALVES = _pair(0xFFFFFFFF, 0xFFFFFFFF)


def _times(builder, left, right, halves):
    """Halves of each pair of 64 bits multiplied: bit 0 and bit 4 of ``halves`` choose the upper one."""
    name = "llvm.x86.pclmulqdq" if left.type.count == 2 else "llvm.x86.pclmulqdq.512"
    kind = ir.FunctionType(left.type, [left.type, left.type, _I8])
    multiply = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(multiply, [left, right, _I8(halves)])


def _folded(builder, value, by, following):
    both = builder.xor(_times(builder, value, by, 0x00), _times(builder, value, by, 0x11))
    return builder.xor(both, following)


def _loaded(builder, address, llvm_type):
    value = builder.load(builder.inttoptr(address, llvm_type.as_pointer()))
    value.align = 1
    return value


def _fold_lanes(builder, address, steps, crc):
    """128 bits that stand for ``steps`` times 64 bytes, one at least, in four lanes beside each other."""
    lanes = [cgutils.alloca_once(builder, _TWO_I64) for _ in range(4)]
    for number, lane in enumerate(lanes):
        value = _loaded(builder, builder.add(address, _I64(16 * number)), _TWO_I64)
        if number == 0:
            value = builder.xor(value, builder.insert_element(_pair(0, 0), crc, _I32(0)))
        builder.store(value, lane)
    with cgutils.for_range(builder, builder.sub(steps, _I64(1)), intp=_I64) as loop:
        at = builder.add(address, builder.shl(builder.add(loop.index, _I64(1)), _I64(6)))
        for number, lane in enumerate(lanes):
            following = _loaded(builder, builder.add(at, _I64(16 * number)), _TWO_I64)
            builder.store(_folded(builder, builder.load(lane), _BY_512, following), lane)
    value = builder.load(lanes[0])
    for lane in lanes[1:]:
        value = _folded(builder, value, _BY_128, builder.load(lane))
    return value


def _fold_wide(builder, address, steps, crc):
    """Returns the result of :func:`_fold_lanes`, made in one register of 512 bits."""
    kept = cgutils.alloca_once(builder, _EIGHT_I64)
    begin = builder.insert_element(ir.Constant(_EIGHT_I64, [0] * 8), crc, _I32(0))
    builder.store(builder.xor(_loaded(builder, address, _EIGHT_I64), begin), kept)
    with cgutils.for_range(builder, builder.sub(steps, _I64(1)), intp=_I64) as loop:
        at = builder.add(address, builder.shl(builder.add(loop.index, _I64(1)), _I64(6)))
        following = _loaded(builder, at, _EIGHT_I64)
        builder.store(_folded(builder, builder.load(kept), _FOUR_BY_512, following), kept)
    value = builder.load(kept)
    parts = _folded(builder, value, _TO_LAST, ir.Constant(_EIGHT_I64, [0] * 8))

    def pair(vector, number):
        places = ir.Constant(ir.VectorType(_I32, 2), [2 * number, 2 * number + 1])
        return builder.shuffle_vector(vector, vector, places)

    last = pair(value, 3)
    for number in range(3):
        last = builder.xor(last, pair(parts, number))
    return last


@intrinsic
def crc_fold(typing_context, address, length, crc):
    """Continues a CRC, not inverted, over ``length`` bytes: at least 64, and a multiple of 16."""

    def codegen(context, builder, signature, args):
        if not is_compiled_for_folding():
            return _I64(0)
        address, length, crc = args

        def times(left, right, halves):
            return _times(builder, left, right, halves)

        def shifted(value, count):
            whole = builder.bitcast(value, _I128)
            return builder.bitcast(builder.lshr(whole, ir.Constant(_I128, 8 * count)), _TWO_I64)

        first = cgutils.alloca_once(builder, _TWO_I64)
        steps = builder.lshr(length, _I64(6))
        fold_64 = _fold_wide if is_compiled_for_wide_folding() else _fold_lanes
        builder.store(fold_64(builder, address, steps, crc), first)
        done = builder.shl(steps, _I64(6))
        with cgutils.for_range(builder, builder.lshr(builder.sub(length, done), _I64(4)), intp=_I64) as loop:
            at = builder.add(builder.add(address, done), builder.shl(loop.index, _I64(4)))
            builder.store(_folded(builder, builder.load(first), _BY_128, _loaded(builder, at, _TWO_I64)), first)
        value = builder.load(first)
        value = builder.xor(shifted(value, 8), times(value, _BY_128, 0x10))
        value = builder.xor(shifted(value, 4), times(builder.and_(value, _LOW_HALVES), _TO_64, 0x00))
        quotient = times(builder.and_(value, _LOW_HALVES), _BARRETT, 0x10)
        product = times(builder.and_(quotient, _LOW_HALVES), _BARRETT, 0x00)
        words = builder.bitcast(builder.xor(value, product), _FOUR_I32)
        return builder.zext(builder.extract_element(words, _I32(1)), _I64)

    return types.int64(types.int64, types.int64, types.int64), codegen


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
    """The product of two polynomials modulo the CRC's, with bits reversed: the highest is the coefficient of x^0."""
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
