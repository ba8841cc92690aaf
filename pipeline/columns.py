"""Gathers records of decompressed frames into a batch of the view ``messages`` without an object for each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.predicate import Predicate, Span
from pipeline.rows import FIRST_SHOWN_MS, LAST_SHOWN_MS, MESSAGES, message_batch
from tiering.fs import ByteArray
from tiering.kernels.columns import Bounds, RecordColumns
from tiering.message import StoredMessage
from tiering.types import Tier

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def bounds_of(predicate: Predicate, from_ms: int | None = None) -> Bounds:
    """What records of a topic must lie in, of which everything stored before ``from_ms`` has expired.

    Times that no row shows (``pipeline.rows``) are compared as they are shown.
    """
    stored = predicate.stored
    if from_ms is not None:
        stored = Span(max(from_ms, _LEAST if stored.first is None else stored.first), stored.end)
    spans = (_ends(predicate.queue_offsets), _ends(predicate.physical_offsets), _times(stored), _times(predicate.born))
    return np.array(spans, np.int64)


def _ends(span: Span) -> tuple[int, int]:
    """The least and the greatest 64-bit number inside; the first is the greater if there is none."""
    least = _LEAST if span.first is None else max(span.first, _LEAST)
    greatest = _MOST if span.end is None else min(span.end - 1, _MOST)
    return (least, greatest) if least <= greatest else (0, -1)


def _times(span: Span) -> tuple[int, int]:
    least, greatest = _ends(span)
    if least > LAST_SHOWN_MS or greatest < FIRST_SHOWN_MS:
        return 0, -1
    return _LEAST if least <= FIRST_SHOWN_MS else least, _MOST if greatest >= LAST_SHOWN_MS else greatest


class MessageColumns:
    """A batch that is being filled with the records of one store; for one thread."""

    def __init__(self, store_id: str, capacity_bytes: int) -> None:
        """``capacity_bytes``: of all records that will be added by :meth:`add`."""
        self._store_id = store_id
        self._capacity = capacity_bytes
        self._columns = RecordColumns(capacity_bytes)
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
        """How many bytes of records :meth:`add` still takes."""
        return self._capacity - self._columns.added_bytes

    @property
    def is_full(self) -> bool:
        """Whether the messages of :meth:`add_plain`, bodies inflated, take as much memory as the others may."""
        return self._plain_bytes >= self._capacity

    def add(self, frame: ByteArray, position: int, end: int, topic: str, bounds: Bounds) -> int:
        """As :meth:`RecordColumns.add`: where a record lies that is to be decoded plainly, or ``end``."""
        if topic not in self._topics:
            self._topics[topic] = len(self._topics), np.frombuffer(topic.encode(), np.uint8)
        number, name = self._topics[topic]
        return self._columns.add(frame, position, end, name, number, bounds)

    def add_plain(self, message: StoredMessage) -> None:
        """Add a message that was decoded plainly behind all that was added so far."""
        self._plain_at.append(self._columns.rows)
        self._plain.append(message)
        self._plain_bytes += message.shown_bytes

    def finish(self) -> pa.RecordBatch:
        """The messages in the order in which they were added; nothing is to be added afterwards."""
        batch = self._fast_batch()
        if not self._plain:
            return batch
        both = pa.Table.from_batches([batch, message_batch(self._plain)]).combine_chunks()
        places = np.concatenate((np.arange(batch.num_rows) + 0.5, np.array(self._plain_at, np.float64)))
        return both.take(np.argsort(places, kind="stable")).to_batches()[0]

    def _fast_batch(self) -> pa.RecordBatch:
        rows = self._columns.rows
        keys, properties = int(self._columns.ends("keys", rows)[-1]), int(self._columns.ends("properties", rows)[-1])
        columns = {
            "topic": pa.array(list(self._topics), pa.string()).take(self._numbers("topic_number")),
            "queue_id": self._numbers("queue_id"),
            "queue_offset": self._numbers("queue_offset"),
            "message_id": self._texts("message_id", rows),
            "keys": pa.ListArray.from_arrays(
                self._ends("keys", rows), self._texts("key", keys), type=MESSAGES.field("keys").type
            ),
            "tag": self._texts("tag", rows),
            "properties": pa.MapArray.from_arrays(
                self._ends("properties", rows), self._texts("name", properties), self._texts("value", properties),
                type=MESSAGES.field("properties").type,
            ),
            "born_time": self._times("born_ms"),
            "store_time": self._times("store_ms"),
            "body": self._texts("body", rows, pa.binary()),
            "physical_offset": self._numbers("physical_offset"),
            "store_id": pa.repeat(self._store_id, rows),
            "tier": pa.repeat(Tier.COLD.value, rows),
        }  # fmt: skip
        return pa.RecordBatch.from_arrays([columns[name] for name in MESSAGES.names], schema=MESSAGES)

    def _numbers(self, name: str) -> pa.Array:
        return pa.array(self._columns.numbers(name))

    def _times(self, name: str) -> pa.Array:
        shown = np.clip(self._columns.numbers(name), FIRST_SHOWN_MS, LAST_SHOWN_MS)
        return pa.array(1000 * shown).view(MESSAGES.field("store_time").type)

    def _ends(self, name: str, count: int) -> pa.Array:
        return pa.array(self._columns.ends(name, count))

    def _texts(self, name: str, count: int, kind: pa.DataType | None = None) -> pa.Array:
        ends = self._columns.ends(name, count)
        text = self._columns.text(name)[: int(ends[-1])]
        return pa.Array.from_buffers(kind or pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text)], 0)
