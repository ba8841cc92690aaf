"""Puts the records of a decompressed frame back to where they lay in the log.

``SegmentReader.raw_items`` is the oracle. A frame is looked through before anything of it is put: one that is damaged
leaves no trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import TornRecordError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_FILLER
from tierlog.tiering.kernels.primitives import (
    called,
    copy,
    int64,
    kernel,
    load_be32,
    load_be64,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
)

#: One record or filler: where it lies in the log segment, and in the frame or the sorted segment, from the start of
#: each; what ``row`` and ``frame`` count is the caller's matter.
ITEM = np.dtype(
    [("position", "<i8"), ("cold", "<i8"), ("size", "<i8"), ("row", "<i8"), ("frame", "<i4"), ("filler", "?")]
)
#: A literal, so that numba's cache, which looks at this file only, notices a change.
_ITEM_BYTES = 37
assert ITEM.itemsize == _ITEM_BYTES
_FILLER_HEAD = 36


@called
def _is_zero(address: int, length: int) -> Any:
    at = int64(0)
    while at + 8 <= length:
        if load_i64(address + at) != 0:
            return False
        at += 8
    while at < length:
        if load_u8(address + at) != 0:
            return False
        at += 1
    return True


@kernel
def _place(*, frame: int, length: int, base: int, out: int, room: int, items: int, capacity: int) -> Any:
    """Returns the number of items put, or -1 - where in the frame something lies that is neither record nor filler."""
    at = int64(0)
    count = int64(0)
    while at < length:
        if count >= capacity or length - at < FIXED_BYTES_V1:
            return -1 - at
        record = frame + at
        size = load_be32(record)
        position = load_be64(record + 28) - base
        if size < FIXED_BYTES_V1 or size > length - at or position < 0 or position > room - size:
            return -1 - at
        is_filler = load_be32(record + 4) == MAGIC_FILLER
        if is_filler and not (
            load_be32(record + 8) == 0
            and load_be32(record + 16) == 0
            and _is_zero(record + _FILLER_HEAD, size - _FILLER_HEAD)
        ):
            return -1 - at
        item = items + count * _ITEM_BYTES
        store_i64(item, position)
        store_i64(item + 8, at)
        store_i64(item + 16, size)
        store_i64(item + 24, -1)
        store_i32(item + 32, 0)
        store_u8(item + 36, int64(is_filler))
        count += 1
        at += size
    for number in range(count):
        item = items + number * _ITEM_BYTES
        copy(out + load_i64(item), frame + load_i64(item + 8), load_i64(item + 16))
    return count


def place_items(frame: bytes, base_offset: int, out: ByteArray) -> NDArray[np.void]:
    """Puts records and fillers of a frame into ``out``, the log segment that begins at ``base_offset``.

    Returns an ``ITEM`` for each, in the order of the frame, ``row`` -1 and ``frame`` 0. Raises
    :class:`TornRecordError`, with nothing put, at what is no record or filler, or does not fit the segment. Checksums
    inside records are for the scan that follows.
    """
    data = np.frombuffer(frame, np.uint8)
    items = np.empty(len(data) // FIXED_BYTES_V1 + 1, ITEM)
    count = int(
        _place(
            frame=data.ctypes.data,
            length=len(data),
            base=base_offset,
            out=out.ctypes.data,
            room=len(out),
            items=items.ctypes.data,
            capacity=len(items),
        )
    )
    if count < 0:
        raise TornRecordError("record in frame does not fit", position=-1 - count)
    return items[:count]
