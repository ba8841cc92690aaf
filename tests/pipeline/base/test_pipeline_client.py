"""The pipeline's client: what it waits out, what it gives up on, and what it never sends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.base.client import ServedPage, ServiceClient
from tierlog.pipeline.source.stream_queues import ServedQueues
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    StoreError,
    ThrottledError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Boundary, PullStatus
from tierlog.tiering.message.batch import Message

Answer = tuple[int, dict[str, str], bytes]
BROKEN: Answer = (0, {}, b"")
FINE: Answer = (200, {}, b'{"store_id": "s"}')


@dataclass
class Script:
    """A server that gives prepared answers, and what it was asked."""

    answers: list[Answer]
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def script() -> Iterator[Script]:
    played = Script([])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            played.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status, headers, body = played.answers.pop(0)
            if not status:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        played.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield played
        finally:
            server.shutdown()
            thread.join()


def client_of(script: Script, clock: ManualClock, tries: int = 4) -> ServiceClient:
    return ServiceClient(script.url, clock=clock, randomness=SeededRandomness(1), timeout_s=10, tries=tries)


def test_a_broken_connection_and_an_overloaded_service_are_waited_out(script: Script) -> None:
    clock = ManualClock()
    script.answers = [BROKEN, (503, {}, b"x"), (429, {}, b"{}"), FINE]
    with client_of(script, clock) as client:
        assert client.stats() == {"store_id": "s"}
    assert len(script.asked) == 4
    assert 0.125 + 0.25 + 0.5 <= clock.monotonic_s() <= 0.25 + 0.5 + 1


def test_a_process_that_answers_for_several_stores_is_no_place_to_read_a_log_from(script: Script) -> None:
    script.answers = [(200, {}, b'{"services": [], "silent": 0}')]
    with client_of(script, ManualClock()) as client, pytest.raises(InvalidRequestError, match="several stores"):
        client.stats()


def test_what_is_sent_again_goes_to_the_store_that_was_asked_first(script: Script) -> None:
    home: Answer = (200, {}, b'{"topic": "orders", "store_id": "a", "url": null, "is_routed": false}')
    done: Answer = (200, {}, b'{"results": []}')
    script.answers = [home, BROKEN, done, done]
    with client_of(script, ManualClock()) as client:
        client.produce("orders", b"", "p:0")
        client.produce("orders", b"", "p:1")
    posted = "/v1/topics/orders/messages?durability=flushed&store_id=a"
    assert [path for path, _ in script.asked] == ["/v1/cluster/topics/orders", posted, posted, posted]


def test_a_service_that_says_how_long_is_left_alone_for_so_long(script: Script) -> None:
    clock = ManualClock()
    script.answers = [(409, {"Retry-After": "7"}, b"{}"), FINE]
    with client_of(script, clock) as client:
        client.stats()
    assert clock.monotonic_s() == 7


@pytest.mark.parametrize(
    ("answer", "tries", "kind"),
    [
        ((503, {"Retry-After": "61"}, b"{}"), 1, UnavailableError),
        ((503, {"Retry-After": "soon"}, b"{}"), 4, UnavailableError),
        ((503, {}, b'{"type": "urn:tierlog:problem:throttled", "detail": "d"}'), 4, ThrottledError),
        (BROKEN, 4, UnavailableError),
        ((409, {}, b"{}"), 1, StoreError),
        ((422, {}, b"{}"), 1, InvalidRequestError),
        ((500, {}, b"<html>"), 1, StoreError),
        ((200, {}, b"<html>"), 1, StoreError),
        ((302, {"Location": "http://127.0.0.1:9/"}, b""), 1, StoreError),
    ],
)
def test_what_does_not_pass_is_one_error_after_bounded_tries(
    script: Script, answer: Answer, tries: int, kind: type[StoreError]
) -> None:
    script.answers = [answer] * 10
    with client_of(script, ManualClock()) as client, pytest.raises(kind) as raised:
        client.stats()
    assert type(raised.value) is kind
    assert len(script.asked) == tries


def test_nobody_there_is_one_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with (
        ServiceClient(url, clock=ManualClock(), randomness=SeededRandomness(1), tries=3) as client,
        pytest.raises(UnavailableError, match=f"no answer from {url}.*is `tierlog serve` running"),
    ):
        client.stats()


def test_a_problem_keeps_its_words_and_its_hint(script: Script) -> None:
    script.answers = [
        (404, {}, b'{"type": "urn:tierlog:problem:topic-not-found", "detail": "no topic", "hint": "make it"}')
    ]
    with client_of(script, ManualClock()) as client, pytest.raises(TopicNotFoundError) as raised:
        client.topic("a/b")
    assert (raised.value.message, raised.value.hint) == ("no topic", "make it")
    assert script.asked[0][0] == "/v1/topics/a%2Fb"


def test_a_token_comes_from_the_environment_alone(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.answers = [FINE, FINE]
    with client_of(script, ManualClock()) as client:
        monkeypatch.delenv("TIERLOG_TOKEN", raising=False)
        client.stats()
        monkeypatch.setenv("TIERLOG_TOKEN", "t0ken")
        client.stats()
    assert [headers.get("authorization") for _, headers in script.asked] == [None, "Bearer t0ken"]


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "http://", "http://host:x", "http://host?a=b", "http://user:pw@host", "http://h/#f"]
)
def test_a_url_that_is_none_of_a_service_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        ServiceClient(url)
    assert "pw" not in str(raised.value)


def test_what_a_service_holds_is_read_as_it_was_written(tmp_path: Path) -> None:
    settings = tiny_settings()
    engine = Store.open(tmp_path / "store", settings=settings, cold_url=f"file://{tmp_path}/cold")
    engine.start()
    try:
        bodies = [b"text", b"\xff\x00"]
        engine.append([Message("t", body, ["k"], "tag", {"p": "v"}, 5, 1) for body in bodies])
        with served(engine, settings) as url, ServiceClient(url) as client:
            assert client.stats()["store_id"] == engine.store_id
            (topic,) = client.topics()
            assert topic == client.topic("t")
            assert [(queue.min_offset, queue.max_offset) for queue in topic.queues] == [(0, 0), (0, 2), (0, 0), (0, 0)]
            page = client.pull("t", 1, 0, 10)
            assert page == ServedPage(PullStatus.FOUND, 2, 0, 2, page.messages)
            assert [(one["body"], one["keys"], one["tag"], one["properties"]) for one in page.messages] == [
                (body, ["k"], "tag", {"p": "v"}) for body in bodies
            ]
            times = [one["store_ms"] for one in page.messages]
            assert client.offset_by_time("t", 1, times[0]) == 0
            assert client.offset_by_time("t", 1, times[-1], Boundary.UPPER) == 1
            with pytest.raises(TopicNotFoundError):
                client.pull("nothing", 0, 0, 1)
    finally:
        engine.close()


def test_a_range_that_a_follower_loses_while_a_stream_reads_its_service_is_said_once_it_is_known(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = ({"first": at, "next": 2 * at, "from_ms": 0, "to_ms": 9} for at in (100, 500))
    script.answers = []
    for known in (None, [], [first], [first], [first, second]):
        stats = json.dumps({"store_id": "s", "lost": known}).encode()
        script.answers += [(200, {}, stats), (200, {}, b'{"topics": []}')]
    with client_of(script, ManualClock()) as client:
        queues = ServedQueues(client, "s", says_lost=True)
        while script.answers:
            assert queues.bounds() == {}
    assert ["[100, 200)" in message for message in caplog.messages] == [True, False]
    assert "store s is not complete: the broker had deleted its log [500, 1000)" in caplog.messages[1]


@pytest.mark.parametrize(("says_lost", "asked"), [(True, 1), (False, 0)])
def test_a_service_without_a_brokers_log_or_beside_its_archive_is_not_asked_for_what_it_lacks(
    says_lost: bool, asked: int, script: Script
) -> None:
    script.answers = [FINE] * asked + [(200, {}, b'{"topics": []}')] * 3
    with client_of(script, ManualClock()) as client:
        queues = ServedQueues(client, "s", says_lost=says_lost)
        for _ in range(3):
            queues.bounds()
    assert [path for path, _ in script.asked].count("/v1/stats") == asked
