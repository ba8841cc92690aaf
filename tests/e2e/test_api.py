"""The REST API over a real engine on the loopback: what docs/openapi.json promises, right and wrong requests alike."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from tests.support.service.served import served
from tierlog.service.api.errors import STATUS, problem
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.format.hashing import java_hash
from tierlog.tiering.format.properties import SHARDING_KEY
from tierlog.tiering.remote.problems import error_class, error_classes, problem_type

SIZES = {
    "hot.segment_bytes": 65_536,
    "hot.queue_file_units": 60,
    "index.slots": 100,
    "index.items": 400,
    "hot.max_body_bytes": 10_000,
    "serve.max_request_bytes": 100_000,
}


@dataclass
class Service:
    """A served engine and a client of it."""

    engine: Store
    port: int
    stopping: threading.Event

    def ask(
        self, method: str, path: str, body: bytes | str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        status, _, content = self.ask(method, path, data, content_type="application/json")
        return status, json.loads(content)

    def produce(self, topic: str, *messages: Mapping[str, object], query: str = "") -> Any:
        status, answer = self.json("POST", f"/v1/topics/{topic}/messages{query}", {"messages": messages})
        assert status == 200, answer
        return answer["results"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with sound_service(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Of all tests that change nothing."""
    with sound_service(tmp_path_factory.mktemp("shared")) as found:
        yield found


@contextmanager
def sound_service(folder: Path) -> Iterator[Service]:
    """A service whose store nothing is wrong with at its end."""
    settings = Settings.load(None, SIZES)
    engine = Store.open(folder / "store", cold_url=f"file://{folder}/cold", settings=settings)
    engine.start()
    stopping = threading.Event()
    try:
        with served(engine, settings, stopping) as url:
            yield Service(engine, int(url.rpartition(":")[2]), stopping)
    finally:
        findings = engine.check()
        engine.close()
    assert findings == []


def test_what_is_produced_is_found_by_key_by_time_and_by_offset(service: Service) -> None:
    raw = b"\xff\x00raw"
    results = service.produce(
        "orders",
        {"body": "grüße", "keys": ["k1", "k2"], "tag": "t", "properties": {"p": "v"}, "born_ms": 5, "queue_id": 0},
        {"body_base64": base64.b64encode(raw).decode(), "keys": ["k2"], "queue_id": 0},
    )
    assert [one["queue_offset"] for one in results] == [0, 1]
    status, page = service.json("GET", "/v1/topics/orders/messages?key=k2&order=oldest")
    assert status == 200
    first, second = page["messages"]
    assert set(first) == {
        "message_id", "store_id", "physical_offset", "topic", "queue_id", "queue_offset", "keys", "tag", "properties",
        "born_ms", "store_ms", "tier", "size_bytes", "body",
    }  # fmt: skip
    assert (first["body"], first["keys"], first["tag"], first["properties"]) == ("grüße", ["k1", "k2"], "t", {"p": "v"})
    assert (first["born_ms"], first["tier"], first["message_id"]) == (5, "hot", results[0]["message_id"])
    assert base64.b64decode(second["body_base64"]) == raw
    assert "body" not in second
    assert page["next_cursor"] is None
    assert page["coverage"]["complete"] is True
    for path in ("time=born&from=5&to=6", f"from={first['store_ms']}&to={second['store_ms'] + 1}&key=k1"):
        _, page = service.json("GET", f"/v1/topics/orders/messages?{path}")
        assert [one["body"] for one in page["messages"]] == ["grüße"]
    status, pulled = service.json("GET", "/v1/topics/orders/queues/0/messages?offset=1")
    assert (status, pulled["status"], pulled["next_offset"]) == (200, "FOUND", 2)
    assert (pulled["min_offset"], pulled["max_offset"]) == (0, 2)
    assert [one["queue_offset"] for one in pulled["messages"]] == [1]


def test_the_answer_is_the_same_after_archiving_and_dropping_the_hot_copy(service: Service) -> None:
    service.produce("orders", *({"body": f"b{n}", "keys": [f"k{n % 7}"]} for n in range(500)))
    _, before = service.json("GET", "/v1/topics/orders/messages?key=k3&limit=100")
    status, report = service.json("POST", "/v1/admin/archive", {"all": True, "drop_hot": True})
    assert status == 200
    assert report["segments"] >= 1
    assert report["border"] == report["archived_to"] > 0
    _, after = service.json("GET", "/v1/topics/orders/messages?key=k3&limit=100")
    assert {one["tier"] for one in after["messages"]} == {"cold"}
    assert [one | {"tier": ""} for one in after["messages"]] == [one | {"tier": ""} for one in before["messages"]]
    assert len(after["messages"]) == len([n for n in range(500) if n % 7 == 3])


def test_pages_follow_the_cursor_without_loss_or_repeat(service: Service) -> None:
    service.produce("orders", *({"body": f"b{n}", "keys": ["k"]} for n in range(25)))
    found, cursor = [], None
    while True:
        asked = "/v1/topics/orders/messages?key=k&limit=10" + (f"&cursor={quote(cursor)}" if cursor else "")
        _, page = service.json("GET", asked)
        found += [one["body"] for one in page["messages"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert page["coverage"]["cut_by"] == "limit"
        assert page["coverage"]["complete"] is True
    assert found == [f"b{n}" for n in reversed(range(25))]


def test_a_dry_run_says_the_cost_and_the_query_keeps_within_it(service: Service) -> None:
    service.produce("orders", *({"body": f"b{n}", "keys": [f"k{n % 7}"]} for n in range(500)))
    service.json("POST", "/v1/admin/archive", {"all": True, "drop_hot": True})
    asked = "/v1/topics/orders/messages?key=k3&limit=100"
    status, dry = service.json("GET", asked + "&dry_run=true")
    assert (status, dry["messages"], dry["next_cursor"]) == (200, [], None)
    assert (dry["coverage"]["complete"], dry["coverage"]["cut_by"]) == (False, "dry_run")
    least, most = dry["estimate"]["requests"]["least"], dry["estimate"]["requests"]["most"]
    _, found = service.json("GET", f"{asked}&max_requests={most}&timeout_ms=600000")
    assert found["coverage"]["complete"] is True
    assert least <= found["coverage"]["requests"] <= most
    assert "estimate" not in found
    for kind in ("application/x-ndjson", "application/vnd.apache.arrow.stream"):
        _, _, content = service.ask("GET", asked + "&dry_run=true", accept=kind)
        assert b"round_trips" in content
        assert b"likely" in content
    for wrong in ("timeout_ms=0", "timeout_ms=x", "dry_run=perhaps", "max_requests=-1"):
        assert service.json("GET", f"{asked}&{wrong}")[0] == 400


def test_ndjson_goes_in_and_comes_out_with_the_coverage_last(service: Service) -> None:
    lines = "".join(json.dumps({"body": body, "keys": ["k"]}) + "\n" for body in "ab") + "\n"
    status, _, _ = service.ask("POST", "/v1/topics/t/messages", lines, content_type="application/x-ndjson")
    assert status == 200
    status, headers, content = service.ask(
        "GET", "/v1/topics/t/messages?key=k&order=oldest", accept="application/x-ndjson"
    )
    assert headers["content-type"].startswith("application/x-ndjson")
    *messages, last = [json.loads(line) for line in content.splitlines()]
    assert [one["body"] for one in messages] == ["a", "b"]
    assert last["coverage"]["complete"] is True


def test_an_arrow_stream_holds_the_bodies_as_bytes_and_the_coverage_in_its_schema(service: Service) -> None:
    service.produce("t", {"body_base64": "/w==", "keys": ["k", "l"], "properties": {"p": "v"}})
    kind = "application/vnd.apache.arrow.stream"
    status, headers, content = service.ask("GET", "/v1/topics/t/messages?key=k", accept=kind)
    assert (status, headers["content-type"]) == (200, kind)
    table = pa.ipc.open_stream(content).read_all()
    assert table["body"].to_pylist() == [b"\xff"]
    assert table["keys"].to_pylist() == [["k", "l"]]
    assert table["properties"].to_pylist() == [[("p", "v")]]
    assert json.loads(table.schema.metadata[b"coverage"])["complete"] is True


def test_messages_of_one_sharding_key_share_a_queue_and_keep_the_key(service: Service) -> None:
    service.json("PUT", "/v1/topics/t", {"queues": 5})
    keys = ["a", "b", "polygenelubricants", "ü"]
    results = service.produce("t", *({"body": "x", "keys": ["k"], "sharding_key": key} for key in keys * 2))
    assert [one["queue_id"] for one in results] == [abs(java_hash(key)) % 5 for key in keys] * 2
    _, page = service.json("GET", "/v1/topics/t/messages?key=k&limit=1&order=oldest")
    assert page["messages"][0]["properties"] == {SHARDING_KEY: "a"}


def test_a_new_topic_has_the_queues_that_were_asked_for_and_never_fewer(service: Service) -> None:
    assert service.json("GET", "/v1/topics/t")[0] == 404
    status, made = service.json("PUT", "/v1/topics/t", {"queues": 3})
    assert (status, made["queues"], len(made["offsets"])) == (201, 3, 3)
    assert service.json("PUT", "/v1/topics/t", {"queues": 5})[0] == 200
    assert service.json("PUT", "/v1/topics/t", {"queues": 4})[0] == 409
    assert service.json("GET", "/v1/topics/t")[1]["queues"] == 5
    assert [one["topic"] for one in service.json("GET", "/v1/topics")[1]["topics"]] == ["t"]


def test_what_is_acknowledged_as_archived_is_in_the_bucket(service: Service) -> None:
    service.produce("orders", {"body": "one"}, {"body": "two"}, query="?durability=archived")
    _, stats = service.json("GET", "/v1/stats")
    assert (stats["tails_written"], stats["unarchived_bytes"]) == (1, 0)


def test_a_long_poll_returns_when_a_message_comes(service: Service) -> None:
    service.produce("t", {"body": "first", "queue_id": 0})
    answers: list[Any] = []
    path = "/v1/topics/t/queues/0/messages?offset=1&wait_ms=60000"
    waiting = threading.Thread(target=lambda: answers.append(service.json("GET", path)))
    waiting.start()
    service.produce("t", {"body": "second", "queue_id": 0})
    waiting.join()
    ((status, page),) = answers
    assert (status, page["status"]) == (200, "FOUND")
    assert [one["body"] for one in page["messages"]] == ["second"]


def test_a_stop_ends_long_polls(service: Service) -> None:
    service.produce("t", {"body": "first", "queue_id": 0})
    answers: list[Any] = []
    path = "/v1/topics/t/queues/0/messages?offset=1&wait_ms=60000"
    waiting = threading.Thread(target=lambda: answers.append(service.json("GET", path)))
    waiting.start()
    service.stopping.set()
    waiting.join(30)
    assert answers[0][1]["status"] == "NO_NEW_MESSAGE"


@pytest.mark.parametrize(("offset", "status"), [(0, "FOUND"), (1, "NO_NEW_MESSAGE"), (2, "OFFSET_TOO_LARGE")])
def test_a_pull_says_where_it_stands(service: Service, offset: int, status: str) -> None:
    service.produce("t", {"body": "first", "queue_id": 0})
    answer = service.json("GET", f"/v1/topics/t/queues/0/messages?offset={offset}")
    assert (answer[0], answer[1]["status"]) == (200, status)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/topics/nope/messages?key=k", None, 404),
        ("GET", "/v1/topics/nope/queues/0/messages", None, 404),
        ("GET", "/v1/topics/t/queues/99/messages", None, 404),
        ("GET", "/v1/nope", None, 404),
        ("DELETE", "/v1/files", None, 405),
        ("GET", "/v1/topics/t/messages?from=5&to=5", None, 400),
        ("GET", "/v1/topics/t/messages?from=someday", None, 400),
        ("GET", "/v1/topics/t/messages?limit=10001", None, 400),
        ("GET", "/v1/topics/t/messages?limit=0", None, 400),
        ("GET", "/v1/topics/t/messages?time=soon", None, 400),
        ("GET", "/v1/topics/t/messages?form=5", None, 400),
        ("GET", "/v1/topics/t/messages?key=a%20b", None, 400),
        ("GET", "/v1/topics/t/messages?cursor=xyz", None, 400),
        ("GET", "/v1/topics/t/queues/x/messages", None, 400),
        ("GET", "/v1/topics/t/queues/0/messages?offset=-1", None, 400),
        ("GET", "/v1/topics/b%C3%A4d/messages", None, 400),
        ("POST", "/v1/topics/b%20ad/messages", {"messages": [{"body": "x"}]}, 400),
        ("POST", f"/v1/topics/{'t' * 128}/messages", {"messages": [{"body": "x"}]}, 400),
        ("POST", "/v1/topics/t/messages?durability=sometimes", {"messages": [{"body": "x"}]}, 400),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": ""}]}, 400),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "keys": ["a b"]}]}, 400),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "keys": [""]}]}, 400),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "properties": {"KEYS": "x"}}]}, 400),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x" * 10_001}]}, 413),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "properties": {"p": "v" * 33_000}}]}, 413),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x" * 100_000}]}, 413),
        ("POST", "/v1/topics/t/messages", {"messages": []}, 422),
        ("POST", "/v1/topics/t/messages", {"messages": [{}]}, 422),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "body_base64": "eA=="}]}, 422),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body_base64": "?"}]}, 422),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "kees": []}]}, 422),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "queue_id": 1, "sharding_key": "a"}]}, 422),
        ("POST", "/v1/topics/t/messages", {"messages": "x"}, 422),
        ("POST", "/v1/topics/t/messages", {"messages": [{"body": "good"}, {"body": ""}]}, 400),
        ("PUT", "/v1/topics/t", {"queues": 0}, 422),
        ("POST", "/v1/admin/archive", {"all": True, "until": "2026-03-01"}, 400),
        ("POST", "/v1/admin/archive", {"untill": 5}, 422),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_a_problem_and_changes_nothing(
    shared_service: Service, method: str, path: str, body: object, status: int
) -> None:
    shared_service.produce("t", {"body": "first", "keys": ["k"], "queue_id": 0})
    before = shared_service.json("GET", "/v1/topics")[1]
    data = None if body is None else json.dumps(body)
    got, headers, content = shared_service.ask(method, path, data, content_type="application/json")
    found = json.loads(content)
    assert got == status, found
    assert headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail"} <= set(found)
    assert found["status"] == status
    assert found["detail"]
    assert shared_service.json("GET", "/v1/topics")[1] == before


@pytest.mark.parametrize("data", ["\t", " \r\n", "\x0cnull", "nul"])
def test_a_body_that_may_be_absent_and_is_no_json_is_refused(shared_service: Service, data: str) -> None:
    for path in ("/v1/admin/archive", "/v1/admin/check"):
        status, _, content = shared_service.ask("POST", path, data, content_type="application/json")
        assert status == 422, content
    for nothing in (None, "", " null\n"):
        status, _, content = shared_service.ask("POST", "/v1/admin/archive", nothing, content_type="application/json")
        assert status == 200, content


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"\xff", "application/json", 422),
        (b'{"messages":[{"body":"\\ud800"}]}', "application/json", 422),
        (b"", "application/x-ndjson", 422),
        (b'{"body":"x"}\n{"body":', "application/x-ndjson", 422),
        (b"", "application/vnd.apache.arrow.stream", 422),
        (b"body=x", "application/x-www-form-urlencoded", 415),
    ],
)
def test_a_body_that_is_not_what_it_should_be_is_refused(
    service: Service, content: bytes, kind: str, status: int
) -> None:
    got, headers, answer = service.ask("POST", "/v1/topics/t/messages", content, content_type=kind)
    assert (got, headers["content-type"]) == (status, "application/problem+json"), answer
    assert service.json("GET", "/v1/topics")[1] == {"topics": []}


def test_a_body_without_announced_length_is_refused_once_it_is_over_the_limit(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b"x" * 0x8000 + b"\r\n" * 1
        )
        for _ in range(3):
            connection.sendall(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_request_sent_again_with_its_key_appends_nothing_twice(service: Service) -> None:
    def send(key: str, *bodies: str) -> tuple[int, dict[str, str], Any]:
        lines = "\n".join(json.dumps({"body": body}) for body in bodies)
        status, headers, content = service.ask(
            "POST", "/v1/topics/t/messages", lines, content_type="application/x-ndjson", idempotency_key=key
        )
        return status, headers, json.loads(content)

    first = send('"p"', "a", "b")
    assert first[0] == 200
    assert send("p:0", "a", "b")[2] == first[2]
    assert send("p:1", "b", "c")[2]["results"][0] == first[2]["results"][1]
    assert sum(queue["max_offset"] for queue in service.json("GET", "/v1/topics/t")[1]["offsets"]) == 3
    assert send("p", "other")[0] == 422
    assert send("p q", "a")[0] == 400
    with service.engine._hot.producers.claim("t", "p", 3, 9):
        status, headers, refused = send("p:3", "d")
    assert (status, headers["retry-after"], refused["type"]) == (409, "1", "urn:tierlog:problem:request-under-way")
    assert service.json("GET", "/v1/stats")[1]["produce_window_requests"] == 2


def test_health_files_and_stats_answer(service: Service) -> None:
    service.produce("t", {"body": "first", "keys": ["k"]})
    assert service.json("GET", "/livez")[0] == 200
    assert service.json("GET", "/readyz") == (
        200,
        {"status": "ready", "cold_error": None, "index_error": None, "damage": None, "follow_error": None},
    )
    assert service.json("POST", "/v1/admin/flush") == (200, {"flushed": True})
    status, checked = service.json("POST", "/v1/admin/check", {"deep": True})
    # The archive's beats go on beside the check: what they are uploading is noted, rightly.
    assert all(" 0.0 h" in note["text"] for note in checked.pop("notes"))
    assert (status, checked) == (200, {"findings": [], "details": [], "unasked": []})
    files = service.json("GET", "/v1/files")[1]["files"]
    assert {(one["kind"], one["tier"]) for one in files} >= {("segment", "hot"), ("index", "hot")}
    assert service.json("GET", "/v1/stats")[1]["store_id"] == service.engine.store_id
    paths = service.json("GET", "/openapi.json")[1]["paths"]
    assert "/v1/topics/{topic}/messages" in paths
    for path, calls in paths.items():
        for call in calls.values():
            assert {"200", "400", "500"} <= set(call["responses"]), path
            assert call["description"], path


def test_a_store_that_cannot_write_is_alive_but_not_ready(tmp_path: Path) -> None:
    settings = Settings.load(None, SIZES)
    Store.open(tmp_path / "store", settings=settings).close()
    engine = Store.open(tmp_path / "store", settings=settings, read_only=True)
    stopping = threading.Event()
    try:
        with served(engine, settings, stopping) as url:
            service = Service(engine, int(url.rpartition(":")[2]), stopping)
            assert service.json("GET", "/livez")[0] == 200
            status, headers, content = service.ask("GET", "/readyz")
            assert (status, "read-only" in json.loads(content)["detail"]) == (503, True)
            assert "retry-after" in headers
            assert service.json("POST", "/v1/topics/t/messages", {"messages": [{"body": "x"}]})[0] == 503
    finally:
        engine.close()


def test_the_page_needs_nothing_from_elsewhere(service: Service) -> None:
    status, headers, content = service.ask("GET", "/")
    text = content.decode()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "://" not in text.replace("e.g. http://", "")
    assert '<html lang="en">' in text
    assert "innerHTML" not in text


def test_every_class_of_the_error_tree_has_a_status_of_its_own() -> None:
    kinds = list(error_classes())
    assert [
        kind
        for kind in kinds
        if kind.__module__.startswith(("tierlog.tiering", "tierlog.index")) and kind not in STATUS
    ] == []
    assert all(400 <= status < 600 for status in STATUS.values())


def test_every_class_of_the_error_tree_survives_the_wire() -> None:
    for kind in STATUS:
        assert error_class(problem_type(kind)) is kind
    assert error_class("about:blank") is None


def test_a_problem_that_may_pass_says_when_to_come_back() -> None:
    assert problem(503, "t", "d").headers["retry-after"].isdigit()
    assert "retry-after" not in problem(400, "t", "d").headers
