"""Cuts what a predicate asks of an archive into parts of about equal size, one a task, from the manifest alone.

Queue rows of the manifest tell for each topic which segments hold it and how much; no directory is read here, and a
year's plan costs as many requests as the year has pages of queue rows. Inside a segment a part is a share of the
frames that the predicate does not rule out, which its reader works out from the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipeline.archive import PinnedStore
from pipeline.frames import WHOLE, Share, read_frames
from pipeline.predicate import Predicate
from pipeline.rows import shown_ms
from tiering.cold.reading import ArchiveReader
from tiering.errors import CorruptionError
from tiering.format.manifest import LogEntry

PART_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A share of the frames of the segment that begins at ``base``."""

    base: int
    share: Share = WHOLE


def plan_parts(
    store: PinnedStore, predicate: Predicate, *, part_bytes: int = PART_BYTES
) -> Iterator[tuple[SegmentPart, ...]]:
    """Everything that may fit, in tasks of about ``part_bytes`` of records before compression, in log order.

    Small segments go together into one task, a big one becomes several. Raises what reading the manifest raises.
    """
    task: list[SegmentPart] = []
    filled = 0
    for entry, size in _wanted(store, predicate):
        count = -(-size // part_bytes)
        for number in range(count):
            if filled and filled + size // count > part_bytes:
                yield tuple(task)
                task, filled = [], 0
            task.append(SegmentPart(entry.base, Share(number, count)))
            filled += size // count
    if task:
        yield tuple(task)


def read_parts(store: PinnedStore, parts: tuple[SegmentPart, ...], predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """The messages of a task that fit, as :func:`pipeline.frames.read_frames` gives them."""
    manifest = store.manifest
    reader = manifest.reader(scan=True)
    for part in parts:
        entry = manifest.log_entry(reader, store.head, part.base)
        if entry is None:
            raise CorruptionError(f"the plan names segment {part.base}, which the manifest lacks")
        yield from read_frames(store, entry, predicate, share=part.share)


def _wanted(store: PinnedStore, predicate: Predicate) -> Iterator[tuple[LogEntry, int]]:
    """Segments that may hold what fits, and about how many bytes of it."""
    manifest, head = store.manifest, store.head
    reader = manifest.reader(scan=True)
    records = None if predicate.topics is None else _records_by_segment(store, reader, predicate)
    for entry in manifest.log_entries(reader, head):
        bounds = entry.bounds
        if (
            bounds is not None
            and entry.next > head.cold_min
            and predicate.physical_offsets.overlaps(entry.first, entry.next - 1)
            and predicate.stored.overlaps(shown_ms(bounds.min_store_ms), shown_ms(bounds.max_store_ms))
            and predicate.born.overlaps(shown_ms(bounds.min_born_ms), shown_ms(bounds.max_born_ms))
        ):
            count = entry.records if records is None else records.get(entry.base, 0)
            if count:
                yield entry, max(1, entry.raw_bytes * min(count, entry.records) // max(entry.records, 1))


def _records_by_segment(store: PinnedStore, reader: ArchiveReader, predicate: Predicate) -> dict[int, int]:
    """How many records of the predicate's topics may fit, by the base of their segment; segments without are absent."""
    found: dict[int, int] = {}
    manifest, head = store.manifest, store.head
    for state in manifest.state(reader, head).topics:
        if state.name not in (predicate.topics or ()):
            continue
        for piece in manifest.queue_row_pieces(reader, head, state.topic_id):
            rows = piece[predicate.may_match(piece, piece["count"])]
            for base, count in zip(rows["segment"].tolist(), rows["count"].tolist(), strict=True):
                found[base] = found.get(base, 0) + count
    return found
