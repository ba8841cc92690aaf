"""Randomness comes in from outside, so that a seed reproduces a run."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Randomness(Protocol):
    """Source of names that must not collide."""

    def token_hex(self, byte_count: int) -> str:
        """``2 * byte_count`` lower-case hex digits."""
        ...


class SystemRandomness:
    """The operating system's generator."""

    def token_hex(self, byte_count: int) -> str:
        """Unpredictable digits, unique across machines."""
        return secrets.token_hex(byte_count)


class SeededRandomness:
    """Repeatable digits, for tests and simulations only."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token_hex(self, byte_count: int) -> str:
        return self._random.randbytes(byte_count).hex()
