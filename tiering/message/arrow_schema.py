"""Messages as Arrow: the columns there are, and a record batch of them out of messages that were read one by one.

``keys`` and ``properties`` are those of the REST API: the keys of the application in their order, and the properties
that have no column of their own. Text that is not UTF-8 is shown with U+FFFD, a compressed body as the application sent
it. Times are ms UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.properties import KEYS, OWN_FIELDS, TAGS, UNIQ_KEY, split_keys
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
#: The same, and whether the body could not be inflated, so that it is given as it is stored.
FOUND_SCHEMA = MESSAGE_SCHEMA.append(pa.field("body_compressed", pa.bool_()))
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
    "body_compressed": lambda message, _: message.readable_body()[1],
}


def schema_of(columns: Iterable[str] | None = None) -> pa.Schema:
    """These columns in their order, all of them without a choice; :class:`InvalidRequestError` for an unknown one."""
    return MESSAGE_SCHEMA if columns is None else _schema_of(tuple(columns))


@lru_cache(maxsize=64)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    for name in names:
        if names.count(name) > 1 or name not in MESSAGE_SCHEMA.names:
            raise InvalidRequestError(
                f"{name!r} is asked for twice" if name in MESSAGE_SCHEMA.names else f"messages have no column {name!r}",
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


def key_pairs(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Returns the keys of a batch's messages: row numbers, ascending, and a key of each, a message's distinct."""
    import pyarrow.compute as pc  # late: loading it takes 20 ms, and a start calls nothing of it

    keys = batch.column("keys")
    rows, texts = pc.list_parent_indices(keys), pc.list_flatten(keys)
    unique = pc.map_lookup(batch.column("properties"), UNIQ_KEY, "last")
    if unique.null_count == len(unique):
        return rows, texts
    is_twice = pc.fill_null(pc.equal(texts, unique.take(rows)), False)
    rows, texts = rows.filter(pc.invert(is_twice)), texts.filter(pc.invert(is_twice))
    with_unique = pc.indices_nonzero(unique.is_valid())
    rows = pa.concat_arrays([with_unique.cast(rows.type), rows])
    texts = pa.concat_arrays([unique.drop_null(), texts])
    order = pa.array(np.argsort(rows.to_numpy(zero_copy_only=False), kind="stable"))
    return rows.take(order), texts.take(order)
