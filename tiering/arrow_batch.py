"""Messages on their way in as Arrow columns: to a :class:`MessageBatch` without an object per message.

====== ============================================== ==========================================
column type                                           absent, or null in a row
====== ============================================== ==========================================
body   binary or string                               refused: a message has at least one byte
keys   list<string>                                   none
tag    string                                         none
properties map<string, string>                        none
born_ms int64, ms since the epoch                     when the store takes it
born_time timestamp, floored to ms; instead of born_ms the same
queue_id int32                                        spread round robin
sharding_key string                                   none; instead of queue_id
====== ============================================== ==========================================

Integers of any width and the ``large_`` kinds of text, bytes and lists are taken too. Nothing else is: types that
can repeat one value cheaply (dictionaries, views, runs) would make a small request large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tiering.batch import ANY_QUEUE, MAX_QUEUES, BytesColumn, Message, MessageBatch, validate_topic
from tiering.errors import InvalidRequestError
from tiering.format.properties import KEYS, NAME_END, OWN_FIELDS, SHARDING_KEY, TAGS, VALUE_END
from tiering.format.record import MAX_PROPERTIES_BYTES

_SEPARATORS = "[\x01\x02]"
_IN_KEYS = "[ \x01\x02]"
_SECTOR = bytes(512)
_STEP = 4096

#: Of a column that is not there.
_NOTHING = pa.nulls(0, pa.string())
_OWN = pa.array(sorted(OWN_FIELDS))

_TEXT, _BYTES, _TEXTS, _MAP = pa.string(), pa.binary(), pa.list_(pa.string()), pa.map_(pa.string(), pa.string())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_texts(kind: pa.DataType) -> bool:
    return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type))


def _is_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


#: Name to (how the type is called in an error, whether a type is taken, the type that it becomes).
_COLUMNS: dict[str, tuple[str, Callable[[pa.DataType], bool], pa.DataType]] = {
    "body": ("binary or string", _is_bytes, _BYTES),
    "keys": ("list<string>", _is_texts, _TEXTS),
    "tag": ("string", _is_text, _TEXT),
    "properties": ("map<string, string>", _is_map, _MAP),
    "born_ms": ("int64", pa.types.is_integer, pa.int64()),
    "born_time": ("timestamp", pa.types.is_timestamp, pa.int64()),
    "queue_id": ("int32", pa.types.is_integer, pa.int32()),
    "sharding_key": ("string", _is_text, _TEXT),
}


def check_produce_schema(schema: pa.Schema) -> None:
    """Raise :class:`InvalidRequestError` unless messages can be made of such columns."""
    names = list(schema.names)
    for name in names:
        if name not in _COLUMNS:
            raise InvalidRequestError(
                f"there is no column {name[:100]!r} in messages to append", hint=f"columns are {', '.join(_COLUMNS)}"
            )
        wanted, is_right, _ = _COLUMNS[name]
        if names.count(name) > 1:
            raise InvalidRequestError(f"column {name!r} is there {names.count(name)} times")
        if not is_right(schema.field(name).type):
            raise InvalidRequestError(f"column {name!r} is {schema.field(name).type}, not {wanted}")
    if "body" not in names:
        raise InvalidRequestError("there is no column 'body'", hint="a message has at least one byte")
    if "born_ms" in names and "born_time" in names:
        raise InvalidRequestError("give either born_ms or born_time")


class ArrowMessages(Sequence[Message]):
    """Messages of one topic in Arrow columns; a :class:`Message` is made only of those that are asked for."""

    def __init__(self, table: pa.Table, topic: str, queue_of: Callable[[str], int] | None = None) -> None:
        """``queue_of`` is the queue of a sharding key. Raises :class:`InvalidRequestError` for wrong columns.

        The table's buffers are taken as valid: see ``RecordBatch.validate(full=True)``.
        """
        check_produce_schema(table.schema)
        self._topic = topic
        self._queue_of = queue_of
        self._table = table
        columns = {name: _canonical(name, table.column(name)) for name in table.column_names}
        if "born_time" in columns:
            columns["born_ms"] = columns.pop("born_time")
        self._columns = columns

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> ArrowMessages: ...
    def __getitem__(self, index: int | slice) -> Message | ArrowMessages:
        """One message, or the columns of a slice of step 1."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("only slices of step 1")
            return ArrowMessages(self._table.slice(start, max(0, stop - start)), self._topic, self._queue_of)
        place = range(len(self))[index]
        return next(self[place : place + 1]._messages(place))

    def __iter__(self) -> Iterator[Message]:
        for start in range(0, len(self), _STEP):
            yield from self[start : start + _STEP]._messages(start)

    def to_batch(self, *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        """The same as :meth:`MessageBatch.of`, errors included, which finds and names what is wrong."""
        return self._columnar(now_ms, max_body_bytes) or MessageBatch.of(
            iter(self), now_ms=now_ms, max_body_bytes=max_body_bytes
        )

    def _messages(self, first: int) -> Iterator[Message]:
        count = len(self)
        columns: dict[str, list[Any]] = {name: column.to_pylist() for name, column in self._columns.items()}
        body, keys, tag, properties, born_ms, queue_id, sharding_key = (
            columns.get(name, [None] * count)
            for name in ("body", "keys", "tag", "properties", "born_ms", "queue_id", "sharding_key")
        )
        for i in range(count):
            found = {name: value or "" for name, value in properties[i] or ()}
            queue = ANY_QUEUE if queue_id[i] is None else queue_id[i]
            if queue_id[i] is not None and queue < 0:
                queue = MAX_QUEUES  # a client leaves the choice by giving none
            if sharding_key[i] is not None:
                if queue_id[i] is not None or self._queue_of is None or not sharding_key[i]:
                    raise InvalidRequestError(
                        f"message {first + i}: give either queue_id or a sharding_key that is not empty",
                        position=first + i,
                    )
                found[SHARDING_KEY] = sharding_key[i]
                queue = self._queue_of(sharding_key[i])
            names = [key or "" for key in keys[i] or ()]
            yield Message(self._topic, body[i] or b"", names, tag[i] or "", found, born_ms[i], queue)

    def _columnar(self, now_ms: int, max_body_bytes: int) -> MessageBatch | None:
        """None if something is wrong or out of the ordinary, to be looked at message by message."""
        if not len(self) or any(column.num_chunks != 1 for column in self._columns.values()):
            return None
        columns = {name: column.chunk(0) for name, column in self._columns.items()}
        sharding_key = columns.get("sharding_key")
        if sharding_key is not None and sharding_key.null_count < len(self):
            return None
        body = columns["body"]
        lengths = pc.min_max(pc.binary_length(body))
        if body.null_count or lengths["min"].as_py() < 1 or lengths["max"].as_py() > max_body_bytes:
            return None
        texts = [_joined_keys(columns.get("keys")), _tags(columns.get("tag")), _properties(columns.get("properties"))]
        born = _numbers(columns.get("born_ms"), now_ms, len(self), np.int64)
        queue_id = _numbers(columns.get("queue_id"), ANY_QUEUE, len(self), np.int32)
        if any(text is None for text in texts) or not _in_range(born, 0, 1 << 62):
            return None
        given = columns.get("queue_id")
        if given is not None and not _in_range(pc.drop_null(given).to_numpy(), 0, MAX_QUEUES):
            return None
        keys, tags, properties = (_column(text, len(self)) for text in texts)
        names = len(KEYS) + 2, len(TAGS) + 2
        total = properties.lengths + sum(
            np.where(column.lengths > 0, column.lengths + name, 0)
            for column, name in zip((keys, tags), names, strict=True)
        )
        if total.max() > MAX_PROPERTIES_BYTES or any(
            _SECTOR in column.data.tobytes() for column in (keys, tags, properties)
        ):
            return None
        topic_index, bodies = np.zeros(len(self), np.int32), _column(body, len(self))
        topics = (validate_topic(self._topic),)
        return MessageBatch(topics, topic_index, queue_id, born, bodies, keys, tags, properties)


def _canonical(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in its one type and, unless it is too large for that, in one piece."""
    if pa.types.is_timestamp(column.type):
        column = _floored_ms(column)
    try:
        column = column.cast(_COLUMNS[name][2])
    except pa.ArrowInvalid as error:
        raise InvalidRequestError(f"column {name!r}: {error}") from error
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole])


def _floored_ms(column: pa.ChunkedArray) -> pa.ChunkedArray:
    per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]
    if per_ms < 2:
        return column.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
    numbers = column.cast(pa.int64())
    absent = numbers.is_null().to_numpy()
    return pa.chunked_array([pa.array(numbers.fill_null(0).to_numpy() // per_ms, pa.int64(), mask=absent)])


def _joined_keys(column: pa.Array | None) -> pa.Array | None:
    """The KEYS property of each message; None if a key cannot be indexed."""
    if column is None:
        return _NOTHING
    keys = column.flatten()
    if keys.null_count or not _lengths_from_one(keys) or _has(keys, _IN_KEYS):
        return None
    return pc.binary_join(column, " ")


def _tags(column: pa.Array | None) -> pa.Array | None:
    if column is None:
        return _NOTHING
    return None if _has(column, _SEPARATORS) else column


def _properties(column: pa.Array | None) -> pa.Array | None:
    """The property text of each message; None if a name or value is refused."""
    if column is None:
        return _NOTHING
    offsets = column.offsets.to_numpy()
    first, end = int(offsets[0]), int(offsets[-1])
    if column.null_count and np.diff(offsets)[column.is_null().to_numpy(zero_copy_only=False)].any():
        return None
    names, values = column.keys, column.items
    if len(names) != end - first:  # the children of a slice, or of the whole: as the version of Arrow likes
        names, values = names.slice(first, end - first), values.slice(first, end - first)
    for texts in (names, values):
        if texts.null_count or not _lengths_from_one(texts) or _has(texts, _SEPARATORS):
            return None
    if pc.any(pc.is_in(names, value_set=_OWN)).as_py():
        return None
    pieces = pc.binary_join_element_wise(pc.binary_join_element_wise(names, values, NAME_END), "", VALUE_END)
    lists = pa.ListArray.from_arrays(pa.array(offsets - first, pa.int32()), pieces)
    return pc.binary_join(lists, "")


def _has(texts: pa.Array, characters: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, characters)).as_py())


def _lengths_from_one(texts: pa.Array) -> bool:
    return not len(texts) or int(pc.min(pc.binary_length(texts)).as_py()) >= 1


def _numbers(column: pa.Array | None, default: int, count: int, kind: type[np.integer[Any]]) -> NDArray[Any]:
    if column is None:
        return np.full(count, default, kind)
    found: NDArray[Any] = pc.fill_null(column, default).to_numpy(zero_copy_only=False).astype(kind)
    return found


def _in_range(numbers: NDArray[Any], least: int, end: int) -> bool:
    return not len(numbers) or (int(numbers.min()) >= least and int(numbers.max()) < end)


def _column(array: pa.Array, count: int) -> BytesColumn:
    """The values of an array of bytes or text, null as empty; the data is not copied."""
    if array is _NOTHING:
        return BytesColumn(np.zeros(1, np.uint8), np.zeros(count + 1, np.int64))
    if array.null_count:
        array = pc.fill_null(array, "")
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, np.int32, count + 1, 4 * array.offset).astype(np.int64)
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return BytesColumn(held, offsets)
