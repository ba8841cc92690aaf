"""Leaves out of batches what the tombstones of a head hide, as ``tiering.erasing.tombstones`` does of records.

A time that no row shows (``pipeline.rows``) counts as it is shown.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.rows import key_pairs
from tiering.erasing.tombstones import Erasures


def without_erased(batch: pa.RecordBatch, erased: Erasures) -> pa.RecordBatch:
    """The rows of a batch of the view ``messages`` that are not hidden.

    Topic, offset and time are compared on all rows at once; only keys of rows that those leave open are hashed, each
    once.
    """
    hidden = np.zeros(batch.num_rows, bool)
    for topic in pc.unique(batch.column("topic")).to_pylist() if erased else ():
        if erased.concerns(topic):
            mine = pc.equal(batch.column("topic"), topic)
            hidden[np.flatnonzero(mine.to_numpy(zero_copy_only=False))] = _hidden(batch.filter(mine), topic, erased)
    return batch.filter(pa.array(~hidden)) if hidden.any() else batch


def _hidden(batch: pa.RecordBatch, topic: str, erased: Erasures) -> NDArray[np.bool_]:
    physical = batch.column("physical_offset").to_numpy()
    store_ms = batch.column("store_time").cast(pa.int64()).to_numpy() // 1000
    hidden, by_key = erased.hidden_rows(topic, physical, store_ms)
    asked = np.flatnonzero(by_key)
    if len(asked):
        rows, keys = key_pairs(batch.take(pa.array(asked)))
        covers = {key: erased.of_key(topic, key) for key in pc.unique(keys).to_pylist()}
        for row, key in zip(asked[rows.to_numpy(zero_copy_only=False)].tolist(), keys.to_pylist(), strict=True):
            hidden[row] |= any(cover.has(int(physical[row]), int(store_ms[row])) for cover in covers[key])
    return hidden
