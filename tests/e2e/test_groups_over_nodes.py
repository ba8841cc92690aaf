"""A consumer group over the stores of a cluster, asked through any node: one group, all queues, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.fixed_cluster import Node, Nodes, nodes
from tests.support.stores.engines import tiny_settings
from tierlog.service.cli.remote import RemoteTarget
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message

GROUP = "/v1/groups/billing"
SETTINGS = tiny_settings(cluster__refresh_ms=100, cluster__retry_ms=0, cluster__ask_timeout_ms=20_000)
Queue = tuple[str, int]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path) as found:
        yield found


def filled(made: Nodes, store_id: str, queues: int) -> Node:
    """A node with two messages in each queue of ``orders``."""
    node = made.add(store_id, settings=SETTINGS)
    node.engine.create_topic("orders", queues)
    for queue_id in range(queues):
        bodies = [f"{store_id}/{queue_id}/{number}".encode() for number in range(2)]
        node.engine.append([Message("orders", body, queue_id=queue_id) for body in bodies])
    return node


def asked(node: Node, method: str, path: str, body: object = None, status: int = 200) -> Any:
    answer = node.ask(method, path, body)
    assert answer.status_code == status, answer.text
    return answer.json()


def join(node: Node) -> Any:
    return asked(node, "POST", f"{GROUP}/members", {"topics": ["orders"]})


def queues(member: Any) -> list[Queue]:
    return [(one["store_id"], one["queue_id"]) for one in member["assignment"]]


def commit(node: Node, member: Any, offsets: dict[Queue, int], status: int = 200) -> Any:
    entries = [
        {"topic": "orders", "store_id": store_id, "queue_id": queue_id, "offset": offset}
        for (store_id, queue_id), offset in offsets.items()
    ]
    named = {"member_id": member["member_id"], "generation": member["generation"]}
    return asked(node, "PUT", f"{GROUP}/offsets", {**named, "offsets": entries}, status)


def test_members_at_any_node_share_consume_and_commit_the_queues_of_all_stores(made: Nodes) -> None:
    a, b = filled(made, "store-a", 2), filled(made, "store-b", 3)
    first, second = join(b), join(a)
    first = asked(a, "PUT", f"{GROUP}/members/{first['member_id']}")
    assert first["generation"] == second["generation"] == 2
    every = [("store-a", 0), ("store-a", 1), ("store-b", 0), ("store-b", 1), ("store-b", 2)]
    assert sorted(queues(first) + queues(second)) == every
    bodies = []
    for member, node in ((first, a), (second, b)):
        for store_id, queue_id in queues(member):
            page = asked(node, "GET", f"/v1/topics/orders/queues/{queue_id}/messages?offset=0&store_id={store_id}")
            bodies += [message["body"] for message in page["messages"]]
            commit(node, member, {(store_id, queue_id): page["next_offset"]})
    assert sorted(bodies) == [f"{store_id}/{queue_id}/{at}" for store_id, queue_id in every for at in range(2)]
    told = [asked(node, "GET", GROUP) for node in (a, b)]
    for group in told:
        assert (group["lag"], group["stores_down"]) == (0, [])
        assert [(one["store_id"], one["queue_id"], one["offset"]) for one in group["queues"]] == [
            (*queue, 2) for queue in every
        ]
    assert asked(a, "GET", f"/v1/groups?store_id={b.store_id}") == {"groups": []}, "the home alone keeps it"
    theirs = next(queue for queue in queues(first) + queues(second) if queue[0] == "store-b")
    member = first if theirs in queues(first) else second
    refused = commit(b, member, {theirs: 3}, 400)
    assert f"orders/{theirs[1]} of store store-b is not in [0, 2]" in refused["detail"]


def test_a_store_that_is_added_brings_a_generation_with_its_queues(made: Nodes) -> None:
    a = filled(made, "store-a", 1)
    member = join(a)
    assert queues(member) == [("store-a", 0)]
    filled(made, "store-b", 1)
    more = asked(a, "PUT", f"{GROUP}/members/{member['member_id']}")
    assert (more["generation"], queues(more)) == (2, [("store-a", 0), ("store-b", 0)])
    assert commit(a, member, {("store-a", 0): 1}, 409)["title"] == "stale generation"
    commit(a, more, {("store-b", 0): 1})


def test_a_store_without_an_answer_takes_no_commit_beyond_what_it_told(made: Nodes) -> None:
    a, b = filled(made, "store-a", 1), filled(made, "store-b", 1)
    member = join(a)
    url, made.places["store-b"] = made.places["store-b"], "http://127.0.0.1:1"
    b.engine.append([Message("orders", b"x", queue_id=0)])
    assert commit(a, member, {("store-a", 0): 1, ("store-b", 0): 3}, 503)["status"] == 503
    assert asked(a, "GET", f"{GROUP}/offsets")["offsets"] == []
    commit(a, member, {("store-b", 0): 2})
    made.places["store-b"] = url
    commit(a, member, {("store-a", 0): 1, ("store-b", 0): 3})


def test_the_home_restarted_knows_the_offsets_of_all_stores(tmp_path: Path) -> None:
    with nodes(tmp_path) as made:
        a, _ = filled(made, "store-a", 1), filled(made, "store-b", 1)
        member = join(a)
        commit(a, member, {("store-a", 0): 1, ("store-b", 0): 2})
    with nodes(tmp_path) as made:
        a = made.add("store-a", settings=SETTINGS)
        made.places["store-b"] = "http://127.0.0.1:1"
        offsets = asked(a, "GET", f"{GROUP}/offsets")["offsets"]
        assert [(one["store_id"], one["offset"]) for one in offsets] == [("store-a", 1), ("store-b", 2)]
        group = asked(a, "GET", GROUP)
        assert (group["lag"], group["stores_down"]) == (None, ["store-b"])
        assert queues(join(a)) == [("store-a", 0)], "it never answered"


def test_a_command_that_is_about_one_store_asks_that_one(made: Nodes) -> None:
    a, b = made.add("store-a"), made.add("store-b")
    made.homes["orders"] = "store-a"
    target = RemoteTarget(a.url)
    target.only_store("store-b")
    target.create_topic("orders", 3)
    target.append([Message("orders", b"x", queue_id=1)], Durability.FLUSHED)
    assert (target.queues_of("orders"), a.bodies("orders"), b.bodies("orders")) == (3, set(), {"x"})
    made.groups["g"] = "store-a"
    target.commit_offsets("g", {("orders", "store-b", 1): 1})
    assert RemoteTarget(b.url).committed_offsets("g") == {("orders", "store-b", 1): 1}


def test_a_group_is_moved_in_all_stores_through_any_node(made: Nodes) -> None:
    a, b = filled(made, "store-a", 1), filled(made, "store-b", 2)
    member = join(a)
    commit(a, member, {("store-a", 0): 1, ("store-b", 0): 1})
    asked(a, "POST", f"{GROUP}/reset", {"to": "first"}, 409)
    asked(b, "DELETE", f"{GROUP}/members/{member['member_id']}")
    for node, wanted, offsets in (
        (b, {"to": "latest"}, [2, 2, 2]),
        (a, {"time": "1h"}, [0, 0, 0]),
        (b, {"time": "now+1h"}, [2, 2, 2]),
        (b, {"offset": 1, "store_id": "store-b", "queue_id": 1}, [2, 2, 1]),
    ):
        asked(node, "POST", f"{GROUP}/reset", wanted)
        assert [one["offset"] for one in asked(a, "GET", f"{GROUP}/offsets")["offsets"]] == offsets
    listed = RemoteTarget(b.url).groups()
    assert [(one["group"], one["store_id"], one["topics"], one["lag"]) for one in listed] == [
        ("billing", "store-a", ["orders"], 1)
    ]
    made.places["store-b"] = "http://127.0.0.1:1"
    asked(a, "POST", f"{GROUP}/reset", {"time": "1h"}, 503)
    assert [one["offset"] for one in asked(a, "GET", f"{GROUP}/offsets")["offsets"]] == [2, 2, 1]
