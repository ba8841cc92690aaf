"""Reads messages by key: the index says where they lie, and only the frames that hold those places are asked for.

What is archived and not indexed yet is read from end to end (``pipeline.parts``). Topic, key and whatever else was
asked for are compared on the records.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from index.cold_index import ColdIndex
from index.key_hits import key_hits
from pipeline.archive import PinnedStore, open_manifest
from pipeline.frames import BATCH_ROWS, Shown, batches_of, naming
from pipeline.parts import despite_rewriting, time_range_of
from pipeline.predicate import Predicate
from tiering.cold.segment.reader import SegmentReader
from tiering.format.manifest import LogEntry
from tiering.message import StoredMessage
from tiering.randomness import SystemRandomness
from tiering.types import Tier

#: Keys of topics that are looked up at most; a query for more is a scan.
MOST_KEYS = 10_000
_THREADS = 16
_REPLACED = "\ufffd"
"""Stands in rows for bytes that are not UTF-8, of which the index has the hash."""
_HIT_BYTES = 256 << 10
"""What a hit counts for in a task: a request takes about as long as to read so much."""


@dataclass(frozen=True, slots=True, eq=False)
class HitsPart:
    """Places in one segment: cold offsets, ascending."""

    entry: LogEntry
    offsets: NDArray[np.int64]


@functools.lru_cache(maxsize=32)
def _open_index(url: str, store_id: str) -> ColdIndex:
    return ColdIndex(open_manifest(url, store_id), SystemRandomness())


def plan_key_reads(
    store: PinnedStore, predicate: Predicate, *, part_bytes: int
) -> Iterator[tuple[HitsPart, ...]] | None:
    """Tasks that read what lies below ``indexed_to`` and may fit; None if the index cannot tell, or of too many keys.

    Asks the index, on this machine alone, on several threads. Raises the error of whatever cannot be read of it.
    """
    if predicate.keys is None or any(_REPLACED in key for key in predicate.keys):
        return None
    topics = predicate.topics
    known = [state.name for state in store.manifest.state(store.manifest.reader(), store.head).listed]
    keys = [(topic, key) for topic in known if topics is None or topic in topics for key in sorted(predicate.keys)]
    if len(keys) > MOST_KEYS:
        return None
    within = time_range_of(predicate.stored)
    index = _open_index(store.url, store.store_id)
    with ThreadPoolExecutor(_THREADS, "tierlog-key-hits") as pool:
        hits = list(key_hits(index, store.head, keys, within, each=pool.map))
    offsets = predicate.physical_offsets
    parts = [HitsPart(each.entry, each.offsets) for each in hits if offsets.overlaps(each.entry.first, each.entry.next)]
    return _tasks(parts, max(1, part_bytes // _HIT_BYTES))


def _tasks(parts: list[HitsPart], most: int) -> Iterator[tuple[HitsPart, ...]]:
    task: list[HitsPart] = []
    room = most
    for part in parts:
        offsets = part.offsets
        while len(offsets):
            task.append(HitsPart(part.entry, offsets[:room]))
            taken = len(task[-1].offsets)
            offsets, room = offsets[taken:], room - taken
            if not room:
                yield tuple(task)
                task, room = [], most
    if task:
        yield tuple(task)


def read_hits(store: PinnedStore, part: HitsPart, predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """The messages at these places that fit, in the order of queues.

    A segment costs its seek table and its frames, neighbours in one request. Raises :class:`CorruptionError` for
    damage, naming the object, and the object store's error if it cannot be read.
    """

    def read(store: PinnedStore, entry: LogEntry) -> Iterator[pa.RecordBatch]:
        return _read(store, entry, part.offsets, predicate)

    return despite_rewriting(store, part.entry, read)


def _read(
    store: PinnedStore, entry: LogEntry, offsets: NDArray[np.int64], predicate: Predicate
) -> Iterator[pa.RecordBatch]:
    reader = store.manifest.reader(scan=True)
    shown = Shown(store, reader, predicate)
    waiting: list[StoredMessage] = []
    with naming(entry):
        for _, record in SegmentReader(reader, entry).records_at(offsets.tolist()):
            if record is None or not record.has_queue_unit:
                continue
            message = StoredMessage(record, store.store_id, Tier.COLD)
            if shown.includes(message):
                waiting.append(message)
            if len(waiting) >= BATCH_ROWS:
                yield from batches_of(waiting, predicate)
                waiting = []
        yield from batches_of(waiting, predicate)
