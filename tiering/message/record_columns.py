"""Columns of records as the compiled loops fill them, and the batch of messages that Arrow makes of them.

:class:`RecordBatchBuilder` gathers records, of decompressed frames and of the log, without an object for each.
:class:`RecordColumns` has the room that the loops need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.queue_unit import UNIT_DTYPE
from tierlog.tiering.format.record import FIXED_BYTES_V1
from tierlog.tiering.kernels.checksum import CRC_TABLES
from tierlog.tiering.kernels.decode import LAYOUT, MOST_TEXTS, take_frame, take_runs, take_units
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.message.arrow_schema import MESSAGE_SCHEMA, message_batch
from tierlog.tiering.message.stored_message import StoredMessage

#: Least and greatest of what is wanted: queue offset, physical offset, store time, born time.
Bounds = NDArray[np.int64]
_ALWAYS = frozenset({"topic_number", "queue_id"})
_PARTS = {"key": "keys", "name": "properties", "value": "properties"}
_TEXTS = ("message_id", "tag", "body")


class RecordColumns:
    """Columns of records, in the order in which they were added; for one thread."""

    def __init__(self, capacity_bytes: int, rows: int | None = None, names: Collection[str] | None = None) -> None:
        """``capacity_bytes``: of all records that will be added, ``rows`` of them at most; memory is taken as needed.

        Only the columns ``names`` are made, a text's with its ends; None for all of them.
        """
        most_rows = capacity_bytes // FIXED_BYTES_V1 + 1
        self.most_rows = most_rows if rows is None else min(rows, most_rows)
        most_texts = MOST_TEXTS * self.most_rows
        properties = min(most_texts, capacity_bytes // 3) + 2
        sizes = {
            "message_id": 56 * self.most_rows, "key_ends": min(most_texts, capacity_bytes // 2) + 2,
            "name_ends": properties, "value_ends": properties,
        }  # fmt: skip
        self._capacity = capacity_bytes
        self._columns: dict[str, NDArray[Any]] = {
            name: _room(sizes.get(name, capacity_bytes if kind is np.uint8 else self.most_rows + 1), np.dtype(kind))
            for name, kind in _made(None if names is None else frozenset(names))
        }
        for name, column in self._columns.items():
            if name.endswith("_ends"):
                column[0] = 0
        addresses = [address_of(self._columns[name]) if name in self._columns else 0 for name, _ in LAYOUT]
        self._addresses = np.array(addresses, np.int64)
        self._done = np.zeros(6, np.int64)
        self._out, self._done_at = address_of(self._addresses), address_of(self._done)
        self.rows = 0
        #: Behind the queue offset of the record or filler of a frame that was passed last.
        self.next_offset = 0
        self.added_bytes = 0
        #: Passed over in frames so far.
        self.fillers = 0

    def add(self, frame: ByteArray, position: int, end: int, *, topic: ByteArray, number: int, bounds: Bounds) -> int:
        """Adds the records of ``frame[position:end]``, all of one ``topic``, which the rows call ``number``.

        Fillers and records outside the bounds are passed over. Returns ``end``, or where a record lies that the plain
        codec has to look at, or that has no room among ``most_rows``; the bytes behind that are not counted as added.
        """
        if not 0 <= position <= end <= len(frame):
            raise ValueError(f"records at {position}..{end} outside {len(frame)} bytes")
        if self.added_bytes + end - position > self._capacity:
            raise ValueError(f"{end - position} bytes of records, {self._capacity - self.added_bytes} left")
        take_frame(
            tables=CRC_TABLES, frame=address_of(frame), position=position, end=end, topic=address_of(topic),
            topic_length=len(topic), number=number, bounds=address_of(bounds), out=self._out, row=self.rows,
            last_row=self.most_rows, done=self._done_at,
        )  # fmt: skip
        self.rows, stopped, self.next_offset, _, _, fillers = self._done.tolist()
        self.added_bytes += stopped - position
        self.fillers += fillers
        return int(stopped)

    def add_runs(
        self, data: ByteArray, runs: NDArray[np.int64], run: int, position: int, *, topic: ByteArray, number: int,
        bounds: Bounds,
    ) -> tuple[int, int]:  # fmt: skip
        """As :meth:`add`, of ``runs`` from ``position`` in the run of this number on; ``data`` is frames in a row.

        A run is begin, end, and begin and end of its frame in ``data``. Returns the run and the position where it
        stopped, which is also before a run that is larger than what is left of ``capacity_bytes``, or that lies outside
        its frame; with the last run taken, the run is ``len(runs)``.
        """
        if runs.dtype != np.int64 or runs.ndim != 2 or runs.shape[1] != 4 or not runs.flags.c_contiguous or run < 0:
            raise ValueError("a run is four numbers of 8 bytes")
        take_runs(
            tables=CRC_TABLES, data=address_of(data), length=len(data), runs=address_of(runs), count=len(runs), run=run,
            position=position, room=self._capacity - self.added_bytes, topic=address_of(topic), topic_length=len(topic),
            number=number, bounds=address_of(bounds), out=self._out, row=self.rows, last_row=self.most_rows,
            done=self._done_at,
        )  # fmt: skip
        self.rows, position, self.next_offset, run, added, fillers = self._done.tolist()
        self.added_bytes += added
        self.fillers += fillers
        return run, position

    def add_units(
        self,
        units: NDArray[np.void],
        log: ByteArray,
        base: int,
        *,
        topic: ByteArray,
        number: int,
        bounds: Bounds,
        place: tuple[int, int] | None = None,
    ) -> int:
        """Adds the records that queue units lead to in the segment ``log``, which begins at the offset ``base``.

        ``place``, queue id and the first unit's offset in it, is compared with each record, and so is the unit's size;
        an offset of -1 is not.
        Returns how many units were taken: the record of the next one is to be looked at by the plain codec, or has no
        room here.
        """
        if units.dtype != UNIT_DTYPE or not units.flags.c_contiguous:
            raise ValueError("units are to lie one behind the other, with the bytes of their file")
        queue_id, first = (-1, -1) if place is None else place
        take_units(
            tables=CRC_TABLES, units=address_of(units), count=min(len(units), self.most_rows - self.rows),
            log=address_of(log), base=base, limit=len(log), room=self._capacity - self.added_bytes,
            topic=address_of(topic), topic_length=len(topic), number=number, bounds=address_of(bounds),
            queue_id=queue_id, first=first, out=self._out, row=self.rows, done=self._done_at,
        )  # fmt: skip
        self.rows, taken, added, *_ = self._done.tolist()
        self.added_bytes += added
        return int(taken)

    def numbers(self, name: str) -> NDArray[np.signedinteger]:
        """Returns a column of one number a row."""
        found: NDArray[np.signedinteger] = self._columns[name][: self.rows]
        return found

    def ends(self, name: str, count: int) -> NDArray[np.int32]:
        """Returns where ``count`` texts, or lists, of a column begin and end."""
        found: NDArray[np.int32] = self._columns[f"{name}_ends"][: count + 1]
        return found

    def text(self, name: str) -> ByteArray:
        """Returns the bytes of a column's texts, with room behind them."""
        return self._columns[name]


def _room(count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Takes room from Arrow's pool, which keeps memory: libc gives megabytes back, to be faulted in anew."""
    return np.frombuffer(pa.allocate_buffer(count * kind.itemsize), kind)


@lru_cache(maxsize=64)
def _made(wanted: frozenset[str] | None) -> Sequence[tuple[str, type[np.generic]]]:
    """Returns the arrays that are needed for the columns that are wanted, and what they are of."""
    found = []
    for name, kind in LAYOUT:
        column = name.removesuffix("_ends")
        if wanted is None or column in _ALWAYS or _PARTS.get(column, column) in wanted:
            found.append((name, kind))
    return found


class RecordBatchBuilder:
    """A batch that is being filled with the records of one store; for one thread."""

    def __init__(
        self,
        store_id: str,
        tier: Tier,
        capacity_bytes: int,
        most_rows: int | None = None,
        schema: pa.Schema = MESSAGE_SCHEMA,
    ) -> None:
        """``capacity_bytes``: of all records that will be added by :meth:`add` and :meth:`add_units`; these add no row
        beyond ``most_rows``.
        """
        self._store_id = store_id
        self._tier = tier
        self._schema = schema
        self._capacity = capacity_bytes
        self._is_limited = most_rows is not None
        self._columns = RecordColumns(capacity_bytes, most_rows, None if schema is MESSAGE_SCHEMA else schema.names)
        self._topics: dict[str, tuple[int, ByteArray]] = {}
        self._plain: list[StoredMessage] = []
        self._plain_at: list[int] = []
        self._plain_bytes = 0

    @property
    def rows(self) -> int:
        """Messages so far."""
        return self._columns.rows + len(self._plain)

    @property
    def room_bytes(self) -> int:
        """Bytes of records that :meth:`add` and :meth:`add_units` still take."""
        return self._capacity - self._columns.added_bytes

    @property
    def next_offset(self) -> int:
        """As :attr:`RecordColumns.next_offset`."""
        return self._columns.next_offset

    @property
    def fillers(self) -> int:
        """As :attr:`RecordColumns.fillers`."""
        return self._columns.fillers

    @property
    def is_full(self) -> bool:
        """Whether the messages of :meth:`add_plain`, bodies inflated, take as much memory as the others may."""
        return self._plain_bytes >= self._capacity

    def add(self, frame: ByteArray, position: int, end: int, topic: str, bounds: Bounds) -> int:
        """As :meth:`RecordColumns.add`: where a record lies that is to be decoded plainly, or ``end``."""
        number, name = self._topic(topic)
        return self._columns.add(frame, position, end, topic=name, number=number, bounds=bounds)

    def add_runs(
        self, data: ByteArray, runs: NDArray[np.int64], run: int, position: int, *, topic: str, bounds: Bounds
    ) -> tuple[int, int]:
        """As :meth:`RecordColumns.add_runs`: the run and the position of a record that is to be decoded plainly."""
        number, name = self._topic(topic)
        return self._columns.add_runs(data, runs, run, position, topic=name, number=number, bounds=bounds)

    def add_units(
        self,
        units: NDArray[np.void],
        log: ByteArray,
        base: int,
        *,
        topic: str,
        bounds: Bounds,
        place: tuple[int, int] | None = None,
    ) -> int:
        """As :meth:`RecordColumns.add_units`: how many there are before one that is to be decoded plainly."""
        number, name = self._topic(topic)
        return self._columns.add_units(units, log, base, topic=name, number=number, bounds=bounds, place=place)

    def add_plain(self, message: StoredMessage) -> None:
        """Adds a message that was decoded plainly behind all that was added so far."""
        self._plain_at.append(self._columns.rows)
        self._plain.append(message)
        self._plain_bytes += message.shown_bytes
        if self._is_limited:
            self._columns.most_rows -= 1

    def finish(self) -> pa.RecordBatch:
        """Returns the messages in the order in which they were added; nothing is to be added afterwards."""
        arrays = [self._array(field) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not self._plain:
            return batch
        both = pa.Table.from_batches([batch, message_batch(self._plain, self._schema)]).combine_chunks()
        places = np.concatenate((np.arange(batch.num_rows) + 0.5, np.array(self._plain_at, np.float64)))
        return both.take(np.argsort(places, kind="stable")).to_batches()[0]

    def _topic(self, topic: str) -> tuple[int, ByteArray]:
        if topic not in self._topics:
            self._topics[topic] = len(self._topics), np.frombuffer(topic.encode(), np.uint8)
        return self._topics[topic]

    def _array(self, field: pa.Field) -> pa.Array:
        name, kind, rows = field.name, field.type, self._columns.rows
        if name in _TEXTS:
            return self._texts(name, rows, kind)
        if name == "topic":
            return pa.array(list(self._topics), kind).take(pa.array(self._columns.numbers("topic_number")))
        if name == "store_id":
            return pa.repeat(pa.scalar(self._store_id, kind), rows)
        if name == "tier":
            return pa.repeat(pa.scalar(self._tier.value, kind), rows)
        if name == "body_compressed":
            return pa.repeat(pa.scalar(value=False), rows)
        if name == "keys":
            keys = int(self._columns.ends("keys", rows)[-1])
            return pa.ListArray.from_arrays(self._ends("keys", rows), self._texts("key", keys), type=kind)
        if name == "properties":
            properties = int(self._columns.ends("properties", rows)[-1])
            return pa.MapArray.from_arrays(
                self._ends("properties", rows), self._texts("name", properties), self._texts("value", properties),
                type=kind,
            )  # fmt: skip
        return pa.array(self._columns.numbers(name))

    def _ends(self, name: str, count: int) -> pa.Array:
        return pa.array(self._columns.ends(name, count))

    def _texts(self, name: str, count: int, kind: pa.DataType | None = None) -> pa.Array:
        ends = self._columns.ends(name, count)
        text = self._columns.text(name)[: int(ends[-1])]
        return pa.Array.from_buffers(kind or pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text)], 0)
