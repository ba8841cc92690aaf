"""Every kind of answer has exactly the shape that the OpenAPI document gives it: no field more, none less."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.api.application.process import join_cluster
from tierlog.service.cluster.table_view import OwnNode, TableView
from tierlog.service.cluster.view import ClusterView
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.objects.memory import MemoryObjectStore

Json = dict[str, Any]
_TOPIC = "/v1/topics/orders"


def _closed(value: Any) -> Any:
    """The same shapes without room for fields that they do not name."""
    if isinstance(value, list):
        return [_closed(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: _closed(one) for name, one in value.items()}
    if found.get("type") == "object" and "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


class Checked:
    """A client that compares each answer with the document."""

    def __init__(self, engine: Store, cluster: ClusterView | None = None) -> None:
        settings = tiny_settings(serve__max_request_bytes=20_000)
        self._http = ApiClient(create_app(engine, settings, cluster=cluster))
        document = self._http.request("GET", "/openapi.json").json()
        self._paths = document["paths"]
        self._components = _closed(deepcopy(document["components"]))
        self.seen: set[tuple[str, str]] = set()

    def ask(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        """The answer, which has the status and the shape that the document says."""
        answer = self._http.request(method, path, body)
        assert answer.status_code == status, answer.text
        described = self._described(method, path.partition("?")[0])
        shape = described["responses"][str(status)]
        if "$ref" in shape:
            shape = self._components["responses"][shape["$ref"].rpartition("/")[2]]
        kind = answer.headers["content-type"].partition(";")[0]
        schema = _closed(shape["content"][kind]["schema"])
        Draft202012Validator({**schema, "components": self._components}).validate(answer.json())
        for name, header in shape["headers"].items():
            needed = header.get("required", "$ref" in header)
            assert name in answer.headers or not needed or name == "X-Request-Id", name
        self.seen.add((described["operationId"], str(status)))
        return answer.json()

    def _described(self, method: str, path: str) -> Json:
        for template, methods in self._paths.items():
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
            if re.fullmatch(pattern, path) and method.lower() in methods:
                found: Json = methods[method.lower()]
                return found
        raise AssertionError(f"{method} {path} is not in the document")

    def operations(self) -> set[str]:
        """Every call that is answered with JSON."""
        calls = [one for methods in self._paths.values() for one in methods.values()]
        return {one["operationId"] for one in calls if "application/json" in one["responses"]["200"]["content"]}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    found = Store.open(tmp_path / "store", cold_url=f"file://{tmp_path}/cold", settings=tiny_settings())
    yield found
    found.close()


def _produce(asked: Checked, first: int, count: int) -> list[str]:
    messages = [{"body": f"m{n}", "keys": [f"k{n % 7}"], "queue_id": n % 4} for n in range(first, first + count)]
    messages.append({"body_base64": "/wA=", "keys": ["raw"], "tag": "t", "properties": {"p": "v"}, "born_ms": 5})
    results = asked.ask("POST", f"{_TOPIC}/messages", {"messages": messages})["results"]
    return [one["message_id"] for one in results]


def test_every_call_is_answered_as_the_document_says(engine: Store, tmp_path: Path) -> None:
    asked = Checked(engine)
    ids = _produce(asked, 0, 200)
    asked.ask("PUT", "/v1/topics/new", {"queues": 2, "cold_retention_ms": 86_400_000}, 201)
    asked.ask("PUT", "/v1/topics/new", {"queues": 3})
    asked.ask("PUT", "/v1/topics/new", {"queues": 1}, 409)
    asked.ask("PUT", "/v1/topics/new/hold", {"hold": True})
    asked.ask("POST", "/v1/admin/erase", {"topic": "new", "all": True}, 409)
    asked.ask("PUT", "/v1/topics/new/hold", {"hold": False})
    assert asked.ask("POST", "/v1/admin/archive", {"all": True, "drop_hot": True})["segments"] > 0
    ids += _produce(asked, 200, 10)
    for question in ("key=k3&limit=1", "time=born&order=oldest", "key=none"):
        asked.ask("GET", f"{_TOPIC}/hot?{question}")
    pages = [
        asked.ask("GET", f"{_TOPIC}/messages?{question}")
        for question in ("key=k3&limit=2", "key=raw&time=born", "from=0&limit=500", "key=none")
    ]
    assert {one["tier"] for page in pages for one in page["messages"]} == {"hot", "cold"}
    assert {page["coverage"]["cut_by"] for page in pages} == {None, "limit"}
    assert "estimate" in asked.ask("GET", f"{_TOPIC}/messages?key=k3&dry_run=true")
    asked.ask("GET", f"{_TOPIC}/messages?from=5&to=6")
    filtered = asked.ask("GET", f"{_TOPIC}/messages?contains=a&where=none=x&tag=*&max_requests=2")
    assert filtered["messages"] == []
    for question in ("", "?time=born&buckets=7", "?from=5&to=6", "?max_requests=0"):
        counted = asked.ask("GET", f"{_TOPIC}/counts{question}")
        assert counted["total"] == sum(each["messages"] for each in counted["counts"])
    for message_id in (ids[0], ids[-1]):
        asked.ask("GET", f"/v1/messages/{message_id}")
    for offset, status in ((0, "FOUND"), (10**6, "OFFSET_TOO_LARGE")):
        assert asked.ask("GET", f"{_TOPIC}/queues/0/messages?offset={offset}")["status"] == status
    asked.ask("GET", f"{_TOPIC}/queues/0/offset?time_ms=2026-01-01")
    for path in ("/v1/topics", _TOPIC, "/v1/files", "/v1/timeline", "/v1/stats", "/livez", "/readyz"):
        asked.ask("GET", path)
    assert asked.ask("GET", "/v1/timeline?time=born")["time"] == "born"
    _ask_of_groups(asked)
    _ask_of_a_lone_store(asked)
    asked.seen |= _asked_in_a_cluster(tmp_path / "cluster")
    asked.ask("POST", "/v1/admin/flush")
    asked.ask("POST", "/v1/admin/check", {"deep": True})
    assert asked.ask("POST", "/v1/admin/erase", {"topic": "orders", "key": "k2", "dry_run": True})["state"] == "dry run"
    receipt = asked.ask("POST", "/v1/admin/erase", {"topic": "orders", "key": "k2", "wait": True})
    assert receipt["segments_rewritten"]
    asked.ask("GET", f"/v1/admin/receipts/{receipt['tombstone_id']}")
    asked.ask("GET", "/v1/admin/receipts")
    asked.ask("DELETE", "/v1/topics/orders?dry_run=true")
    asked.ask("DELETE", "/v1/topics/orders?all=true")
    (damaged,) = (tmp_path / "cold").rglob(f"{receipt['tombstone_id']}.json")
    damaged.write_bytes(b"{")
    assert "damaged" in {one["state"] for one in asked.ask("GET", "/v1/admin/receipts")["receipts"]}
    assert asked.operations() <= {operation for operation, status in asked.seen if status == "200"}


def _ask_of_groups(asked: Checked) -> None:
    member = asked.ask("POST", "/v1/groups/g/members", {"topics": ["orders"]})
    who = {"member_id": member["member_id"], "generation": member["generation"]}
    offsets = [{"topic": "orders", "queue_id": 0, "offset": 3}]
    asked.ask("PUT", "/v1/groups/g/offsets", {**who, "offsets": offsets})
    asked.ask("PUT", "/v1/groups/g/offsets", {**who, "generation": 999, "offsets": offsets}, 409)
    asked.ask("GET", "/v1/groups/g/offsets")
    asked.ask("PUT", f"/v1/groups/g/members/{member['member_id']}")
    asked.ask("GET", "/v1/groups/g")
    asked.ask("GET", "/v1/groups")
    asked.ask("DELETE", "/v1/groups/g", status=409)
    asked.ask("DELETE", f"/v1/groups/g/members/{member['member_id']}")
    asked.ask("POST", "/v1/groups/g/reset", {"time": "2h"})
    asked.ask("DELETE", "/v1/groups/g")
    found = asked.ask("POST", "/v1/groups/w/receive?wait_ms=1", {"topic": "orders", "limit": 4})["messages"]
    done, back, letter, longer = (one["handle"] for one in found)
    asked.ask("POST", "/v1/groups/w/ack", {"handles": [done]})
    asked.ask("POST", "/v1/groups/w/ack", {"handles": [done]}, 400)
    asked.ask("POST", "/v1/groups/w/nack", {"handles": [back, done], "reason": "busy"})
    asked.ask("POST", "/v1/groups/w/dead-letters", {"handles": [letter]})
    asked.ask("POST", "/v1/groups/w/extend", {"handle": longer, "invisible_ms": 1})


def _ask_of_a_lone_store(asked: Checked) -> None:
    asked.ask("GET", "/v1/cluster")
    asked.ask("GET", "/v1/cluster/topics/orders")
    asked.ask("DELETE", "/v1/cluster/topics/orders", status=409)


def _asked_in_a_cluster(folder: Path) -> set[tuple[str, str]]:
    """What an operator decides, at one of two nodes."""
    objects = MemoryObjectStore(SystemClock())
    settings = tiny_settings(cluster__address="http://a:8080")
    engine = Store.open(folder, cold_url="memory://cluster", store_id="a", objects=objects, settings=settings)
    with contextlib.closing(engine):
        view = join_cluster(engine, settings)
        assert view is not None
        own = OwnNode("b", "http://b:8080", "v", lambda: 1)
        for one in (view, TableView(objects, SystemClock(), SystemRandomness(), refresh_ms=1_000, own=own), view):
            one.look()
            one.enter()
        asked = Checked(engine, view)
        routed = asked.ask("PUT", "/v1/cluster/topics/orders", {"store_id": "b"})
        assert routed["topics"] == [{"topic": "orders", "store_id": "b"}]
        asked.ask("PUT", "/v1/cluster/topics/orders", {"store_id": "c"}, 404)
        assert asked.ask("GET", "/v1/cluster/topics/orders")["is_routed"]
        asked.ask("DELETE", "/v1/cluster/topics/orders")
        asked.ask("PUT", "/v1/cluster/closed/b")
        asked.ask("PUT", "/v1/cluster/closed/a", status=409)
        asked.ask("DELETE", "/v1/cluster/closed/b")
        asked.ask("DELETE", "/v1/cluster/stores/b")
        asked.ask("DELETE", "/v1/cluster/stores/b", status=404)
        assert [one["store_id"] for one in asked.ask("GET", "/v1/cluster")["stores"]] == ["a"]
        return asked.seen


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", f"{_TOPIC}/messages", None, 404),
        ("GET", f"{_TOPIC}/messages?form=5", None, 400),
        ("POST", f"{_TOPIC}/messages", {"messages": []}, 422),
        ("POST", f"{_TOPIC}/messages", {"messages": [{"body": "x" * 30_000}]}, 413),
        ("GET", f"/v1/admin/receipts/{16 * '0'}", None, 404),
    ],
)
def test_a_refusal_is_a_problem_as_the_document_says(
    engine: Store, method: str, path: str, body: object, status: int
) -> None:
    problem = Checked(engine).ask(method, path, body, status)
    assert problem["status"] == status


def test_a_store_that_cannot_write_or_search_all_says_so_in_the_documented_shape(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    with_data = Store.open(tmp_path / "store", cold_url=f"file://{cold}", settings=tiny_settings())
    _produce(Checked(with_data), 0, 200)
    with_data.archive(everything=True, drop_hot=True)
    with_data.close()
    for segment in cold.rglob("log/*"):
        segment.unlink()
    engine = Store.open(tmp_path / "store", settings=tiny_settings(), read_only=True)
    try:
        asked = Checked(engine)
        asked.ask("GET", "/readyz", status=503)
        asked.ask("POST", f"{_TOPIC}/messages", {"messages": [{"body": "x"}]}, 503)
        coverage = asked.ask("GET", f"{_TOPIC}/messages?key=k3")["coverage"]
        assert (coverage["complete"], bool(coverage["failures"])) == (False, True)
    finally:
        engine.close()


def test_the_examples_of_the_document_are_accepted(engine: Store) -> None:
    app = create_app(engine, tiny_settings())
    document = app.openapi()
    forms = document["paths"]["/v1/topics/{topic}/messages"]["post"]["requestBody"]["content"]
    lines = forms["application/x-ndjson"]["example"].splitlines()
    examples = document["components"]["schemas"]["MessageIn"]["examples"]
    asked = Checked(engine)
    asked.ask("POST", f"{_TOPIC}/messages", {"messages": [*examples, *map(json.loads, lines)]})
