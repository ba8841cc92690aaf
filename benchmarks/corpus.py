"""Made-up keys that every side of a benchmark can make for itself, whatever language it is written in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hex_keys(n: int) -> NDArray[np.bytes_]:
    """Keys of 16 hex digits, those of the Java side (``Corpus.java``); ``tolist()`` gives ``bytes``."""
    octets = _mixed(np.arange(n, dtype=np.uint64)).astype(">u8").view(np.uint8)
    digits = np.frombuffer("".join(f"{octet:02x}" for octet in range(256)).encode(), dtype=np.uint16)
    return digits[octets].view("S16")


def drawn(queries: int, stored: int) -> NDArray[np.int64]:
    """Numbers of the keys to ask for, any of those stored."""
    return (_mixed(~np.arange(queries, dtype=np.uint64)).view(np.int64) % stored).astype(np.int64)


def _mixed(counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: the number that a counter stands for."""
    z = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
