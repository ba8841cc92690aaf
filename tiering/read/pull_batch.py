"""Pulls whole batches as Arrow: compiled loops take records apart, and what they leave is read one by one.

What a batch holds, and what it raises, is what :class:`MessageCollector` would have given: every record's body is
compared with its checksum, and the record with its own if it has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import PullStatus, Tier
from tierlog.tiering.cold.segment.queue_frames import QueuePiece
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.record import FIXED_BYTES_V1
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.arrow_schema import message_batch
from tierlog.tiering.message.record_columns import Bounds, RecordBatchBuilder
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.read.cold_queue import ColdQueue
from tierlog.tiering.read.hot_queue import HotQueue
from tierlog.tiering.read.pull_result import PullExtent

#: Names of columns in the order in which they are wanted; None for all of them.
Columns = Sequence[str] | None
#: A batch ends before the record, or the piece of a frame, that would make it larger than this.
BATCH_BYTES = 4 << 20
_MOST_ROWS = 1 << 16
_MOST_RECORD_BYTES = 1 << 30
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_EVERYTHING: Bounds = np.array([(_LEAST, _MOST)] * 4, np.int64)


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Answer of a pull, with the messages as Arrow. ``min_offset`` counts both tiers; go on at ``next_offset``."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: pa.RecordBatch


class BatchCollector:
    """Up to ``limit`` messages as one batch with the columns of a schema."""

    def __init__(self, store_id: str, limit: int, schema: pa.Schema) -> None:
        self._store_id, self._limit, self._schema = store_id, min(limit, _MOST_ROWS), schema

    def nothing(self, status: PullStatus, next_offset: int, min_offset: int, max_offset: int) -> PulledBatch:
        return PulledBatch(status, next_offset, min_offset, max_offset, message_batch([], self._schema))

    def from_hot(self, queue: HotQueue, erased: Erasures, extent: PullExtent) -> PulledBatch:
        """Returns what the log has. Units are compared with their records as these are read.

        One that differs is read alone.
        """
        units, room_bytes = _fitting(queue.raw_units(extent.offset, extent.offset + self._limit))
        if room_bytes > BATCH_BYTES:  # one record that is so large, or a unit that only says so
            units, room_bytes = _fitting(queue.units(extent.offset, extent.offset + 1))
        queue.read_ahead(units)
        columns, snapshot, taken = self._columns(Tier.HOT, room_bytes), queue.snapshot, 0
        offsets = units["physical_offset"].astype(np.int64)
        try:
            for end, is_open in _runs(offsets, snapshot.segment_bytes, erased.end_of(queue.topic)):
                while taken < end and not columns.is_full:
                    segment = snapshot.segments.get(
                        int(offsets[taken]) // snapshot.segment_bytes * snapshot.segment_bytes
                    )
                    if is_open and segment is not None:
                        run = units[taken:end]
                        place = queue.queue_id, queue.offset_in_log(extent.offset + taken)
                        taken += columns.add_units(
                            run, segment.data, segment.base_offset, topic=queue.topic, bounds=_EVERYTHING, place=place
                        )
                    if taken < end:
                        record = queue.record(extent.offset + taken)
                        if not erased.hides(record):
                            columns.add_plain(StoredMessage(record, self._store_id, Tier.HOT))
                        taken += 1
        except StoreError:
            if not taken:
                raise
        return self._answer(columns, extent.offset + taken, extent)

    def from_cold(self, queue: ColdQueue, head: Head, extent: PullExtent) -> PulledBatch:
        columns, next_offset = self._columns(Tier.COLD, BATCH_BYTES), extent.offset
        present = _EVERYTHING.copy()
        present[0, 0], present[2, 0] = extent.offset, queue.present_from_ms(head)
        with contextlib.closing(queue.pieces(head, extent.offset)) as pieces:
            try:
                for piece in pieces:
                    while not piece.is_read:
                        size = piece.run_bytes
                        if columns.room_bytes < size and next_offset == extent.offset:
                            columns = self._columns(Tier.COLD, max(BATCH_BYTES, size))
                        if columns.room_bytes < size or columns.rows == self._limit or columns.is_full:
                            break
                        try:
                            self._add(columns, queue, piece, present)
                        finally:
                            next_offset = piece.next_offset
                    if not piece.is_read:
                        break
            except StoreError:
                if next_offset == extent.offset:
                    raise
        return self._answer(columns, next_offset, extent)

    def _add(self, columns: RecordBatchBuilder, queue: ColdQueue, piece: QueuePiece, present: Bounds) -> None:
        """Reads a piece on, as far as the batch has room for rows, and for a whole run of records."""
        is_open = not queue.erased.end_of(queue.topic)
        offset, from_ms = int(present[0, 0]), int(present[2, 0])
        while (
            not piece.is_read
            and piece.run_bytes <= columns.room_bytes
            and columns.rows < self._limit
            and not columns.is_full
        ):
            if is_open:
                before = piece.run, piece.position
                piece.go_to(*columns.add_runs(piece.data, piece.runs, *before, topic=queue.topic, bounds=present))
                piece.next_offset = max(piece.next_offset, columns.next_offset)
                if (piece.run, piece.position) != before:
                    continue
            item = piece.item()
            message = queue.shown(item, from_ms) if item.queue_offset >= offset else None
            if message is not None:
                columns.add_plain(message)
            piece.go_behind(item, offset)

    def _columns(self, tier: Tier, room_bytes: int) -> RecordBatchBuilder:
        return RecordBatchBuilder(self._store_id, tier, room_bytes, self._limit, self._schema)

    def _answer(self, columns: RecordBatchBuilder, next_offset: int, extent: PullExtent) -> PulledBatch:
        if next_offset == extent.offset:
            next_offset = max(extent.offset, extent.tier_end)  # a gap, whose end is where to go on
        batch = columns.finish()
        status = PullStatus.FOUND if batch.num_rows else PullStatus.NO_MATCHED_MESSAGE
        return PulledBatch(status, next_offset, extent.first, extent.end, batch)


def _fitting(units: NDArray[np.void]) -> tuple[NDArray[np.void], int]:
    """Returns the first units whose records fit into a batch, one at least, and their bytes."""
    ends = np.cumsum(np.clip(units["size"].astype(np.int64), FIXED_BYTES_V1, _MOST_RECORD_BYTES))
    count = max(int(np.searchsorted(ends, BATCH_BYTES, side="right")), 1)
    return units[:count], int(ends[:count][-1]) if len(ends) else 0


def _runs(offsets: NDArray[np.int64], segment_bytes: int, erased_end: int) -> Iterator[tuple[int, bool]]:
    """Yields where runs of records of one segment end, and whether nothing can hide any of them."""
    if not len(offsets):
        return
    least, greatest = int(offsets.min()), int(offsets.max())
    if least // segment_bytes == greatest // segment_bytes and least >= erased_end:  # what is usual, found in no time
        yield len(offsets), True
        return
    is_open = offsets >= erased_end
    cuts = np.flatnonzero((np.diff(offsets // segment_bytes) != 0) | (np.diff(is_open) != 0)) + 1
    for end in [*cuts.tolist(), len(offsets)]:
        yield end, bool(is_open[end - 1])
