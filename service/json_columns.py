"""Messages as JSON text, to the columns that an Arrow request has: what is ordinary, by one compiled loop.

A message takes a tenth of what it takes as Python objects, and the event loop is not waited for meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiering.batch import BORN_END_MS, MAX_QUEUES
from tiering.kernels.addresses import address_of
from tiering.kernels.json_rows import (
    DOCUMENT_NAME,
    FIELD_NAMES,
    HAS_BORN_MS,
    HAS_QUEUE_ID,
    LEAST_ROW_BYTES,
    LEAST_TEXT_BYTES,
    read_rows,
)

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


def read_columns(text: bytes, *, is_lines: bool) -> pa.Table | None:
    """The messages of ``{"messages": [...]}``, or of one in each line; None if something is out of the ordinary.

    Whoever gets None has to look himself: nothing is said about what is in the text, or wrong with it. A column of
    which no message has a value is left out.
    """
    if len(text) > _MOST_BYTES or not _is_utf8(text):
        return None
    size = len(text)
    most_rows = rows_at_most(text)
    bodies, keys, tags, names, values = (np.empty(size + _SLACK_BYTES, np.uint8) for _ in range(5))
    body_ends, tag_ends, keys_of, properties_of = (_offsets(most_rows) for _ in range(4))
    key_ends, name_ends, value_ends = (_offsets(size // LEAST_TEXT_BYTES + 1) for _ in range(3))
    born_ms, queue_id = np.zeros(most_rows, np.int64), np.zeros(most_rows, np.int32)
    fields, totals = np.empty(most_rows, np.uint8), np.empty(3, np.int64)
    columns: tuple[NDArray[Any], ...] = (
        body_ends, bodies, keys_of, key_ends, keys, tag_ends, tags, properties_of, name_ends, names, value_ends, values,
        born_ms, queue_id, fields, totals,
    )  # fmt: skip
    rows = read_rows(
        address_of(np.frombuffer(text, np.uint8)), size, int(is_lines), _FIELD_NAMES, _DOCUMENT_NAME, most_rows,
        MAX_QUEUES, *map(address_of, columns),
    )  # fmt: skip
    if rows <= 0 or born_ms[:rows].max() >= BORN_END_MS:
        return None
    key_count, pair_count, every = totals.tolist()
    found: dict[str, pa.Array] = {"body": _texts(rows, body_ends, bodies, _BYTES)}
    if key_count:
        found["keys"] = pa.ListArray.from_arrays(_array(keys_of, rows + 1), _texts(key_count, key_ends, keys, _TEXT))
    if tag_ends[rows]:
        found["tag"] = _texts(rows, tag_ends, tags, _TEXT)
    if pair_count:
        found["properties"] = pa.MapArray.from_arrays(
            _array(properties_of, rows + 1), _texts(pair_count, name_ends, names, _TEXT),
            _texts(pair_count, value_ends, values, _TEXT),
        )  # fmt: skip
    for name, column, bit in (("born_ms", born_ms, HAS_BORN_MS), ("queue_id", queue_id, HAS_QUEUE_ID)):
        if every & bit:
            found[name] = pa.array(column[:rows], mask=fields[:rows] & bit == 0)
    return pa.table(found)


def rows_at_most(text: bytes) -> int:
    """No fewer than the messages in the text, told by its braces; also of text that is none."""
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


def _array(offsets: NDArray[np.int32], count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(offsets)])


def _texts(count: int, ends: NDArray[np.int32], data: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
