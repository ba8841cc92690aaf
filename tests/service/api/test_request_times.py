"""Times of requests: relative ones are relative to the moment the request came, by the clock of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app, routed_app
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.message.batch import Message

HOUR_MS = 3_600_000


class Service:
    """A store with a message of each of the last five hours, the newest of them now."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(parse_time("2026-03-01T03:30:00Z"))
        settings = tiny_settings()
        self.engine = Store.open(
            folder / "store", cold_url=f"file://{folder}/cold", settings=settings, clock=self.clock
        )
        for hour in range(5):
            self.clock.advance(HOUR_MS if hour else 0)
            self.engine.append([Message("t", b"%d" % hour, queue_id=0)])
        self.http = ApiClient(create_app(self.engine, settings, clock=self.clock))

    def bodies(self, arguments: str) -> list[str]:
        answer = self.http.request("GET", f"/v1/topics/t/messages?order=oldest&{arguments}")
        assert answer.status_code == 200, answer.text
        return [message["body"] for message in answer.json()["messages"]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    assert made.engine.check() == []
    made.engine.close()


@pytest.mark.parametrize(
    ("arguments", "bodies"),
    [
        ("from=2h", "234"),
        ("from=121m&to=now", "23"),
        ("from=now-3h&to=now-1h", "12"),
        ("to=now%2B1s", "01234"),
        ("from=today", "01234"),
        ("from=05:30", "234"),
        ("to=yesterday", ""),
        ("from=now", "4"),
    ],
)
def test_a_query_takes_times_relative_to_the_clock_of_the_service(
    service: Service, arguments: str, bodies: str
) -> None:
    assert service.bodies(arguments) == list(bodies)


def test_the_clock_goes_on_between_two_requests(service: Service) -> None:
    service.clock.advance(HOUR_MS)
    assert service.bodies("from=2h") == ["3", "4"]


def test_an_offset_is_found_by_a_relative_time(service: Service) -> None:
    answer = service.http.request("GET", "/v1/topics/t/queues/0/offset?time_ms=1h")
    assert answer.json()["offset"] == 3


def test_a_body_takes_relative_times(service: Service) -> None:
    """It is parsed on another thread, for the same request. The end of the range is not part of it."""
    wanted = {"topic": "t", "from": "150m", "to": "now", "dry_run": True}
    answer = service.http.request("POST", "/v1/admin/erase", wanted)
    assert answer.json()["matched"]["hot"] == 2
    now_ms = service.clock.now_ms()
    assert (answer.json()["from_ms"], answer.json()["to_ms"]) == (now_ms - 150 * 60_000, now_ms)


@pytest.mark.parametrize("text", ["soon", "2y", "99999w", "25:00"])
def test_what_is_no_time_is_refused_with_the_forms_there_are(service: Service, text: str) -> None:
    query = service.http.request("GET", f"/v1/topics/t/messages?from={quote(text)}")
    body = service.http.request("POST", "/v1/admin/erase", {"topic": "t", "from": text})
    assert (query.status_code, body.status_code) == (400, 422)
    for answer in (query, body):
        for form in ("2h (two hours ago)", "now-2h", "today", "ms since the epoch", "2026-03-01", "units are"):
            assert form in answer.json()["detail"]


def test_the_document_describes_relative_times_wherever_a_time_is_taken() -> None:
    document = routed_app(access=False).openapi()
    query = document["paths"]["/v1/topics/{topic}/messages"]["get"]["parameters"]
    asked = next(one for one in query if one["name"] == "from")
    erase = document["components"]["schemas"]["EraseIn"]["properties"]["from"]
    for described, text in ((asked["schema"], asked["description"]), (erase, erase["description"])):
        assert any("now|today|yesterday" in form.get("pattern", "") for form in described["anyOf"])
        assert "`2h` (two hours ago)" in text


def test_the_time_that_an_archive_keeps_a_topic_may_have_a_unit(service: Service) -> None:
    answer = service.http.request("PUT", "/v1/topics/t", {"cold_retention_ms": "90d"})
    assert answer.json()["cold_retention_ms"] == 7_776_000_000
    assert service.http.request("PUT", "/v1/topics/t", {"cold_retention_ms": 5}).json()["cold_retention_ms"] == 5
    assert service.http.request("PUT", "/v1/topics/t", {"cold_retention_ms": None}).json()["cold_retention_ms"] is None
    for wrong in ("90 days", "0s", "", -1, 0, True):
        refused = service.http.request("PUT", "/v1/topics/t", {"cold_retention_ms": wrong})
        assert refused.status_code == 422, wrong
    assert "ms, s, m, h, d or w" in service.http.request("PUT", "/v1/topics/t", {"cold_retention_ms": "3y"}).text
