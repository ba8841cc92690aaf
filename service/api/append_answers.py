"""The answer that says where messages went: JSON or an Arrow stream, out of columns, a piece at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import orjson
import pyarrow as pa

from tierlog.service.engine.append_results import AppendedColumns
from tierlog.service.wire.arrow import taken
from tierlog.service.wire.documents import ARROW_STREAM, Json
from tierlog.tiering.kernels.addresses import address_of
from tierlog.tiering.kernels.json_codec import MOST_BYTES, PIECES, write_results

_PIECES = address_of(PIECES)
#: Fewer are written as fast as objects.
_MANY = 16
#: Messages in a piece of an answer, which is about a megabyte of JSON.
PIECE_ROWS = 8192
_SCHEMA = pa.schema(
    [("message_id", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("store_ms", pa.int64())]
)


def appended_pieces(results: AppendedColumns, media_type: str) -> Iterator[bytes]:
    """Yields the answer, in the order of the request: ``{"results": [...]}``, or the same as an Arrow IPC stream.

    Pieces of :data:`PIECE_ROWS` are made as they are asked for; what fits one is one.
    """
    if len(results) <= PIECE_ROWS:
        slices = iter((results,))
    else:
        slices = (results[start : start + PIECE_ROWS] for start in range(0, len(results), PIECE_ROWS))
    return _arrow_pieces(slices) if media_type == ARROW_STREAM else _json_pieces(slices)


def _json_pieces(slices: Iterator[AppendedColumns]) -> Iterator[bytes]:
    piece = b'{"results":[' + _rows_json(next(slices))
    for rows in slices:
        yield piece
        piece = b"," + _rows_json(rows)
    yield piece + b"]}"


def _rows_json(results: AppendedColumns) -> bytes:
    """Returns the objects with commas between them."""
    hosts = set(results.store_host)
    if len(results) < _MANY or len(hosts) != 1:
        return orjson.dumps(appended_rows(results))[1:-1]
    host = np.frombuffer(hosts.pop().hex().upper().encode(), np.uint8)
    physical_offset = np.ascontiguousarray(results.physical_offset, np.int64)
    queue_id = np.ascontiguousarray(results.queue_id, np.int32)
    queue_offset = np.ascontiguousarray(results.queue_offset, np.int64)
    store_ms = np.ascontiguousarray(results.store_ms, np.int64)
    out = np.empty(len(results) * (MOST_BYTES + len(host)), np.uint8)
    size = write_results(
        count=len(results), pieces=_PIECES, host=address_of(host), host_digits=len(host),
        physical_offset=address_of(physical_offset), queue_id=address_of(queue_id),
        queue_offset=address_of(queue_offset), store_ms=address_of(store_ms), out=address_of(out),
    )  # fmt: skip
    return out[: size - 1].tobytes()


def _arrow_pieces(slices: Iterator[AppendedColumns]) -> Iterator[bytes]:
    sink = io.BytesIO()
    writer = pa.ipc.new_stream(sink, _SCHEMA)
    _write_batch(writer, next(slices))
    for rows in slices:
        yield taken(sink)
        _write_batch(writer, rows)
    writer.close()
    yield taken(sink)


def _write_batch(writer: pa.RecordBatchStreamWriter, results: AppendedColumns) -> None:
    columns = [results.message_ids(), results.queue_id, results.queue_offset, results.store_ms]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    writer.write_batch(pa.record_batch(arrays, _SCHEMA))


def results_json(rows: list[Json]) -> bytes:
    """Returns the JSON form of some of the :func:`appended_rows`."""
    return orjson.dumps({"results": rows})


def appended_rows(results: AppendedColumns) -> list[Json]:
    """Returns each message's part of the answer."""
    columns = (results.queue_id, results.queue_offset, results.store_ms)
    return [
        {"message_id": message_id, "queue_id": queue_id, "queue_offset": queue_offset, "store_ms": store_ms}
        for message_id, queue_id, queue_offset, store_ms in zip(
            results.message_ids().to_pylist(), *(column.tolist() for column in columns), strict=True
        )
    ]
