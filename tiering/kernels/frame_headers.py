"""Looks at compressed frames before many of them are decompressed by one call.

That call knows neither where one frame ends and the next begins, nor which checksum is expected. So both are compared
here: a frame that fills its place exactly, holds as many bytes as it should and ends in the checksum of its
row comes out where it is looked for, or fails. RFC 8878, 3.1.1, has the bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.kernels.primitives import address_of, called, kernel, load_i64, load_u8, load_u32

_MAGIC = 0xFD2FB528
_HAS_CHECKSUM, _IS_SINGLE, _REFUSED = 0x04, 0x20, 0x0B  # refused: a dictionary, or the reserved bit
_MOST_HEADER_BYTES = 14
_BLOCK_BYTES = 3
_CHECKSUM_BYTES = 4
_PLACE_BYTES = 32


@called
def _fills(at, length, raw_bytes, checksum):
    """Whether one frame fills ``length`` bytes, and says that it holds ``raw_bytes`` with this checksum."""
    if length < _MOST_HEADER_BYTES + _BLOCK_BYTES + _CHECKSUM_BYTES or load_u32(at) != _MAGIC:
        return False  # one that is so short is not worth a look
    descriptor = load_u8(at + 4)
    if descriptor & _REFUSED != 0 or descriptor & _HAS_CHECKSUM == 0:
        return False
    is_single = descriptor & _IS_SINGLE != 0
    width = descriptor >> 6
    place = at + (5 if is_single else 6)
    if width == 3:
        size = load_i64(place)
        place += 8
    elif width == 2:
        size = load_u32(place)
        place += 4
    elif width == 1:
        size = (load_u8(place) | load_u8(place + 1) << 8) + 256
        place += 2
    elif is_single:
        size = load_u8(place)
        place += 1
    else:
        return False
    end = at + length - _CHECKSUM_BYTES
    if size != raw_bytes or load_u32(end) != checksum:
        return False
    while place + _BLOCK_BYTES <= end:
        block = load_u8(place) | load_u8(place + 1) << 8 | load_u8(place + 2) << 16
        kind = block >> 1 & 3
        if kind == 3:
            return False
        place += _BLOCK_BYTES + (1 if kind == 1 else block >> 3)
        if block & 1:
            return place == end
    return False


@kernel
def _count(data, length, base, places, count):
    for number in range(count):
        place = places + _PLACE_BYTES * number
        start = load_i64(place) - base
        size = load_i64(place + 8)
        if start < 0 or size < 0 or start > length - size:
            return number
        if not _fills(data + start, size, load_i64(place + 16), load_i64(place + 24)):
            return number
    return count


def leading_frames(data: bytes, base: int, places: NDArray[np.int64]) -> int:
    """Returns how many of the first places, rows of (position, length, bytes, checksum), hold what they should.

    ``base`` is the position at which ``data`` begins. What the others hold is to be looked at one by one. Nothing is
    decompressed: a frame may be damaged inside.
    """
    if places.dtype != np.int64 or places.ndim != 2 or places.shape[1] * 8 != _PLACE_BYTES:
        raise ValueError("a place is four numbers of 8 bytes")
    places = np.ascontiguousarray(places)
    return int(_count(address_of(data), len(data), base, address_of(places), len(places)))
