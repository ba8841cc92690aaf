"""A Spring Boot application with rocketmq-spring-boot-starter works unchanged: its template and its listeners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.processes.nodes import ask
from tests.support.rocketmq.real_clients import (
    ClientError,
    Doors,
    RealClient,
    SpringShop,
    TierlogServer,
    fresh,
    keys,
    names,
    spring_client,
    tierlog_server,
    wait_for_topic,
)
from tests.tools.rocketmq_clients import JAVA_SPRING, ClientProgram

FolderOf = Callable[[ClientProgram], Path]
pytestmark = pytest.mark.timeout(400)
_TOPICS = {name: f"shop-{name}" for name in ("orders", "steps", "tagged")}
_TOKEN, _SECRET = "a-token-of-the-shop", "the-secret-of-the-shop"


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch"])
def test_what_the_template_sends_in_any_way_is_received_by_a_listener(shop: SpringShop, how: str) -> None:
    sent = fresh(how)
    answer = shop.do("send", topic=shop.topics["orders"], tag="new", prefix=sent, how=how, count=20)
    acknowledged = {"sync": 20, "async": 20}.get(how, 0)
    assert [message["status"] for message in answer.get("messages", [])] == ["SEND_OK"] * acknowledged
    assert how != "batch" or answer["status"] == "SEND_OK"
    got = shop.received("concurrently", sent, 20)
    assert keys(got) == names(sent, 20)
    assert {(message["tag"], message["attempts_before"]) for message in got} == {("new", 0)}


def test_orders_with_one_hash_key_come_in_their_order(shop: SpringShop) -> None:
    sent = fresh("step")
    queues = defaultdict(set)
    for number, message in enumerate(shop.send(shop.topics["steps"], sent, how="ordered", count=24, shards=3)):
        queues[number % 3].add(message["queue"])
    assert [len(found) for found in queues.values()] == [1, 1, 1]
    got = shop.received("orderly", sent, 24)
    assert keys(got) == names(sent, 24)
    for shard in range(3):
        numbers = [int(message["key"].rpartition("-")[2]) for message in got]
        assert [number for number in numbers if number % 3 == shard] == list(range(shard, 24, 3))


def test_a_listener_gets_only_the_tags_that_it_selects_and_its_own_class(shop: SpringShop) -> None:
    sent = fresh("tag")
    for tag in ("a", "b", "c"):
        shop.send(shop.topics["tagged"], f"{sent}-{tag}", tag=tag, count=4)
    shop.received("tagged", sent, 8)
    got = shop.received("tagged", sent, 9, limit_ms=1_000)
    assert keys(got) == sorted(names(f"{sent}-a", 4) + names(f"{sent}-c", 4))
    assert all(order["body"] == f"body of {order['key']}" for order in got)


@pytest.mark.parametrize(("how", "at_least_ms"), [("level", 1_000), ("delayed", 1_500)])
def test_a_delayed_order_comes_after_its_time_and_once(shop: SpringShop, how: str, at_least_ms: int) -> None:
    sent = fresh("delayed")
    shop.send(shop.topics["orders"], sent, how=how, level=1, delay_ms=1_500)
    shop.received("concurrently", sent, 1)
    (got,) = shop.received("concurrently", sent, 2, limit_ms=1_500)
    # the real server's clock of timers has ticks of a second
    assert got["waited_ms"] >= min(at_least_ms, 1_000)


def test_a_transaction_is_received_only_when_it_is_committed(shop: SpringShop) -> None:
    sent = fresh("transaction")
    told = {"yes": ("COMMIT", "UNKNOWN"), "no": ("ROLLBACK", "UNKNOWN"), "later": ("UNKNOWN", "COMMIT")}
    for name, (now, later) in told.items():
        shop.do("transaction", topic=shop.topics["orders"], prefix=f"{sent}-{name}", now=now, later=later)
    shop.received("concurrently", sent, 2, limit_ms=90_000)
    got = shop.received("concurrently", sent, 3, limit_ms=2_000)
    assert keys(got) == sorted([f"{sent}-yes-0", f"{sent}-later-0"])


def test_what_a_listener_throws_at_comes_again_and_then_lies_with_the_dead_letters(
    shop: SpringShop, java_5: RealClient, doors: Doors
) -> None:
    topic, sent = shop.topics["orders"], fresh("work")
    for key in ("good", "late", "bad"):
        shop.send(topic, f"{sent}-{key}")
    got = shop.received("concurrently", sent, 5)
    wait_for_topic(doors, f"%DLQ%{topic}-readers")
    dead = java_5.consumed(f"%DLQ%{topic}-readers", fresh("undertaker"), 1, limit_ms=60_000)
    assert sorted((message["key"], message["attempts_before"]) for message in got) == sorted(
        [(f"{sent}-good-0", 0), *((f"{sent}-{key}-0", attempt) for key in ("late", "bad") for attempt in (0, 1))]
    )
    assert keys(dead) == [f"{sent}-bad-0"]


# ---- access keys


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogServer]:
    """A service that knows one caller; the topics that the application reads are there."""
    entry = f"shop:{sha256(_TOKEN.encode()).hexdigest()}/{_SECRET}:produce,read,admin:shop-*"
    with tierlog_server(tmp_path_factory.mktemp("guarded"), TIERLOG_ACCESS_TOKENS=entry) as server:
        for topic in _TOPICS.values():
            path, token = f"/v1/topics/{topic}", f"Bearer {_TOKEN}"
            ask(server.doors.url, path, {"queues": 4}, "PUT", Authorization=token)
        yield server


def keyed(access_key: str, secret: str) -> dict[str, str]:
    """The properties of an application that has an access key."""
    return {
        f"rocketmq.{role}.{name}": value
        for role in ("producer", "consumer")
        for name, value in (("access-key", access_key), ("secret-key", secret))
    }


def test_an_application_with_an_access_key_sends_listens_and_makes_the_topics_that_it_may(
    guarded: TierlogServer, folder_of: FolderOf, tmp_path: Path
) -> None:
    settings = keyed("shop", _SECRET)
    with spring_client(folder_of(JAVA_SPRING), tmp_path, guarded.doors.remoting, _TOPICS, **settings) as shop:
        shop.send(_TOPICS["orders"], "signed", count=3)
        assert keys(shop.received("concurrently", "signed", 3)) == names("signed", 3)
        assert shop.send("shop-new", "first")[0]["status"] == "SEND_OK"
        with pytest.raises(ClientError, match="no right"):
            shop.send("stock", "first")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (keyed("shop", "another-secret"), "this signature is of nobody who is known here"),
        ({}, "this needs a signature"),
    ],
    ids=["a-wrong-secret", "no-access-key"],
)
def test_an_application_without_the_right_secret_is_refused_and_its_log_says_why(
    guarded: TierlogServer, folder_of: FolderOf, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    with (
        spring_client(folder_of(JAVA_SPRING), tmp_path, guarded.doors.remoting, _TOPICS, **settings) as shop,
        pytest.raises(ClientError, match="No route info of this topic"),
    ):
        shop.send(_TOPICS["orders"], "unsigned")
    assert said in (tmp_path / "logs" / "rocketmqlogs" / "rocketmq_client.log").read_text()
