"""A Spring Boot application with rocketmq-spring-boot-starter works unchanged: its template and its listeners."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support.rocketmq.real_clients import RealClient, SpringShop, fresh, keys, names

pytestmark = pytest.mark.timeout(400)


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
    shop: SpringShop, java_5: RealClient
) -> None:
    topic, sent = shop.topics["orders"], fresh("work")
    for key in ("good", "late", "bad"):
        shop.send(topic, f"{sent}-{key}")
    got = shop.received("concurrently", sent, 5)
    dead = java_5.consumed(f"%DLQ%{topic}-readers", fresh("undertaker"), 1, limit_ms=60_000)
    assert sorted((message["key"], message["attempts_before"]) for message in got) == sorted(
        [(f"{sent}-good-0", 0), *((f"{sent}-{key}-0", attempt) for key in ("late", "bad") for attempt in (0, 1))]
    )
    assert keys(dead) == [f"{sent}-bad-0"]
