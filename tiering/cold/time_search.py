"""Where in the archived part of a queue a store time lies: queue rows, then a directory, then one run of records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.segment.reader import SegmentReader
from tiering.format.manifest import Head
from tiering.types import EVER, Boundary, TimeRange


def archived_offset_by_time(
    manifest: ManifestStore,
    head: Head,
    border: int,
    topic_id: int,
    topic: str,
    queue_id: int,
    time_ms: int,
    boundary: Boundary,
) -> int | None:
    """The queue offset that belongs to a store time, of the archived messages below ``border``; None if none does.

    ``LOWER``: the first message stored at or after the time. ``UPPER``: the last one stored at or before it. Messages
    that have expired do not count.
    """
    reader, is_upper = manifest.reader(), boundary is Boundary.UPPER
    present_from_ms = dict(head.expired).get(topic_id, EVER.from_ms)
    stored = (
        TimeRange(present_from_ms, time_ms + 1) if is_upper else TimeRange(max(time_ms, present_from_ms), EVER.to_ms)
    )
    for base in _segments(manifest, head, border, topic_id, queue_id, stored, backwards=is_upper):
        segment = SegmentReader(reader, manifest.entry_of_rows(reader, head, base))
        runs = segment.directory_rows(topic, queue_id)
        runs = [run for run in runs if stored.overlaps(run.min_store_ms, run.max_store_ms)]
        for run in reversed(runs) if is_upper else runs:  # the nearest decides, unless all of it was removed
            records = segment.records_of([run])
            offsets = [record.queue_offset for record in records if stored.contains(record.store_ms)]
            if offsets:
                return offsets[-1] if is_upper else offsets[0]
    return None


def _segments(
    manifest: ManifestStore,
    head: Head,
    border: int,
    topic_id: int,
    queue_id: int,
    stored: TimeRange,
    *,
    backwards: bool,
) -> Iterator[int]:
    """Segments with a message of the queue stored in that time, the nearest first."""
    pieces = manifest.queue_row_pieces(manifest.reader(), head, topic_id, queue_id, backwards=backwards, stored=stored)
    for rows in pieces:
        fits = (rows["min_store_ms"] < stored.to_ms) & (rows["max_store_ms"] >= stored.from_ms)
        bases = np.unique(rows["segment"][fits & (rows["segment"] < border)]).tolist()
        yield from reversed(bases) if backwards else bases
