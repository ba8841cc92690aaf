"""Where messages went, as an answer: JSON or an Arrow stream, out of columns."""

from __future__ import annotations

import io

import orjson
import pyarrow as pa

from service.appended import AppendedColumns
from service.wire import Json

_SCHEMA = pa.schema(
    [("message_id", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("store_ms", pa.int64())]
)


def appended_json(results: AppendedColumns) -> bytes:
    """``{"results": [...]}``, in the order of the request."""
    return results_json(appended_rows(results))


def results_json(rows: list[Json]) -> bytes:
    """The same of some of the :func:`appended_rows`."""
    return orjson.dumps({"results": rows})


def appended_rows(results: AppendedColumns) -> list[Json]:
    """Each message's part of the answer."""
    columns = (results.queue_id, results.queue_offset, results.store_ms)
    return [
        {"message_id": message_id, "queue_id": queue_id, "queue_offset": queue_offset, "store_ms": store_ms}
        for message_id, queue_id, queue_offset, store_ms in zip(
            results.message_ids().to_pylist(), *(column.tolist() for column in columns), strict=True
        )
    ]


def appended_stream(results: AppendedColumns) -> bytes:
    """The same as an Arrow IPC stream."""
    columns = [results.message_ids(), results.queue_id, results.queue_offset, results.store_ms]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(arrays, _SCHEMA))
    return sink.getvalue()
