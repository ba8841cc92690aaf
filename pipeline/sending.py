"""Rows on their way to a running service: cut into requests, numbered, and sent until the service has them.

A partition's rows are numbered from 0 for each topic, in their order. With the producer, which is the write and the
partition and never the attempt, the number tells the service what it has already: a task that is tried again sends all
of its rows again, and each is in the log once, wherever the attempt before it ended.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client import ServiceClient
from tiering.errors import InvalidRequestError
from tiering.types import Durability

#: What a request carries, about: far below what a service takes (``serve.max_request_bytes``), far above its cost.
REQUEST_BYTES, REQUEST_ROWS = 4 << 20, 20_000
_COLUMNS = ("body", "keys", "tag", "properties", "born_time", "queue_id")


class RowSender:
    """Sends the rows of one partition. For one thread."""

    def __init__(
        self, client: ServiceClient, producer: str, topic: str | None, durability: Durability = Durability.FLUSHED
    ) -> None:
        """``topic`` is that of all rows; None: the column ``topic`` says it."""
        self._client = client
        self._producer = producer
        self._topic = topic
        self._durability = durability
        self._waiting: dict[str, list[pa.Table]] = {}
        self._waiting_bytes = self._waiting_rows = self._row = 0
        self._next: dict[str, int] = {}
        #: Messages that the service has.
        self.sent = 0

    def send(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send all rows; returns how many, once the service has them all.

        Raises :class:`InvalidRequestError` for a row that is no message, and what the service answers.
        """
        for batch in batches:
            if batch.num_rows:
                self._take(batch)
                if self._waiting_bytes >= REQUEST_BYTES or self._waiting_rows >= REQUEST_ROWS:
                    self._send_waiting()
        self._send_waiting()
        return self.sent

    def _take(self, batch: pa.RecordBatch) -> None:
        for name in {"topic", "body"} & set(batch.schema.names):
            column = batch.column(name)
            if column.null_count:
                place = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise InvalidRequestError(f"row {self._row + place} of the partition has no {name}")
        self._row += batch.num_rows
        for topic, rows in self._by_topic(pa.Table.from_batches([batch])):
            self._waiting.setdefault(topic, []).append(rows)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows

    def _by_topic(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        messages = pa.table({name: _column(name, rows.column(name)) for name in _COLUMNS if name in rows.column_names})
        if self._topic is not None:
            yield self._topic, messages
            return
        topics = rows.column("topic")
        for topic in pc.unique(topics):
            yield topic.as_py(), messages.filter(pc.equal(topics, topic))

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._waiting_bytes = self._waiting_rows = 0
        for topic, tables in waiting.items():
            for piece in _pieces(pa.concat_tables(tables)):
                self._post(topic, piece)

    def _post(self, topic: str, rows: pa.Table) -> None:
        first = self._next.get(topic, 0)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        key = f"{self._producer}:{first}"
        try:
            results = self._client.produce(topic, sink.getvalue(), key, self._durability)
        except InvalidRequestError as error:
            where = "" if error.position is None else f", number {first + error.position} from this partition"
            raise type(error)(f"topic {topic}{where}: {error.message}", hint=error.hint) from error
        self._next[topic] = first + len(results)
        self.sent += len(results)


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in their order, in pieces that fit a request; one huge row is a piece of its own."""
    if rows.num_rows > 1 and (rows.nbytes > REQUEST_BYTES or rows.num_rows > REQUEST_ROWS):
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half))
        yield from _pieces(rows.slice(half))
    else:
        yield rows


def _column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as the service takes it: one key may stand by itself."""
    if name != "keys" or pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return column
    whole = column.combine_chunks()
    keys = whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
    ends = np.cumsum(~keys.is_null().to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, keys.drop_null())])
