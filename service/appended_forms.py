"""Where messages went, as an answer: JSON or an Arrow stream, out of columns."""

from __future__ import annotations

import io

import numpy as np
import orjson
import pyarrow as pa

from service.appended import AppendedColumns
from service.wire import Json
from tiering.kernels.addresses import address_of
from tiering.kernels.json_results import MOST_BYTES, PIECES, write_results

_PIECES = address_of(PIECES)
#: Fewer are written as fast as objects.
_MANY = 16
_SCHEMA = pa.schema(
    [("message_id", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("store_ms", pa.int64())]
)


def appended_json(results: AppendedColumns) -> bytes:
    """``{"results": [...]}``, in the order of the request."""
    hosts = set(results.store_host)
    if len(results) < _MANY or len(hosts) != 1:
        return results_json(appended_rows(results))
    host = np.frombuffer(hosts.pop().hex().upper().encode(), np.uint8)
    columns = [
        np.ascontiguousarray(column, kind)
        for column, kind in (
            (results.physical_offset, np.int64),
            (results.queue_id, np.int32),
            (results.queue_offset, np.int64),
            (results.store_ms, np.int64),
        )
    ]
    out = np.empty(len(results) * (MOST_BYTES + len(host)), np.uint8)
    size = write_results(len(results), _PIECES, address_of(host), len(host), *map(address_of, columns), address_of(out))
    return b'{"results":[%b]}' % out[: size - 1].tobytes()


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
