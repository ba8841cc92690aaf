"""Puts many keys into a split-block Bloom filter. ``index.key_filter.plain_block_and_mask`` is the oracle."""

from __future__ import annotations

from typing import Any

from numba import int64

from tiering.kernels.primitives import called, kernel, load_u32, prefetch, store_i32

#: How far ahead of the block being set memory is asked for; blocks lie at random.
_AHEAD = 16


@called
def _set(word: int, product: int) -> None:
    """Set the bit that the upper 5 of the lower 32 bits of a product name."""
    store_i32(word, load_u32(word) | (int64(1) << ((product >> 27) & 31)))


@kernel
def add_keys(words: int, blocks: int, low: int, high: int, count: int) -> Any:
    """Set the bits of ``count`` keys, whose halves are arrays of uint32; ``words`` are 8 little-endian uint32 a block.

    Whatever the halves are, the block is below ``blocks``.
    """
    for at in range(count):
        if at + _AHEAD < count:
            prefetch(words + 32 * ((load_u32(high + 4 * (at + _AHEAD)) * blocks) >> 32))
        block = words + 32 * ((load_u32(high + 4 * at) * blocks) >> 32)
        key = load_u32(low + 4 * at)
        # The salts, a literal each: numba's cache looks at this file only.
        _set(block, key * 0x47B6137B)
        _set(block + 4, key * 0x44974D91)
        _set(block + 8, key * 0x8824AD5B)
        _set(block + 12, key * 0xA2B7289D)
        _set(block + 16, key * 0x705495C7)
        _set(block + 20, key * 0x2DF1424B)
        _set(block + 24, key * 0x9EFC4947)
        _set(block + 28, key * 0x5C6BFB31)
    return int64(count)
