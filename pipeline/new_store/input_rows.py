"""Rows on their way into an archive: which columns they may have, and what a message becomes of.

Columns are named and typed as in the view ``messages``; only what a user may choose is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tiering.batch import ANY_QUEUE, Message, MessageBatch
from tiering.errors import InvalidRequestError
from tiering.options import HotOptions

_TEXT, _BYTES, _TIME = (StringType,), (BinaryType, StringType), (TimestampType,)
#: Types of each column, and what is said of them.
_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": (_TEXT, "string"),
    "queue_id": ((ByteType, ShortType, IntegerType, LongType), "int"),
    "keys": ((ArrayType, StringType), "array<string> or string"),
    "tag": (_TEXT, "string"),
    "properties": ((MapType,), "map<string,string>"),
    "born_time": (_TIME, "timestamp"),
    "store_time": (_TIME, "timestamp"),
    "body": (_BYTES, "binary or string"),
}
#: Columns of the view that an archive gives out by itself.
_GIVEN_OUT = ("queue_offset", "message_id", "physical_offset", "store_id", "tier", "key")


@dataclass(frozen=True, slots=True)
class InputRows:
    """What the rows of one write have; small, goes with every task."""

    columns: frozenset[str]
    store_ms: int
    """Store time of rows that bring none."""
    topic: str | None = None
    """Topic of all rows, where no column says it."""

    @classmethod
    def of(cls, schema: StructType, *, store_ms: int, topic: str | None = None) -> InputRows:
        """Check the columns of a DataFrame; :class:`InvalidRequestError` for what cannot be taken."""
        for field in schema.fields:
            if field.name in _GIVEN_OUT:
                raise InvalidRequestError(
                    f"column {field.name!r} is given out by the archive", hint=f"drop it: df.drop({field.name!r})"
                )
            if field.name not in _COLUMNS:
                raise InvalidRequestError(
                    f"no such column {field.name!r} in a message", hint=f"one of {', '.join(_COLUMNS)}"
                )
            types, said = _COLUMNS[field.name]
            if not isinstance(field.dataType, types) or not _holds_text(field.dataType):
                raise InvalidRequestError(
                    f"column {field.name!r} is {field.dataType.simpleString()}, it has to be {said}"
                )
        names = frozenset(schema.fieldNames())
        if "body" not in names:
            raise InvalidRequestError("a message needs a column 'body'")
        if ("topic" in names) == (topic is not None):
            raise InvalidRequestError("the topic comes from a column 'topic' or from the option, from exactly one")
        return cls(names, store_ms, topic)

    def messages(self, rows: pa.RecordBatch) -> tuple[MessageBatch, NDArray[np.int64]]:
        """Checked messages and their store times; errors say the row in ``rows`` (``position``)."""
        count = rows.num_rows
        store_ms = self._times(rows, "store_time", np.full(count, self.store_ms, np.int64))
        born_ms = self._times(rows, "born_time", store_ms)
        topics = self._values(rows, "topic", self.topic)
        bodies = self._values(rows, "body", None)
        keys = self._values(rows, "keys", None)
        tags = self._values(rows, "tag", None)
        properties = self._values(rows, "properties", None)
        queues = self._values(rows, "queue_id", None)
        messages = []
        for place in range(count):
            topic, body, key = topics[place], bodies[place], keys[place] or ()
            if topic is None or body is None:
                raise InvalidRequestError(f"{'topic' if topic is None else 'body'} is null", position=place)
            messages.append(
                Message(
                    topic,
                    body.encode() if isinstance(body, str) else body,
                    keys=(key,) if isinstance(key, str) else key,
                    tag=tags[place] or "",
                    properties=dict(properties[place] or ()),
                    born_ms=int(born_ms[place]),
                    queue_id=ANY_QUEUE if queues[place] is None else queues[place],
                )
            )
        return MessageBatch.of(messages, now_ms=0, max_body_bytes=HotOptions().max_body_bytes), store_ms

    def _values(self, rows: pa.RecordBatch, name: str, missing: object) -> list[Any]:
        if name not in self.columns:
            return [missing] * rows.num_rows
        values: list[Any] = rows.column(name).to_pylist()
        return values

    def _times(self, rows: pa.RecordBatch, name: str, missing: NDArray[np.int64]) -> NDArray[np.int64]:
        if name not in self.columns:
            return missing
        column = rows.column(name).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        known = column.is_valid().to_numpy(zero_copy_only=False)
        if name == "store_time" and not known.all():
            raise InvalidRequestError("store_time is null", position=int(np.argmin(known)))
        values = column.fill_null(0).to_numpy(zero_copy_only=False) // 1000
        return np.where(known, values, missing)


def _holds_text(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return isinstance(kind.elementType, StringType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    return True
