"""Queue rows as the directory of a sorted segment implies them: what checking compares and repairing writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tiering.cold.segment.reader import DirectoryRow
from tiering.format.queue_rows import QUEUE_ROW, QueueRows
from tiering.types import TimeBounds


def rows_of_directory(runs: Iterable[DirectoryRow], base: int, topic_ids: Mapping[str, int]) -> QueueRows:
    """One row for each run of consecutive queue offsets, over all frames; topics without an id are left out."""
    found: list[tuple[int, ...]] = []
    last: tuple[int, int, int] | None = None
    first, count, bounds = 0, 0, TimeBounds(0, 0, 0, 0)

    def end() -> None:
        if last is not None:
            found.append(
                (last[0], last[1], base, first, count, bounds.min_store_ms, bounds.max_store_ms,
                 bounds.min_born_ms, bounds.max_born_ms)
            )  # fmt: skip

    for run in runs:
        topic_id = topic_ids.get(run.topic)
        if topic_id is None or run.first_queue_offset < 0:
            continue
        if last == (topic_id, run.queue_id, run.first_queue_offset):
            count, bounds = count + run.records, bounds.union(run.bounds)
        else:
            end()
            first, count, bounds = run.first_queue_offset, run.records, run.bounds
        last = topic_id, run.queue_id, run.first_queue_offset + run.records
    end()
    return np.array(found, QUEUE_ROW)
