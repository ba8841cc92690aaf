"""Gathers records, of decompressed frames and of the log, into a batch of messages without an object for each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiering.fs import ByteArray
from tiering.message import StoredMessage
from tiering.message_batch import MESSAGE_SCHEMA, message_batch
from tiering.record_columns import Bounds, RecordColumns
from tiering.types import Tier

_TEXTS = ("message_id", "tag", "body")


class MessageColumns:
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
        """How many bytes of records :meth:`add` and :meth:`add_units` still take."""
        return self._capacity - self._columns.added_bytes

    @property
    def next_offset(self) -> int:
        """As :attr:`RecordColumns.next_offset`."""
        return self._columns.next_offset

    @property
    def is_full(self) -> bool:
        """Whether the messages of :meth:`add_plain`, bodies inflated, take as much memory as the others may."""
        return self._plain_bytes >= self._capacity

    def add(self, frame: ByteArray, position: int, end: int, topic: str, bounds: Bounds) -> int:
        """As :meth:`RecordColumns.add`: where a record lies that is to be decoded plainly, or ``end``."""
        number, name = self._topic(topic)
        return self._columns.add(frame, position, end, name, number, bounds)

    def add_runs(
        self, data: ByteArray, runs: NDArray[np.int64], run: int, position: int, topic: str, bounds: Bounds
    ) -> tuple[int, int]:
        """As :meth:`RecordColumns.add_runs`: the run and the position of a record that is to be decoded plainly."""
        number, name = self._topic(topic)
        return self._columns.add_runs(data, runs, run, position, name, number, bounds)

    def add_units(
        self,
        units: NDArray[np.void],
        log: ByteArray,
        base: int,
        topic: str,
        bounds: Bounds,
        place: tuple[int, int] | None = None,
    ) -> int:
        """As :meth:`RecordColumns.add_units`: how many there are before one that is to be decoded plainly."""
        number, name = self._topic(topic)
        return self._columns.add_units(units, log, base, name, number, bounds, place)

    def add_plain(self, message: StoredMessage) -> None:
        """Add a message that was decoded plainly behind all that was added so far."""
        self._plain_at.append(self._columns.rows)
        self._plain.append(message)
        self._plain_bytes += message.shown_bytes
        if self._is_limited:
            self._columns.most_rows -= 1

    def finish(self) -> pa.RecordBatch:
        """The messages in the order in which they were added; nothing is to be added afterwards."""
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
