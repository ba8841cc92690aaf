"""Messages that are sent with a delay over REST wait in the timer topic, and are delivered at their time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.service.api_client import ApiClient
from tests.support.stores.delay_world import DelayWorld
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.tiering.message.waiting import TIMER_TOPIC

TEN_MESSAGES = {"messages": [{"body": f"order {number}", "keys": ["4711"], "tag": "t"} for number in range(10)]}


class DelayClient(ApiClient):
    """Asks the application of a world."""

    def __init__(self, world: DelayWorld) -> None:
        super().__init__(create_app(world.engine, world.settings, threading.Event()))

    def send(self, query: str, body: Any = None, topic: str = "orders") -> httpx.Response:
        return self.request("POST", f"/v1/topics/{topic}/messages{query}", TEN_MESSAGES if body is None else body)


@pytest.fixture
def world() -> Iterator[DelayWorld]:
    world = DelayWorld()
    yield world
    world.engine.close()


@pytest.mark.parametrize("query", ["?delay=60s", "?delay=60000", "?deliver_at=1700000060000"])
def test_delayed_messages_arrive_at_their_time(world: DelayWorld, query: str) -> None:
    answer = DelayClient(world).send(query)
    assert answer.status_code == 200, answer.text
    assert [one["queue_id"] for one in answer.json()["results"]] == [0] * 10
    assert len(world.arrived(TIMER_TOPIC)) == 10
    assert world.pass_time(0) == 0
    assert world.pass_time(10 * 60_000) == 10
    found = world.arrived()
    assert sorted(one.record.body.decode() for one in found) == [f"order {number}" for number in range(10)]
    assert {one.record.queue_id for one in found} == {0, 1}
    assert {(one.tag, *one.keys) for one in found} == {("t", "4711")}


def test_a_time_that_is_over_delivers_at_once(world: DelayWorld) -> None:
    assert DelayClient(world).send("?deliver_at=2020-01-01").status_code == 200
    assert len(world.arrived()) == 10


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("?delay=41d", "produce.max_delay_ms"),
        ("?delay=soon", "duration"),
        ("?delay=0", "greater"),
        ("?delay=1s&deliver_at=2040-01-01", "delay and deliver_at"),
    ],
)
def test_a_delay_that_cannot_be_is_refused_and_nothing_is_appended(world: DelayWorld, query: str, detail: str) -> None:
    answer = DelayClient(world).send(query)
    assert answer.status_code in (400, 422)
    assert detail in answer.text
    assert world.arrived(TIMER_TOPIC) == world.arrived() == []


@pytest.mark.parametrize(
    ("message", "status"),
    [({"body": "x", "queue_id": 7}, 400), ({"body": "x", "properties": {"a": "b" * 32_600}}, 413)],
)
def test_a_message_that_could_never_be_delivered_is_refused(
    world: DelayWorld, message: dict[str, Any], status: int
) -> None:
    answer = DelayClient(world).send("?delay=60s", {"messages": [{"body": "fine"}, message]})
    assert (answer.status_code, answer.json().get("position")) == (status, 1)
    assert world.arrived(TIMER_TOPIC) == []


def test_a_delayed_message_makes_no_topic_where_messages_may_not() -> None:
    world = DelayWorld(settings=tiny_settings(create_topics=False))
    assert DelayClient(world).send("?delay=60s").status_code == 404
    world.engine.create_topic("orders", 2)
    assert DelayClient(world).send("?delay=60s").status_code == 200
    world.pass_time(10 * 60_000)
    assert len(world.arrived()) == 10
