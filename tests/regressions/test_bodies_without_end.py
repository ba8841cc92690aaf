"""A body of 8 MB took a minute and 5 GB to be refused, stopped every other answer, and was read for whoever sent it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.types import Message as Sent

import tierlog.service.api.application.append_fast_path
import tierlog.service.api.json_bodies
from tests.support.service.access import GuardedService, line, token
from tests.support.service.asgi_call import SILENT, Call
from tests.support.service.flow_client import flow
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.append_answers import PIECE_ROWS
from tierlog.service.api.application.app import create_app
from tierlog.service.api.json_bodies import MOST_VALUES, validated
from tierlog.service.api.limits import BodyMemory
from tierlog.service.api.message_bodies import RequestMessages, few_messages, models_of_document, models_of_lines
from tierlog.service.api.routes.groups import OffsetsIn
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import ARROW_STREAM, JSON, NDJSON

_APPEND = "/v1/topics/t/messages"
#: Longer than what the model is given whole.
_MANY = b'{"body":"x","born_ms":null},' * 3_000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    settings = tiny_settings(
        serve__max_request_bytes=8 << 20, serve__body_memory_bytes=8 << 20, serve__wait_ms=1,
        serve__max_request_messages=20_000, hot__segment_bytes=64 << 20,
    )  # fmt: skip
    with contextlib.closing(Store.open(tmp_path / "store", settings=settings)) as engine:
        yield create_app(engine, settings)


def call(app: FastAPI, body: bytes, kind: str = JSON, path: str = _APPEND, method: str = "POST", **more: str) -> Call:
    found = Call(method, path, [body], headers={"content-type": kind, "content-length": str(len(body)), **more})
    asyncio.run(found.run(app))
    return found


def problem(error: RequestValidationError) -> tuple[tuple[str | int, ...], str]:
    (only,) = error.errors()
    return only["loc"], only["msg"]


def arrow(rows: int, *, per_batch: int | None = None) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"body": pa.array(["x"] * rows)})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, per_batch)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("wrong", "place", "words"),
    [
        (b"1", (), "Input should be an object"),
        (b'{"body":1}', ("body",), "Input should be a valid string"),
        (b'{"body":"x","keys":[' + b"1," * 50_000 + b"1]}", ("keys", 0), "Input should be a valid string"),
        (b'{"body":"x","properties":{' + b'"a":1,' * 30_000 + b'"a":1}}', ("properties", "a"), "valid string"),
        (b"[" * 100_000, (), "more than"),
        (b'{"queue_id":' + b"9" * 100_000 + b"}", (), "Invalid JSON"),
        (b'{"body":"x",' + b",".join(b'"f%d":1' % n for n in range(65)) + b"}", (), "more than 64 fields"),
        (b"[" + b"[]," * MOST_VALUES + b"[]]", (), "more than"),
    ],
)
def test_a_batch_is_refused_at_the_first_message_that_is_wrong(
    wrong: bytes, place: tuple[str | int, ...], words: str
) -> None:
    """Behind it there is what would be another error, were it looked at."""
    with pytest.raises(RequestValidationError) as refused:
        list(models_of_document(b'{"messages":[' + _MANY + wrong + b",1" * 100_000 + b",}", 10_000))
    where, what = problem(refused.value)
    assert (where, words in what) == (("body", "messages", 3_000, *place), True), what
    with pytest.raises(RequestValidationError) as refused:
        list(models_of_lines(_MANY.replace(b",{", b"\n{")[:-1] + b"\n" + wrong + b"\n1" * 100_000, 10_000))
    assert problem(refused.value)[0] == ("body", "line 3001", *place)


@pytest.mark.parametrize(
    ("before", "behind", "words"),
    [
        (b'{"messages":[', b'{"body":"x"}]', "does not end"),
        (b'{"messages":[', b'{"body":"x"}],"more":1}', "does not end"),
        (b'{"messages":[', b'{"body":"x"}} ', "does not end"),
        (b'{"messages":[', b"]}", "expected a message"),
        (b'{"messages":[', b'{"body":"x"', "Invalid JSON"),
        (b'{"more":1,"messages":[', b'{"body":"x"}]}', "does not begin"),
        (b"[", b'{"body":"x"}]', "does not begin"),
    ],
)
def test_what_stands_around_many_messages_is_looked_at_too(before: bytes, behind: bytes, words: str) -> None:
    with pytest.raises(RequestValidationError, match=words):
        list(models_of_document(before + _MANY + behind, 10_000))
    assert len(list(models_of_document(b' { "messages" : [ ' + _MANY + b'{"body":"x"} ] } ', 10_000))) == 3_001


@pytest.mark.parametrize("fields", [10, 64, 65, 1_000, MOST_VALUES])
def test_fields_that_nobody_names_are_few_errors(fields: int) -> None:
    unknown = b",".join(b'"%d":1' % number for number in range(fields))
    for text in (b"{%s}" % unknown, b'{"offsets":[{%s}]}' % unknown):
        with pytest.raises(RequestValidationError) as refused:
            validated(OffsetsIn, text)
        assert len(refused.value.errors()) <= (5 if fields <= 64 else 1)


def test_a_list_ends_at_its_first_error() -> None:
    with pytest.raises(RequestValidationError) as refused:
        validated(OffsetsIn, b'{"offsets":[' + b"1," * 10_000 + b"1]}")
    assert problem(refused.value)[0] == ("body", "offsets", 0)


def test_the_largest_commit_is_taken() -> None:
    offsets = [{"topic": "t", "store_id": "s", "queue_id": n % 1024, "offset": n} for n in range(10_000)]
    assert len(validated(OffsetsIn, json.dumps({"offsets": offsets}).encode()).offsets) == 10_000


@pytest.mark.parametrize("path", [_APPEND, "/v1/groups/g/offsets"])
def test_what_is_said_of_a_large_body_is_small_and_has_nothing_of_it(app: FastAPI, path: str) -> None:
    method = "POST" if path == _APPEND else "PUT"
    for name in (b"n" * 1_000_000, b"\\u1234" * 100_000):
        body = b'{"messages":[{"body":"x","%s":"value"}]}' % name if path == _APPEND else b'{"%s":"value"}' % name
        refused = call(app, body, path=path, method=method)
        assert (refused.status, len(refused.body) < 2_000, b"value" in refused.body) == (422, True, False)


def _bodied(app: FastAPI) -> list[tuple[str, str]]:
    """Every call that has a body, with a path that can be asked for."""
    found = [
        (method.upper(), re.sub(r"\{(\w+)\}", lambda part: {"queue_id": "0"}.get(part[1], "t"), path))
        for path, methods in app.openapi()["paths"].items()
        for method, described in methods.items()
        if "requestBody" in described
    ]
    assert len(found) >= 9
    return found


@pytest.mark.parametrize("by", [None, "nobody"])
def test_of_a_caller_without_the_right_no_byte_of_a_body_is_read(tmp_path: Path, by: str | None) -> None:
    """The client has announced a body, and waits before it sends any of it: so whoever waits for it waits for ever."""
    guarded = GuardedService(tmp_path, [line("root", "admin", "*"), line("nobody", "produce", "other")])
    headers = {"content-type": JSON, "content-length": str(1 << 20)}
    if by is not None:
        headers["authorization"] = f"Bearer {token(by)}"

    async def run() -> None:
        memory: BodyMemory = guarded.app.state.body_memory
        for method, path in _bodied(guarded.app):
            refused = Call(method, path, [SILENT], headers=headers)
            await asyncio.wait_for(refused.run(guarded.app), 60)
            assert (path, refused.status) == (path, 401 if by is None else 403)
            assert memory.used_bytes == 0

    asyncio.run(run())
    guarded.close()


def test_no_body_is_taken_apart_on_the_event_loop(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it would keep every other answer waiting."""
    threads: list[str] = []

    def noted(name: str, work: object) -> object:
        def run(*arguments: object, **named: object) -> object:
            threads.append(f"{name} {threading.current_thread().name}")
            return work(*arguments, **named)  # type: ignore[operator]  # whatever it is

        return run

    monkeypatch.setattr(tierlog.service.api.json_bodies, "validated", noted("model", validated))
    monkeypatch.setattr(tierlog.service.api.application.append_fast_path, "few_messages", noted("few", few_messages))
    monkeypatch.setattr(RequestMessages, "_messages", noted("many", RequestMessages._messages))
    one = b'{"messages":[{"body":"x","properties":{"a":"b"}}]}'
    assert call(app, one).status == 200
    assert call(app, one.replace(b"x", b"x" * 5_000)).status == 200
    assert call(app, b'{"body":"x"}', NDJSON).status == 200
    assert call(app, arrow(3), ARROW_STREAM).status == 200
    for method, path in _bodied(app):
        if path != _APPEND:
            call(app, b"{}", method=method, path=path)
    kinds = {thread.partition(" ")[0] for thread in threads}
    assert kinds == {"few", "many", "model"}
    assert all(" tierlog-" in thread for thread in threads), threads


@pytest.mark.parametrize("kind", [JSON, NDJSON, ARROW_STREAM])
def test_a_request_has_no_more_messages_than_the_setting_allows(app: FastAPI, kind: str) -> None:
    def body(rows: int) -> bytes:
        if kind == ARROW_STREAM:
            return arrow(rows, per_batch=9_999)
        lines = [b'{"body":"x"}'] * rows
        return b"\n".join(lines) if kind == NDJSON else b'{"messages":[' + b",".join(lines) + b"]}"

    refused = call(app, body(20_001), kind)
    assert refused.status == 413
    assert b"serve.max_request_messages" in refused.body
    odd = body(20_001).replace(b'"}', b'","born_ms":null}') if kind != ARROW_STREAM else None
    if odd is not None:
        assert b"serve.max_request_messages" in call(app, odd, kind).body
    assert call(app, body(20_000), kind, **{"idempotency-key": "all"}).status == 200


def test_small_bodies_have_no_more_messages_either(tmp_path: Path) -> None:
    settings = tiny_settings(serve__max_request_messages=2)
    with contextlib.closing(Store.open(tmp_path / "store", settings=settings)) as engine:
        found = create_app(engine, settings)
        for count, status in ((2, 200), (3, 413)):
            for one in (b'{"body":"x"}', b'{"body":"x","properties":{"a":"b"}}'):
                assert call(found, b'{"messages":[' + b",".join([one] * count) + b"]}").status == status


@pytest.mark.parametrize("kind", [JSON, NDJSON, ARROW_STREAM])
def test_short_messages_hold_the_memory_that_they_take(app: FastAPI, kind: str) -> None:
    """By its bytes, a body of a hundred thousand of a byte each was let in beside others that had all of the room."""
    rows = 12_000
    lines = [b'{"body":"x"}'] * rows
    body = {JSON: b'{"messages":[' + b",".join(lines) + b"]}", NDJSON: b"\n".join(lines), ARROW_STREAM: arrow(rows)}[
        kind
    ]
    assert 8 * len(body) < 2 << 20 < 200 * rows
    memory: BodyMemory = app.state.body_memory
    refused = Call("POST", _APPEND, [body], headers={"content-type": kind, "content-length": str(len(body))})

    async def run() -> None:
        with memory.share() as others:
            await memory.take(others, 6 << 20)
            await refused.run(app)
        assert memory.used_bytes == 0

    asyncio.run(run())
    assert refused.status == 429
    assert call(app, body, kind).status == 200
    assert memory.used_bytes == 0


def test_an_answer_about_many_messages_is_sent_in_pieces_and_holds_little_meanwhile(app: FastAPI) -> None:
    memory: BodyMemory = app.state.body_memory
    held: list[int] = []
    sizes: list[int] = []

    async def watch(message: Sent) -> None:
        if message["type"] == "http.response.body":
            held.append(memory.used_bytes)
            sizes.append(len(message["body"]))

    body = arrow(15_000)
    asked = Call(
        "POST", _APPEND, [body], on_send=watch,
        headers={"content-type": ARROW_STREAM, "accept": JSON, "content-length": str(len(body))},
    )  # fmt: skip
    asyncio.run(asked.run(app))
    assert asked.status == 200
    assert len(json.loads(asked.body)["results"]) == 15_000
    assert max(sizes) <= 150 * PIECE_ROWS
    assert max(held) <= 64 * 15_000


def test_a_body_that_is_not_read_is_thrown_away_up_to_a_bound(tmp_path: Path) -> None:
    """A client that was refused could send for ever on the connection."""
    with flow(tmp_path, serve__max_request_bytes=100_000) as service:
        head = "POST /v1/nothing HTTP/1.1\nHost: 127.0.0.1\nTransfer-Encoding: chunked"
        with service.connect(head) as connection:
            chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
            with pytest.raises(OSError, match=r"reset|pipe|aborted"):
                connection.sendall(chunk * 4_000)  # what the sockets' buffers take is a part of it
        status, headers, _ = service.ask("POST", "/v1/nothing", bytes(50_000))
        assert (status, headers.get("connection")) == (404, None)
