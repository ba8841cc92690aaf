"""Bodies that are JSON objects, as one column of a struct; those that do not fit the schema are null.

A body fits if pyarrow's JSON reader takes it for the schema: fields that the schema does not name are passed over,
those that are missing are null, and a value of another kind, a number out of its range, or anything that is not one
object, or is not UTF-8, makes all of the row null.
"""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tiering.errors import InvalidRequestError

_HINT = 'name each field and its type, for example "id long, name string"'


def schema_of(ddl: str) -> pa.Schema:
    """The Arrow schema of a DDL text, such as ``id long, name string``; needs a running session.

    Raises :class:`InvalidRequestError` for what is none, or has a type that JSON is not read into.
    """
    try:
        fields = StructType.fromDDL(ddl)
    except (PySparkException, ValueError) as error:
        raise InvalidRequestError(f"{ddl[:100]!r} is not a schema", hint=_HINT) from error
    if not isinstance(fields, StructType):
        raise InvalidRequestError(f"{ddl[:100]!r} is one type, not a schema", hint=_HINT)
    schema = to_arrow_schema(fields, timezone="UTC")
    try:
        _read(schema, b"{}\n")
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidRequestError(f"{ddl[:100]!r} has a type that JSON is not read into: {error}") from error
    return schema


def parse_bodies(bodies: pa.Array, schema: pa.Schema) -> pa.Array:
    """A struct for each body, null where it does not fit."""
    lines = [body.replace(b"\n", b" ").replace(b"\r", b" ").strip() for body in bodies.to_pylist()]
    likely = np.array([number for number, line in enumerate(lines) if _is_likely(line)], np.int64)
    found: list[tuple[NDArray[np.int64], pa.Array]] = []
    _parse(lines, likely, schema, found)
    kind = pa.struct(list(schema))
    rows = np.concatenate([rows for rows, _ in found]) if found else np.empty(0, np.int64)
    structs = pa.concat_arrays([part for _, part in found]) if found else pa.array([], kind)
    places = np.full(len(lines), -1, np.int64)
    places[rows] = np.arange(len(rows))
    return structs.take(pa.array(places, mask=places < 0))


def _is_likely(line: bytes) -> bool:
    """Whether the reader may be asked: it takes any bytes for text, at which readers of the table would break off."""
    if line[:1] != b"{" or line[-1:] != b"}":
        return False
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse(
    lines: list[bytes], rows: NDArray[np.int64], schema: pa.Schema, found: list[tuple[NDArray[np.int64], pa.Array]]
) -> None:
    """Add what the reader takes of some lines; where it refuses, the halves are tried by themselves."""
    if not len(rows):
        return
    try:
        table = _read(schema, b"\n".join(lines[row] for row in rows.tolist()) + b"\n")
    except (pa.ArrowException, NotImplementedError):
        table = None
    if table is not None and table.num_rows == len(rows):  # each line is an object at least, so none is two
        struct = table.to_struct_array()
        found.append((rows, pa.concat_arrays(struct.chunks) if struct.num_chunks else struct))
    elif len(rows) > 1:
        for half in np.array_split(rows, 2):
            _parse(lines, half, schema, found)


def _read(schema: pa.Schema, data: bytes) -> pa.Table:
    return pyarrow.json.read_json(
        io.BytesIO(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
