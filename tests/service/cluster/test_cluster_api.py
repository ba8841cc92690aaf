"""The cluster over HTTP: what everybody may look at, and what an operator decides."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.access.audit import AuditLog
from tierlog.service.access.caller import Caller, Scope
from tierlog.service.api.application.app import create_app
from tierlog.service.api.application.process import join_cluster
from tierlog.service.cluster.documents import cluster_json, home_in_table, home_json, table_json
from tierlog.service.cluster.table_view import OwnNode, TableView
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.objects.memory import MemoryObjectStore

SETTINGS = tiny_settings(cluster__address="http://a:8080")


class World:
    """One served node ``a``, another that is only in the table, and the operator's client."""

    def __init__(self, root: Path, objects: MemoryObjectStore) -> None:
        self.root = root
        self.engine = Store.open(
            root, settings=SETTINGS, cold_url="memory://cluster-api", store_id="a", objects=objects
        )
        view = join_cluster(self.engine, SETTINGS)
        assert view is not None
        self.view = view
        own = OwnNode("b", "http://b:8080", "v", lambda: 1, doors={"remoting": "b:9876", "grpc": "b:8081"})
        self.other = TableView(objects, SystemClock(), SystemRandomness(), refresh_ms=1_000, own=own)
        for one in (self.view, self.other, self.view):
            one.look()
            one.enter()
        self.audit = AuditLog(LocalFileSystem(), StorePaths(root).audit, SystemClock(), SystemRandomness(), 1 << 20)
        self.client = ApiClient(create_app(self.engine, SETTINGS, cluster=self.view, audit=self.audit))

    def ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self.client.request(method, f"/v1/cluster{path}", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        answer = self.client.request(method, f"/v1/cluster{path}", body)
        return answer.status_code, answer.json()["detail"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, MemoryObjectStore(SystemClock()))
    with contextlib.closing(found.engine), contextlib.closing(found.audit):
        yield found


def test_everybody_is_told_who_is_there(world: World) -> None:
    told = world.ask("GET", "")
    assert (told["store_id"], told["version"], told["error"]) == ("a", 2, None)
    assert told["age_ms"] >= 0
    assert [(one["store_id"], one["url"], one["closed"], one["is_own"]) for one in told["stores"]] == [
        ("a", "http://a:8080", False, True), ("b", "http://b:8080", False, False),
    ]  # fmt: skip
    assert told["stores"][0]["epoch"] == 1
    assert [one["doors"] for one in told["stores"]] == [{}, {"grpc": "b:8081", "remoting": "b:9876"}]


def test_a_route_is_obeyed_at_once_here_and_soon_elsewhere(world: World) -> None:
    hashed = world.ask("GET", "/topics/orders")
    other = {"a": "b", "b": "a"}[hashed["store_id"]]
    assert hashed == {"topic": "orders", "store_id": hashed["store_id"], "url": hashed["url"], "is_routed": False}
    told = world.ask("PUT", "/topics/orders", {"store_id": other})
    assert told["topics"] == [{"topic": "orders", "store_id": other}]
    routed = world.ask("GET", "/topics/orders")
    assert (routed["store_id"], routed["is_routed"]) == (other, True)
    world.other.look()
    assert world.other.home_of_topic("orders") == other
    assert home_in_table(world.other.table, "orders") == routed
    assert world.ask("DELETE", "/topics/orders")["topics"] == []
    assert world.ask("GET", "/topics/orders") == hashed
    assert home_in_table(world.view.table, "orders") == hashed


def test_a_store_is_closed_opened_and_taken_out(world: World) -> None:
    assert [one["closed"] for one in world.ask("PUT", "/closed/b")["stores"]] == [False, True]
    assert {world.ask("GET", f"/topics/t{number}")["store_id"] for number in range(9)} == {"a"}
    assert world.refused("PUT", "/closed/a") == (409, "store a is the only one that is open")
    assert [one["closed"] for one in world.ask("DELETE", "/closed/b")["stores"]] == [False, False]
    assert [one["store_id"] for one in world.ask("DELETE", "/stores/b")["stores"]] == ["a"]
    assert world.refused("DELETE", "/stores/b")[0] == 404


def test_what_is_wrong_is_refused_in_words(world: World) -> None:
    assert world.refused("PUT", "/topics/orders", {"store_id": "c"}) == (404, "store 'c' is not in the cluster")
    assert world.refused("PUT", "/topics/orders", {"store_id": "C"})[0] == 400
    assert world.refused("PUT", "/topics/orders", {"store": "b"})[0] == 422
    assert world.refused("PUT", "/closed/c")[0] == 404
    assert world.view.table.version == 2


def test_every_change_is_on_record(world: World) -> None:
    world.ask("PUT", "/topics/orders", {"store_id": "b"})
    world.ask("PUT", "/closed/b")
    world.refused("DELETE", "/stores/zz")
    lines = [
        json.loads(line)
        for file in sorted(StorePaths(world.root).audit.iterdir())
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    asked = [(line["method"], line["path"]) for line in lines if "method" in line]
    assert ("PUT", "/v1/cluster/topics/orders") in asked
    assert ("PUT", "/v1/cluster/closed/b") in asked
    assert ("DELETE", "/v1/cluster/stores/zz") in asked


def test_a_store_that_is_alone_tells_of_itself_and_has_nothing_to_change(tmp_path: Path) -> None:
    settings = tiny_settings()
    with contextlib.closing(Store.open(tmp_path, settings=settings, store_id="lone")) as engine:
        client = ApiClient(create_app(engine, settings))
        told = client.request("GET", "/v1/cluster").json()
        assert [(one["store_id"], one["url"], one["is_own"]) for one in told["stores"]] == [("lone", None, True)]
        assert told["stores"][0]["doors"] == {}
        assert (told["version"], told["age_ms"]) == (0, None)
        home = client.request("GET", "/v1/cluster/topics/orders").json()
        assert home == {"topic": "orders", "store_id": "lone", "url": None, "is_routed": False}
        refused = client.request("PUT", "/v1/cluster/closed/lone")
        assert (refused.status_code, refused.json()["detail"]) == (
            409, "this store is in no cluster, so there is no table to change",
        )  # fmt: skip


def test_topics_that_a_caller_may_not_see_are_left_out(world: World) -> None:
    world.ask("PUT", "/topics/orders", {"store_id": "b"})
    world.ask("PUT", "/topics/secret", {"store_id": "b"})
    caller = Caller("shop", frozenset({Scope.READ}), ("orders",))
    told = cluster_json(world.view, "a", lambda topic: caller.may(Scope.READ, topic))
    assert [one["topic"] for one in told["topics"]] == ["orders"]


def test_who_reads_the_bucket_alone_is_told_the_same(world: World) -> None:
    told, alone = cluster_json(world.view, None), table_json(world.other.table)
    assert (told["stores"], told["topics"]) == (alone["stores"], alone["topics"])
    assert home_json(world.view, "a", "x") == home_in_table(world.other.table, "x")
