"""The two views of an archive as rows: ``messages``, one a message, and ``keys``, one for each key of a message.

``keys`` and ``properties`` are those of the REST API: the keys of the application in their order, and the properties
that have no column of their own. The view ``keys`` has a row for whatever the message is found by, the client's unique
key (``UNIQ_KEY``, among the properties) included. Text that is not UTF-8 is shown with U+FFFD, a compressed body as the
application sent it. Times outside the years 1 to 9999, which only a client's clock can give, are shown as the nearest
of those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.format.properties import KEYS, OWN_FIELDS, TAGS, split_keys
from tierlog.tiering.message.arrow_schema import key_pairs
from tierlog.tiering.message.stored_message import StoredMessage

#: The first and the last instant that a timestamp of Spark can show, in ms.
FIRST_SHOWN_MS, LAST_SHOWN_MS = -62_135_596_800_000, END_OF_TIME_MS - 1

_TEXT = pa.string()
_TIME = pa.timestamp("us", tz="UTC")
_COLUMNS: tuple[tuple[str, pa.DataType, DataType], ...] = (
    ("topic", _TEXT, StringType()),
    ("queue_id", pa.int32(), IntegerType()),
    ("queue_offset", pa.int64(), LongType()),
    ("message_id", _TEXT, StringType()),
    ("keys", pa.list_(pa.field("element", _TEXT, nullable=False)), ArrayType(StringType(), False)),
    ("tag", _TEXT, StringType()),
    (
        "properties",
        pa.map_(_TEXT, pa.field("value", _TEXT, nullable=False)),
        MapType(StringType(), StringType(), False),
    ),
    ("born_time", _TIME, TimestampType()),
    ("store_time", _TIME, TimestampType()),
    ("body", pa.binary(), BinaryType()),
    ("physical_offset", pa.int64(), LongType()),
    ("store_id", _TEXT, StringType()),
    ("tier", _TEXT, StringType()),
)
_KEY = ("key", _TEXT, StringType())


def _arrow(columns: Sequence[tuple[str, pa.DataType, DataType]]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind, _ in columns])


def _spark(columns: Sequence[tuple[str, pa.DataType, DataType]]) -> StructType:
    return StructType([StructField(name, kind, nullable=False) for name, _, kind in columns])


#: The view ``messages``, as record batches have it and as Spark has it.
MESSAGES, MESSAGES_SPARK = _arrow(_COLUMNS), _spark(_COLUMNS)
#: The view ``keys``: the same, and ``key``.
KEYED, KEYED_SPARK = _arrow((*_COLUMNS, _KEY)), _spark((*_COLUMNS, _KEY))


def shown_ms(time_ms: int) -> int:
    """Returns a time as a row shows it, in ms."""
    return min(max(time_ms, FIRST_SHOWN_MS), LAST_SHOWN_MS)


def message_batch(messages: Sequence[StoredMessage]) -> pa.RecordBatch:
    """Messages as rows of the view ``messages``, in their order."""
    records = [message.record for message in messages]
    properties = [record.properties for record in records]
    columns: list[Sequence[object]] = [
        [record.topic for record in records],
        [record.queue_id for record in records],
        [record.queue_offset for record in records],
        [record.message_id for record in records],
        [split_keys(found.get(KEYS, "")) for found in properties],
        [found.get(TAGS, "") for found in properties],
        [[item for item in found.items() if item[0] not in OWN_FIELDS] for found in properties],
        [1000 * shown_ms(record.born_ms) for record in records],
        [1000 * shown_ms(record.store_ms) for record in records],
        [message.readable_body()[0] for message in messages],
        [record.physical_offset for record in records],
        [message.store_id for message in messages],
        [message.tier.value for message in messages],
    ]
    arrays = [pa.array(column, kind) for column, (_, kind, _) in zip(columns, _COLUMNS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


def by_key(batch: pa.RecordBatch, keys: Collection[str] | None = None) -> pa.RecordBatch:
    """Rows of the view ``keys`` for the messages of a batch: in their order, a message's unique key first.

    With ``keys`` only rows of these.
    """
    rows, texts = key_pairs(batch)
    if keys is not None:
        is_wanted = pc.is_in(texts, value_set=pa.array(sorted(keys), _TEXT))
        rows, texts = rows.filter(is_wanted), texts.filter(is_wanted)
    columns = [column.take(rows) for column in batch.columns]
    return pa.RecordBatch.from_arrays([*columns, texts], schema=KEYED)


def keyed(batches: Iterator[pa.RecordBatch], keys: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields :func:`by_key` of each batch that has such a row."""
    for batch in batches:
        found = by_key(batch, keys)
        if found.num_rows:
            yield found


def is_projection(given: StructType, of: StructType) -> bool:
    """Whether a schema has columns of another one and no others, each once; what may be null does not matter."""
    kinds = {field.name: field.dataType.simpleString() for field in of}
    names = [field.name for field in given]
    return len(names) == len(set(names)) and all(
        kinds.get(field.name) == field.dataType.simpleString() for field in given
    )


def projected(batches: Iterator[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The columns of a schema that is a projection of the batches' own, in its order and as nullable as it says."""
    wanted = pa.schema([_arrow_field(field) for field in schema])
    for batch in batches:
        arrays = [batch.column(field.name).cast(field.type) for field in wanted]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _arrow_field(field: StructField) -> pa.Field:
    kind = KEYED.field(field.name).type
    if isinstance(field.dataType, ArrayType):
        kind = pa.list_(pa.field("element", _TEXT, nullable=field.dataType.containsNull))
    elif isinstance(field.dataType, MapType):
        kind = pa.map_(_TEXT, pa.field("value", _TEXT, nullable=field.dataType.valueContainsNull))
    return pa.field(field.name, kind, nullable=field.nullable)


def pulled_batch(messages: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Returns messages that a service answered with as rows of the view ``messages``, like those of the archive.

    ``messages`` are those of a :class:`pipeline.base.client.ServedPage`, in their order.
    """
    columns: dict[str, Sequence[object]] = {
        "properties": [list(message["properties"].items()) for message in messages],
        "born_time": [1000 * shown_ms(message["born_ms"]) for message in messages],
        "store_time": [1000 * shown_ms(message["store_ms"]) for message in messages],
    }
    arrays = [
        pa.array(columns.get(field.name) or [message[field.name] for message in messages], field.type)
        for field in MESSAGES
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
