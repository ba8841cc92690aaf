"""Messages as JSON objects, without a model for each: to the columns that an Arrow request has or, a few, to objects.

What is ordinary, :mod:`service.json_columns` reads without making objects. Only what is in order becomes columns here,
anything else, whatever is wrong with it, is for the model of
:mod:`service.api.schemas` to take or to refuse: it says what is wrong, and decides where parsers differ (NaN, numbers
beyond 64 bits, 8.0 for 8, nesting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain
from typing import Any

import orjson
import pyarrow as pa

from service.json_columns import SCHEMA, read_columns
from service.wire import decode_base64
from tiering.batch import BORN_END_MS, MAX_QUEUES, Message
from tiering.format.properties import SHARDING_KEY

Row = dict[str, Any]
#: The column of a field, or None if no row has it.
Column = list[Any] | None

#: Parsed, `[]` and `{}` take 27 times their text, and a request is given 8 times its body: so what is parsed at once
#: has a bound of its own.
MOST_AT_ONCE_BYTES = 1 << 20
_ROWS_AT_ONCE = 4096
_FIELDS = frozenset(("body", "body_base64", "keys", "tag", "properties", "born_ms", "queue_id", "sharding_key"))
_SIMPLE_FIELDS = frozenset(("body", "keys", "tag"))


class _OddError(Exception):
    """Something that is not for this module."""


def messages_of_document(document: bytes, topic: str) -> list[Message] | None:
    """The messages of ``{"messages": [...]}`` as objects, for a few; None if they are not in order, or not simple."""
    try:
        found = _parsed(document)
        if type(found) is not dict or tuple(found) != ("messages",) or type(found["messages"]) is not list:
            return None
        return [_message(row, topic) for row in found["messages"]] or None
    except _OddError:
        return None


def _message(row: Any, topic: str) -> Message:
    if type(row) is not dict or not row.keys() <= _SIMPLE_FIELDS:
        raise _OddError
    body, keys, tag = row.get("body"), row.get("keys", ()), row.get("tag", "")
    if type(body) is not str or type(tag) is not str or (keys != () and type(keys) is not list):
        raise _OddError
    if not set(map(type, keys)) <= {str}:
        raise _OddError
    return Message(topic, body.encode(), keys, tag)


def table_of_document(document: bytes, queue_of: Callable[[str], int]) -> pa.Table | None:
    """The messages of ``{"messages": [...]}``; None if they are not in order.

    ``queue_of`` is the queue of a sharding key.
    """
    table = read_columns(document, is_lines=False)
    return parsed_document(document, queue_of) if table is None else table


def table_of_lines(body: bytes, queue_of: Callable[[str], int]) -> pa.Table | None:
    """The messages of NDJSON; None if they are not in order."""
    table = read_columns(body, is_lines=True)
    return parsed_lines(lines_of(body), queue_of) if table is None else table


def parsed_document(document: bytes, queue_of: Callable[[str], int]) -> pa.Table | None:
    """The same by a parser that makes objects. None also for more than is parsed at once."""
    try:
        found = _parsed(document)
        if type(found) is not dict or tuple(found) != ("messages",):
            return None
        return _table([_batch(found["messages"], queue_of)])
    except _OddError:
        return None


def parsed_lines(lines: Iterable[bytes], queue_of: Callable[[str], int]) -> pa.Table | None:
    """The same by a parser that makes objects."""
    try:
        return _table([_batch(rows, queue_of) for rows in _pieces(lines)])
    except _OddError:
        return None


def lines_of(body: bytes) -> Iterator[bytes]:
    """Line by line what is between ends of lines."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        yield body[start:end]
        start = end + 1


def _pieces(lines: Iterable[bytes]) -> Iterator[list[Any]]:
    """Rows, so many at a time that the bound of what is parsed at once holds."""
    rows: list[Any] = []
    size = 0
    for line in lines:
        if line.strip():
            size += len(line)
            if size > MOST_AT_ONCE_BYTES or len(rows) == _ROWS_AT_ONCE:
                yield rows
                rows, size = [], len(line)
            rows.append(_parsed(line))
    yield rows


def _parsed(text: bytes) -> Any:
    if len(text) > MOST_AT_ONCE_BYTES:
        raise _OddError
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _OddError from error


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    """In one piece, without the columns of which no row has a value."""
    table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    return table.select([name for name in table.column_names if table.column(name).null_count < len(table)])


def _batch(rows: Any, queue_of: Callable[[str], int]) -> pa.RecordBatch:
    if type(rows) is not list or set(map(type, rows)) != {dict}:
        raise _OddError
    names = set(chain.from_iterable(set(map(tuple, rows))))  # rows of one client have few different sets of names
    if not names <= _FIELDS:
        raise _OddError
    properties = _given("properties", dict, rows, names)
    queue_id = _numbers("queue_id", MAX_QUEUES, rows, names)
    if "sharding_key" in names:
        properties, queue_id = _sharded(rows, properties, queue_id, queue_of)
    columns = (
        _bodies(rows, names), _given("keys", list, rows, names), _given("tag", str, rows, names), properties,
        _numbers("born_ms", BORN_END_MS, rows, names), queue_id,
    )  # fmt: skip
    arrays = [
        pa.nulls(len(rows), field.type) if column is None else _array(column, field.type)
        for field, column in zip(SCHEMA, columns, strict=True)
    ]
    return pa.record_batch(arrays, SCHEMA)


def _given(name: str, kind: type, rows: list[Row], names: set[str]) -> Column:
    """A field that is there or not, but never null."""
    if name not in names:
        return None
    nothing = kind()
    column = [row.get(name, nothing) for row in rows]
    if set(map(type, column)) != {kind}:
        raise _OddError
    return column


def _numbers(name: str, end: int, rows: list[Row], names: set[str]) -> Column:
    """A whole number from 0 to below ``end``, or null."""
    if name not in names:
        return None
    column = [row.get(name) for row in rows]
    there = [number for number in column if number is not None]
    if set(map(type, there)) - {int} or (there and not (min(there) >= 0 and max(there) < end)):
        raise _OddError
    return column


def _bodies(rows: list[Row], names: set[str]) -> list[Any]:
    if "body_base64" not in names:
        bodies = [row.get("body") for row in rows]
    else:
        bodies = [_body(row.get("body"), row.get("body_base64")) for row in rows]
    if not set(map(type, bodies)) <= {str, bytes}:
        raise _OddError
    return bodies


def _body(text: object, base64: object) -> object:
    if base64 is None:
        return text
    if text is not None or type(base64) is not str:
        raise _OddError
    try:
        return decode_base64(base64)
    except ValueError as error:
        raise _OddError from error


def _sharded(
    rows: list[Row], properties: Column, queue_id: Column, queue_of: Callable[[str], int]
) -> tuple[list[dict[str, str]], list[int | None]]:
    """A sharding key is kept as a property, and chooses the queue."""
    properties, queue_id = properties or [{}] * len(rows), queue_id or [None] * len(rows)
    for place, row in enumerate(rows):
        key = row.get("sharding_key")
        if key is not None:
            if type(key) is not str or not key or queue_id[place] is not None:
                raise _OddError
            properties[place] = {**properties[place], SHARDING_KEY: key}
            queue_id[place] = queue_of(key)
    return properties, queue_id


def _array(column: list[Any], kind: pa.DataType) -> pa.Array:
    """Arrow takes some things for text that JSON does not: members of lists and objects are looked at here."""
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_starts(column), _texts(chain.from_iterable(column)))
    if pa.types.is_map(kind):
        values = _texts(chain.from_iterable(each.values() for each in column))
        return pa.MapArray.from_arrays(_starts(column), _texts(chain.from_iterable(column)), values)
    return pa.array(column, kind)


def _starts(column: list[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, column), initial=0), pa.int32())


def _texts(found: Iterable[object]) -> pa.Array:
    texts = list(found)
    if set(map(type, texts)) - {str}:
        raise _OddError
    return pa.array(texts, pa.string())
