"""A hot page between two processes: an Arrow stream of whole records, or JSON for people.

The stream has one column, ``record``: a record as the log has it (docs/formats), whose checksums the receiver compares
again. What stands beside the messages is JSON in the schema's metadata, under ``hot``.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from tierlog.index.search.hot_search import HotPage
from tierlog.index.search.query import MAX_LIMIT, Coverage, Failure, StoreCoverage, TierCoverage
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.errors import CorruptionError, StoreError
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.arrow_stream import read_stream
from tierlog.tiering.format.generation import Generation
from tierlog.tiering.format.manifest import tombstone_from_json
from tierlog.tiering.format.record import decode_record, encode_record
from tierlog.tiering.message.stored_message import StoredMessage

_SCHEMA = pa.schema([("record", pa.binary())])


def hot_stream(page: HotPage) -> bytes:
    """Writes the whole answer as an Arrow stream."""
    records = pa.array([encode_record(message.record) for message in page.messages], pa.binary())
    schema = _SCHEMA.with_metadata({"hot": json.dumps(hot_metadata(page))})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([records], schema=schema))
    return sink.getvalue()


def read_hot_stream(data: bytes) -> HotPage:
    """Reads the page that :func:`hot_stream` made; :class:`CorruptionError` for anything else.

    It was not compressed: what decodes to more than the answer is refused before it is decoded.
    """
    try:
        table = read_stream(data, _check_schema, max_bytes=len(data), max_rows=MAX_LIMIT)
        beside = json.loads((table.schema.metadata or {})[b"hot"])
        return _page(beside, table.column("record").to_pylist())
    except (StoreError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(f"the answer is not one about a hot tier: {type(error).__name__}: {error}") from error


def _check_schema(schema: pa.Schema) -> None:
    if schema.field("record").type != pa.binary():
        raise CorruptionError("a record is no bytes")


def hot_metadata(page: HotPage) -> Json:
    """Returns what stands beside the messages."""
    return {
        "store_id": page.store_id,
        "cold_url": page.cold_url,
        "border": page.border,
        "end": page.end,
        "topic_id": page.generations[-1].topic_id,
        "generations": page.generations,
        "first_ms": page.first_ms,
        "manifest_version": page.manifest_version,
        "tombstones": [asdict(stone) for stone in page.tombstones],
        "more": page.more,
        "coverage": page.coverage.to_json(),
    }


def _page(beside: Json, records: list[bytes]) -> HotPage:
    store_id, version, first_ms = str(beside["store_id"]), beside["manifest_version"], beside["first_ms"]
    cold_url = beside["cold_url"]
    return HotPage(
        store_id=store_id, cold_url=None if cold_url is None else str(cold_url), border=int(beside["border"]),
        end=int(beside["end"]), generations=tuple(_generation(*each) for each in beside["generations"]),
        first_ms=None if first_ms is None else int(first_ms),
        manifest_version=None if version is None else int(version),
        tombstones=tuple(tombstone_from_json(stone) for stone in beside["tombstones"]),
        messages=[StoredMessage(decode_record(record), store_id, Tier.HOT) for record in records],
        more=bool(beside["more"]), coverage=_coverage(store_id, beside["coverage"]),
    )  # fmt: skip


def _generation(topic_id: int, name: str, begin: int, end: int) -> Generation:
    return Generation(int(topic_id), str(name), int(begin), int(end))


def _coverage(store_id: str, told: Any) -> Coverage:
    """Reads the coverage as far as it is about a hot tier."""
    (store,) = told["stores"]
    claim = store["hot"] and TierCoverage(int(store["hot"]["from_ms"]), int(store["hot"]["to_ms"]))
    error = store["error"]
    return Coverage(
        complete=bool(told["complete"]),
        stores=[StoreCoverage(store_id, claim, None, None if error is None else str(error))],
        index_searched=int(told["index_files"]["searched"]),
        segments_read=int(told["segments"]["read"]),
        segments_erased=int(told["segments"]["erased"]),
        failures=[Failure(str(one["object"]), str(one["error"])) for one in told["failures"]],
        **_filtering(told),
    )


def _filtering(told: Any) -> dict[str, Any]:
    """Reads what is told about filtering; a service of before there were filters tells nothing."""
    examined_ms, counts = told.get("examined_to_ms"), told.get("messages", {})
    return {
        "cut_by": None if told["cut_by"] is None else str(told["cut_by"]),
        "examined_to_ms": None if examined_ms is None else int(examined_ms),
        "messages_read": int(counts.get("read", 0)),
        "messages_matched": int(counts.get("matched", 0)),
    }
