"""Consumer groups over REST: two members share a topic, take over from one another, and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message

GROUP = "/v1/groups/billing"


class Service:
    """An engine with 20 messages in each of 4 queues, and a client of its API."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        settings = tiny_settings()
        self.engine = Store.open(folder, settings=settings, clock=clock)
        self.http = ApiClient(create_app(self.engine, settings, clock=clock))

    def fill(self) -> None:
        for queue_id in range(4):
            self.engine.append([Message("orders", b"%d" % n, queue_id=queue_id) for n in range(20)])

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        answer = self.http.request(method, path, body)
        return answer.status_code, answer.json()

    def join(self) -> Any:
        status, member = self.ask("POST", f"{GROUP}/members", {"topics": ["orders"]})
        assert status == 200, member
        return member

    def commit(self, member: Any, offsets: dict[int, int], **more: object) -> tuple[int, Any]:
        listed = [{"topic": "orders", "queue_id": queue, "offset": at} for queue, at in offsets.items()]
        named = {"member_id": member["member_id"], "generation": member["generation"]} if member else {}
        return self.ask("PUT", f"{GROUP}/offsets", {**named, "offsets": listed, **more})

    def beat(self, member: Any) -> tuple[int, Any]:
        return self.ask("PUT", f"{GROUP}/members/{member['member_id']}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock) -> Iterator[Service]:
    made = Service(tmp_path / "store", clock)
    made.fill()
    yield made
    assert made.engine.check() == []
    made.engine.close()


def queues(member: Any) -> list[int]:
    return [each["queue_id"] for each in member["assignment"]]


def test_two_members_share_consume_commit_and_take_over(service: Service) -> None:
    first = service.join()
    assert (first["group"], first["generation"], queues(first)) == ("billing", 1, [0, 1, 2, 3])
    second = service.join()
    status, first = service.beat(first)
    assert (status, first["generation"]) == (200, 2)
    assert sorted(queues(first) + queues(second)) == [0, 1, 2, 3]
    consumed = []
    for member, upto in ((first, 20), (second, 7)):
        for queue_id in queues(member):
            _, page = service.ask("GET", f"/v1/topics/orders/queues/{queue_id}/messages?offset=0&limit={upto}")
            consumed += [(queue_id, message["queue_offset"]) for message in page["messages"]]
            status, answer = service.commit(member, {queue_id: page["next_offset"]})
            assert status == 200, answer
    status, _ = service.ask("DELETE", f"{GROUP}/members/{second['member_id']}")
    assert status == 200
    _, first = service.beat(first)
    assert (first["generation"], queues(first)) == (3, [0, 1, 2, 3])
    _, committed = service.ask("GET", f"{GROUP}/offsets")
    assert (committed["group"], committed["generation"]) == ("billing", 3)
    for one in committed["offsets"]:
        path = f"/v1/topics/orders/queues/{one['queue_id']}/messages?offset={one['offset']}"
        _, page = service.ask("GET", path)
        consumed += [(one["queue_id"], message["queue_offset"]) for message in page["messages"]]
    assert sorted(consumed) == [(queue_id, offset) for queue_id in range(4) for offset in range(20)]


def test_a_group_shows_members_assignment_offsets_and_lag(service: Service, clock: ManualClock) -> None:
    member = service.join()
    service.commit(member, {0: 5, 3: 20})
    clock.advance(2_000)
    status, group = service.ask("GET", GROUP)
    assert (status, group["group"], group["generation"], group["lag"]) == (200, "billing", 1, 15 + 20 + 20 + 0)
    (shown,) = group["members"]
    assert shown == {
        "member_id": member["member_id"], "topics": ["orders"], "session_timeout_ms": 30_000, "idle_ms": 2_000,
        "assignment": member["assignment"],
    }  # fmt: skip
    assert group["queues"][0] == {
        "topic": "orders", "store_id": service.engine.store_id, "queue_id": 0, "offset": 5,
        "min_offset": 0, "max_offset": 20, "lag": 15,
    }  # fmt: skip
    assert group["stores_down"] == []
    assert [each["offset"] for each in group["queues"]] == [5, None, None, 20]
    _, listed = service.ask("GET", "/v1/groups")
    own = {"store_id": service.engine.store_id, "topics": ["orders"], "lag": 55}
    assert listed == {"groups": [{"group": "billing", "generation": 1, "members": 1, "queues": 2, **own}]}


def test_a_stale_generation_gets_409_and_an_ended_session_404(service: Service, clock: ManualClock) -> None:
    old = service.join()
    service.join()
    status, problem = service.commit(old, {0: 5})
    assert (status, problem["type"]) == (409, "urn:tierlog:problem:stale-generation")
    _, new = service.beat(old)
    foreign = next(queue_id for queue_id in range(4) if queue_id not in queues(new))
    assert service.commit(new, {foreign: 5})[0] == 409
    assert service.commit(None, {0: 5})[0] == 409
    clock.advance(30_000)
    for status, problem in (service.beat(new), service.commit(new, {0: 5})):
        assert (status, problem["type"]) == (404, "urn:tierlog:problem:member-not-found")
    offset = {"topic": "orders", "store_id": service.engine.store_id, "queue_id": 0, "offset": 5}
    assert service.commit(None, {0: 5}) == (200, {"group": "billing", "generation": 3, "offsets": [offset]})


def test_offsets_are_checked(service: Service) -> None:
    member = service.join()
    assert service.commit(member, {0: 20})[0] == 200
    assert service.commit(member, {0: 21})[0] == 400
    status, problem = service.commit(member, {0: 19})
    assert (status, problem["hint"]) == (400, "going back needs a reset")
    assert service.commit(member, {0: 19}, reset=True)[0] == 200
    assert service.commit(member, {9: 0})[0] == 409
    twice = [{"topic": "orders", "queue_id": 0, "offset": at} for at in (19, 20)]
    named = {"member_id": member["member_id"], "generation": member["generation"]}
    assert service.ask("PUT", f"{GROUP}/offsets", {**named, "offsets": twice})[0] == 400
    _, committed = service.ask("GET", f"{GROUP}/offsets")
    assert [one["offset"] for one in committed["offsets"]] == [19]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/groups/nobody", None, 404),
        ("GET", "/v1/groups/nobody/offsets", None, 404),
        ("DELETE", "/v1/groups/nobody", None, 404),
        ("PUT", f"/v1/groups/nobody/members/{16 * '0'}", None, 404),
        ("PUT", "/v1/groups/nobody/members/1", None, 400),
        ("POST", "/v1/groups/a%20b/members", {"topics": ["orders"]}, 400),
        ("POST", f"{GROUP}/members", {"topics": ["a/b"]}, 400),
        ("POST", f"{GROUP}/members", {"topics": []}, 422),
        ("POST", f"{GROUP}/members", {"topics": ["orders"], "session_timeout_ms": 1}, 422),
        ("POST", f"{GROUP}/members", {"topics": ["orders"], "mine": 1}, 422),
        ("PUT", f"{GROUP}/offsets", {"offsets": []}, 422),
        ("PUT", f"{GROUP}/offsets", {"offsets": [{"topic": "orders", "queue_id": 0, "offset": -1}]}, 422),
        ("PUT", f"{GROUP}/offsets", {"offsets": [{"topic": "orders", "queue_id": 0, "offset": True}]}, 422),
        ("PUT", f"{GROUP}/offsets", {"offsets": [{"topic": "orders", "queue_id": 0, "offset": "2"}]}, 422),
        ("PUT", f"{GROUP}/offsets", {"offsets": [{"topic": "nobody", "queue_id": 0, "offset": 0}]}, 404),
        ("PUT", f"{GROUP}/offsets", {"offsets": [{"topic": "orders", "queue_id": 9, "offset": 0}]}, 404),
        (
            "PUT", f"{GROUP}/offsets",
            {"generation": 1, "offsets": [{"topic": "orders", "queue_id": 0, "offset": 0}]}, 400,
        ),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_a_problem_and_makes_no_group(
    service: Service, method: str, path: str, body: object, status: int
) -> None:
    answer = service.http.request(method, path, body)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert service.ask("GET", "/v1/groups") == (200, {"groups": []})


def test_offsets_survive_a_restart_and_a_removed_group_is_gone(tmp_path: Path, clock: ManualClock) -> None:
    service = Service(tmp_path / "store", clock)
    service.fill()
    member = service.join()
    service.commit(member, {2: 11})
    assert service.ask("DELETE", GROUP)[0] == 409
    service.engine.close()
    service = Service(tmp_path / "store", clock)
    try:
        assert service.beat(member)[0] == 404
        _, committed = service.ask("GET", f"{GROUP}/offsets")
        assert (committed["generation"], [one["offset"] for one in committed["offsets"]]) == (1, [11])
        assert service.join()["generation"] == 2
        clock.advance(30_000)
        assert service.ask("DELETE", GROUP) == (200, {"group": "billing", "removed": True})
        assert service.ask("GET", GROUP)[0] == 404
    finally:
        service.engine.close()


def test_a_store_opened_for_reading_shows_groups_and_takes_no_commit(tmp_path: Path, clock: ManualClock) -> None:
    service = Service(tmp_path / "store", clock)
    service.fill()
    service.commit(None, {0: 3})
    service.engine.close()
    settings = tiny_settings()
    engine = Store.open(tmp_path / "store", settings=settings, clock=clock, read_only=True)
    http = ApiClient(create_app(engine, settings))
    assert http.request("GET", f"{GROUP}/offsets").json()["offsets"][0]["offset"] == 3
    body = {"offsets": [{"topic": "orders", "queue_id": 0, "offset": 4}]}
    assert http.request("PUT", f"{GROUP}/offsets", body).status_code == 503
    assert http.request("POST", f"{GROUP}/members", {"topics": ["orders"]}).status_code == 503
    engine.close()


def test_every_call_is_described(service: Service) -> None:
    paths = service.http.request("GET", "/openapi.json").json()["paths"]
    calls = {(path, method): call for path, methods in paths.items() for method, call in methods.items()}
    ours = {key: call for key, call in calls.items() if key[0].startswith("/v1/groups")}
    assert len(ours) == 14
    assert all(call["description"] for call in ours.values())


def test_who_joins_for_a_topic_that_does_not_exist_is_told(service: Service) -> None:
    status, member = service.ask("POST", f"{GROUP}/members", {"topics": ["orders", "ordrs", "zz"]})
    assert status == 200
    assert {one["topic"] for one in member["assignment"]} == {"orders"}
    assert (member["missing_topics"], member["hint"]) == (["ordrs", "zz"], "'ordrs': did you mean 'orders'?")
    service.engine.create_topic("zz", 1)
    found = service.beat(member)[1]
    assert (found["missing_topics"], "hint" in found) == (["ordrs"], False)
    assert ("zz", 0) in {(one["topic"], one["queue_id"]) for one in found["assignment"]}
    assert not {"missing_topics", "hint"} & service.join().keys()


def test_a_group_is_moved_to_a_time_an_offset_or_an_end(service: Service, clock: ManualClock) -> None:
    clock.advance(3_600_000)
    service.engine.append([Message("orders", b"late", queue_id=queue_id) for queue_id in range(2)])
    clock.advance(60_000)
    service.commit(None, {0: 5, 1: 6})
    url = f"{GROUP}/reset"
    status, planned = service.ask("POST", url, {"time": "30m", "dry_run": True})
    assert (status, planned["changed"]) == (200, False)
    assert [(one["queue_id"], one["offset"], one["new_offset"]) for one in planned["queues"]] == [
        (0, 5, 20), (1, 6, 20), (2, None, 20), (3, None, 20),
    ]  # fmt: skip
    assert [one["offset"] for one in service.ask("GET", f"{GROUP}/offsets")[1]["offsets"]] == [5, 6]
    for wanted, offsets in (
        ({"time": "30m"}, [20, 20, 20, 20]),
        ({"time": "2h"}, [0, 0, 0, 0]),
        ({"to": "latest"}, [21, 21, 20, 20]),
        ({"offset": 3, "topic": "orders", "queue_id": 1}, [21, 3, 20, 20]),
        ({"to": "first", "store_id": service.engine.store_id, "queue_id": 0}, [0, 3, 20, 20]),
    ):
        assert service.ask("POST", url, wanted)[0] == 200
        assert [one["offset"] for one in service.ask("GET", f"{GROUP}/offsets")[1]["offsets"]] == offsets, wanted


def test_a_group_that_has_committed_nothing_begins_where_a_reset_says(service: Service) -> None:
    member = service.join()
    service.ask("DELETE", f"{GROUP}/members/{member['member_id']}")
    url = f"{GROUP}/reset"
    status, problem = service.ask("POST", url, {"to": "latest"})
    assert (status, problem["hint"]) == (404, "name the topic to begin with")
    assert service.ask("POST", url, {"to": "latest", "topic": "orders"})[0] == 200
    assert [one["offset"] for one in service.ask("GET", f"{GROUP}/offsets")[1]["offsets"]] == [20, 20, 20, 20]


def test_a_reset_that_cannot_be_is_refused(service: Service) -> None:
    url = f"{GROUP}/reset"
    assert service.ask("POST", url, {"to": "first"})[0] == 404
    member = service.join()
    service.commit(member, {0: 5})
    assert service.ask("POST", url, {"to": "first"})[0] == 409
    service.ask("DELETE", f"{GROUP}/members/{member['member_id']}")
    wrong: list[dict[str, object]] = [
        {}, {"to": "first", "offset": 3}, {"to": "last"}, {"time": "soon"}, {"offset": -1}, {"to": None},
        {"to": "first", "more": 1},
    ]  # fmt: skip
    for body in wrong:
        assert service.ask("POST", url, body)[0] == 422, body
    assert service.ask("POST", url, {"offset": 21})[0] == 400
    assert service.ask("POST", url, {"to": "first", "topic": "pays"})[0] == 404
    assert [one["offset"] for one in service.ask("GET", f"{GROUP}/offsets")[1]["offsets"]] == [5]


def test_a_reset_leaves_queues_of_a_topic_that_was_deleted_alone(service: Service) -> None:
    service.engine.append([Message("pays", b"x", queue_id=0)])
    offsets = [{"topic": topic, "queue_id": 0, "offset": 1} for topic in ("orders", "pays")]
    assert service.ask("PUT", f"{GROUP}/offsets", {"offsets": offsets})[0] == 200
    service.engine.removal.delete_topic("pays")
    _, done = service.ask("POST", f"{GROUP}/reset", {"to": "latest"})
    assert {one["topic"] for one in done["queues"]} == {"orders"}
    found = service.ask("GET", f"{GROUP}/offsets")[1]["offsets"]
    assert [one["offset"] for one in found if one["topic"] == "pays"] == [1]
