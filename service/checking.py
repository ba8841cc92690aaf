"""Checks across the packages: what the index must hold of the log it was derived from (invariant I3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.batch import KeyBatch
from index.chained_file import ChainedIndexFile
from index.local_index import LocalIndex
from index.snapshot import IndexReader
from tiering.check import check_archive, check_store, segment_rows
from tiering.errors import CorruptionError
from tiering.hot.dispatch import LogRange
from tiering.hot.store import HotStore

__all__ = ["check_archive", "check_index", "check_store"]

#: Rows of (physical offset, hash, hash_high).
KeyTriples = NDArray[np.int64]


def check_index(hot: HotStore, index: LocalIndex) -> list[str]:
    """Every key of every hot record is found in the index, and the index holds no more than that."""
    return list(_check_index(hot, index))


def _check_index(hot: HotStore, index: LocalIndex) -> Iterator[str]:
    with hot.snapshot() as snapshot:
        files = index.snapshot()
        have = _rows(*(_items_of(entry.reader) for entry in (*files.files, *files.writing)))
        have = have[(have[:, 0] >= snapshot.border) & (have[:, 0] < snapshot.end)]
        expected = []
        topic_ids = np.array([topic.topic_id for topic in hot.topics.all()], np.int32)
        for base, segment in sorted(snapshot.segments.items()):
            try:
                rows = segment_rows(hot, segment, snapshot.end)
            except CorruptionError:
                continue  # the log's own check names it
            piece = LogRange(segment.data, base, base, min(segment.end, snapshot.end), rows, topic_ids)
            expected.append(_keys_of(piece))
    wanted = _rows(*expected)
    if len(np.unique(have, axis=0)) != len(have):
        yield "I3 index: an item is there twice"
    missing = _without(wanted, have)
    if len(missing):
        yield f"I3 index: {len(missing)} keys are missing, the first of the record at {missing[0][0]}"
    extra = _without(have, wanted)
    if len(extra):
        yield f"I3 index: {len(extra)} items belong to no key, the first at {extra[0][0]}"


def _items_of(reader: IndexReader) -> KeyTriples:
    items = reader.all_items()
    if isinstance(reader, ChainedIndexFile):
        items = items[1 : reader.item_count + 1]  # item 0 is no item
    return _triples(items["offset"], items["hash"], items["hash_high"])


def _keys_of(records: LogRange) -> KeyTriples:
    batch = KeyBatch.of(records.data, records.rows, records.topic_ids)
    offsets = records.rows["physical_offset"][batch.keys["row"]]
    return _triples(offsets, batch.keys["hash"], batch.keys["hash_high"])


def _triples(offsets: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> KeyTriples:
    return np.stack([offsets.astype(np.int64), low.astype(np.int64), high.astype(np.int64)], axis=1)


def _rows(*pieces: KeyTriples) -> KeyTriples:
    return np.concatenate([np.empty((0, 3), np.int64), *pieces])


def _without(left: KeyTriples, right: KeyTriples) -> list[tuple[int, ...]]:
    others = set(map(tuple, right.tolist()))
    return sorted(row for row in map(tuple, left.tolist()) if row not in others)
