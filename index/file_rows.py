"""Index files as ``index.kernels.points`` is told of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.header import HEADER_BYTES, items_position
from index.kernels.points import FILE
from index.layout import ItemLayout
from tiering.fs import ByteArray
from tiering.kernels.checksum import CRC_TABLES

FileRow = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class PageMarks:
    """Which pages of a mapped file were compared with their checksums since it was opened."""

    checksums: ByteArray
    """As they lie in the file (``index.page_checksums``), proved to be sound."""
    checked: ByteArray
    """A byte a page; kernels write it."""


def file_row(
    data: ByteArray, layout: ItemLayout, slots: int, count: int, *, is_chained: bool, marks: PageMarks | None = None
) -> FileRow:
    """The row of a file whose items have numbers up to ``count``; the caller keeps the arrays, which it points into.

    Without ``marks`` nothing that is read is compared with a checksum.
    """
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
    paged = (0, 0, 0, 0, 0)
    if marks is not None:
        paged = (
            marks.checked.ctypes.data, address, at + width * count, marks.checksums.ctypes.data, CRC_TABLES
        )  # fmt: skip
    return np.array([(is_chained, address + HEADER_BYTES, slots, item_0, width, count, at, *positions, *paged)], FILE)
