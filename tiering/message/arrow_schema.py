"""Messages as Arrow: the columns there are, and a record batch of them out of messages that were read one by one.

``keys`` and ``properties`` are those of the REST API: the keys of the application in their order, and the properties
that have no column of their own. Text that is not UTF-8 is shown with U+FFFD, a compressed body as the application sent
it. Times are ms UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.properties import KEYS, OWN_FIELDS, TAGS, split_keys
from tierlog.tiering.message.stored_message import StoredMessage

#: All columns of a message.
MESSAGE_SCHEMA = pa.schema(
    [
        ("message_id", pa.string()),
        ("store_id", pa.string()),
        ("physical_offset", pa.int64()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("keys", pa.list_(pa.string())),
        ("tag", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("born_ms", pa.int64()),
        ("store_ms", pa.int64()),
        ("tier", pa.string()),
        ("size_bytes", pa.int64()),
        ("body", pa.binary()),
    ]
)
_PROPERTIES = frozenset({"keys", "tag", "properties"})
#: A message, and its properties if one of the columns is made of them.
_Cell = Callable[[StoredMessage, dict[str, str]], object]
_CELLS: dict[str, _Cell] = {
    "message_id": lambda message, _: message.record.message_id,
    "store_id": lambda message, _: message.store_id,
    "physical_offset": lambda message, _: message.record.physical_offset,
    "topic": lambda message, _: message.record.topic,
    "queue_id": lambda message, _: message.record.queue_id,
    "queue_offset": lambda message, _: message.record.queue_offset,
    "keys": lambda _, properties: split_keys(properties.get(KEYS, "")),
    "tag": lambda _, properties: properties.get(TAGS, ""),
    "properties": lambda _, properties: [item for item in properties.items() if item[0] not in OWN_FIELDS],
    "born_ms": lambda message, _: message.record.born_ms,
    "store_ms": lambda message, _: message.record.store_ms,
    "tier": lambda message, _: message.tier.value,
    "size_bytes": lambda message, _: message.record.size,
    "body": lambda message, _: message.readable_body()[0],
}


def schema_of(columns: Iterable[str] | None = None) -> pa.Schema:
    """These columns in their order, all of them without a choice; :class:`InvalidRequestError` for an unknown one."""
    if columns is None:
        return MESSAGE_SCHEMA
    names = list(columns)
    for name in names:
        if names.count(name) > 1 or name not in _CELLS:
            raise InvalidRequestError(
                f"{name!r} is asked for twice" if name in _CELLS else f"messages have no column {name!r}",
                hint=f"there are {', '.join(MESSAGE_SCHEMA.names)}",
            )
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in names])


def message_batch(messages: Sequence[StoredMessage], schema: pa.Schema = MESSAGE_SCHEMA) -> pa.RecordBatch:
    """Messages as rows with the columns of a schema."""
    reads_properties = not _PROPERTIES.isdisjoint(schema.names)
    properties = [message.record.properties if reads_properties else {} for message in messages]  # taken apart once
    return pa.RecordBatch.from_arrays(
        [
            pa.array([_CELLS[field.name](*pair) for pair in zip(messages, properties, strict=True)], field.type)
            for field in schema
        ],
        schema=schema,
    )
