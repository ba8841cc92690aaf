"""Where messages went, as an answer: JSON or an Arrow stream, out of columns."""

from __future__ import annotations

import io

import orjson
import pyarrow as pa

from service.appended import AppendedColumns

_SCHEMA = pa.schema(
    [("message_id", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("store_ms", pa.int64())]
)


def appended_json(results: AppendedColumns) -> bytes:
    """``{"results": [...]}``, in the order of the request."""
    rows = zip(
        results.message_ids().to_pylist(), results.queue_id.tolist(), results.queue_offset.tolist(),
        results.store_ms.tolist(), strict=True,
    )  # fmt: skip
    return orjson.dumps(
        {
            "results": [
                {"message_id": message_id, "queue_id": queue_id, "queue_offset": queue_offset, "store_ms": store_ms}
                for message_id, queue_id, queue_offset, store_ms in rows
            ]
        }
    )


def appended_stream(results: AppendedColumns) -> bytes:
    """The same as an Arrow IPC stream."""
    columns = [results.message_ids(), results.queue_id, results.queue_offset, results.store_ms]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(arrays, _SCHEMA))
    return sink.getvalue()
