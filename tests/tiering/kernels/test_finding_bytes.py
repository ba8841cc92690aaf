"""Looking for a byte eight at a time finds what looking at each would."""

from __future__ import annotations

import random

import numba
import numpy as np

from tierlog.tiering.kernels.primitives import find_byte


@numba.njit
def _found(address, length, byte):  # type: ignore[no-untyped-def]
    return find_byte(address, address + length, byte) - address


def test_the_first_one_is_found_whatever_surrounds_it(seed: int) -> None:
    chance = random.Random(seed)
    for number in range(3000):
        byte = (1, 2, 32)[number % 3]
        near = (byte, byte ^ 1, byte ^ 0x80, byte + 1, byte - 1, 0, 255)
        data = bytes(chance.choice(near[number % 2 :]) for _ in range(chance.randrange(40)))
        expected = data.find(bytes([byte]))
        held = np.frombuffer(data + bytes([byte]) * 8, np.uint8)  # what lies behind the end is not looked at
        assert _found(held.ctypes.data, len(data), byte) == (len(data) if expected < 0 else expected), data
