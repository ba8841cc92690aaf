"""Deliveries over REST: receive, acknowledge, give back and give up, wait, be refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.access import GuardedService, line
from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.delivery import queue_deliveries
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.message.batch import Message

GROUP = "/v1/groups/billing"


class Service:
    """An engine with topic ``orders`` of one queue, its deliveries, and a client of its API."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        settings = tiny_settings()
        self.engine = Store.open(folder, settings=settings, clock=self.clock)
        self.engine.create_topic("orders", 1)
        self.deliveries = Deliveries(self.engine, self.clock, SeededRandomness(1), 3)
        self.http = ApiClient(create_app(self.engine, settings, clock=self.clock, deliveries=self.deliveries))

    def send(self, *bodies: str, key: str = "") -> None:
        named = {"__SHARDINGKEY": key} if key else {}
        self.engine.append([Message("orders", body.encode(), properties=named, queue_id=0) for body in bodies])

    def ask(self, path: str, body: object, group: str = GROUP) -> tuple[int, Any]:
        answer = self.http.request("POST", f"{group}/{path}", body)
        return answer.status_code, answer.json()

    def receive(self, path: str = "receive", **wanted: Any) -> list[Any]:
        status, answer = self.ask(path, {"topic": "orders", **wanted})
        assert status == 200, answer
        assert answer["group"] == "billing"
        found: list[Any] = answer["messages"]
        return found

    def close(self) -> None:
        self.deliveries.close()
        self.engine.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "store")
    yield made
    made.close()


def test_a_message_is_received_acknowledged_and_done(service: Service) -> None:
    service.send("a", "b")
    a, b = service.receive()
    assert (a["body"], a["attempt"], a["queue_offset"]) == ("a", 1, 0)
    assert a["invisible_until_ms"] == service.clock.now_ms() + 60_000
    assert service.receive() == []
    assert service.ask("ack", {"handles": [a["handle"], b["handle"]]}) == (200, {"group": "billing", "done": 2})
    service.clock.advance(60_000)
    assert service.receive() == []
    service.deliveries.save()
    described = service.http.request("GET", GROUP).json()
    assert [(queue["topic"], queue["offset"], queue["lag"]) for queue in described["queues"]] == [("orders", 2, 0)]


def test_what_was_not_done_comes_again_and_is_a_dead_letter_in_the_end(service: Service) -> None:
    service.send("a")
    for attempt in (1, 2, 3):
        (only,) = service.receive()
        assert only["attempt"] == attempt
        answer = service.ask("nack", {"handles": [only["handle"]], "delay_ms": 500, "reason": f"try {attempt}"})
        assert answer == (200, {"group": "billing", "done": 1})
        service.clock.advance(500)
    assert service.receive() == []
    (letter,) = service.http.request("GET", "/v1/topics/%25DLQ%25billing/queues/0/messages").json()["messages"]
    assert (letter["body"], letter["properties"]["DLQ_REASON"]) == ("a", "try 3")


def test_a_message_is_given_up_at_once(service: Service) -> None:
    service.send("a")
    (only,) = service.receive()
    assert service.ask("dead-letters", {"handles": [only["handle"]], "reason": "poison"})[0] == 200
    (letter,) = service.http.request("GET", "/v1/topics/%25DLQ%25billing/queues/0/messages").json()["messages"]
    assert letter["properties"]["DLQ_ORIGIN_TOPIC"] == "orders"


def test_a_delivery_that_takes_longer_has_a_new_handle(service: Service) -> None:
    service.send("a")
    (only,) = service.receive(invisible_ms=1_000)
    status, answer = service.ask("extend", {"handle": only["handle"], "invisible_ms": 5_000})
    assert (status, answer["group"]) == (200, "billing")
    service.clock.advance(4_000)
    assert service.receive() == []
    assert service.ask("ack", {"handles": [answer["handle"]]})[0] == 200


def test_handles_that_are_over_are_named_and_do_not_stop_the_others(service: Service) -> None:
    service.send("a", "b")
    a, b = service.receive()
    service.ask("ack", {"handles": [a["handle"]]})
    status, answer = service.ask("ack", {"handles": [a["handle"], b["handle"], "nonsense"]})
    assert (status, answer["done"]) == (200, 1)
    assert [one["handle"] for one in answer["refused"]] == [a["handle"], "nonsense"]
    status, problem = service.ask("ack", {"handles": [a["handle"]]})
    assert (status, problem["type"]) == (400, "urn:tierlog:problem:invalid-handle")


def test_a_handle_counts_in_its_own_group_only(service: Service) -> None:
    service.send("a")
    (only,) = service.receive()
    status, problem = service.ask("ack", {"handles": [only["handle"]]}, "/v1/groups/other")
    assert (status, problem["type"]) == (400, "urn:tierlog:problem:invalid-handle")


def test_messages_in_order_wait_for_the_last_one_of_their_group(service: Service) -> None:
    service.send("a1", "a2", key="A")
    service.send("b1", key="B")
    a1, b1 = service.receive(in_order=True)
    assert (a1["body"], b1["body"]) == ("a1", "b1")
    service.ask("ack", {"handles": [a1["handle"]]})
    assert [one["body"] for one in service.receive(in_order=True)] == ["a2"]


def test_a_call_that_is_sent_again_gets_the_same_messages(service: Service) -> None:
    service.send("a", "b")
    (first,) = service.receive(limit=1, attempt_id="x")
    (again,) = service.receive(limit=1, attempt_id="x")
    assert (again["message_id"], again["attempt"]) == (first["message_id"], 1)


def test_a_group_may_begin_at_the_end(service: Service) -> None:
    service.send("old")
    assert service.receive(start="latest") == []
    service.send("new")
    assert [one["body"] for one in service.receive(start="latest")] == ["new"]


def test_a_receive_waits_for_a_message(service: Service) -> None:
    service.receive()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(service.receive("receive?wait_ms=20000")))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    service.send("a")
    waiting.join(20)
    assert [one["body"] for one in found] == ["a"]


def test_a_receive_waits_no_longer_than_it_said(service: Service) -> None:
    assert service.receive("receive?wait_ms=50") == []


def test_a_group_with_too_many_messages_open_is_told_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_deliveries, "MOST_OPEN", 1)
    service.send("a", "b")
    service.receive()
    status, problem = service.ask("receive", {"topic": "orders"})
    assert (status, problem["type"]) == (429, "urn:tierlog:problem:in-flight")
    assert "acknowledge" in problem["hint"]


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"topic": "orders", "limit": 0}, {"topic": "orders", "invisible_ms": 0}, {"topic": "orders", "tag": 3},
        {"topic": "orders", "start": "end"}, {"topic": "orders", "surplus": 1}, {"topic": "orders", "attempt_id": ""},
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused(service: Service, wrong: dict[str, Any]) -> None:
    assert service.ask("receive", wrong)[0] == 422


def test_a_topic_that_is_not_there_is_404(service: Service) -> None:
    assert service.ask("receive", {"topic": "nothing"})[0] == 404


def test_rights_are_those_to_the_topic_and_of_a_retry_to_all_that_the_group_reads(tmp_path: Path) -> None:
    guarded = GuardedService(tmp_path, [line("shop", "read", "shop"), line("both", "read", "shop,%DLQ%*,secret")])
    deliveries = guarded.app.state.deliveries
    for topic in ("shop", "secret", "%RETRY%g"):
        guarded.engine.append([Message(topic, b"m", properties={"RETRY_TOPIC": "secret"}, queue_id=0)])

    def ask(path: str, body: object, by: str) -> int:
        return guarded.ask("POST", f"/v1/groups/g/{path}", body, by=by).status_code

    assert ask("receive", {"topic": "secret"}, "shop") == 403
    retry, secret = deliveries.receive("g", "secret", limit=2, invisible_ms=60_000)
    (shop,) = deliveries.receive("g", "shop", limit=1, invisible_ms=60_000)
    for path in ("ack", "nack", "dead-letters"):
        for one in (retry, secret):
            assert ask(path, {"handles": [one.handle]}, "shop") == 403
    assert ask("extend", {"handle": retry.handle, "invisible_ms": 1}, "shop") == 403
    assert ask("ack", {"handles": [shop.handle]}, "shop") == 200
    assert ask("ack", {"handles": [retry.handle, secret.handle]}, "both") == 200
    deliveries.close()
    guarded.close()
