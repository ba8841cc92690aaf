"""Writes where messages went as JSON text, without objects; a parser and :mod:`json` are the oracle."""

from __future__ import annotations

import numpy as np
from numba import int64

from tiering.kernels.primitives import called, copy_short, kernel, load_i32, load_i64, store_u8

_PIECES = ('{"message_id":"', '","queue_id":', ',"queue_offset":', ',"store_ms":', "},")
#: What stands around the values of a message.
PIECES = np.frombuffer("".join(_PIECES).encode(), np.uint8)
_ID, _QUEUE, _OFFSET, _TIME, _END = map(len, _PIECES)
_OFFSET_DIGITS = 16
#: The most that a message takes beside the digits of its host.
MOST_BYTES = len(PIECES) + _OFFSET_DIGITS + 4 + 10 + 2 * 19


@called
def _write_number(number, out):
    """Write a number that is not below 0; returns where it ends."""
    digits = int64(1)
    rest = number
    while rest >= 10:
        rest //= 10
        digits += 1
    end = out + digits
    at = end
    while at > out:
        at -= 1
        store_u8(at, 48 + number % 10)
        number //= 10
    return end


@kernel
def write_results(count, pieces, host, host_digits, physical_offset, queue_id, queue_offset, store_ms, out):
    """Write an object for each message, with a comma behind it; returns how many bytes.

    ``host`` is what every message id begins with. ``out`` has room for ``MOST_BYTES`` and the host's for each.
    """
    at = out
    for i in range(count):
        piece = pieces
        copy_short(at, piece, _ID)
        at += _ID
        piece += _ID
        copy_short(at, host, host_digits)
        at += host_digits
        physical = load_i64(physical_offset + 8 * i)
        for digit in range(_OFFSET_DIGITS):
            value = physical >> 4 * (_OFFSET_DIGITS - 1 - digit) & 15
            store_u8(at + digit, value + (48 if value < 10 else 55))
        at += _OFFSET_DIGITS
        copy_short(at, piece, _QUEUE)
        at = _write_number(int64(load_i32(queue_id + 4 * i)), at + _QUEUE)
        piece += _QUEUE
        copy_short(at, piece, _OFFSET)
        at = _write_number(load_i64(queue_offset + 8 * i), at + _OFFSET)
        piece += _OFFSET
        copy_short(at, piece, _TIME)
        at = _write_number(load_i64(store_ms + 8 * i), at + _TIME)
        piece += _TIME
        copy_short(at, piece, _END)
        at += _END
    return at - out
