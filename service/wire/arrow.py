"""Answers as Arrow: record batches made of the JSON shapes of messages, and streams of messages as they were read."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pyarrow as pa

from tierlog.service.wire.documents import Json, body_bytes
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.arrow_schema import MESSAGE_SCHEMA, message_batch
from tierlog.tiering.message.stored_message import StoredMessage


def answered_batch(messages: Sequence[Json]) -> pa.RecordBatch:
    """Makes one record batch of the messages of an answer."""
    columns: dict[str, list[object]] = {
        name: [message.get(name) for message in messages] for name in MESSAGE_SCHEMA.names
    }
    columns["properties"] = [list(message["properties"].items()) for message in messages]
    columns["body"] = [body_bytes(message) for message in messages]
    arrays = [pa.array(columns[field.name], field.type) for field in MESSAGE_SCHEMA]
    return pa.record_batch(arrays, schema=MESSAGE_SCHEMA)


def messages_stream(messages: Sequence[StoredMessage], beside: Json) -> bytes:
    """Writes an answer as an IPC stream; what stands beside the messages is JSON in the schema's metadata."""
    return batch_stream(message_batch(messages), beside)


def batch_stream(batch: pa.RecordBatch, beside: Json) -> bytes:
    """Writes an IPC stream of messages that are columns already."""
    described = batch.replace_schema_metadata({name: json.dumps(value) for name, value in beside.items()})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, described.schema) as writer:
        writer.write_batch(described)
    return sink.getvalue()


def produced_stream(messages: ArrowMessages) -> bytes:
    """Writes messages to append, which are columns, as an IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, messages.table.schema) as writer:
        writer.write_table(messages.table)
    return sink.getvalue()


def appended_ms(answer: bytes) -> int:
    """Reads the store time of the last message from the answer to an append."""
    try:
        return int(pa.ipc.open_stream(answer).read_all()["store_ms"][-1].as_py())
    except (pa.ArrowException, LookupError) as error:
        raise CorruptionError(f"the answer to an append cannot be read: {error}") from error


def taken(sink: io.BytesIO) -> bytes:
    """Returns what was written since the last time."""
    found = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return found
