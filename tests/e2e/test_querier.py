"""A querier over two stores: one service for all of them, also while one is down."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service.served import served, served_app
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.api.application.app import create_app
from tierlog.service.archive.querier import Querier
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.message.batch import Message

SETTINGS = tiny_settings(cluster__ask_timeout_ms=60_000, cluster__retry_ms=0)


class Nodes:
    """Two stores below one prefix, each with its service, and a querier that was given their URLs."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        (folder / "cold").mkdir()
        cold = f"file://{folder}/cold"
        self.engines, self.services, self.urls = [], [], list[str]()
        for name in ("a", "b"):
            engine = Store.open(folder / name, settings=SETTINGS, cold_url=cold, store_id=name)
            stack.callback(engine.close)
            engine.append([Message("orders", f"{name} cold {number}".encode(), ["4711"]) for number in range(10)])
            engine.archive(everything=True, drop_hot=True)
            engine.append([Message("orders", f"{name} hot {number}".encode(), ["4711"]) for number in range(10)])
            service = stack.enter_context(contextlib.ExitStack())
            self.urls.append(service.enter_context(served(engine, SETTINGS)))
            self.engines.append(engine)
            self.services.append(service)
        self.querier = Querier.open(cold, self.urls, settings=SETTINGS)
        stack.callback(self.querier.close)
        self.querier.start()
        app = create_app(self.querier, SETTINGS, cluster=self.querier.cluster)
        url = stack.enter_context(served_app(app, SETTINGS, threading.Event()))
        self.client = stack.enter_context(httpx.Client(base_url=url, timeout=60))

    def get(self, path: str, status: int = 200, **asked: Any) -> Any:
        answer = self.client.get(path, params=asked)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        yield Nodes(tmp_path, stack)


@pytest.mark.slow
def test_a_querier_answers_for_all_stores_and_says_which_one_is_down(nodes: Nodes) -> None:
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        page = nodes.get("/v1/topics/orders/messages", key="4711", limit=7, order="oldest", **cursor)
        assert page["coverage"]["complete"], page["coverage"]
        found += page["messages"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(message["body"] for message in found) == sorted(
        f"{name} {tier} {number}" for name in "ab" for tier in ("cold", "hot") for number in range(10)
    )
    places = [(message["store_ms"], message["store_id"], message["physical_offset"]) for message in found]
    assert places == sorted(places)
    lines = nodes.client.get(
        "/v1/topics/orders/messages", params={"all": "true"}, headers={"Accept": "application/x-ndjson"}
    )
    assert len(lines.text.splitlines()) == 41

    topic = nodes.get("/v1/topics/orders")
    assert topic["queues"] == 8
    assert {queue["store_id"] for queue in topic["offsets"]} == {"a", "b"}
    assert [one["topic"] for one in nodes.get("/v1/topics")["topics"]] == ["orders"]
    assert set(nodes.get("/v1/stats")["stores"]) == {"a", "b"}
    assert nodes.get("/readyz")["status"] == "ready"
    assert nodes.get("/v1/files")["files"]
    assert "tierlog_silent_stores 0.0" in nodes.client.get("/metrics").text
    assert nodes.get("/v1/topics/payments/messages", 404)["type"].endswith("topic-not-found")
    hint = nodes.get(f"/v1/messages/{found[0]['message_id']}", 400)["detail"]
    assert "a, b" in hint, "both stores have a message of this id: they have one address in this test"
    one = nodes.get(f"/v1/messages/{found[0]['message_id']}", store_id="b")
    assert one["store_id"] == "b"

    nodes.services[1].close()
    page = nodes.get("/v1/topics/orders/messages", limit=100)
    assert not page["coverage"]["complete"]
    assert sorted({message["body"][:5] for message in page["messages"]}) == ["a col", "a hot", "b col"]
    down = page["coverage"]["stores"][1]
    assert (down["store_id"], down["hot"]) == ("b", None)
    assert "no answer" in down["error"]
    assert not nodes.get("/v1/topics/payments/messages")["coverage"]["complete"]
    nodes.get("/v1/topics/payments", 503)
    newest = max((message for message in found if message["store_id"] == "b"), key=lambda one: one["physical_offset"])
    nodes.get(f"/v1/messages/{newest['message_id']}", 503, store_id="b")


def test_a_querier_filters_what_is_hot_and_what_is_archived_of_all_stores(nodes: Nodes) -> None:
    found: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page = nodes.get("/v1/topics/orders/messages", contains=["o", " 7"], limit=3, order="oldest", **cursor)
        assert page["coverage"]["complete"], page["coverage"]
        found += [message["body"] for message in page["messages"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(found) == ["a cold 7", "a hot 7", "b cold 7", "b hot 7"]
    for engine in nodes.engines:
        counts = engine.hot_page(Query("orders", contains=("hot 7",))).coverage
        assert (counts.messages_read, counts.messages_matched) == (10, 1), "a node itself filters what it has hot"


@pytest.mark.slow
def test_a_store_without_a_service_is_answered_for_from_its_archive_when_it_is_named(
    nodes: Nodes, tmp_path: Path
) -> None:
    cold = f"file://{tmp_path}/cold"
    querier = Querier.open(None, [nodes.urls[0], cold], settings=SETTINGS)
    with contextlib.closing(querier):
        app = create_app(querier, SETTINGS, cluster=querier.cluster)
        with served_app(app, SETTINGS, threading.Event()) as url, httpx.Client(base_url=url, timeout=60) as client:
            nodes.client = client
            page = nodes.get("/v1/topics/orders/messages", limit=100, store_id="b")
            assert [one["body"][:6] for one in page["messages"]] == ["b cold"] * 10
            assert page["coverage"]["complete"]
            assert [(one["store_id"], one["hot"]) for one in page["coverage"]["stores"]] == [("b", None)]
            topic = nodes.get("/v1/topics/orders", store_id="b")
            assert {queue["store_id"] for queue in topic["offsets"]} == {"b"}
            assert [one["topic"] for one in nodes.get("/v1/topics", store_id="b")["topics"]] == ["orders"]
            assert list(nodes.get("/v1/stats", store_id="b")["stores"]) == ["b"]
            assert nodes.get("/v1/files", store_id="b")["files"]
            message = page["messages"][0]
            assert nodes.get(f"/v1/messages/{message['message_id']}", store_id="b")["body"] == message["body"]
            lines = client.get("/v1/topics/orders/messages", params={"all": "true", "store_id": "b"})
            assert len(lines.text.splitlines()) == 11
            nodes.get("/v1/topics/payments", 404, store_id="b")
            nodes.get("/v1/topics/payments/messages", 404, store_id="b")
            for path in ("/v1/topics", "/v1/topics/orders", "/v1/topics/orders/messages", "/v1/stats", "/v1/files"):
                nodes.get(path, 404, store_id="nobody")
            nodes.get("/v1/topics/orders/queues/0/messages", 404, store_id="b", offset=0)


@pytest.mark.slow
def test_an_archive_is_not_taken_for_all_of_a_store_whose_service_may_be_down(nodes: Nodes, tmp_path: Path) -> None:
    nodes.services[1].close()
    querier = Querier.open(None, [*nodes.urls, f"file://{tmp_path}/cold"], settings=SETTINGS)
    with contextlib.closing(querier):
        app = create_app(querier, SETTINGS, cluster=querier.cluster)
        with served_app(app, SETTINGS, threading.Event()) as url, httpx.Client(base_url=url, timeout=60) as client:
            nodes.client = client
            for path in ("/v1/topics", "/v1/topics/orders/messages", "/v1/stats", f"/v1/messages/{'0' * 32}"):
                nodes.get(path, 503, store_id="b")


@pytest.mark.parametrize(
    "argv",
    [
        ["--role", "querier"],
        ["--role", "querier", "--cold", "memory://x", "--root", "store"],
        ["--role", "querier", "--cold", "memory://x", "--restore"],
        [],
        ["--root", "store", "--stores", "http://x"],
    ],
)
def test_a_process_that_is_neither_node_nor_querier_is_refused(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--port", "0", *argv]) == WRONG_USE
    assert capsys.readouterr().err
    assert not list(tmp_path.iterdir())
