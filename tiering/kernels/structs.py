"""Kernels with many parameters: callers pass them by name, and the kernel takes one address of all of them."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Protocol

from llvmlite import ir

from tierlog.tiering.kernels.primitives import (
    Declared,
    address_of,
    at_load,
    cgutils,
    intrinsic,
    kernel,
    types,
)

_I64 = ir.IntType(64)


def _load_fields(typing_context, address, count):
    """Returns the first ``count`` int64 at an address, as a tuple; how many is a constant."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def codegen(context, builder, signature, args):
        first = builder.inttoptr(args[0], _I64.as_pointer())
        fields = []
        for number in range(count.literal_value):
            field = builder.load(builder.gep(first, [_I64(number)]))
            field.align = 1
            fields.append(field)
        return cgutils.pack_array(builder, fields)

    return types.UniTuple(types.int64, count.literal_value)(types.int64, count), codegen


load_fields = intrinsic(_load_fields, prefer_literal=True)


class StructKernel(Protocol):
    """A kernel of one address, where its fields lie, int64 each. Threads may call beside each other."""

    #: The kernel itself, with the address of what :meth:`pack` made.
    at: Any

    def pack(self, **fields: int) -> bytes:
        """Returns the fields as they lie in memory, for a caller who asks with the same ones again and again."""
        ...

    def __call__(self, **fields: int) -> Any:
        """Packs the fields, and calls the kernel."""
        ...


#: Functions of its own for each kernel, as a named tuple has them: they take half the time of one that takes any names.
_CALLERS = """
def pack(*, {names}):
    return packed({names})

def call(*, {names}):
    fields = packed({names})
    return at(address_of(fields))
"""


def struct_kernel(names: str) -> Callable[[Callable[[int], Any]], StructKernel]:
    """Compiles a function of the address of fields with these names, spaces between them, which its callers name.

    It begins with ``first, second, … = load_fields(address, count)``: the same names in the same order.
    """
    each = tuple(names.split())

    def declare(function: Callable[[int], Any]) -> StructKernel:
        if function.__code__.co_varnames[1 : len(each) + 1] != each:
            raise TypeError(f"{function.__name__} does not begin with its fields in the order {', '.join(each)}")
        at = kernel(function)
        made: dict[str, Any] = {"at": at, "address_of": address_of, "packed": Struct(f"={len(each)}q").pack}
        exec(_CALLERS.format(names=", ".join(each)), made)
        call: StructKernel = made["call"]
        call.at, call.pack = at, made["pack"]  # type: ignore[method-assign]  # a function has no methods

        def replace() -> None:
            made["at"] = call.at = at.make()

        if isinstance(at, Declared):
            at_load(replace)
        return call

    return declare
