"""Index files as ``index.kernels.points`` is told of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.header import HEADER_BYTES, items_position
from index.kernels.points import FILE
from index.layout import ItemLayout
from tiering.fs import ByteArray

FileRow = NDArray[np.void]


def file_row(data: ByteArray, layout: ItemLayout, slots: int, count: int, *, is_chained: bool) -> FileRow:
    """The row of a file whose items have numbers up to ``count``; the caller keeps ``data``, which it points into."""
    kind = layout.chained if is_chained else layout.compacted
    at, width = items_position(slots), kind.itemsize
    if slots < 1 or count < 0 or at + width * (count + is_chained) > len(data):
        raise CorruptIndexError("index file is shorter than its slots and items")
    fields = kind.fields
    assert fields is not None
    names = ("hash", "hash_high", "offset", "size", "previous")
    positions = [int(fields[name][1]) if name in fields else -1 for name in names]
    address = data.ctypes.data
    item_0 = address + at - (0 if is_chained else width)
    return np.array([(is_chained, address + HEADER_BYTES, slots, item_0, width, count, at, *positions)], FILE)
