"""Messages appended as an Arrow stream over REST, and what such a request is refused for."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.format.hashing import java_hash

ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Store, str]]:
    settings = tiny_settings(serve__max_request_bytes=200_000)
    engine = Store.open(tmp_path / "store", settings=settings)
    engine.start()
    try:
        with served(engine, settings) as url:
            yield engine, url
        assert engine.check() == []
    finally:
        engine.close()


def post(url: str, content: bytes, **headers: str) -> tuple[int, bytes]:
    named = {"Content-Type": ARROW, **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(f"{url}/v1/topics/t/messages", content, named)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def stream_of(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_columns_are_appended_and_answered_in_their_order(service: tuple[Store, str]) -> None:
    engine, url = service
    table = pa.table(
        {
            "body": [b"\xff", b"text"],
            "keys": [["a", "b"], None],
            "tag": ["t", None],
            "properties": pa.array([[("p", "v")], None], pa.map_(pa.string(), pa.string())),
            "born_time": pa.array([5, 6], pa.timestamp("ms", "UTC")),
            "queue_id": pa.array([2, 2], pa.int32()),
        }
    )
    status, content = post(url, stream_of(table, "zstd"), accept=ARROW)
    assert status == 200
    results = pa.ipc.open_stream(content).read_all().to_pylist()
    assert [(one["queue_id"], one["queue_offset"]) for one in results] == [(2, 0), (2, 1)]
    first, second = engine.pull("t", 2, 0, 10).messages
    assert [first.record.message_id, second.record.message_id] == [one["message_id"] for one in results]
    assert (first.record.body, first.keys, first.tag, first.properties, first.record.born_ms) == (
        b"\xff", ["a", "b"], "t", {"p": "v"}, 5,
    )  # fmt: skip
    assert (second.record.body, second.keys, second.tag, second.properties) == (b"text", [], "", {})


def test_a_sharding_key_chooses_the_same_queue_as_in_json(service: tuple[Store, str]) -> None:
    engine, url = service
    table = pa.table({"body": ["x"] * 5, "sharding_key": list("abcde")})
    assert post(url, stream_of(table))[0] == 200
    for key in "abcde":
        queue = abs(java_hash(key)) % 4
        found = engine.pull("t", queue, 0, 10).messages
        assert key in {one.properties["__SHARDINGKEY"] for one in found}


@pytest.mark.parametrize(
    ("columns", "status", "words"),
    [
        ({"body": [b"x"], "colour": ["red"]}, 422, b"no column 'colour'"),
        ({"keys": pa.array([["k"]])}, 422, b"no column 'body'"),
        ({"body": pa.array([], pa.binary())}, 422, b"no message"),
        ({"body": [b"x", b""]}, 400, b"message 1: empty body"),
        ({"body": [b"x"], "keys": [["a b"]]}, 400, b"message 0: bad key"),
        ({"body": [bytes(300_000)]}, 413, b"over the limit of 200000 bytes when it is decoded"),
    ],
)
def test_what_cannot_be_appended_is_one_clear_error(
    service: tuple[Store, str], columns: dict[str, Any], status: int, words: bytes
) -> None:
    engine, url = service
    got, content = post(url, stream_of(pa.table(columns), "zstd"))
    assert (got, words in content) == (status, True), content
    assert engine.topics() == []
