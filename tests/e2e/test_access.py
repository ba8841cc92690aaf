"""Who may do what over HTTP, call by call; a call that is new has to find its place in the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.access import GuardedService, line
from tierlog.tiering.message.batch import Message

OPEN, READ, PRODUCE, ADMIN, EVERYTHING = "open", "read", "produce", "admin", "admin of everything"
USE = "read or produce"
_HANDLES = {"handles": ["billing.shop-1.0.0.1.1"]}
_OFFSETS = {"offsets": [{"topic": "shop-1", "queue_id": 0, "offset": 1}]}
_TOPIC = "/v1/topics/{topic}"

#: What each call needs, and a body that it accepts. ``shop-1`` is put for ``{topic}``.
NEEDS: dict[tuple[str, str], tuple[str, object]] = {
    ("GET", "/"): (OPEN, None),
    ("GET", "/docs"): (OPEN, None),
    ("GET", "/web/{digest}/{path:path}"): (OPEN, None),
    ("GET", "/openapi.json"): (OPEN, None),
    ("GET", "/livez"): (OPEN, None),
    ("GET", "/readyz"): (OPEN, None),
    ("GET", "/metrics"): (READ, None),
    ("GET", "/v1/topics"): (READ, None),
    ("GET", _TOPIC): (READ, None),
    ("PUT", _TOPIC): (ADMIN, {"queues": 4}),
    ("PUT", f"{_TOPIC}/hold"): (ADMIN, {"hold": False}),
    ("POST", f"{_TOPIC}/messages"): (PRODUCE, {"messages": [{"body": "x"}]}),
    ("GET", f"{_TOPIC}/messages"): (READ, None),
    ("GET", f"{_TOPIC}/counts"): (READ, None),
    ("GET", f"{_TOPIC}/queues/{{queue_id}}/messages"): (READ, None),
    ("GET", f"{_TOPIC}/queues/{{queue_id}}/offset"): (READ, None),
    ("GET", "/v1/messages/{message_id}"): (READ, None),
    ("GET", "/v1/files"): (READ, None),
    ("GET", "/v1/stats"): (READ, None),
    ("GET", "/v1/timeline"): (READ, None),
    ("GET", "/v1/groups"): (READ, None),
    ("GET", "/v1/groups/{group}"): (READ, None),
    ("DELETE", "/v1/groups/{group}"): (READ, None),
    ("POST", "/v1/groups/{group}/members"): (READ, {"topics": ["shop-1"]}),
    ("POST", "/v1/groups/{group}/reset"): (READ, {"to": "first", "dry_run": True}),
    ("POST", "/v1/groups/{group}/receive"): (READ, {"topic": "shop-1"}),
    ("POST", "/v1/groups/{group}/ack"): (READ, _HANDLES),
    ("POST", "/v1/groups/{group}/nack"): (READ, _HANDLES),
    ("POST", "/v1/groups/{group}/dead-letters"): (READ, _HANDLES),
    ("POST", "/v1/groups/{group}/extend"): (READ, {"handle": "billing.shop-1.0.0.1.1", "invisible_ms": 1}),
    ("PUT", "/v1/groups/{group}/members/{member_id}"): (READ, None),
    ("DELETE", "/v1/groups/{group}/members/{member_id}"): (READ, None),
    ("GET", "/v1/groups/{group}/offsets"): (READ, None),
    ("PUT", "/v1/groups/{group}/offsets"): (READ, _OFFSETS),
    ("POST", "/v1/admin/archive"): (EVERYTHING, {"all": True}),
    ("POST", "/v1/admin/flush"): (EVERYTHING, None),
    ("POST", "/v1/admin/check"): (EVERYTHING, None),
    ("POST", "/v1/admin/erase"): (ADMIN, {"topic": "shop-1", "key": "k-of-somebody", "dry_run": True}),
    ("GET", "/v1/admin/receipts"): (ADMIN, None),
    ("GET", "/v1/admin/receipts/{tombstone_id}"): (ADMIN, None),
    ("GET", f"{_TOPIC}/hot"): (READ, None),
    ("GET", "/v1/cluster"): (READ, None),
    ("GET", "/v1/cluster/topics/{topic}"): (USE, None),
    ("PUT", "/v1/cluster/topics/{topic}"): (ADMIN, {"store_id": "other"}),
    ("DELETE", "/v1/cluster/topics/{topic}"): (ADMIN, None),
    ("PUT", "/v1/cluster/closed/{store}"): (EVERYTHING, None),
    ("DELETE", "/v1/cluster/closed/{store}"): (EVERYTHING, None),
    ("DELETE", "/v1/cluster/stores/{store}"): (EVERYTHING, None),
    ("DELETE", _TOPIC): (ADMIN, None),
}


def _path(template: str, topic: str = "shop-1", message_id: str = "0" * 32) -> str:
    found = template.replace(":path", "").format(
        topic=topic,
        queue_id=0,
        message_id=message_id,
        group="billing",
        member_id="0" * 16,
        tombstone_id="0" * 16,
        store="other",
        digest="0",
        path="nothing.js",
    )
    return found + ("?time_ms=0" if found.endswith("/offset") else "")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GuardedService]:
    made = GuardedService(
        tmp_path,
        [
            line("reader", "read", "shop-*"),
            line("producer", "produce", "shop-*"),
            line("admin", "admin", "shop-*"),
            line("root", "read,produce,admin", "*"),
            line("stranger", "read,produce,admin", "other"),
            line("numbers", "read", ""),
            line("late", "read", "*", "1970-01-01T00:00:01Z"),
        ],
    )
    for topic in ("shop-1", "shop-2", "secret"):
        made.engine.append([Message(topic, b"%d" % n, [f"k{n}"], queue_id=0) for n in range(3)])
    yield made
    assert made.engine.check() == []
    made.close()


def calls(service: GuardedService) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    waiting: list[Any] = list(service.app.routes)
    while waiting:
        route = waiting.pop()
        inner = getattr(route, "original_router", None)
        waiting += inner.routes if inner is not None else []
        if inner is None:
            found |= {(method, route.path) for method in route.methods - {"HEAD"}}
    return found


def test_every_call_is_in_the_table(service: GuardedService) -> None:
    assert calls(service) >= {("GET", "/v1/topics"), ("GET", "/livez")}
    assert calls(service) == set(NEEDS)


def test_each_call_needs_its_right_and_no_other(service: GuardedService) -> None:
    rights = {READ: {"reader"}, PRODUCE: {"producer"}, ADMIN: {"admin"}, EVERYTHING: set[str]()}
    rights[USE] = rights[READ] | rights[PRODUCE]
    for (method, template), (need, body) in NEEDS.items():
        path = _path(template)
        for who in (None, "nobody", "late"):
            answer = service.ask(method, path, body, by=who)
            if need == OPEN:
                assert answer.status_code in (200, 404)
            else:
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
                assert answer.json()["type"] == "urn:tierlog:problem:unauthenticated"
        for who in ("reader", "producer", "admin", "root"):
            status = service.ask(method, path, body, by=who).status_code
            is_allowed = need == OPEN or who == "root" or who in rights[need]
            assert (status in (401, 403)) != is_allowed, (method, path, who, status)
            assert status < 500


def test_a_topic_without_the_right_to_it_answers_alike_whether_it_exists(service: GuardedService) -> None:
    of_topics = [(method, template, body) for (method, template), (_, body) in NEEDS.items() if "{topic}" in template]
    assert len(of_topics) > 5
    for method, template, body in of_topics:
        there, not_there = (
            service.ask(method, _path(template, topic), body, by="stranger") for topic in ("secret", "secreT")
        )
        assert there.status_code == not_there.status_code == 403
        assert there.json() == json.loads(not_there.text.replace("secreT", "secret"))
    assert [topic.name for topic in service.engine.topics()] == ["shop-1", "shop-2", "secret"]


def test_a_message_of_a_topic_one_may_not_read_is_answered_like_an_unknown_one(service: GuardedService) -> None:
    found = service.ask("GET", "/v1/topics/secret/messages?limit=1", by="root").json()["messages"][0]["message_id"]
    assert service.ask("GET", f"/v1/messages/{found}", by="root").json()["topic"] == "secret"
    unknown = f"{found[:-1]}{'0' if found[-1] != '0' else '1'}"
    hidden, absent = (service.ask("GET", f"/v1/messages/{one}", by="reader") for one in (found, unknown))
    assert (hidden.status_code, absent.status_code) == (404, 404)
    assert hidden.json() == json.loads(absent.text.replace(unknown, found))
    lower = service.ask("GET", f"/v1/messages/{found.lower()}", by="reader")
    assert lower.json() == json.loads(hidden.text.replace(found, found.lower()))


def test_a_receipt_of_a_topic_one_does_not_administer_is_answered_like_an_unknown_one(service: GuardedService) -> None:
    service.engine.archive(everything=True)
    for topic in ("shop-1", "secret"):
        assert service.ask("POST", "/v1/admin/erase", {"topic": topic, "key": "k1"}, by="root").status_code == 200
    by_topic = {
        one["topic"]: one["tombstone_id"]
        for one in service.ask("GET", "/v1/admin/receipts", by="root").json()["receipts"]
    }
    assert set(by_topic) == {"shop-1", "secret"}
    listed = service.ask("GET", "/v1/admin/receipts", by="admin").json()["receipts"]
    assert [one["topic"] for one in listed] == ["shop-1"]
    absent_id = "0" * len(by_topic["secret"])
    hidden, absent = (
        service.ask("GET", f"/v1/admin/receipts/{one}", by="admin") for one in (by_topic["secret"], absent_id)
    )
    assert hidden.status_code == 404
    assert hidden.json() == json.loads(absent.text.replace(absent_id, by_topic["secret"]))
    assert service.ask("GET", f"/v1/admin/receipts/{by_topic['shop-1']}", by="admin").status_code == 200


def test_groups_show_only_queues_of_topics_one_may_read(service: GuardedService) -> None:
    def join(group: str, *topics: str) -> str:
        joined = service.ask("POST", f"/v1/groups/{group}/members", {"topics": topics}, by="root")
        member_id: str = joined.json()["member_id"]
        return member_id

    join("mixed", "shop-1")
    both = join("mixed", "shop-2", "secret")
    hidden = join("hidden", "secret")
    listed = service.ask("GET", "/v1/groups", by="reader").json()["groups"]
    assert [(one["group"], one["members"]) for one in listed] == [("mixed", 2)]
    shown = service.ask("GET", "/v1/groups/mixed", by="reader")
    assert "secret" not in shown.text
    assert {queue["topic"] for queue in shown.json()["queues"]} == {"shop-1", "shop-2"}
    for method, path, body in (
        ("GET", "/v1/groups/hidden", None),
        ("DELETE", "/v1/groups/hidden", None),
        ("GET", "/v1/groups/hidden/offsets", None),
    ):
        there = service.ask(method, path, body, by="reader")
        not_there = service.ask(method, path.replace("hidden", "hiddeN"), body, by="reader")
        assert there.status_code == 404
        assert there.json() == json.loads(not_there.text.replace("hiddeN", "hidden"))
    assert service.ask("DELETE", "/v1/groups/mixed", by="reader").status_code == 403
    for group, member in (("mixed", both), ("hidden", hidden)):
        for method in ("PUT", "DELETE"):
            refused = service.ask(method, f"/v1/groups/{group}/members/{member}", by="reader")
            assert refused.status_code == 403
            assert "secret" not in refused.text
    for method, path, more in (
        ("POST", "/v1/groups/new/members", {"topics": ["shop-1", "secret"]}),
        ("PUT", "/v1/groups/new/offsets", {"offsets": [{"topic": "secret", "queue_id": 0, "offset": 0}]}),
    ):
        assert service.ask(method, path, more, by="reader").status_code == 403
    assert service.ask("GET", "/v1/groups/new", by="root").status_code == 404


def test_a_token_for_no_topic_sees_the_stores_numbers_and_no_name(service: GuardedService) -> None:
    assert service.ask("GET", "/metrics", by="numbers").status_code == 200
    joined = service.ask("POST", "/v1/groups/shop-readers/members", {"topics": ["shop-1"]}, by="root")
    assert joined.status_code == 200
    assert 'group="shop-readers"' in service.ask("GET", "/metrics", by="root").text
    for path in ("/v1/stats", "/v1/files", "/v1/topics", "/v1/groups", "/metrics"):
        answer = service.ask("GET", path, by="numbers")
        assert answer.status_code == 200
        assert "shop-" not in answer.text
        assert "secret" not in answer.text
    assert service.ask("GET", "/v1/topics/shop-1/messages", by="numbers").status_code == 403


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dC1yb290", "t-root", "Bearer t-root, Bearer x"])
def test_what_is_no_bearer_token_is_none(service: GuardedService, header: str) -> None:
    sent = {"Authorization": header}
    assert service.ask("GET", "/v1/topics", by=None, headers=sent).status_code == 401
    assert service.ask("GET", "/v1/topics", by=None, headers={"Authorization": "bearer  t-root"}).status_code == 200


def test_what_is_nowhere_needs_a_token_too(service: GuardedService) -> None:
    for path in ("/v2", "/v1", "/v1/topics/", "/docs/", "/metrics/"):
        assert service.ask("GET", path, by=None).status_code == 401


def test_admin_calls_are_on_record_with_who_and_outcome_and_never_with_the_key(service: GuardedService) -> None:
    expected = []
    for (method, template), (need, body) in NEEDS.items():
        if need in (ADMIN, EVERYTHING) and method != "GET":
            for who in ("stranger", "reader", "root"):
                word = "?all=true" if (method, template) == ("DELETE", _TOPIC) else ""
                service.ask(method, _path(template) + word, body, by=who)
            expected.append((method, _path(template)))
    service.ask("PUT", "/v1/topics/shop-2", {"queues": 1}, by="admin")
    (file,) = service.audit_folder.iterdir()
    text = file.read_text(encoding="utf-8")
    lines = [json.loads(one) for one in text.splitlines()]
    begun = [one for one in lines if one["state"] == "begun"]
    assert [(one["method"], one["path"]) for one in begun] == [*expected, ("PUT", "/v1/topics/shop-2")]
    assert {(one["caller"], one["request_id"]) for one in begun[:-1]} == {("root", "r1")}
    ended = {one["call"]: one for one in lines if one["state"] == "ended"}
    is_of_cluster = [path.startswith("/v1/cluster/") for _, path in expected]  # there is none to change
    assert [ended[one["call"]]["ok"] for one in begun] == [not refused for refused in is_of_cluster] + [False]
    assert (begun[-1]["caller"], ended[begun[-1]["call"]]["error"]) == ("admin", "ConflictError")
    erased = next(one for one in begun if one["path"].endswith("/erase"))
    assert erased["parameters"] == {"topic": "shop-1", "dry_run": True, "by_key": True}
    assert "k-of-somebody" not in text
    assert "t-root" not in text


def test_openapi_says_which_calls_need_a_token(service: GuardedService) -> None:
    described = service.ask("GET", "/openapi.json", by=None).json()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, methods in described["paths"].items():
        for method, call in methods.items():
            assert ("security" in call) == (NEEDS[method.upper(), path][0] != OPEN), (method, path)
