"""Callers without rights left objects behind, learnt where groups are and a store's paths, and shared windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.service.access import GuardedService, line, token
from tests.support.service.fixed_cluster import Node, Nodes, nodes
from tierlog.service.config.serve import AccessSettings
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.tiering.message.batch import Message

ENTRIES = [
    line("root", "read,produce,admin", "*"),
    line("reader", "read", "shop-*"),
    line("writer", "produce", "shop-*"),
    line("other", "produce", "shop-*"),
    line("stranger", "read,produce,admin", "else-*"),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GuardedService]:
    made = GuardedService(tmp_path, ENTRIES)
    yield made
    assert made.engine.check() == []
    made.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, Node, Node]]:
    access = AccessSettings(tokens="\n".join(ENTRIES))
    with nodes(tmp_path_factory.mktemp("cluster")) as made:
        a, b = (made.add(name, access=access) for name in ("store-a", "store-b"))
        made.homes["shop-1"] = "store-b"
        b.engine.append([Message("shop-1", b"x", queue_id=0)])
        yield made, a, b


def ask(node: Node, method: str, path: str, body: object = None, *, by: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token(by)}", "X-Request-Id": "r1"}
    return node.ask(method, path, body, headers=headers)


@pytest.mark.parametrize("node", [1, 2])
def test_a_refused_call_decides_no_groups_home(cluster: tuple[Nodes, Node, Node], node: int) -> None:
    groups, (_, *asked) = cluster[0].groups, cluster
    before = dict(groups)
    offsets = {"offsets": [{"topic": "shop-1", "store_id": "store-b", "queue_id": 0, "offset": 99}]}
    unknown = {"offsets": [{"topic": "shop-none", "queue_id": 0, "offset": 0}]}
    for method, path, body, by, status in (
        ("POST", "/v1/groups/new/members", {"topics": ["shop-1"]}, "stranger", 403),
        ("POST", "/v1/groups/new/members", {"topics": ["shop-1"]}, "writer", 403),
        ("POST", "/v1/groups/new/members", {"topics": ["shop-1"]}, "nobody", 401),
        ("POST", "/v1/groups/new/members", {"topics": []}, "reader", 422),
        ("POST", "/v1/groups/new/members", {"topics": ["shop-1"], "session_timeout_ms": 1}, "reader", 422),
        ("PUT", "/v1/groups/new/offsets", offsets, "stranger", 403),
        ("PUT", "/v1/groups/new/offsets", offsets, "reader", 503),
        ("PUT", "/v1/groups/new/offsets", unknown, "reader", 404),
    ):
        assert ask(asked[node - 1], method, path, body, by=by).status_code == status, (path, body, by)
    assert groups == before
    name = f"made-{node}"
    joined = ask(asked[node - 1], "POST", f"/v1/groups/{name}/members", {"topics": ["shop-1"]}, by="reader")
    assert (joined.status_code, joined.headers["tierlog-store"], groups[name]) == (200, "store-a", "store-a")


def test_where_a_group_or_topic_is_is_told_to_no_stranger(cluster: tuple[Nodes, Node, Node]) -> None:
    made, a, b = cluster
    made.groups["hidden"] = "store-b"
    assert ask(b, "POST", "/v1/groups/hidden/members", {"topics": ["shop-1"]}, by="root").status_code == 200
    assert ask(a, "GET", "/v1/groups/hidden", by="reader").headers["tierlog-store"] == "store-b"
    for node in (a, b):
        for method, path in (
            ("GET", "/v1/groups/hidden"),
            ("GET", "/v1/groups/hidden/offsets"),
            ("DELETE", "/v1/groups/hidden"),
            ("GET", "/v1/groups/hidden?store_id=store-a"),
        ):
            there = ask(node, method, path, by="stranger")
            not_there = ask(node, method, path.replace("hidden", "hiddeN"), by="stranger")
            assert there.status_code == 404
            assert there.text == not_there.text.replace("hiddeN", "hidden")
            where = [answer.headers.get(name) for answer in (there, not_there) for name in _PLACES]
            assert where[:2] == where[2:], path
        refused = ask(node, "POST", "/v1/topics/shop-1/messages", {"messages": [{"body": "x"}]}, by="stranger")
        assert (refused.status_code, [refused.headers.get(name) for name in _PLACES]) == (403, [node.store_id, None])
        wrong = ask(node, "POST", "/v1/groups/hidden/members?store_id=store-a", {"topics": ["else-1"]}, by="stranger")
        assert (wrong.status_code, "store-b" in wrong.text) == (400, False)
    assert ask(a, "GET", "/v1/groups/hidden", by="writer").status_code == 403


_PLACES = ("tierlog-store", "tierlog-address")


def test_a_home_that_is_down_is_named_to_no_stranger(cluster: tuple[Nodes, Node, Node]) -> None:
    made, a, _ = cluster
    made.places["store-c"] = "http://127.0.0.1:9"
    made.groups["silent"] = made.homes["shop-silent"] = "store-c"
    try:
        for method, path, body in (
            ("GET", "/v1/groups/silent", None),
            ("POST", "/v1/topics/shop-silent/messages", {"messages": [{"body": "x"}]}),
        ):
            answer = ask(a, method, path, body, by="stranger")
            assert answer.status_code == 503
            assert not {"store-c", "127.0.0.1:9"} & set(answer.text.split('"'))
            assert "store-c" not in answer.text + str(answer.headers)
            assert ask(a, method, path, body, by="root").json()["store_id"] == "store-c"
    finally:
        del made.places["store-c"]


def test_each_caller_has_producers_of_its_own(service: GuardedService) -> None:
    path, key = "/v1/topics/shop-1/messages", {"Idempotency-Key": "loader:0"}

    def send(by: str, body: str) -> httpx.Response:
        return service.ask("POST", path, {"messages": [{"body": body}]}, by=by, headers=key)

    first = send("writer", "mine").json()
    assert send("other", "mine").json() != first, "its own, and not another's answer"
    assert send("root", "yours").status_code == 200, "no window to guess in"
    assert send("writer", "mine").json() == first
    assert send("writer", "changed").status_code == 422
    bodies = [one["body"] for one in service.ask("GET", path, by="root").json()["messages"]]
    assert sorted(bodies) == ["mine", "mine", "yours"]


def test_a_callers_window_survives_a_restart_and_knows_records_from_before(tmp_path: Path) -> None:
    path, key = "/v1/topics/shop-1/messages", {"Idempotency-Key": "loader:0"}
    before = GuardedService(tmp_path, ENTRIES)
    old = before.engine.append([Message("shop-1", b"old")], key=_unowned())[0]
    sent = {"messages": [{"body": "new"}]}
    first = before.ask("POST", path, sent, by="writer", headers={"Idempotency-Key": "p:7"}).json()
    before.close()
    again = GuardedService(tmp_path, ENTRIES)
    assert again.ask("POST", path, sent, by="writer", headers={"Idempotency-Key": "p:7"}).json() == first
    known = again.ask("POST", path, {"messages": [{"body": "old"}]}, by="writer", headers=key).json()["results"][0]
    assert known["message_id"] == old.message_id
    assert again.ask("POST", path, {"messages": [{"body": "another's"}]}, by="other", headers=key).status_code == 200
    bodies = [one["body"] for one in again.ask("GET", path, by="root").json()["messages"]]
    assert sorted(bodies) == ["another's", "new", "old"]
    again.close()


def _unowned() -> IdempotencyKey:
    """As all were before callers had producers of their own."""
    return IdempotencyKey("loader")


def test_readiness_names_the_part_and_no_path_to_whom_may_not_read(tmp_path: Path) -> None:
    service = GuardedService(tmp_path, ENTRIES)
    service.engine._hot.guard.turn_read_only("flush failed: [/data/store/commitlog/0]")
    for by in (None, "nobody", "writer"):
        told = service.ask("GET", "/readyz", by=by)
        assert (told.status_code, told.json()["detail"]) == (503, "the store is read-only")
    told = service.ask("GET", "/readyz", by="reader")
    assert (told.status_code, "/data/store" in told.json()["detail"]) == (503, True)
    service.close()


def test_every_answer_says_that_it_is_what_it_says_and_kept_nowhere(service: GuardedService) -> None:
    asked = [
        ("GET", "/v1/topics", "root", None),
        ("GET", "/v1/topics/none", "root", None),
        ("GET", "/v1/topics", None, None),
        ("GET", "/nowhere", "root", None),
        ("GET", "/livez", None, None),
        ("GET", "/metrics", "root", None),
        ("OPTIONS", "/v1/topics", "root", None),
        ("POST", "/v1/topics/shop-1/messages", "writer", {"messages": [{"body": "x"}]}),
        ("POST", "/v1/topics/shop-1/messages", "reader", {"messages": [{"body": "x"}]}),
        ("GET", "/v1/topics/shop-1/messages?all=true", "root", None),
    ]
    for method, path, by, body in asked:
        headers = service.ask(method, path, body, by=by).headers
        assert headers.get_list("x-content-type-options") == ["nosniff"], path
        assert headers.get_list("cache-control") == ["no-store"], path
    assert service.ask("GET", "/", by=None).headers.get_list("cache-control") == ["no-cache"]


def test_a_problem_names_paths_to_those_who_may_see_files(tmp_path: Path) -> None:
    service = GuardedService(tmp_path, ENTRIES)
    service.engine._hot.guard.turn_read_only("flush failed: [/data/store/commitlog/0]")
    sent = {"messages": [{"body": "x"}]}
    told = service.ask("POST", "/v1/topics/shop-1/messages", sent, by="writer")
    assert (told.status_code, told.json()["detail"]) == (503, "the store is read-only")
    told = service.ask("POST", "/v1/topics/shop-1/messages", sent, by="root")
    assert "/data/store" in told.json()["detail"]
    service.close()
