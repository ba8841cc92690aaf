"""Leaves out of batches what the tombstones of a head hide, as ``tiering.erasing.tombstones`` does of records.

A time that no row shows (``pipeline.rows``) counts as it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.rows import key_pairs
from tiering.erasing.tombstones import keys_meant
from tiering.format.manifest import Tombstone


def without_erased(batch: pa.RecordBatch, tombstones: Iterable[Tombstone]) -> pa.RecordBatch:
    """The rows of a batch of the view ``messages`` that no tombstone hides.

    Topic, offset and time are compared on all rows at once; only keys of rows that those leave open are hashed.
    """
    hidden = np.zeros(batch.num_rows, bool)
    for stone in tombstones:
        meant = _is_meant(batch, stone) & ~hidden
        means = keys_meant(stone)
        if means is not None and meant.any():
            meant[meant] = _has_key(batch.filter(pa.array(meant)), means)
        hidden |= meant
    return batch.filter(pa.array(~hidden)) if hidden.any() else batch


def _is_meant(batch: pa.RecordBatch, stone: Tombstone) -> NDArray[np.bool_]:
    """Rows that a tombstone hides unless their keys say otherwise."""
    stored_us = batch.column("store_time").cast(pa.int64()).to_numpy()
    meant = batch.column("physical_offset").to_numpy() < stone.end
    if stone.from_ms is not None:
        meant &= stored_us >= 1000 * stone.from_ms
    if stone.to_ms is not None:
        meant &= stored_us < 1000 * stone.to_ms
    found: NDArray[np.bool_] = meant & pc.equal(batch.column("topic"), stone.topic).to_numpy(zero_copy_only=False)
    return found


def _has_key(batch: pa.RecordBatch, means: Callable[[str], bool]) -> NDArray[np.bool_]:
    rows, keys = key_pairs(batch)
    found = np.zeros(batch.num_rows, bool)
    for row, key in zip(rows.to_pylist(), keys.to_pylist(), strict=True):
        found[row] = found[row] or means(key)
    return found
