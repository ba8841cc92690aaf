"""Messages as JSON objects, without a model for each: to the columns that an Arrow request has or, a few, to objects.

What is ordinary, one compiled loop reads without making objects (:func:`read_columns`): a message takes a tenth of what
it takes as Python objects, and the event loop is not waited for meanwhile. What is in order beyond that, a parser reads
that makes objects. Anything else, whatever is wrong with it, is for the model of :mod:`service.api.schemas.messages` to
take or to refuse: it says what is wrong, and decides where parsers differ (NaN, numbers beyond 64 bits, 8.0 for 8,
nesting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.service.wire.documents import decode_base64
from tierlog.tiering.format.properties import SHARDING_KEY
from tierlog.tiering.kernels.addresses import address_of
from tierlog.tiering.kernels.json_codec import (
    DOCUMENT_NAME,
    FIELD_NAMES,
    HAS_BORN_MS,
    HAS_QUEUE_ID,
    LEAST_ROW_BYTES,
    LEAST_TEXT_BYTES,
    read_rows,
)
from tierlog.tiering.message.batch import BORN_END_MS, MAX_QUEUES, Message

Row = dict[str, Any]
#: The column of a field, or None if no row has it.
Column = list[Any] | None

_BYTES, _TEXT = pa.binary(), pa.string()
SCHEMA = pa.schema(
    [
        ("body", _BYTES), ("keys", pa.list_(_TEXT)), ("tag", _TEXT), ("properties", pa.map_(_TEXT, _TEXT)),
        ("born_ms", pa.int64()), ("queue_id", pa.int32()),
    ]
)  # fmt: skip
_FIELD_NAMES, _DOCUMENT_NAME = address_of(FIELD_NAMES), address_of(DOCUMENT_NAME)
#: Offsets are of 32 bits.
_MOST_BYTES = (1 << 31) - 1
#: Texts end in it, and the kernel writes so many bytes at once.
_SLACK_BYTES = 8
_COUNTED_BYTES = 1 << 20
#: Parsed, `[]` and `{}` take 27 times their text, and a request is given 8 times its body: so what is parsed at once
#: has a bound of its own.
MOST_AT_ONCE_BYTES = 1 << 20
_ROWS_AT_ONCE = 4096
_FIELDS = frozenset(("body", "body_base64", "keys", "tag", "properties", "born_ms", "queue_id", "sharding_key"))
_SIMPLE_FIELDS = frozenset(("body", "keys", "tag"))

# By the compiled loop.


def read_columns(text: bytes, *, is_lines: bool) -> pa.Table | None:
    """Reads ``{"messages": [...]}``, or a message in each line; None if something is out of the ordinary.

    Whoever gets None has to look himself: nothing is said about what is in the text, or wrong with it. A column of
    which no message has a value is left out.
    """
    if len(text) > _MOST_BYTES or not _is_utf8(text):
        return None
    # room for the columns of as many messages as there can be
    size = len(text)
    most_rows = rows_at_most(text)
    bodies, keys, tags, names, values = (np.empty(size + _SLACK_BYTES, np.uint8) for _ in range(5))
    body_ends, tag_ends, keys_of, properties_of = (_offsets(most_rows) for _ in range(4))
    key_ends, name_ends, value_ends = (_offsets(size // LEAST_TEXT_BYTES + 1) for _ in range(3))
    born_ms, queue_id = np.zeros(most_rows, np.int64), np.zeros(most_rows, np.int32)
    fields, totals = np.empty(most_rows, np.uint8), np.empty(3, np.int64)
    rows = read_rows(
        text=address_of(text), length=size, is_lines=is_lines, field_names=_FIELD_NAMES, document_name=_DOCUMENT_NAME,
        most_rows=most_rows, queues=MAX_QUEUES, body_ends=address_of(body_ends), bodies=address_of(bodies),
        keys_of=address_of(keys_of), key_ends=address_of(key_ends), keys=address_of(keys),
        tag_ends=address_of(tag_ends), tags=address_of(tags), properties_of=address_of(properties_of),
        name_ends=address_of(name_ends), names=address_of(names), value_ends=address_of(value_ends),
        values=address_of(values), born_ms=address_of(born_ms), queue_id=address_of(queue_id),
        fields=address_of(fields), totals=address_of(totals),
    )  # fmt: skip
    if rows <= 0 or born_ms[:rows].max() >= BORN_END_MS:
        return None
    # the columns that the loop has written, without those in which no message has a value
    key_count, pair_count, every = totals.tolist()
    found: dict[str, pa.Array] = {"body": _column_texts(rows, body_ends, bodies, _BYTES)}
    if key_count:
        found["keys"] = pa.ListArray.from_arrays(
            _column_array(keys_of, rows + 1), _column_texts(key_count, key_ends, keys, _TEXT)
        )
    if tag_ends[rows]:
        found["tag"] = _column_texts(rows, tag_ends, tags, _TEXT)
    if pair_count:
        found["properties"] = pa.MapArray.from_arrays(
            _column_array(properties_of, rows + 1), _column_texts(pair_count, name_ends, names, _TEXT),
            _column_texts(pair_count, value_ends, values, _TEXT),
        )  # fmt: skip
    for name, column, bit in (("born_ms", born_ms, HAS_BORN_MS), ("queue_id", queue_id, HAS_QUEUE_ID)):
        if every & bit:
            found[name] = pa.array(column[:rows], mask=fields[:rows] & bit == 0)
    return pa.table(found)


def rows_at_most(text: bytes) -> int:
    """Counts no fewer than the messages in the text, by its braces; the text may be anything."""
    braces = text.count(b"{", 0, _COUNTED_BYTES)
    for start in range(_COUNTED_BYTES, len(text), _COUNTED_BYTES):  # whoever counts keeps the interpreter
        braces += text.count(b"{", start, start + _COUNTED_BYTES)
    return min(braces, len(text) // LEAST_ROW_BYTES) + 1


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _offsets(most: int) -> NDArray[np.int32]:
    found = np.empty(most + 1, np.int32)
    found[0] = 0
    return found


def _column_array(offsets: NDArray[np.int32], count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(offsets)])


def _column_texts(count: int, ends: NDArray[np.int32], data: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


# Reading with a parser that makes objects, where the loop is not enough.


class _OddError(Exception):
    """A message that this module leaves to the model."""


def messages_of_document(document: bytes, topic: str) -> list[Message] | None:
    """Reads a few messages of ``{"messages": [...]}`` as objects; None if they are not in order, or not simple."""
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
    """Reads the messages of ``{"messages": [...]}`` as columns; None if they are not in order.

    ``queue_of`` is the queue of a sharding key.
    """
    table = read_columns(document, is_lines=False)
    return parsed_document(document, queue_of) if table is None else table


def table_of_lines(body: bytes, queue_of: Callable[[str], int]) -> pa.Table | None:
    """Reads the messages of NDJSON as columns; None if they are not in order."""
    table = read_columns(body, is_lines=True)
    return parsed_lines(lines_of(body), queue_of) if table is None else table


def parsed_document(document: bytes, queue_of: Callable[[str], int]) -> pa.Table | None:
    """Reads a document by a parser that makes objects. None also for more than is parsed at once."""
    try:
        found = _parsed(document)
        if type(found) is not dict or tuple(found) != ("messages",):
            return None
        return _table([_batch(found["messages"], queue_of)])
    except _OddError:
        return None


def parsed_lines(lines: Iterable[bytes], queue_of: Callable[[str], int]) -> pa.Table | None:
    """Reads lines by a parser that makes objects."""
    try:
        return _table([_batch(rows, queue_of) for rows in _pieces(lines)])
    except _OddError:
        return None


def lines_of(body: bytes) -> Iterator[bytes]:
    """Yields what is between ends of lines, line by line."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        yield body[start:end]
        start = end + 1


def _pieces(lines: Iterable[bytes]) -> Iterator[list[Any]]:
    """Yields rows, so many at a time that the bound of what is parsed at once holds."""
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
    """Makes one table, without the columns of which no row has a value."""
    table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    return table.select([name for name in table.column_names if table.column(name).null_count < len(table)])


def _batch(rows: Any, queue_of: Callable[[str], int]) -> pa.RecordBatch:
    if type(rows) is not list or set(map(type, rows)) != {dict}:
        raise _OddError
    names = set(chain.from_iterable(set(map(tuple, rows))))  # the rows of one client have few different sets of names
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
    """Returns the column of a field that is there or not, but never null."""
    if name not in names:
        return None
    nothing = kind()
    column = [row.get(name, nothing) for row in rows]
    if set(map(type, column)) != {kind}:
        raise _OddError
    return column


def _numbers(name: str, end: int, rows: list[Row], names: set[str]) -> Column:
    """Returns the column of a whole number from 0 to below ``end``, or null."""
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
    """Keeps sharding keys as properties, and lets them choose the queue."""
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
    """Makes an Arrow array; checks members of lists and objects, as Arrow takes some things for text."""
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
