"""Answers as Arrow: the schema of messages, and record batches out of their JSON shapes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from service.wire import Json, body_bytes
from tiering.format.properties import KEYS, OWN_FIELDS, TAGS, split_keys

if TYPE_CHECKING:
    from tiering.message import StoredMessage

_TIME = pa.int64()
_FIELDS = (
    ("message_id", pa.string()),
    ("store_id", pa.string()),
    ("physical_offset", pa.int64()),
    ("topic", pa.string()),
    ("queue_id", pa.int32()),
    ("queue_offset", pa.int64()),
    ("keys", pa.list_(pa.string())),
    ("tag", pa.string()),
    ("properties", pa.map_(pa.string(), pa.string())),
    ("born_ms", _TIME),
    ("store_ms", _TIME),
    ("tier", pa.string()),
    ("size_bytes", pa.int64()),
    ("body", pa.binary()),
)
MESSAGE_SCHEMA = pa.schema(_FIELDS)


def message_batch(messages: Sequence[Json], schema: pa.Schema = MESSAGE_SCHEMA) -> pa.RecordBatch:
    """Messages of an answer as one record batch."""
    columns: dict[str, list[object]] = {name: [message.get(name) for message in messages] for name, _ in _FIELDS}
    columns["properties"] = [list(message["properties"].items()) for message in messages]
    columns["body"] = [body_bytes(message) for message in messages]
    return pa.record_batch([pa.array(columns[name], kind) for name, kind in _FIELDS], schema=schema)


def stored_batch(messages: Sequence[StoredMessage], schema: pa.Schema = MESSAGE_SCHEMA) -> pa.RecordBatch:
    """Messages as they were read as one record batch."""
    records = [message.record for message in messages]
    properties = [record.properties for record in records]  # taken apart once
    columns: list[list[object]] = [
        [record.message_id for record in records],
        [message.store_id for message in messages],
        [record.physical_offset for record in records],
        [record.topic for record in records],
        [record.queue_id for record in records],
        [record.queue_offset for record in records],
        [split_keys(each.get(KEYS, "")) for each in properties],
        [each.get(TAGS, "") for each in properties],
        [[(name, value) for name, value in each.items() if name not in OWN_FIELDS] for each in properties],
        [record.born_ms for record in records],
        [record.store_ms for record in records],
        [message.tier.value for message in messages],
        [record.size for record in records],
        [message.readable_body()[0] for message in messages],
    ]
    arrays = [pa.array(column, kind) for column, (_, kind) in zip(columns, _FIELDS, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def messages_stream(messages: Sequence[StoredMessage], beside: Json) -> bytes:
    """An answer as an IPC stream; what stands beside the messages is JSON in the schema's metadata."""
    schema = MESSAGE_SCHEMA.with_metadata({name: json.dumps(value) for name, value in beside.items()})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(stored_batch(messages, schema))
    return sink.getvalue()
