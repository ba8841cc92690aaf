"""CRC-32 by carry-less multiplication (PCLMULQDQ), 64 bytes a step: for processors that have it.

Intel, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", bit-reflected form. Whether the code
is compiled for such a processor is known when it is compiled, not before: an image's kernels are for another machine.
"""

from __future__ import annotations

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I32, _I64, _I128 = (ir.IntType(bits) for bits in (8, 32, 64, 128))
_TWO_I64, _FOUR_I32 = ir.VectorType(_I64, 2), ir.VectorType(_I32, 4)


def is_compiled_for_folding() -> bool:
    """Whether kernels that are compiled now may use the instruction."""
    if numba.config.CPU_FEATURES is not None:
        return "+pclmul" in str(numba.config.CPU_FEATURES).split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get("pclmul", False))


@intrinsic
def can_fold(typing_context):
    """1 if :func:`crc_fold` may be called, a constant of the compiled code."""

    def codegen(context, builder, signature, args):
        return _I64(int(is_compiled_for_folding()))

    return types.int64(), codegen


def _pair(low, high):
    return ir.Constant(_TWO_I64, [low, high])


#: x^n modulo the polynomial, reflected, for 4 x 128 and for 128 bits, down to 64 and to 32; the polynomial and its
#: reciprocal for Barrett's reduction: the constants of the paper.
_BY_512 = _pair(0x154442BD4, 0x1C6E41596)
_BY_128 = _pair(0x1751997D0, 0x0CCAA009E)
_TO_64 = _pair(0x163CD6124, 0)
_BARRETT = _pair(0x1DB710641, 0x1F7011641)
_LOW_HALVES = _pair(0xFFFFFFFF, 0xFFFFFFFF)


@intrinsic
def crc_fold(typing_context, address, length, crc):
    """Go on with a CRC, not inverted, over ``length`` bytes: at least 64, and a multiple of 16."""

    def codegen(context, builder, signature, args):
        if not is_compiled_for_folding():
            return _I64(0)
        address, length, crc = args
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_TWO_I64, [_TWO_I64, _TWO_I64, _I8]), "llvm.x86.pclmulqdq"
        )

        def times(left, right, halves):
            return builder.call(multiply, [left, right, _I8(halves)])

        def load(at):
            value = builder.load(builder.inttoptr(at, _TWO_I64.as_pointer()))
            value.align = 1
            return value

        def folded(value, by, following):
            both = builder.xor(times(value, by, 0x00), times(value, by, 0x11))
            return builder.xor(both, following)

        def shifted(value, count):
            whole = builder.bitcast(value, _I128)
            return builder.bitcast(builder.lshr(whole, ir.Constant(_I128, 8 * count)), _TWO_I64)

        lanes = [cgutils.alloca_once(builder, _TWO_I64) for _ in range(4)]
        for number, lane in enumerate(lanes):
            value = load(builder.add(address, _I64(16 * number)))
            if number == 0:
                value = builder.xor(value, builder.insert_element(_pair(0, 0), crc, _I32(0)))
            builder.store(value, lane)
        steps = builder.lshr(length, _I64(6))
        with cgutils.for_range(builder, builder.sub(steps, _I64(1)), intp=_I64) as loop:
            at = builder.add(address, builder.shl(builder.add(loop.index, _I64(1)), _I64(6)))
            for number, lane in enumerate(lanes):
                following = load(builder.add(at, _I64(16 * number)))
                builder.store(folded(builder.load(lane), _BY_512, following), lane)
        first = lanes[0]
        for lane in lanes[1:]:
            builder.store(folded(builder.load(first), _BY_128, builder.load(lane)), first)
        done = builder.shl(steps, _I64(6))
        with cgutils.for_range(builder, builder.lshr(builder.sub(length, done), _I64(4)), intp=_I64) as loop:
            at = builder.add(builder.add(address, done), builder.shl(loop.index, _I64(4)))
            builder.store(folded(builder.load(first), _BY_128, load(at)), first)
        value = builder.load(first)
        value = builder.xor(shifted(value, 8), times(value, _BY_128, 0x10))
        value = builder.xor(shifted(value, 4), times(builder.and_(value, _LOW_HALVES), _TO_64, 0x00))
        quotient = times(builder.and_(value, _LOW_HALVES), _BARRETT, 0x10)
        product = times(builder.and_(quotient, _LOW_HALVES), _BARRETT, 0x00)
        words = builder.bitcast(builder.xor(value, product), _FOUR_I32)
        return builder.zext(builder.extract_element(words, _I32(1)), _I64)

    return types.int64(types.int64, types.int64, types.int64), codegen
