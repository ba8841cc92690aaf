"""The rows of record batches that tombstones hide, as :mod:`tiering.lifecycle.tombstones` hides single records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.arrow_schema import key_pairs
from tierlog.tiering.message.waiting import WAITING_TOPICS, real_topic


def hidden_rows(batch: pa.RecordBatch, topic: str, store_ms: NDArray[np.int64], erased: Erasures) -> NDArray[np.bool_]:
    """Returns which messages of a batch, all of one topic and stored at these times, are hidden.

    Offset and time are compared on all rows at once; only keys of rows that those leave open are hashed, each once.
    Those that wait in a topic are hidden with the topic that they are for, too.
    The batch has the columns ``physical_offset``, ``keys`` and ``properties``.
    """
    import pyarrow.compute as pc  # late: loading it takes 20 ms, and a start calls nothing of it

    physical = batch.column("physical_offset").to_numpy()
    hidden, by_key = erased.hidden_rows(topic, physical, store_ms)
    asked = np.flatnonzero(by_key)
    if len(asked):
        rows, keys = key_pairs(batch.take(pa.array(asked)))
        covers = {key: erased.of_key(topic, key) for key in pc.unique(keys).to_pylist()}
        for row, key in zip(asked[rows.to_numpy(zero_copy_only=False)].tolist(), keys.to_pylist(), strict=True):
            hidden[row] |= any(cover.has(int(physical[row]), int(store_ms[row])) for cover in covers[key])
    if topic in WAITING_TOPICS and len(asked):
        properties = batch.column("properties").take(pa.array(asked)).to_pylist()
        meant = np.array([real_topic(topic, dict(each or ())) or "" for each in properties])
        for real in filter(None, np.unique(meant).tolist()):
            mine = asked[meant == real]
            hidden[mine] |= hidden_rows(batch.take(pa.array(mine)), real, store_ms[mine], erased)
    return hidden
