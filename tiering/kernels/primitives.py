"""Building blocks of the compiled loops: the ``kernel`` decorator, addresses, and loads, stores and copies there.

Kernels take addresses and scalars as int64, because that costs least per call; the caller keeps the arrays alive.
Nothing here checks a bound: **a kernel checks every length it reads from a log or an index before it uses it.**

Compiled code is kept between runs (:mod:`tiering.kernels.cache`). A module of kernels only declares them: numba, which
takes a quarter of a second, is loaded by the first call of any (:class:`Declared`), and a process that calls none never
loads it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from llvmlite import ir
from numpy.typing import NDArray
from pyarrow import py_buffer

from tierlog.tiering import kernels

_LOCK = threading.RLock()
_PACKAGE = __name__.partition(".")[0] + "."
#: What else is to be done when declarations are replaced.
_on_load: list[Callable[[], None]] = []


class Declared:
    """A kernel, or what kernels are made of, in the place of what numba makes of it, until any kernel is called.

    Then every module of ours gets what numba makes in its place, so that kernels find each other and a call costs
    nothing more. Whoever still has the declaration may call it, and ask for what numba's own has.
    """

    def __init__(self, make: Callable[[], Any], *, is_entry: bool = False) -> None:
        """``is_entry``: Python calls it, so it is made after what it may consist of."""
        self._make = make
        self.is_entry = is_entry
        self._made: Any = None

    def made(self) -> Any:
        """Returns what numba made."""
        if self._made is None:
            _load_numba()
        return self.make()

    def make(self) -> Any:
        """Returns what numba makes; it is loaded."""
        with _LOCK:
            if self._made is None:
                self._made = self._make()
            return self._made

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the kernel."""
        return self.made()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of what numba made."""
        if name.startswith("__"):  # who looks at a module's names asks for these
            raise AttributeError(name)
        return getattr(self.made(), name)


@contextlib.contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Has packages look as if they were not installed, unless they are loaded already."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: importing it fails
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


_is_loaded = False


#: Work without kernels that this process may still do, in microseconds: half of what it takes to load numba.
_plain_us = 100_000.0


def is_sooner_without(plain_us: float) -> bool:
    """Whether to do some work in plain Python that takes so long, as numba is not loaded yet; it is counted then.

    Only for what gives the same answer either way, and where a kernel has the last word on all that is not in order:
    a command that opens a sound store and shows a few messages of it ends before numba would be there. All such work
    of a process together is bounded, and a process that has called any kernel goes on with kernels.
    """
    global _plain_us
    if _is_loaded or plain_us > _plain_us:
        return False
    _plain_us -= plain_us
    return True


def _load_numba() -> None:
    """Loads numba, and replaces what is declared so far."""
    global _is_loaded
    with _LOCK:
        if not _is_loaded:
            # beside other threads nothing is hidden: they might want it now
            with _hidden(*kernels.kept_from_numba if threading.active_count() == 1 else ()):
                # late, as the class says; it chooses the folder of compiled code, before the first kernel exists
                import_module(f"{__package__}.cache")
                import_module("numba.core.typing.cffi_utils")  # looks for cffi once, at the first compiled function
            _is_loaded = True
        # what kernels are made of first: another thread may call one as soon as it is there, and have it compiled
        for are_entries in (False, True):
            for name, module in list(sys.modules.items()):
                if name.startswith(_PACKAGE):
                    _replace(vars(module), are_entries=are_entries)
        while _on_load:
            _on_load.pop()()


def _replace(names: dict[str, Any], *, are_entries: bool) -> None:
    for name, value in list(names.items()):
        if isinstance(value, Declared) and value.is_entry <= are_entries:
            names[name] = value.make()


def made_by_numba(declared: Any) -> Any:
    """Returns what numba makes of a declaration, which may have been replaced by it already."""
    return declared.made() if isinstance(declared, Declared) else declared


def at_load(replace: Callable[[], None]) -> None:
    """Has ``replace`` called when numba is loaded: for a declaration that no module has by name."""
    _on_load.append(replace)


def _declared(make: Callable[[], Any], *, is_entry: bool = False) -> Any:
    declared = Declared(make, is_entry=is_entry)
    return declared.make() if _is_loaded else declared


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    def make() -> Any:
        import numba  # late, as the class says

        return numba.njit(nogil=True, boundscheck=False, error_model="numpy", **options)(function)

    if _is_loaded:
        # another thread may have loaded it while this one was importing the module
        _replace(function.__globals__, are_entries=True)
    return _declared(make, is_entry="cache" in options)


def kernel(function: Callable[..., Any]) -> Any:
    """Declares a function called from Python with integer arguments: compiled once, kept on disk, without the GIL."""
    return _compiled(function, cache=True)


def inlined(function: Callable[..., Any]) -> Any:
    """Declares a function called from kernels, which becomes a part of them."""
    return _compiled(function, inline="always")


def called(function: Callable[..., Any]) -> Any:
    """Declares a function called from kernels."""
    return _compiled(function)


def intrinsic(function: Callable[..., Any], **options: Any) -> Any:
    """Declares a function of numba's compiler, which writes instructions: ``numba.extending.intrinsic``."""

    def make() -> Any:
        from numba.extending import intrinsic as made_by_numba  # late, as the class says

        return made_by_numba(**options)(function) if options else made_by_numba(function)

    return _declared(make)


def _of_numba(module: str, name: str) -> Any:
    return _declared(lambda: getattr(import_module(module), name))


#: numba's own, for kernels and intrinsics.
int32, int64, uint32, uint64, types = (
    _of_numba("numba", name) for name in ("int32", "int64", "uint32", "uint64", "types")
)
cgutils = _of_numba("numba.core", "cgutils")


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
