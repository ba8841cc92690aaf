"""Where arrays lie, for kernels, which take addresses."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from pyarrow import py_buffer


def address_of(array: NDArray[Any] | bytes) -> int:
    """Returns the address of the first byte of a contiguous array, or of some bytes.

    A sixth of what ``array.ctypes.data`` takes, a microsecond, of which a batch would need some forty.
    """
    address: int = py_buffer(array).address
    return address
