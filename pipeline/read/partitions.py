"""Cuts what a predicate asks of an archive into parts of about equal size, one a task, from the manifest alone.

Queue rows of the manifest tell for each topic which segments hold it and how much; no directory is read here, and a
year's plan costs as many requests as the year has pages of queue rows. Inside a segment a part is a share of the
frames that the predicate does not rule out, which its reader works out from the directory.

A task may be read long after it was planned, when an erasure has put another object in the place of the one that it
names. Records keep their positions then, so that the task goes on in the newer object, behind its last row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tierlog.pipeline.base.archive import PinnedStore, pin
from tierlog.pipeline.read.frames import WHOLE, Share, read_frames
from tierlog.pipeline.read.predicate import ANY, Predicate, ValueRange
from tierlog.pipeline.read.views import FIRST_SHOWN_MS, LAST_SHOWN_MS, shown_ms
from tierlog.tiering.base.errors import ObjectNotFoundError
from tierlog.tiering.base.types import EVER, TimeRange
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.format.manifest import LogEntry

P = TypeVar("P")
PART_BYTES = 64 << 20
#: Tasks of one read, about, unless their size is given: a driver holds each of them some kB, and plans it.
MOST_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A share of the frames of a segment."""

    entry: LogEntry
    share: Share = WHOLE


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
    """A segment of which so much is wanted, in equal parts, with what each of them counts for."""
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
    """The messages of a task that fit, as :func:`pipeline.read.frames.read_frames` gives them."""
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
    """Yields what ``read`` gives of a segment in queue order; from the newest head on if the object is gone.

    Raises :class:`ObjectNotFoundError` if that head names the object too, or no longer has the segment.
    """
    last: pa.RecordBatch | None = None
    try:
        for batch in read(store, entry):
            yield batch
            last = batch.slice(batch.num_rows - 1)
        return
    except ObjectNotFoundError as error:
        newer = pin(store.url, store.store_id)
        found = newer.manifest.log_entry(newer.manifest.reader(), newer.head, entry.base)
        if found is None and entry.next <= newer.head.cold_min:
            hint = "its messages have expired since the read was planned: plan it again"
            raise ObjectNotFoundError(error.message, path=error.path or entry.key, hint=hint) from error
        if found is None or newer.head.version == store.head.version:
            raise
    for batch in read(newer, found):
        rest = batch if last is None else _behind(batch, last)
        if rest.num_rows:
            yield rest


def _behind(batch: pa.RecordBatch, last: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that come after a row in the order of queues."""
    topics, queues, offsets = (batch.column(name) for name in ("topic", "queue_id", "queue_offset"))
    topic, queue, offset = (last.column(name)[0] for name in ("topic", "queue_id", "queue_offset"))
    is_later = pc.or_(pc.greater(queues, queue), pc.and_(pc.equal(queues, queue), pc.greater(offsets, offset)))
    return batch.filter(pc.or_(pc.greater(topics, topic), pc.and_(pc.equal(topics, topic), is_later)))


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
        if state.name not in (predicate.topics or ()):
            continue
        for piece in manifest.queue_row_pieces(reader, head, state.topic_id, stored=stored, from_offset=from_offset):
            rows = piece[predicate.may_match(piece)]
            for base, count in zip(rows["segment"].tolist(), rows["count"].tolist(), strict=True):
                found[base] = found.get(base, 0) + count
    return found
