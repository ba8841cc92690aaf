"""What schemathesis is told beside the document: forms of bodies it does not know, and what no schema can say.

Loaded by the program itself (``SCHEMATHESIS_HOOKS``), which asks a running service.
"""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import schemathesis
from hypothesis import strategies as st

from tierlog.service.api.schemas.messages import MAX_WAIT_MS
from tierlog.service.wire.documents import ARROW_STREAM, NDJSON
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import END_OF_TIME_MS

#: A long poll waits in earnest, which takes time and shows nothing more.
_MOST_WAIT_MS = 20

_LOOKS_ESCAPED = re.compile("%(?!25)[0-9a-fA-F]{2}")
_keys = itertools.count()


def _lines(bodies: list[str]) -> bytes:
    return "".join(json.dumps({"body": body, "keys": ["k"]}) + "\n" for body in bodies).encode()


def _stream(bodies: list[bytes]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"body": pa.array(bodies, pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


@schemathesis.hook
def before_load_schema(context: object, raw_schema: Any) -> None:
    """Bodies of a form that is made here cannot be text; the example is sent by a test of ours."""
    for methods in raw_schema["paths"].values():
        for described in methods.values():
            described.get("requestBody", {}).get("content", {}).get(NDJSON, {}).pop("example", None)


@schemathesis.serializer(NDJSON, ARROW_STREAM)
def as_it_is(context: object, value: object) -> bytes:
    """Bodies that are made as they are sent; an example stands in the document as text."""
    return value if isinstance(value, bytes) else str(value).encode()


_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
schemathesis.openapi.media_type(NDJSON, st.lists(_TEXT, min_size=1, max_size=5).map(_lines))
schemathesis.openapi.media_type(ARROW_STREAM, st.lists(st.binary(min_size=1, max_size=20), min_size=1).map(_stream))
# a time is one from 1970 on, which the formats of JSON Schema cannot say
schemathesis.openapi.format(
    "date-time",
    st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC)).map(datetime.isoformat),
)
schemathesis.openapi.format("date", st.dates(date(1970, 1, 1), date(9999, 12, 31)).map(date.isoformat))


@schemathesis.hook
def before_call(context: object, case: Any, kwargs: dict[str, Any]) -> None:
    """Keep what was generated, but for what contradicts another part of itself or the state of the service."""
    query = case.query if isinstance(case.query, dict) else {}
    if str(query.get("wait_ms", "")).isdigit() and _MOST_WAIT_MS < int(query["wait_ms"]) <= MAX_WAIT_MS:
        query["wait_ms"] = _MOST_WAIT_MS
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    query.pop("cursor", None)  # only one that the service gave is good; its pages are followed elsewhere
    query.pop("store_id", None)  # only the service's own is good; others are asked for in tests/e2e/test_forwarding.py
    if query.get("all") and query.get("dry_run"):
        query.pop("dry_run")
    for range_of in (query, case.body if isinstance(case.body, dict) else {}):
        if _is_empty(range_of):
            range_of.pop("from", None)
            range_of.pop("to", None)
    for name in list(case.headers or {}):
        if name.lower() == "idempotency-key":  # one that was used belongs to other messages
            case.headers[name] = f"p{next(_keys)}"


@schemathesis.hook
def filter_path_parameters(context: object, path_parameters: dict[str, Any]) -> bool:
    """Not what looks like an escape: schemathesis would decode it before it encodes it, and ask for something else."""
    return not any(_LOOKS_ESCAPED.search(str(value)) for value in (path_parameters or {}).values())


def _is_empty(range_of: dict[str, Any]) -> bool:
    now_ms = SystemClock().now_ms()  # of both: a range between two relative times is as long as they say
    try:
        return _ms(range_of.get("from", 0), now_ms) >= _ms(range_of.get("to", END_OF_TIME_MS), now_ms)
    except InvalidRequestError:
        return False


def _ms(value: object, now_ms: int) -> int:
    return parse_time(str(int(value) if isinstance(value, float) else value), now_ms)
