"""Puts many keys into a split-block Bloom filter. ``tests.support.oracles.plain_objects`` has the oracle."""

from __future__ import annotations

from typing import Any

from tierlog.tiering.kernels.primitives import (
    called,
    int64,
    kernel,
    load_be32,
    load_i64,
    load_u32,
    prefetch,
    store_i32,
    store_i64,
)

#: How far ahead of the block being set memory is asked for; blocks lie at random.
_AHEAD = 16


@called
def _set(word: int, product: int) -> None:
    """Sets the bit that the upper 5 of the lower 32 bits of a product name."""
    store_i32(word, load_u32(word) | (int64(1) << ((product >> 27) & 31)))


@called
def _add(words: int, blocks: int, low: int, high: int) -> None:
    """Sets the bits of a key."""
    block = words + 32 * (high * blocks >> 32)
    # The salts, a literal each: numba's cache looks at this file only.
    _set(block, low * 0x47B6137B)
    _set(block + 4, low * 0x44974D91)
    _set(block + 8, low * 0x8824AD5B)
    _set(block + 12, low * 0xA2B7289D)
    _set(block + 16, low * 0x705495C7)
    _set(block + 20, low * 0x2DF1424B)
    _set(block + 24, low * 0x9EFC4947)
    _set(block + 28, low * 0x5C6BFB31)


@kernel
def add_keys(words: int, blocks: int, low: int, high: int, count: int) -> Any:
    """Sets the bits of ``count`` keys, whose halves are arrays of uint32; ``words``: 8 little-endian uint32 a block.

    Whatever the halves are, the block is below ``blocks``.
    """
    for at in range(count):
        if at + _AHEAD < count:
            prefetch(words + 32 * ((load_u32(high + 4 * (at + _AHEAD)) * blocks) >> 32))
        _add(words, blocks, load_u32(low + 4 * at), load_u32(high + 4 * at))
    return int64(count)


@called
def _unsigned(address: int) -> Any:
    return load_be32(address) & 0xFFFFFFFF


@called
def _mixed(low: int, high: int) -> Any:
    """Another number for each key; sums of them tell two sets of keys apart, whatever order they come in."""
    value = (high << 32 | low) * -7046029254386353131
    return value ^ (value >> 29)


@kernel
def add_items(*, words: int, blocks: int, items: int, count: int, width: int, hash_at: int, high_at: int) -> Any:
    """Sets the bits of the keys of compacted items, whose hashes are at these places; returns the sum of the keys."""
    total = int64(0)
    for at in range(count):
        item = items + width * at
        if at + _AHEAD < count:
            prefetch(words + 32 * (_unsigned(item + width * _AHEAD + high_at) * blocks >> 32))
        low = _unsigned(item + hash_at)
        high = _unsigned(item + high_at)
        _add(words, blocks, low, high)
        total += _mixed(low, high)
    return total


@kernel
def count_keys(*, items: int, count: int, width: int, hash_at: int, high_at: int, last: int) -> Any:
    """Counts the sorted items that have another key than the one before.

    ``last`` (int64 each) has the hashes of the last one, -1 at the start, and the sum of the keys of all items so far.
    ``high_at`` is -1 where items have no second hash.
    """
    low = load_i64(last)
    high = load_i64(last + 8)
    total = load_i64(last + 16)
    found = int64(0)
    for at in range(count):
        item = items + width * at
        here = _unsigned(item + hash_at)
        other = _unsigned(item + high_at) if high_at >= 0 else int64(0)
        found += (here != low) | (other != high)
        low = here
        high = other
        total += _mixed(here, other)
    store_i64(last, low)
    store_i64(last + 8, high)
    store_i64(last + 16, total)
    return found
