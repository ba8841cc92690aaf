"""A topic with queues in several stores of a cluster: the client reads all of them, and names the store of each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import tierlog
from tests.support.service.fixed_cluster import nodes
from tests.support.stores.engines import tiny_settings
from tierlog.client import Client, Consumer, Message, QueueRef, StoredMessage

SETTINGS = tiny_settings(cluster__refresh_ms=100, cluster__retry_ms=0, cluster__ask_timeout_ms=20_000)


def until(reached: Callable[[], bool]) -> None:
    while not reached():
        threading.Event().wait(0.01)


def test_a_consumer_reads_and_commits_the_queues_of_all_stores(tmp_path: Path) -> None:
    with nodes(tmp_path) as made:
        by_store = {}
        for store_id, queues in (("store-a", 2), ("store-b", 3)):
            node = by_store[store_id] = made.add(store_id, settings=SETTINGS)
            node.engine.create_topic("orders", queues)
        made.homes["orders"] = "store-b"
        with Client(by_store["store-a"].url) as client:
            sent = [client.append("orders", [Message(f"b{number}", queue_id=number % 3)]) for number in range(9)]
            made.homes["orders"] = "store-a"
            with Client(by_store["store-b"].url) as other:
                sent += [other.append("orders", [Message(f"a{number}", queue_id=number % 2)]) for number in range(6)]
            assert len(sent) == 15
            got: list[StoredMessage] = []
            all_came = threading.Event()

            def handle(message: StoredMessage) -> None:
                got.append(message)
                if len(got) == 15:
                    all_came.set()

            with Consumer(client, "audit", "orders", handle):
                assert all_came.wait(60)
            committed = client.committed("audit")
            group = client.group("audit")
    assert {(one.store_id, one.body) for one in got} == {
        (f"store-{body[:1]}", body.encode())
        for body in [f"a{number}" for number in range(6)] + [f"b{number}" for number in range(9)]
    }
    assert committed == {
        **{QueueRef("orders", "store-a", queue): 3 for queue in range(2)},
        **{QueueRef("orders", "store-b", queue): 3 for queue in range(3)},
    }
    assert (group.lag, group.stores_down) == (0, ())


def test_a_producer_keeps_to_the_store_that_it_began_with(tmp_path: Path) -> None:
    """What another store took would be appended again by a request that is sent again."""
    with nodes(tmp_path) as made:
        first, second = (made.add(store_id, settings=SETTINGS) for store_id in ("store-a", "store-b"))
        made.homes["orders"] = "store-a"
        with Client(second.url) as client, client.producer("orders") as producer:
            producer.send("1")
            made.homes["orders"] = "store-b"
            producer.send("2")
        assert first.bodies("orders") == {"1", "2"}
        assert second.bodies("orders") == set()


def test_a_store_that_is_down_holds_up_no_commit_of_the_others(tmp_path: Path) -> None:
    settings = tiny_settings(cluster__refresh_ms=60_000, cluster__retry_ms=1_000, cluster__ask_timeout_ms=2_000)
    with nodes(tmp_path) as made:
        one, other = (made.add(store_id, settings=settings) for store_id in ("store-a", "store-b"))
        for node in (one, other):
            node.engine.create_topic("orders", 1)
        begun, gate = threading.Event(), threading.Event()

        def handle(message: StoredMessage) -> None:
            if message.store_id == "store-b":
                begun.set()
                gate.wait(60)

        queue = QueueRef("orders", "store-a", 0)
        with (
            Client(one.url) as client,
            Consumer(client, "audit", "orders", handle, commit_interval_s=0.1, wait_ms=200, read_ahead=50) as consumer,
        ):
            until(lambda: len(consumer.assignment) == 2)
            other.engine.append([tierlog.Message("orders", b"b", queue_id=0)])
            assert begun.wait(60)
            place, made.places["store-b"] = made.places["store-b"], "http://127.0.0.1:9"
            gate.set()
            for number in range(200):  # which are more than are read ahead
                one.engine.append([tierlog.Message("orders", b"%d" % number, queue_id=0)])
            until(lambda: client.committed("audit").get(queue) == 200)
            made.places["store-b"] = place
            until(lambda: client.committed("audit").get(QueueRef("orders", "store-b", 0)) == 1)


def test_a_store_that_leaves_the_cluster_takes_its_queues_along(tmp_path: Path) -> None:
    with nodes(tmp_path) as made:
        one, other = (made.add(store_id, settings=SETTINGS) for store_id in ("store-a", "store-b"))
        for node in (one, other):
            node.engine.create_topic("orders", 1)
        got: list[bytes] = []
        with (
            Client(one.url) as client,
            Consumer(client, "audit", "orders", lambda each: got.append(each.body), wait_ms=200) as consumer,
        ):
            until(lambda: len(consumer.assignment) == 2)
            del made.places["store-b"]
            until(lambda: len(consumer.assignment) == 1)
            one.engine.append([tierlog.Message("orders", b"more", queue_id=0)])
            until(lambda: got == [b"more"])
