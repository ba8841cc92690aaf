"""Cuts what a predicate asks of an archive into parts of about equal size, one a task, and reads them.

Without keys the manifest alone is asked: its queue rows tell for each topic which segments hold it and how much; no
directory is read here, and a year's plan costs as many requests as the year has pages of queue rows. Inside a segment a
part is a share of the frames that the predicate does not rule out, which its reader works out from the directory.

By key the index says where messages lie, and only the frames that hold those places are asked for. Where a key is so
frequent in a segment that its frames cost more than a scan, the segment is read from end to end, as is what is archived
and not indexed yet. Topic, key and whatever else was asked for are compared on the records.

A task may be read long after it was planned, when an erasure has put another object in the place of the one that it
names. Records keep their positions then, so that the task goes on in the newer object, behind its last row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.lookup import SegmentHits, key_hits
from tierlog.pipeline.base.archive import PinnedStore, open_manifest, pin
from tierlog.pipeline.read.frames import BATCH_ROWS, WHOLE, Share, VisibleMessages, batches_of, naming, read_frames
from tierlog.pipeline.read.predicate import ANY, Predicate, ValueRange
from tierlog.pipeline.read.views import FIRST_SHOWN_MS, LAST_SHOWN_MS, shown_ms
from tierlog.tiering.base.errors import ObjectNotFoundError
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import EVER, Tier, TimeRange
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.generation import is_numbered, ranges_of, record_topic
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.sorted_segment import frames_of_seek_table
from tierlog.tiering.message.stored_message import StoredMessage

P = TypeVar("P")
PART_BYTES = 64 << 20
#: Tasks of one read, about, unless their size is given: a driver holds each of them some kB, and plans it.
MOST_PARTS = 10_000
#: Keys of topics that are looked up at most; a query for more is a scan.
MOST_KEYS = 10_000
_THREADS = 16
_REPLACED = "\ufffd"
"""Stands in rows for bytes that are not UTF-8, of which the index has the hash."""
_FRAME_BYTES = 256 << 10
"""What a frame counts for that is asked for alone: a request takes about as long as to scan so much."""
_HIT_BYTES = 4 << 10
"""What a record counts for that is taken apart alone, in the same measure."""


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A share of the frames of a segment."""

    entry: LogEntry
    share: Share = WHOLE


def of_topics(predicate: Predicate, store: PinnedStore, names: Collection[str]) -> Predicate:
    """Returns the predicate for messages of these topics in a store, none meaning all; ``name@1`` means a generation.

    The state of the store is read if one does. Raises what reading it raises.
    """
    topics = frozenset(map(record_topic, names)) or None
    generations = None
    if any(map(is_numbered, names)):
        known = store.manifest.state(store.manifest.reader(), store.head).topics
        generations = tuple(sorted({one for name in names for one in ranges_of(known, name)}))
    return replace(predicate, topics=topics, generations=generations)


def plan_parts(
    store: PinnedStore, predicate: Predicate, *, part_bytes: int | None = PART_BYTES
) -> Iterator[tuple[SegmentPart, ...]]:
    """Everything that may fit, in tasks of about ``part_bytes`` of records before compression, in log order.

    None is :data:`PART_BYTES`, and more where that would make more than :data:`MOST_PARTS` tasks. Small segments go
    together into one task, a big one becomes several. Raises what reading the manifest raises.
    """
    wanted = list(_wanted(store, predicate))
    if part_bytes is None:
        part_bytes = max(PART_BYTES, sum(size for _, size in wanted) // MOST_PARTS)
    yield from packed((part for entry, size in wanted for part in shares_of(entry, size, part_bytes)), part_bytes)


def shares_of(entry: LogEntry, size_bytes: int, part_bytes: int) -> Iterator[tuple[SegmentPart, int]]:
    """Returns a segment of which so much is wanted, in equal parts, with what each of them counts for."""
    count = -(-size_bytes // part_bytes)
    return ((SegmentPart(entry, Share(number, count)), size_bytes // count) for number in range(count))


def packed(parts: Iterable[tuple[P, int]], part_bytes: int) -> Iterator[tuple[P, ...]]:
    """Tasks of neighbouring parts that count for about ``part_bytes`` together."""
    task: list[P] = []
    filled = 0
    for part, size in parts:
        if filled and filled + size > part_bytes:
            yield tuple(task)
            task, filled = [], 0
        task.append(part)
        filled += size
    if task:
        yield tuple(task)


def read_parts(store: PinnedStore, parts: tuple[SegmentPart, ...], predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """Yields the messages of a task that fit, as :func:`pipeline.read.frames.read_frames` gives them."""
    for part in parts:
        yield from read_part(store, part, predicate)


def read_part(store: PinnedStore, part: SegmentPart, predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """Yields the messages of one part that fit."""

    def read(store: PinnedStore, entry: LogEntry) -> Iterator[pa.RecordBatch]:
        return read_frames(store, entry, predicate, share=part.share)

    return despite_rewriting(store, part.entry, read)


def despite_rewriting(
    store: PinnedStore, entry: LogEntry, read: Callable[[PinnedStore, LogEntry], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yields what ``read`` gives of a segment; from the newest head on if the object is gone, what did not come before.

    Raises :class:`ObjectNotFoundError` if that head names the object too, or no longer has the segment.
    """
    seen: list[pa.Array] = []
    try:
        for batch in read(store, entry):
            yield batch
            seen.append(batch.column("physical_offset"))
        return
    except ObjectNotFoundError as error:
        newer = pin(store.url, store.store_id)
        found = newer.manifest.log_entry(newer.manifest.reader(), newer.head, entry.base)
        if found is None and entry.next <= newer.head.cold_min:
            hint = "its messages have expired since the read was planned: plan it again"
            raise ObjectNotFoundError(error.message, path=error.path or entry.key, hint=hint) from error
        if found is None or newer.head.version == store.head.version:
            raise
    known = pa.chunked_array(seen, pa.int64())
    for batch in read(newer, found):
        rest = batch.filter(pc.invert(pc.is_in(batch.column("physical_offset"), value_set=known)))
        if rest.num_rows:
            yield rest


def time_range_of(shown: ValueRange) -> TimeRange:
    """The times in ms that a row may show as one of the span: whatever lies beyond those that can be shown, too."""
    is_open = shown.first is None or shown.first <= FIRST_SHOWN_MS
    from_ms = EVER.from_ms if is_open or shown.first is None else shown.first
    is_open = shown.end is None or shown.end > LAST_SHOWN_MS
    return TimeRange(from_ms, EVER.to_ms if is_open or shown.end is None else shown.end)


def wanted_bytes(store: PinnedStore, predicate: Predicate) -> dict[int, int]:
    """Returns about how many bytes of records a scan reads of each segment, by base; others are absent."""
    return {entry.base: size for entry, size in _wanted(store, predicate)}


def _wanted(store: PinnedStore, predicate: Predicate) -> Iterator[tuple[LogEntry, int]]:
    """Segments that may hold what fits, and about how many bytes of it."""
    manifest, head = store.manifest, store.head
    reader = manifest.reader(scan=True)
    records = None if predicate.topics is None else _records_by_segment(store, reader, predicate)
    stored = None if predicate.stored == ANY else time_range_of(predicate.stored)
    first, end = predicate.physical_offsets.first, predicate.physical_offsets.end
    if records is not None:
        first, end = max(first or 0, min(records, default=0)), min(end or 1 << 63, max(records, default=-1) + 1)
    for entry in manifest.log_entries(reader, head, stored=stored, offsets=(first or 0, end or 1 << 63)):
        bounds = entry.bounds
        if (
            bounds is not None
            and entry.next > head.cold_min
            and predicate.physical_offsets.overlaps(entry.first, entry.next - 1)
            and predicate.stored.overlaps(shown_ms(bounds.min_store_ms), shown_ms(bounds.max_store_ms))
        ):
            count = entry.records if records is None else records.get(entry.base, 0)
            if count:
                yield entry, max(1, entry.raw_bytes * min(count, entry.records) // max(entry.records, 1))


def _records_by_segment(store: PinnedStore, reader: ArchiveReader, predicate: Predicate) -> dict[int, int]:
    """Counts records of the predicate's topics that may fit, by the base of their segment; others are absent."""
    found: dict[int, int] = {}
    manifest, head = store.manifest, store.head
    stored = None if predicate.stored == ANY else time_range_of(predicate.stored)
    from_offset = predicate.physical_offsets.first or 0
    for state in manifest.state(reader, head).topics:
        if not predicate.includes_entry(state.name):
            continue
        for piece in manifest.queue_row_pieces(reader, head, state.topic_id, stored=stored, from_offset=from_offset):
            rows = piece[predicate.may_match(piece)]
            for base, count in zip(rows["segment"].tolist(), rows["count"].tolist(), strict=True):
                found[base] = found.get(base, 0) + count
    return found


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
    listed = store.manifest.state(store.manifest.reader(), store.head).listed
    known = sorted({record_topic(state.name) for state in listed})
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
    """Returns the messages at these places that fit, in the order of queues.

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
