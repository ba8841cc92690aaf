"""Reads messages by key: the index says where they lie, and only the frames that hold those places are asked for.

Where a key is so frequent in a segment that its frames cost more than a scan, the segment is read from end to end. What
is archived and not indexed yet is, too (``pipeline.read.partitions``). Topic, key and whatever else was asked for are
compared on the records.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.lookup import SegmentHits, key_hits
from tierlog.pipeline.base.archive import PinnedStore, open_manifest
from tierlog.pipeline.read.frames import BATCH_ROWS, VisibleMessages, batches_of, naming
from tierlog.pipeline.read.partitions import (
    SegmentPart,
    despite_rewriting,
    packed,
    shares_of,
    time_range_of,
    wanted_bytes,
)
from tierlog.pipeline.read.predicate import Predicate
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import Tier
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.sorted_segment import frames_of_seek_table
from tierlog.tiering.message.stored_message import StoredMessage

#: Keys of topics that are looked up at most; a query for more is a scan.
MOST_KEYS = 10_000
_THREADS = 16
_REPLACED = "\ufffd"
"""Stands in rows for bytes that are not UTF-8, of which the index has the hash."""
_FRAME_BYTES = 256 << 10
"""What a frame counts for that is asked for alone: a request takes about as long as to scan so much."""
_HIT_BYTES = 4 << 10
"""What a record counts for that is taken apart alone, in the same measure."""


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
) -> Iterator[tuple[HitsPart | SegmentPart, ...]] | None:
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
    hits = [each for each in hits if offsets.overlaps(each.entry.first, each.entry.next)]
    scans: dict[int, int] = {}
    if (
        sum(_cost(each.entry, each.offsets) for each in hits) > part_bytes
    ):  # else nothing is gained that is worth a look
        scans = wanted_bytes(store, predicate)
    return packed(_parts(hits, scans, part_bytes), part_bytes)


def _parts(
    hits: Iterable[SegmentHits], scans: Mapping[int, int], part_bytes: int
) -> Iterator[tuple[HitsPart | SegmentPart, int]]:
    """The places, or all of a segment where a scan of it is known to be cheaper, and what each part counts for."""
    for each in hits:
        cost = _cost(each.entry, each.offsets)
        scan = scans.get(each.entry.base, cost)
        if _FRAME_BYTES + scan < cost:
            yield from shares_of(each.entry, scan, part_bytes)
        else:
            yield from _cut(each.entry, each.offsets, part_bytes)


def _cost(entry: LogEntry, offsets: NDArray[np.int64]) -> int:
    """Returns what reading records at these places of a segment counts for, in bytes of a scan."""
    return len(_first_of_frames(entry, offsets)) * _FRAME_BYTES + len(offsets) * _HIT_BYTES


def _first_of_frames(entry: LogEntry, offsets: NDArray[np.int64]) -> NDArray[np.intp]:
    """Returns which of these places are the first of their frame, as if all its frames were of the same size."""
    frames = max(1, frames_of_seek_table(entry.sections["seek_table"].length))
    numbers = (offsets - entry.base) * frames // max(1, entry.raw_bytes)
    return np.flatnonzero(np.diff(numbers, prepend=-1))


def _cut(entry: LogEntry, offsets: NDArray[np.int64], part_bytes: int) -> Iterator[tuple[HitsPart, int]]:
    """Places of a segment with those of a frame together, in parts of about so much, and what each counts for."""
    most = max(1, part_bytes // _FRAME_BYTES)
    firsts = [*_first_of_frames(entry, offsets)[::most].tolist(), len(offsets)]
    for first, end in pairwise(firsts):
        yield HitsPart(entry, offsets[first:end]), _cost(entry, offsets[first:end])


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
    visible = VisibleMessages(store, reader, predicate)
    waiting: list[StoredMessage] = []
    with naming(entry):
        for _, record in SegmentReader(reader, entry).records_at(offsets.tolist()):
            if record is None or not record.has_queue_unit:
                continue
            message = StoredMessage(record, store.store_id, Tier.COLD)
            if visible.includes(message):
                waiting.append(message)
            if len(waiting) >= BATCH_ROWS:
                yield from batches_of(waiting, predicate)
                waiting = []
        yield from batches_of(waiting, predicate)
