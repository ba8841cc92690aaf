"""Hashes that lie in files, in plain Python: the oracle of ``tiering.kernels.text``. Never the builtin ``hash``.

``java_hash`` is Java's ``String.hashCode`` over UTF-16 code units; undecodable UTF-8 counts as U+FFFD per byte.
``key_hash`` is RocketMQ's non-negative form; its one value without a positive counterpart, -2^31, becomes 0.
``key_hash_high`` is XXH32 (seed 0) of the UTF-8 of ``topic#key``.
"""

from __future__ import annotations

import xxhash


def java_hash(text: str) -> int:
    """Signed 32-bit hash of a Java string."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def key_hash(topic: str, key: str) -> int:
    """31-bit hash of a key of a topic."""
    value = abs(java_hash(f"{topic}#{key}"))
    return value if value < 1 << 31 else 0


def key_hash_high(topic: str, key: str) -> int:
    """32 more bits (unsigned), independent of :func:`key_hash`."""
    return xxhash.xxh32_intdigest(f"{topic}#{key}".encode())


def tag_hash(tags: str) -> int:
    """Returns what a queue unit carries for a tag text; 0 = untagged."""
    return java_hash(tags) if tags else 0
