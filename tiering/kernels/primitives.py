"""Building blocks of the compiled loops: the ``kernel`` decorator, addresses, and loads, stores and copies there.

Kernels take addresses and scalars as int64, because that costs least per call; the caller keeps the arrays alive.
Nothing here checks a bound: **a kernel checks every length it reads from a log or an index before it uses it.**

Compiled code is kept between runs (:mod:`tiering.kernels.cache`).
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from pyarrow import py_buffer

from tierlog.tiering.kernels import cache

#: Where compiled kernels are kept; chosen before the first kernel exists.
CACHE = cache.CHOICE
#: For functions called from Python with integer arguments: compiled once, cached on disk, without the GIL.
kernel = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
#: For functions called from kernels.
inlined = numba.njit(inline="always", nogil=True, boundscheck=False, error_model="numpy")
called = numba.njit(nogil=True, boundscheck=False, error_model="numpy")


def address_of(array: NDArray[Any] | bytes) -> int:
    """Returns the address of the first byte of a contiguous array, or of some bytes.

    Takes a sixth of the time of ``array.ctypes.data``, which is a microsecond; a batch needs some forty addresses.
    """
    address: int = py_buffer(array).address
    return address


_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _pointer(builder, address, llvm_type):
    return builder.inttoptr(address, llvm_type.as_pointer())


def _load(llvm_type, *, big_endian, signed):
    @intrinsic
    def load(typing_context, address):
        def codegen(context, builder, signature, args):
            value = builder.load(_pointer(builder, args[0], llvm_type))
            value.align = 1
            if big_endian:
                value = builder.bswap(value)
            if llvm_type.width < 64:
                value = builder.sext(value, _I64) if signed else builder.zext(value, _I64)
            return value

        return types.int64(types.int64), codegen

    return load


def _store(llvm_type, *, big_endian):
    @intrinsic
    def store(typing_context, address, value):
        def codegen(context, builder, signature, args):
            stored = builder.trunc(args[1], llvm_type) if llvm_type.width < 64 else args[1]
            if big_endian:
                stored = builder.bswap(stored)
            builder.store(stored, _pointer(builder, args[0], llvm_type), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


load_u8 = _load(_I8, big_endian=False, signed=False)
load_be16 = _load(_I16, big_endian=True, signed=False)
load_be32 = _load(_I32, big_endian=True, signed=True)
load_be64 = _load(_I64, big_endian=True, signed=True)
load_i32 = _load(_I32, big_endian=False, signed=True)
load_u32 = _load(_I32, big_endian=False, signed=False)
load_i64 = _load(_I64, big_endian=False, signed=True)

store_u8 = _store(_I8, big_endian=False)
store_be16 = _store(_I16, big_endian=True)
store_be32 = _store(_I32, big_endian=True)
store_be64 = _store(_I64, big_endian=True)
store_i32 = _store(_I32, big_endian=False)
store_i64 = _store(_I64, big_endian=False)


@intrinsic
def copy(typing_context, target, source, length):
    """memcpy of ``length`` bytes."""

    def codegen(context, builder, signature, args):
        cgutils.raw_memcpy(builder, _pointer(builder, args[0], _I8), _pointer(builder, args[1], _I8), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _copy_of(length):
    llvm_type = ir.VectorType(_I8, length)

    @intrinsic
    def copy_fixed(typing_context, target, source):
        def codegen(context, builder, signature, args):
            value = builder.load(_pointer(builder, args[1], llvm_type))
            value.align = 1
            builder.store(value, _pointer(builder, args[0], llvm_type), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy_fixed


_copy_4, _copy_8, _copy_16, _copy_32 = (_copy_of(length) for length in (4, 8, 16, 32))


@inlined
def copy_short(target, source, length):
    """As :func:`copy`, for a length that is below 64 most of the time: two moves that overlap, no call."""
    if length > 64:
        copy(target, source, length)
    elif length >= 32:
        _copy_32(target, source)
        _copy_32(target + length - 32, source + length - 32)
    elif length >= 16:
        _copy_16(target, source)
        _copy_16(target + length - 16, source + length - 16)
    elif length >= 8:
        _copy_8(target, source)
        _copy_8(target + length - 8, source + length - 8)
    elif length >= 4:
        _copy_4(target, source)
        _copy_4(target + length - 4, source + length - 4)
    else:
        for at in range(length):
            store_u8(target + at, load_u8(source + at))


@intrinsic
def trailing_zeros(typing_context, value):
    """Returns how many low bits are zero; 64 of 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(0))

    return types.int64(types.int64), codegen


@inlined
def find_byte(address, end, byte):
    """Returns where a byte, below 128, is first in ``[address, end)``; ``end`` if it is nowhere.

    Eight bytes at a time.
    """
    ones = 0x0101010101010101
    while address + 8 <= end:
        eight = load_i64(address) ^ (byte * ones)
        found = (eight - ones) & ~eight & (ones << 7)  # exact for the lowest, which is the one that counts
        if found != 0:
            return address + (trailing_zeros(found) >> 3)
        address += 8
    while address < end and load_u8(address) != byte:
        address += 1
    return address


@intrinsic
def prefetch(typing_context, address):
    """Asks for a cache line that will be read soon; any address is harmless."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [_pointer(builder, args[0], _I8), _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@inlined
def same_bytes(left, right, length):
    """Whether two runs of bytes are equal."""
    at = 0
    while at + 8 <= length:
        if load_i64(left + at) != load_i64(right + at):
            return False
        at += 8
    if at < length and length > 8:  # the last eight, some of them again
        return load_i64(left + length - 8) == load_i64(right + length - 8)
    if at + 4 <= length:
        if load_i32(left + at) != load_i32(right + at):
            return False
        at += 4
    while at < length:
        if load_u8(left + at) != load_u8(right + at):
            return False
        at += 1
    return True
