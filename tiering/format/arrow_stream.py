"""Arrow IPC streams from strangers: the schema first, then batches whose decoded size is known before it is made.

A stream is messages: a schema, then record batches. The metadata of a message is a flatbuffer; of a record batch's only
three fields are read here, how many rows it has, where its buffers lie and whether they are compressed: a compressed
buffer begins with its decoded length (int64, little-endian, -1 = not compressed after all), which the decoder does not
go beyond.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError

_I32, _I64, _U16 = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<H")
_BUFFER_BYTES = 16
#: Numbers of the fields in the flatbuffers' tables (Arrow's Message.fbs).
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3


def read_stream(stream: bytes, check_schema: Callable[[pa.Schema], None], *, max_bytes: int, max_rows: int) -> pa.Table:
    """Returns all rows of a stream; its batches are valid, offsets and UTF-8 included.

    ``check_schema`` is asked before anything else is decoded. Raises :class:`MessageTooLargeError` before more than
    ``max_bytes`` are decoded, or for more than ``max_rows``; :class:`InvalidRequestError` for what is no stream.
    """
    with _one_error():
        _measure(stream, check_schema, max_bytes, max_rows)
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
        schema = pa.ipc.read_schema(next(iter(messages)))
        batches = []
        for message in messages:
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            batches.append(batch)
        return pa.Table.from_batches(batches, schema)


@dataclass(frozen=True, slots=True)
class StreamSize:
    """The size of a stream's content."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    """Of all buffers, decoded."""


def measure_stream(
    stream: bytes, check_schema: Callable[[pa.Schema], None], *, max_bytes: int, max_rows: int
) -> StreamSize:
    """Returns what :func:`read_stream` would make, as the stream says itself; nothing is decoded. Raises the same."""
    with _one_error():
        return _measure(stream, check_schema, max_bytes, max_rows)


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, struct.error, OSError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"not an Arrow stream: {str(error)[:300] or type(error).__name__}") from error


def _measure(stream: bytes, check_schema: Callable[[pa.Schema], None], max_bytes: int, max_rows: int) -> StreamSize:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
    first = next(iter(messages), None)
    if first is None or first.type != "schema":
        raise InvalidRequestError("not an Arrow stream: it does not begin with a schema")
    check_schema(pa.ipc.read_schema(first))
    found = StreamSize()
    for message in messages:
        if message.type != "record batch":
            raise InvalidRequestError(f"a {message.type} in the stream, where a record batch is expected")
        found = StreamSize(found.batches + 1, found.rows + _rows(message), found.bytes + decoded_bytes(message))
        if found.bytes > max_bytes:
            raise MessageTooLargeError(f"the stream is over the limit of {max_bytes} bytes when it is decoded")
        if found.rows > max_rows:
            raise MessageTooLargeError(f"the stream has more than {max_rows} messages")
    return found


def _rows(message: pa.Message) -> int:
    """Returns how many rows a record batch has, as it says itself: the reader makes as many of it."""
    metadata = memoryview(message.metadata)
    place = _field(metadata, _batch_at(metadata), _LENGTH)
    rows: int = _I64.unpack_from(metadata, place)[0] if place else 0
    if rows < 0:
        raise InvalidRequestError("a batch has a negative length")
    return rows


def decoded_bytes(message: pa.Message) -> int:
    """Bytes of a record batch's buffers once they are decoded, as they say themselves."""
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    batch = _batch_at(metadata)
    if not _field(metadata, batch, _COMPRESSION):
        return len(body)
    found = 0
    buffers = _table_at(metadata, _field(metadata, batch, _BUFFERS))
    for number in range(_I32.unpack_from(metadata, buffers)[0]):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + number * _BUFFER_BYTES)
        if length:
            if offset < 0:
                raise InvalidRequestError("a buffer lies before its batch")
            decoded = _I64.unpack_from(body, offset)[0]
            if decoded < -1:
                raise InvalidRequestError("a compressed buffer has a negative length")
            found += length if decoded == -1 else decoded
    return found


def _batch_at(metadata: memoryview) -> int:
    return _table_at(metadata, _field(metadata, _I32.unpack_from(metadata, 0)[0], _HEADER))


def _field(data: memoryview, table: int, number: int) -> int:
    """Returns where a field of a flatbuffer's table lies, 0 if it is not there."""
    vtable = table - _I32.unpack_from(data, table)[0]
    at = 4 + 2 * number
    if vtable < 0 or table < 0:
        raise InvalidRequestError("the metadata of a batch are damaged")
    if at + 2 > _U16.unpack_from(data, vtable)[0]:
        return 0
    place = _U16.unpack_from(data, vtable + at)[0]
    return table + place if place else 0


def _table_at(data: memoryview, field: int) -> int:
    """Returns where the table or vector lies that a field refers to."""
    if not field:
        raise InvalidRequestError("the metadata of a batch lack a field")
    return int(field + _I32.unpack_from(data, field)[0])
