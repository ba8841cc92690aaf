"""Copies scattered records next to each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiering.fs import ByteArray
from tiering.kernels.primitives import copy, kernel, load_i64, prefetch

_AHEAD = 12


@kernel
def _gather(data, length, positions, sizes, first, last, out, room):
    written = 0
    for i in range(first, last):
        if i + _AHEAD < last:
            prefetch(data + load_i64(positions + 8 * (i + _AHEAD)))
        position = load_i64(positions + 8 * i)
        size = load_i64(sizes + 8 * i)
        if position < 0 or size < 0 or position + size > length or written + size > room:
            return -1
        copy(out + written, data + position, size)
        written += size
    return written


def gather(
    data: ByteArray, positions: NDArray[np.int64], sizes: NDArray[np.int64], first: int, last: int, total: int
) -> ByteArray:
    """The bytes of records ``[first, last)`` in that order; ``total`` is their length together."""
    out = np.empty(total, np.uint8)
    written = _gather(
        data.ctypes.data, len(data), positions.ctypes.data, sizes.ctypes.data, first, last, out.ctypes.data, total
    )
    if written != total:
        raise ValueError("records to gather lie outside the data or their sizes do not add up")
    return out
