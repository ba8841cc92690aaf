"""Hashes of text at an address. ``tiering.format.hashing`` is their oracle.

numba widens uint32 arithmetic to 64 bits: every value that is rotated, shifted right or returned is cast back.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from tierlog.tiering.kernels.primitives import (
    called,
    cgutils,
    inlined,
    int32,
    int64,
    intrinsic,
    load_i64,
    load_u8,
    load_u32,
    types,
    uint32,
)

#: 0x80 in each of eight bytes: set where text is not ASCII.
_NOT_ASCII = -9187201950435737472
#: 31 to the 16th, in 32 bits.
_POWER_16 = 31**16 % (1 << 32)
_P1, _P2, _P3, _P4, _P5 = (np.uint32(prime) for prime in (2654435761, 2246822519, 3266489917, 668265263, 374761393))


@inlined
def _continuation(address, end):
    """Returns the low six bits of a UTF-8 continuation byte, or -1 if there is none before ``end``."""
    if address >= end:
        return int64(-1)
    byte = load_u8(address)
    return byte & 63 if byte & 0xC0 == 0x80 else int64(-1)


@intrinsic
def _hash_of_sixteen(typing_context, address):
    """Java's hash of sixteen ASCII bytes, multiplied side by side; -1 if one of them is not ASCII."""

    def codegen(context, builder, signature, args):
        sums = ir.VectorType(ir.IntType(32), 16)
        text = builder.load(builder.inttoptr(args[0], ir.VectorType(ir.IntType(8), 16).as_pointer()))
        text.align = 1
        powers = ir.Constant(sums, [31**place % (1 << 32) for place in range(15, -1, -1)])
        add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(sums.element, [sums]), "llvm.vector.reduce.add.v16i32"
        )
        value = builder.zext(builder.call(add, [builder.mul(builder.zext(text, sums), powers)]), ir.IntType(64))
        whole = builder.bitcast(text, ir.IntType(128))
        others = builder.and_(whole, whole.type(int("80" * 16, 16)))
        return builder.select(builder.icmp_unsigned("==", others, whole.type(0)), value, value.type(-1))

    return types.int64(types.int64), codegen


@inlined
def _hash_of_eight(word):
    """Java's hash of eight ASCII bytes: neighbours are joined in pairs, then pairs, then fours."""
    pairs = (word & 0x00FF00FF00FF00FF) * 31 + ((word >> 8) & 0x00FF00FF00FF00FF)
    fours = (pairs & 0x0000FFFF0000FFFF) * 31**2 + ((pairs >> 16) & 0x0000FFFF0000FFFF)
    return (fours & 0xFFFFFFFF) * 31**4 + (fours >> 32)


@called
def java_hash(seed, address, length):
    """Java's string hash continued from ``seed`` over UTF-8 bytes; an invalid byte counts as U+FFFD."""
    end = address + length
    value = uint32(seed)
    while address < end:
        # ASCII, as most text is, by sixteen and by eight bytes
        if end - address >= 16:
            sixteen = _hash_of_sixteen(address)
            if sixteen >= 0:
                value = uint32(int64(value) * _POWER_16 + sixteen)
                address += 16
                continue
        if end - address >= 8:
            word = load_i64(address)
            if word & _NOT_ASCII == 0:
                value = uint32(int64(value) * 31**8 + _hash_of_eight(word))
                address += 8
                continue
        # one character of UTF-8: its UTF-16 unit, or two of them
        byte = load_u8(address)
        unit = int64(0xFFFD)
        step = 1
        if byte < 0x80:
            unit = byte
        elif byte >= 0xC2:
            second = _continuation(address + 1, end)
            third = _continuation(address + 2, end)
            fourth = _continuation(address + 3, end)
            if byte < 0xE0:
                if second >= 0:
                    unit = (byte & 31) << 6 | second
                    step = 2
            elif byte < 0xF0:
                if second >= 0 and third >= 0:
                    unit = (byte & 15) << 12 | second << 6 | third
                    step = 3
            elif byte < 0xF5 and second >= 0 and third >= 0 and fourth >= 0:
                point = ((byte & 7) << 18 | second << 12 | third << 6 | fourth) - 0x10000
                value = uint32(value * uint32(31) + uint32(0xD800 + (point >> 10)))
                unit = 0xDC00 + (point & 1023)
                step = 4
        value = uint32(value * uint32(31) + uint32(unit))
        address += step
    return int64(value)


@called
def is_utf8(address, length):
    """Whether bytes are UTF-8 as Python's strict decoder takes it: no surrogates, nothing longer than it need be."""
    end = address + length
    while address < end:
        if end - address >= 8 and load_i64(address) & _NOT_ASCII == 0:
            address += 8
            continue
        byte = load_u8(address)
        if byte < 0x80:
            address += 1
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        following = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if address + following >= end:
            return False
        second = load_u8(address + 1)
        if (byte == 0xE0 and second < 0xA0) or (byte == 0xF0 and second < 0x90):
            return False
        if (byte == 0xED and second > 0x9F) or (byte == 0xF4 and second > 0x8F):
            return False
        for i in range(1, following + 1):
            if _continuation(address + i, end) < 0:
                return False
        address += following + 1
    return True


@inlined
def signed32(value):
    """Returns an unsigned 32-bit value as Java's int."""
    return int64(int32(value))


@inlined
def key_hash(value):
    """RocketMQ's non-negative form of a Java hash; -2^31 becomes 0."""
    value = signed32(value)
    if value < 0:
        value = -value
    return value if value < 2147483648 else int64(0)


@inlined
def _rotate(value, bits):
    value = uint32(value)
    return uint32(uint32(value << uint32(bits)) | (value >> uint32(32 - bits)))


@inlined
def _stripe(sum, address):
    return uint32(_rotate(sum + uint32(load_u32(address)) * _P2, 13) * _P1)


@called
def xxh32_begun(address, length):
    """The four sums of XXH32 with seed 0 after the whole 16 bytes of a text's beginning: all but ``length & 15``."""
    a = uint32(_P1 + _P2)
    b = uint32(_P2)
    c = uint32(0)
    d = uint32(uint32(0) - _P1)
    end = address + (length & -16)
    while address < end:
        a = _stripe(a, address)
        b = _stripe(b, address + 4)
        c = _stripe(c, address + 8)
        d = _stripe(d, address + 12)
        address += 16
    return a, b, c, d


@called
def xxh32_ended(sums, taken, address, length):
    """XXH32, unsigned, of a text whose first ``taken`` bytes are in the sums; the ``length`` others lie here."""
    a, b, c, d = sums
    end = address + length
    while address + 16 <= end:
        a = _stripe(a, address)
        b = _stripe(b, address + 4)
        c = _stripe(c, address + 8)
        d = _stripe(d, address + 12)
        address += 16
    if taken + length >= 16:
        value = uint32(_rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18))
    else:
        value = uint32(_P5)
    value = uint32(value + uint32(taken + length))
    while address + 4 <= end:
        value = uint32(_rotate(value + uint32(load_u32(address)) * _P3, 17) * _P4)
        address += 4
    while address < end:
        value = uint32(_rotate(value + uint32(load_u8(address)) * _P5, 11) * _P1)
        address += 1
    value = uint32(value ^ (value >> uint32(15)))
    value = uint32(value * _P2)
    value = uint32(value ^ (value >> uint32(13)))
    value = uint32(value * _P3)
    value = uint32(value ^ (value >> uint32(16)))
    return int64(value)


@called
def xxh32(address, length):
    """XXH32 with seed 0, unsigned."""
    taken = length & -16
    return xxh32_ended(xxh32_begun(address, length), taken, address + taken, length - taken)
