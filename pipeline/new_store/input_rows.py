"""Rows on their way into an archive: which columns they may have, and how they become messages.

Columns are named and typed as in the view ``messages``; only what a user may choose is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.batch import MessageBatch, validate_topic

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
#: Columns that are taken as they are.
_OTHERS = ("body", "keys", "tag", "properties", "queue_id")
#: Columns of the view that an archive gives out by itself.
_GIVEN_OUT = ("queue_offset", "message_id", "physical_offset", "store_id", "tier", "key")


@dataclass(frozen=True, slots=True)
class InputRows:
    """The columns and defaults of the rows of one write; small, goes with every task."""

    columns: frozenset[str]
    store_ms: int
    """Store time of rows that bring none."""
    topic: str | None = None
    """Topic of all rows, where no column says it."""

    @classmethod
    def of(cls, schema: StructType, *, store_ms: int, topic: str | None = None) -> InputRows:
        """Checks the columns of a DataFrame; :class:`InvalidRequestError` for what cannot be taken."""
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
        store_ms = self._times(rows, "store_time", np.full(rows.num_rows, self.store_ms, np.int64))
        born_ms = self._times(rows, "born_time", store_ms)
        topics, topic_index = self._topics(rows)
        columns = {name: rows.column(name) for name in _OTHERS if name in self.columns}
        if "keys" in columns and not pa.types.is_nested(columns["keys"].type):
            columns["keys"] = _each_a_list(columns["keys"])
        table = pa.table({**columns, "born_ms": born_ms})
        batch = ArrowMessages(table, topics[0]).to_batch(now_ms=0, max_body_bytes=HotOptions().max_body_bytes)
        return replace(batch, topics=topics, topic_index=topic_index), store_ms

    def _topics(self, rows: pa.RecordBatch) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        if self.topic is not None:
            return (self.topic,), np.zeros(rows.num_rows, np.int32)
        column = rows.column("topic")
        if column.null_count:
            raise InvalidRequestError("topic is null", position=_first_null(column))
        encoded = column.dictionary_encode()
        topics: list[str] = encoded.dictionary.to_pylist()
        index = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
        for number, topic in enumerate(topics):
            try:
                validate_topic(topic)
            except InvalidRequestError as error:
                place = int(np.argmax(index == number))
                raise InvalidRequestError(error.message, position=place, hint=error.hint) from error
        return tuple(topics), index

    def _times(self, rows: pa.RecordBatch, name: str, missing: NDArray[np.int64]) -> NDArray[np.int64]:
        if name not in self.columns:
            return missing
        column = rows.column(name).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        known = column.is_valid().to_numpy(zero_copy_only=False)
        if name == "store_time" and not known.all():
            raise InvalidRequestError("store_time is null", position=_first_null(column))
        values = column.fill_null(0).to_numpy(zero_copy_only=False) // 1000
        is_odd = (values < 0) | (values >= END_OF_TIME_MS)
        if name == "store_time" and is_odd.any():
            raise InvalidRequestError("store_time is not between 1970 and 9999", position=int(np.argmax(is_odd)))
        return np.where(known, values, missing)


def _first_null(column: pa.Array) -> int:
    return int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))


def _each_a_list(column: pa.Array) -> pa.Array:
    """One text a row as a list of one, of none where it is null."""
    offsets = np.concatenate(([0], np.cumsum(column.is_valid().to_numpy(zero_copy_only=False))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column.drop_null())


def _holds_text(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return isinstance(kind.elementType, StringType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    return True
