"""The item order and the key filter of an index object in plain Python, which tests compare ``index.kernels`` with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.key_filter import SALTS
from tierlog.index.format.layout import Items
from tierlog.index.objects.item_order import highs


def plain_order(items: Items, slots: int) -> NDArray[np.int64]:
    """The order of an index object: slot, hash, hash_high, newest physical offset; equal items stay as they are."""
    hashes = items["hash"].astype(np.int64)
    return np.lexsort((-items["offset"].astype(np.int64), highs(items), hashes, hashes % slots))


def plain_block_and_mask(hash_low: int, hash_high: int, blocks: int) -> tuple[int, tuple[int, ...]]:
    """The block of a key among ``blocks``, and the bit of each of its eight words."""
    mask = tuple(1 << ((hash_low * salt & (1 << 32) - 1) >> 27) for salt in SALTS)
    return hash_high * blocks >> 32, mask
