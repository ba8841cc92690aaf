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
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.properties import SHARDING_KEY
from tierlog.tiering.format.record import MAX_PROPERTIES_BYTES
from tierlog.tiering.kernels.batch_layout import OWN_NAMES, OWN_STARTS, join_keys, join_properties, take_values
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.message.batch import (
    ANY_QUEUE,
    BORN_END_MS,
    MAX_QUEUES,
    NAMES_BYTES,
    BytesColumn,
    Message,
    MessageBatch,
    born_host_rows,
    validate_topic,
)

_STEP = 4096
_OWN_NAMES, _OWN_STARTS = address_of(OWN_NAMES), address_of(OWN_STARTS)

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
    """Raises :class:`InvalidRequestError` unless messages can be made of such columns."""
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

    def __init__(
        self, table: pa.Table, topic: str, queue_of: Callable[[str], int] | None = None, *, born_host: str = ""
    ) -> None:
        """``queue_of`` is the queue of a sharding key, ``born_host`` the address of the producer of all of them.

        Raises :class:`InvalidRequestError` for wrong columns.

        The table's buffers are taken as valid: see ``RecordBatch.validate(full=True)``.
        """
        check_produce_schema(table.schema)
        self._topic = topic
        self._queue_of = queue_of
        self._born_host = born_host
        self._table = table
        columns = {name: _canonical(name, table.column(name)) for name in table.column_names}
        if "born_time" in columns:
            columns["born_ms"] = columns.pop("born_time")
        self._columns = columns

    @property
    def table(self) -> pa.Table:
        """The columns as they came."""
        return self._table

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
            table = self._table.slice(start, max(0, stop - start))
            return ArrowMessages(table, self._topic, self._queue_of, born_host=self._born_host)
        place = range(len(self))[index]
        return next(self[place : place + 1]._messages(place))

    def __iter__(self) -> Iterator[Message]:
        for start in range(0, len(self), _STEP):
            yield from self[start : start + _STEP]._messages(start)

    def to_batch(self, *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        """Returns what :meth:`MessageBatch.of` makes of the messages, errors included."""
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
            yield Message(
                topic=self._topic,
                body=body[i] or b"",
                keys=names,
                tag=tag[i] or "",
                properties=found,
                born_ms=born_ms[i],
                queue_id=queue,
                born_host=self._born_host,
            )

    def _columnar(self, now_ms: int, max_body_bytes: int) -> MessageBatch | None:
        """None if something is wrong or out of the ordinary, to be looked at message by message."""
        count = len(self)
        if not count or any(column.num_chunks != 1 for column in self._columns.values()):
            return None
        columns = {name: column.chunk(0) for name, column in self._columns.items()}
        sharding_key = columns.get("sharding_key")
        if sharding_key is not None and sharding_key.null_count < count:
            return None
        body, _ = _values(columns["body"], 1, max_body_bytes, is_text=False)
        keys, longest_keys = _joined_keys(columns.get("keys"), count)
        tags, longest_tag = _tags(columns.get("tag"), count)
        properties, longest_rest = _joined_properties(columns.get("properties"), count)
        born_ms = _numbers(columns.get("born_ms"), now_ms, count, np.int64, BORN_END_MS)
        queue_id = _numbers(columns.get("queue_id"), ANY_QUEUE, count, np.int32, MAX_QUEUES)
        if body is None or keys is None or tags is None or properties is None or born_ms is None or queue_id is None:
            return None
        topics = (validate_topic(self._topic),)
        batch = MessageBatch(
            topics=topics,
            topic_index=np.zeros(count, np.int32),
            queue_id=queue_id,
            born_ms=born_ms,
            body=body,
            keys=keys,
            tags=tags,
            properties=properties,
            client=born_host_rows([self._born_host] * count) if self._born_host else None,
        )
        most = longest_keys + longest_tag + longest_rest + NAMES_BYTES  # unless they are of one message, it is less
        is_right = most <= MAX_PROPERTIES_BYTES or batch.longest_text_bytes() <= MAX_PROPERTIES_BYTES
        return batch if is_right else None


def _canonical(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the column in its one type and, unless it is too large for that, in one piece."""
    wanted = _COLUMNS[name][2]
    if column.type != wanted:  # what need not be done takes 20 us for each column, as long as 20 messages
        try:
            if pa.types.is_timestamp(column.type):
                column = _floored_ms(column)
            column = column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise InvalidRequestError(f"column {name!r}: {error}") from error
    if column.num_chunks == 1:
        return column
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole])


def _floored_ms(column: pa.ChunkedArray) -> pa.ChunkedArray:
    per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]
    if per_ms < 2:
        return column.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
    numbers = column.cast(pa.int64())
    absent = numbers.is_null().to_numpy()
    return pa.chunked_array([pa.array(numbers.fill_null(0).to_numpy() // per_ms, pa.int64(), mask=absent)])


@dataclass(frozen=True, slots=True)
class _Texts:
    """The place of an array of bytes or texts, as the kernels take it; it keeps the buffers."""

    array: pa.Array
    validity: int
    bit: int
    offsets: NDArray[np.int32]
    data: ByteArray

    @classmethod
    def of(cls, array: pa.Array) -> _Texts:
        validity, offsets, data = array.buffers()
        found = np.zeros(1, np.int32) if offsets is None else np.frombuffer(offsets, np.int32)
        return cls(
            array, _address(validity), array.offset, found[array.offset : array.offset + len(array) + 1],
            np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8),
        )  # fmt: skip

    def bytes_of(self, first: int, end: int) -> int:
        """Length of the texts ``[first, end)`` together."""
        return int(self.offsets[end]) - int(self.offsets[first]) if end > first else 0


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


#: A column, and the bytes of its longest value; no column if one is refused, or has to be looked at alone.
_Found = tuple[BytesColumn | None, int]


def _values(array: pa.Array, least: int, most: int, *, is_text: bool) -> _Found:
    """Returns the bytes or texts, null as empty, not copied; none if one is of another length, or no plain text."""
    found, starts = _Texts.of(array), np.empty(len(array) + 1, np.int64)
    longest = take_values(
        count=len(array), validity=found.validity, bit=found.bit, offsets=address_of(found.offsets),
        data=address_of(found.data), least=least, most=most, is_text=is_text, starts=address_of(starts),
    )  # fmt: skip
    return BytesColumn(found.data, starts) if longest else None, longest - 1


def _tags(array: pa.Array | None, count: int) -> _Found:
    """Returns the tag of each message; none if one has a separator."""
    if array is None:
        return BytesColumn.empty(count), 0
    return _values(array, 0, MAX_PROPERTIES_BYTES, is_text=True)


def _joined_keys(array: pa.Array | None, count: int) -> _Found:
    """Returns the KEYS property of each message; none if a key cannot be indexed."""
    if array is None:
        return BytesColumn.empty(count), 0
    validity, offsets = array.buffers()[:2]
    lists = np.frombuffer(offsets, np.int32, count + 1, 4 * array.offset)
    first, end = int(lists[0]), int(lists[-1])
    keys, starts = _Texts.of(array.values), np.empty(count + 1, np.int64)
    joined = np.empty(keys.bytes_of(first, end) + end - first + 1, np.uint8)
    longest = join_keys(
        count=count, validity=_address(validity), bit=array.offset, lists=address_of(lists),
        key_validity=keys.validity, key_bit=keys.bit, offsets=address_of(keys.offsets), data=address_of(keys.data),
        starts=address_of(starts), out=address_of(joined),
    )  # fmt: skip
    return BytesColumn(joined, starts) if longest else None, longest - 1


def _joined_properties(array: pa.Array | None, count: int) -> _Found:
    """Returns the property text of each message; none if a name or value is refused, or a name is there twice."""
    if array is None:
        return BytesColumn.empty(count), 0
    validity, offsets = array.buffers()[:2]
    lists = np.frombuffer(offsets, np.int32, count + 1, 4 * array.offset)
    first, properties = int(lists[0]), int(lists[-1]) - int(lists[0])
    children = array.keys, array.items
    if len(array.keys) != properties:  # the children of a slice, or of the whole: as the version of Arrow likes
        children = array.keys.slice(first, properties), array.items.slice(first, properties)
    names, values = map(_Texts.of, children)
    starts = np.empty(count + 1, np.int64)
    text_bytes = names.bytes_of(0, properties) + values.bytes_of(0, properties)
    joined = np.empty(text_bytes + 2 * properties + 1, np.uint8)
    longest = join_properties(
        count=count, validity=_address(validity), bit=array.offset, lists=address_of(lists),
        name_validity=names.validity, name_bit=names.bit, name_offsets=address_of(names.offsets),
        names=address_of(names.data), value_validity=values.validity, value_bit=values.bit,
        value_offsets=address_of(values.offsets), values=address_of(values.data),
        own=_OWN_NAMES, own_starts=_OWN_STARTS, own_count=len(OWN_STARTS) - 1,
        starts=address_of(starts), out=address_of(joined),
    )  # fmt: skip
    return BytesColumn(joined, starts) if longest else None, longest - 1


def _numbers(
    array: pa.Array | None, default: int, count: int, kind: type[np.integer[Any]], end: int
) -> NDArray[Any] | None:
    """Returns the numbers, null as ``default``; None if one that is given is not in ``[0, end)``."""
    if array is None:
        return np.full(count, default, kind)
    if array.null_count:
        given = pc.drop_null(array).to_numpy()
        found: NDArray[Any] = pc.fill_null(array, default).to_numpy().astype(kind)
    else:
        given = found = array.to_numpy()
    return found if not len(given) or (int(given.min()) >= 0 and int(given.max()) < end) else None
