"""Fills batches with the messages of a query by columns: out of frames of an archived segment, or out of the log.

What is a row, and what is noted of the rest, is what the search of single messages gives and notes: every record is
compared with its checksums, and fillers, expired and erased messages are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.index.search.column_results import FoundRows
from tierlog.index.search.query import Query
from tierlog.index.search.task import SearchContext
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import ALL_TIME, Tier, TimeAxis, TimeRange
from tierlog.tiering.cold.segment.reader import item_at
from tierlog.tiering.format.filler import Filler
from tierlog.tiering.format.record import FIXED_BYTES_V1, Record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.lifecycle.hidden_rows import hidden_rows
from tierlog.tiering.lifecycle.tombstones import Erasures
from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA
from tierlog.tiering.message.record_columns import Bounds, RecordBatchBuilder
from tierlog.tiering.message.stored_message import StoredMessage

_BATCH_BYTES = 1 << 20
_MOST_RECORD_BYTES = 1 << 30
#: Where a run of records of one topic begins and ends in a decompressed frame.
Span = tuple[int, int]


class RowFilling:
    """Fills one batch after another, for one task; :meth:`finish` gives the last.

    A batch holds a megabyte of records, or one frame, or one record.
    """

    def __init__(
        self,
        store_id: str,
        tier: Tier,
        query: Query,
        within: TimeRange,
        *,
        segment_bytes: int,
        erased: Erasures,
        present_from_ms: int | None,
        context: SearchContext,
    ) -> None:
        """``present_from_ms``: what was stored before has expired."""
        self._store_id, self._tier, self._topic = store_id, tier, query.topic
        self._segment_bytes = segment_bytes
        self._erased = erased if erased.concerns(query.topic) else None
        self._present_from_ms = present_from_ms
        self._context = context
        self._axis, self._within = query.axis, within
        # whatever may be hidden is read first and then left out, so that it is noted
        is_open = self._erased is None and present_from_ms is None
        self._bounds = _bounds(query.axis, within) if is_open else _EVERYTHING
        self._columns: RecordBatchBuilder | None = None
        self._left_bytes = 0

    def expect(self, size_bytes: int) -> None:
        """Prepares for so many bytes of records."""
        self._left_bytes = size_bytes

    def add_frame(self, frame: bytes, spans: Sequence[Span], base: int) -> Iterator[FoundRows]:
        """Adds the records of runs in a frame of the segment at ``base``; yields every batch that is full."""
        data = np.frombuffer(frame, np.uint8)
        yield from self._make_room(len(frame))
        for at, end in spans:
            inside = min(end, len(frame))
            while at < end:
                if at < inside:
                    columns = self._filled()
                    at = columns.add(data, at, inside, self._topic, self._bounds)
                if at < end:
                    item = item_at(frame, at)
                    at += item.size
                    if isinstance(item, Filler):
                        self._context.segments_erased.add((self._store_id, base))
                    else:
                        yield from self._add_plain(item, len(frame))
        if self._columns is not None and self._columns.fillers:
            self._context.segments_erased.add((self._store_id, base))
        self._left_bytes -= len(frame)

    def add_units(self, units: NDArray[np.void], snapshot: HotSnapshot) -> Iterator[FoundRows]:
        """Adds the records of queue units that were compared with the log; yields every batch that is full.

        One that cannot be read is raised when the others are added.
        """
        failure: StoreError | None = None
        offsets = units["physical_offset"].astype(np.int64)
        numbers = offsets // self._segment_bytes
        self._context.segments_read.update(
            (self._store_id, self._tier, number) for number in np.unique(numbers).tolist()
        )
        sizes = np.clip(units["size"].astype(np.int64), FIXED_BYTES_V1, _MOST_RECORD_BYTES)
        for low, high in _pieces(numbers, sizes):
            size_bytes = int(sizes[low:high].sum())
            yield from self._make_room(size_bytes)
            base = int(numbers[low]) * self._segment_bytes
            segment, at = snapshot.segments.get(base), low
            while at < high:
                if segment is not None:
                    at += self._filled().add_units(
                        units[at:high], segment.data, base, topic=self._topic, bounds=self._bounds
                    )
                if at < high:
                    try:
                        yield from self._add_plain(snapshot.record(int(offsets[at])), size_bytes)
                    except StoreError as error:
                        failure = failure or error
                    at += 1
            self._left_bytes -= size_bytes
        if failure is not None:
            raise failure

    def finish(self) -> Iterator[FoundRows]:
        """Yields what was added since the last batch, if there is anything to show."""
        columns, self._columns = self._columns, None
        if columns is None or not columns.rows:
            return
        rows = self._visible(columns.finish())
        if rows.num_rows:
            self._count(rows)
            yield FoundRows(self._store_id, rows)

    def _make_room(self, size_bytes: int) -> Iterator[FoundRows]:
        """Ends the batch unless it has room for so much."""
        if self._columns is None or self._columns.room_bytes < size_bytes:
            yield from self.finish()
            self._begin(max(size_bytes, min(self._left_bytes, _BATCH_BYTES)))

    def _begin(self, room_bytes: int) -> None:
        self._columns = RecordBatchBuilder(self._store_id, self._tier, room_bytes, schema=FOUND_SCHEMA)

    def _filled(self) -> RecordBatchBuilder:
        assert self._columns is not None
        return self._columns

    def _add_plain(self, record: Record, room_bytes: int) -> Iterator[FoundRows]:
        """Adds a record that the compiled loop has left; whoever collects rows compares the time."""
        if record.topic != self._topic:
            return
        self._filled().add_plain(StoredMessage(record, self._store_id, self._tier))
        if self._filled().is_full:
            yield from self.finish()
            self._begin(room_bytes)

    def _visible(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leaves out what has expired or is erased, and notes the segments of it."""
        if self._present_from_ms is not None:
            gone = rows.column("store_ms").to_numpy() < self._present_from_ms
            rows = self._without(rows, gone, self._context.segments_expired)
        if self._erased is not None:
            hidden = hidden_rows(rows, self._topic, rows.column("store_ms").to_numpy(), self._erased)
            rows = self._without(rows, hidden, self._context.segments_erased)
        return rows

    def _count(self, rows: pa.RecordBatch) -> None:
        times = rows.column(f"{self._axis.value}_ms").to_numpy()
        inside = int(((times >= self._within.from_ms) & (times <= self._within.to_ms - 1)).sum())
        self._context.messages_read += inside
        self._context.messages_matched += inside

    def _without(
        self, rows: pa.RecordBatch, left_out: NDArray[np.bool_], noted: set[tuple[str, int]]
    ) -> pa.RecordBatch:
        if not left_out.any():
            return rows
        offsets = rows.column("physical_offset").to_numpy()[left_out]
        bases = np.unique(offsets // self._segment_bytes * self._segment_bytes)
        noted.update((self._store_id, base) for base in bases.tolist())
        return rows.filter(pa.array(~left_out))


_ALWAYS = ALL_TIME
_EVERYTHING: Bounds = np.array([_ALWAYS] * 4, np.int64)


def _bounds(axis: TimeAxis, within: TimeRange) -> Bounds:
    """Returns what the compiled loops compare: queue offset, physical offset, store time, born time."""
    inside = within.from_ms, within.to_ms - 1
    stored, born = (inside, _ALWAYS) if axis is TimeAxis.STORE else (_ALWAYS, inside)
    return np.array([_ALWAYS, _ALWAYS, stored, born], np.int64)


def _pieces(numbers: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields parts of units whose records lie in one segment and fit into a batch, one unit at least."""
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    low = 0
    for end in [*cuts.tolist(), len(numbers)]:
        while low < end:
            fitting = int(np.searchsorted(np.cumsum(sizes[low:end]), _BATCH_BYTES, side="right"))
            high = low + max(1, fitting)
            yield low, high
            low = high
