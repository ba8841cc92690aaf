"""The short way of small appends answers as the long one does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.service.access import GuardedService, line
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import ROOT
from tierlog.service.api.application.app import create_app
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock

#: Asks for the same as no header does, in words that are not plain.
_LONG_WAY = {"Accept": "application/json;q=0.5"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Store]:
    engine = Store.open(ROOT, settings=tiny_settings(), clock=ManualClock(), fs=CrashFileSystem())
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def client(engine: Store) -> TestClient:
    return TestClient(create_app(engine, tiny_settings()), "http://localhost", raise_server_exceptions=False)


def _both(client: TestClient, path: str, body: bytes, **headers: str) -> list[tuple[int, dict[str, str], Any]]:
    """Status, headers and body of the answers on the short way and on the long one."""
    found = []
    for more in ({}, _LONG_WAY):
        answer = client.post(path, content=body, headers={"Content-Type": "application/json", **headers, **more})
        said = answer.json()
        said.pop("request_id", None)
        for one in said.get("results", ()):
            del one["message_id"], one["queue_offset"], one["queue_id"]
        shown = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
        if answer.status_code == 200:
            shown.pop("content-length", None)
        found.append((answer.status_code, shown, said))
    return found


_BODIES = [
    {"messages": [{"body": "a", "keys": ["k"], "tag": "t", "properties": {"p": "q"}}]},
    {"messages": [{"body": "a"}] * 20},
    {"messages": [{"body_base64": "/wA=", "born_ms": 8.0, "queue_id": 3}]},
    {"messages": [{"body": "a", "sharding_key": "s"}]},
    {"messages": [{"body": ""}]},
    {"messages": [{"body": "a", "keys": ["a b"]}]},
    {"messages": [{"body": "a", "properties": {"KEYS": "k"}}]},
    {"messages": [{"body": "a", "more": 1}]},
    {"messages": [{"body": "x" * 3_900}]},
    {"messages": []},
    [],
]


@pytest.mark.parametrize("body", [*(json.dumps(one).encode() for one in _BODIES), b"{", b"NaN", b"\xff", b"[" * 2_000])
@pytest.mark.parametrize("path", ["/v1/topics/orders/messages", "/v1/topics/orders/messages?durability=async"])
def test_both_ways_answer_alike(client: TestClient, path: str, body: bytes) -> None:
    short, long = _both(client, path, body)
    assert short == long


_LINE = json.dumps({"body": "a" * 100, "keys": ["k"], "tag": "t", "properties": {"p": "q"}}).encode() + b"\n"


@pytest.mark.parametrize(
    "body",
    [
        _LINE * 3, _LINE * 200, b"", b"\n", b"{}", _LINE + b"{", _LINE * 200 + b'{"body":1}',
        b'{"body":"a","keys":["a b"]}', b'{"body":"a","sharding_key":"s"}',
    ],
)  # fmt: skip
def test_both_ways_answer_lines_alike(client: TestClient, body: bytes) -> None:
    headers = {"Content-Type": "application/x-ndjson"}
    short, long = _both(client, "/v1/topics/orders/messages", body, **headers)
    assert short == long


@pytest.mark.parametrize("messages", [100, 1_000])
def test_both_ways_answer_large_documents_alike(client: TestClient, messages: int) -> None:
    for row in ({"body": "a" * 100}, {"body": "a" * 100, "more": 1}, {"body": ""}):
        document = json.dumps({"messages": [{"body": "b" * 100}] * messages + [row]}).encode()
        short, long = _both(client, "/v1/topics/orders/messages", document)
        assert short == long


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics/or%20ders/messages",
        "/v1/topics/orders/messages?durability=never",
        "/v1/topics/orders/messages?durability=async&durability=async",
        "/v1/topics/orders/messages?durable=async",
        "/v1/topics/orders/messages?store_id=other",
    ],
)
def test_what_is_refused_is_refused_in_the_same_words(client: TestClient, path: str) -> None:
    short, long = _both(client, path, b'{"messages":[{"body":"a"}]}')
    assert short[0] >= 400
    assert short == long


def test_an_idempotency_key_is_kept_to(client: TestClient) -> None:
    headers = {"Content-Type": "application/json", "Idempotency-Key": "p:0"}
    found = [
        client.post("/v1/topics/once/messages", content=b'{"messages":[{"body":"a"}]}', headers=headers).json()[
            "results"
        ]
        for _ in range(2)
    ]
    assert found[0] == found[1]


def test_only_who_may_append_to_the_topic_does(tmp_path: Path) -> None:
    service = GuardedService(tmp_path, [line("writer", "produce", "orders"), line("reader", "read", "*")])
    try:
        body = {"messages": [{"body": "a"}]}
        asked = [("writer", "orders", 200), ("writer", "other", 403), ("reader", "orders", 403), (None, "orders", 401)]
        for by, topic, status in asked:
            path = f"/v1/topics/{topic}/messages"
            short, long = (
                service.ask("POST", path, body, by=by, headers=more) for more in ({"Accept": "*/*"}, _LONG_WAY)
            )
            assert short.status_code == long.status_code == status
            if status != 200:
                assert short.json() == long.json()
    finally:
        service.close()
