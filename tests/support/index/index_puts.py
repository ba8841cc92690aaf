"""Puts into index files without a log behind them, and the golden tiered index file's (formats: vector A.11)."""

from __future__ import annotations

import numpy as np

from tierlog.index.kernels.keys import KEY_ROW
from tierlog.index.local.key_batch import KeyBatch
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.kernels.scan import SCAN_ROW

T = 1_700_000_000_000
#: Topic, topic id, queue id, key, offset, size, store time.
Put = tuple[str, int, int, str, int, int, int]
PUTS_A11: list[Put] = [
    ("TopicTest", 0, 3, "k1", 0, 169, T + 123),
    ("TopicTest", 0, 3, "k2", 169, 169, T + 999),
    ("TopicTest", 0, 3, "k1", 338, 169, T + 1500),
    ("TopicB", 1, 0, "k1", 0, 200, T - 2500),
    ("TopicTest", 0, 3, "k3", 507, 169, T + 9000),
]


def batch_of(puts: list[Put]) -> KeyBatch:
    """One message a put, born 7 ms before it was stored."""
    rows = np.zeros(len(puts), SCAN_ROW)
    keys = np.zeros(len(puts), KEY_ROW)
    topic_ids = np.array([put[1] for put in puts], np.int32)
    for at, (topic, _, queue_id, key, offset, size, store_ms) in enumerate(puts):
        rows["topic_number"][at] = at
        rows["queue_id"][at] = queue_id
        rows["physical_offset"][at] = offset
        rows["size"][at] = size
        rows["store_ms"][at] = store_ms
        rows["born_ms"][at] = store_ms - 7
        keys[at] = (at, key_hash(topic, key), key_hash_high(topic, key))
    return KeyBatch(rows, keys, topic_ids)
