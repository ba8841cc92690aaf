"""Reading over REST by time, by id and by tag, wherever the messages are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

QUEUE = "/v1/topics/orders/queues/0"
HOUR_MS = 3_600_000


class Service:
    """An engine with a message every second, tagged a and b in turn, and a client of its API."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.objects = FaultyObjectStore(MemoryObjectStore(self.clock))
        settings = tiny_settings(hot__retention_ms=HOUR_MS)
        self.engine = Store.open(
            folder, settings=settings, clock=self.clock, objects=self.objects, cold_url="memory://c"
        )
        self.http = ApiClient(create_app(self.engine, settings))
        self.sent: list[tuple[int, str]] = []

    def fill(self, count: int = 200) -> None:
        for _ in range(count):
            self.clock.advance(1_000)
            number = len(self.sent)
            (one,) = self.engine.append([Message("orders", b"%d" % number, tag="ab"[number % 2], queue_id=0)])
            self.sent.append((one.store_ms, one.message_id))

    def get(self, path: str) -> tuple[int, Any]:
        answer = self.http.request("GET", path)
        return answer.status_code, answer.json()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "store")
    made.fill()
    yield made
    made.objects.revive()
    assert made.engine.check() == []
    made.engine.close()


def test_an_offset_by_time_and_a_message_by_id_are_the_same_after_archiving(service: Service) -> None:
    def answers() -> list[Any]:
        found: list[Any] = []
        for number in range(0, 200, 7):
            time_ms, message_id = service.sent[number]
            for boundary in ("lower", "upper"):
                path = f"{QUEUE}/offset?boundary={boundary}&time_ms="
                found += [service.get(path + str(time_ms + shift)) for shift in (-1, 0, 1)]
            status, message = service.get(f"/v1/messages/{message_id}")
            assert (status, message["queue_offset"], message["body"]) == (200, number, str(number))
            found.append(message | {"tier": None})
        return found

    before = answers()
    assert before[1] == (200, {"offset": 0, "min_offset": 0, "max_offset": 200})
    service.engine.archive(everything=True, drop_hot=True)
    assert answers() == before
    service.fill(5)
    last_ms = service.sent[-1][0]
    assert service.get(f"{QUEUE}/offset?time_ms={last_ms + 1}")[1]["offset"] == 205
    assert service.get(f"{QUEUE}/offset?time_ms={last_ms + 1}&boundary=upper")[1]["offset"] == 204
    assert service.get(f"{QUEUE}/offset?time_ms=1970-01-01T00:00:00Z")[1]["offset"] == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{QUEUE}/offset", 400),
        (f"{QUEUE}/offset?time_ms=soon", 400),
        (f"{QUEUE}/offset?time_ms=-1", 400),
        (f"{QUEUE}/offset?time_ms=1&boundary=middle", 400),
        (f"{QUEUE}/offset?time_ms=1&mine=1", 400),
        ("/v1/topics/orders/queues/9/offset?time_ms=1", 404),
        ("/v1/topics/nobody/queues/0/offset?time_ms=1", 404),
        ("/v1/messages/nonsense", 400),
        (f"/v1/messages/{'0' * 32}", 404),
        (f"{QUEUE}/messages?tag=||", 400),
    ],
)
def test_a_wrong_request_gets_a_problem(service: Service, path: str, status: int) -> None:
    answer = service.http.request("GET", path)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_message_is_asked_of_its_own_store(service: Service) -> None:
    path = f"/v1/messages/{service.sent[3][1]}?store_id="
    assert service.get(path + service.engine.store_id)[0] == 200
    assert service.get(path + "another")[0] == 404


def test_an_archive_that_cannot_be_reached_is_503(service: Service) -> None:
    service.engine.archive(everything=True, drop_hot=True)
    service.fill(1)
    service.objects.die()
    assert service.get(f"/v1/messages/{service.sent[3][1]}")[0] == 503
    assert service.get(f"{QUEUE}/offset?time_ms={service.sent[3][0]}")[0] == 503
    assert service.get(f"/v1/messages/{service.sent[-1][1]}")[0] == 200


@pytest.mark.parametrize("is_cold", [False, True])
def test_tag_expressions(service: Service, is_cold: bool) -> None:
    if is_cold:
        service.engine.archive(everything=True, drop_hot=True)

    def offsets(tag: str) -> list[int]:
        status, page = service.get(f"{QUEUE}/messages?limit=4&offset=10&tag={tag}")
        assert (status, page["status"]) == (200, "FOUND")
        return [message["queue_offset"] for message in page["messages"]]

    assert offsets("a") == [10, 12, 14, 16]
    assert offsets("c%20||%20b") == [11, 13, 15, 17]
    assert offsets("a||b") == offsets("*") == offsets("") == [10, 11, 12, 13]
    status, page = service.get(f"{QUEUE}/messages?offset=10&tag=nobody")
    assert (status, page["status"], page["next_offset"]) == (200, "NO_MATCHED_MESSAGE", 200)


def test_the_least_offset_rises_with_removal_only_without_an_archive(service: Service, tmp_path: Path) -> None:
    service.fill(1_000)
    settings = tiny_settings(hot__retention_ms=HOUR_MS)
    alone = Store.open(tmp_path / "alone", settings=settings, clock=service.clock)
    http = ApiClient(create_app(alone, settings))
    for _ in range(3):
        for _ in range(500):
            alone.append([Message("orders", bytes(100), queue_id=0)])
        service.clock.advance(2 * HOUR_MS)
    alone.run_tiers()
    page = http.request("GET", f"{QUEUE}/messages?offset=0").json()
    assert page["status"] == "OFFSET_TOO_SMALL"
    assert 0 < page["min_offset"] == page["next_offset"] < page["max_offset"] == 1_500
    first = http.request("GET", f"{QUEUE}/messages?limit=1&offset={page['next_offset']}").json()
    assert (first["status"], first["messages"][0]["queue_offset"]) == ("FOUND", page["min_offset"])
    assert http.request("GET", f"{QUEUE}/offset?time_ms=0").json()["offset"] == page["min_offset"]
    alone.close()
    for _ in range(3):
        service.engine.run_tiers()
    assert service.engine.stats()["log_begin"]
    _, page = service.get(f"{QUEUE}/messages?offset=0&limit=1")
    assert (page["status"], page["min_offset"], page["messages"][0]["tier"]) == ("FOUND", 0, "cold")
