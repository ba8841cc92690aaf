"""Readers that take little or nothing: what their answers hold has a bound, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.flow_client import Flow, flow
from tierlog.service.api.answer_forms import document, lines
from tierlog.service.wire.documents import ARROW_STREAM, JSON, NDJSON
from tierlog.tiering.message.batch import Message

#: Beyond what the system takes for a connection (4 MiB where nobody set it otherwise).
SIZE, COUNT = 240_000, 50
PAGE = SIZE * COUNT
PATH = f"/v1/topics/t/messages?key=k&limit={COUNT}"


def fill(service: Flow, body: bytes = b"x" * SIZE) -> None:
    service.engine.append([Message("t", body, ("k",), queue_id=0) for _ in range(COUNT)])


def take_nothing(service: Flow, kind: str = JSON) -> socket.socket:
    """A reader that has asked for a large page, and seen that its answer has begun."""
    connection = service.connect(f"GET {PATH} HTTP/1.1\nHost: 127.0.0.1\nAccept: {kind}", 4_096)
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def held(service: Flow) -> float:
    text = service.ask("GET", "/metrics")[2].decode()
    (found,) = (line for line in text.splitlines() if line.startswith("tierlog_http_answer_bytes "))
    return float(found.split()[1])


@pytest.mark.parametrize("kind", [JSON, NDJSON, ARROW_STREAM])
def test_answers_that_nobody_takes_hold_what_is_allowed_and_others_are_answered(tmp_path: Path, kind: str) -> None:
    bounds: dict[str, Any] = {"serve__max_reads": 4, "serve__read_threads": 4, "hot__segment_bytes": 32 << 20}
    with (
        flow(tmp_path, serve__answer_memory_bytes=3 * PAGE + PAGE // 2, serve__wait_ms=10, **bounds) as service,
        contextlib.ExitStack() as stack,
    ):
        fill(service)
        for number in range(3):
            stack.enter_context(take_nothing(service, kind))
            assert (number + 1) * PAGE <= held(service) < (number + 1) * 1.1 * PAGE
        for _ in range(5):  # as many as there may be reads, and more
            status, headers, content = service.ask("GET", PATH, accept=kind)
            assert (status, headers.get("retry-after")) == (429, "1"), content[:200]
        assert service.ask("GET", PATH.replace(f"limit={COUNT}", "limit=1"))[0] == 200
        assert held(service) < 3.3 * PAGE


def test_what_a_reader_held_is_free_once_it_is_cut_off(tmp_path: Path) -> None:
    with flow(
        tmp_path, serve__answer_memory_bytes=1 << 20, serve__send_timeout_ms=50, serve__wait_ms=60_000,
        hot__segment_bytes=32 << 20,
    ) as service, contextlib.ExitStack() as stack:  # fmt: skip
        fill(service)
        for _ in range(4):  # each waits until the one before is cut off
            stack.enter_context(take_nothing(service))
        stack.close()
        status, _, content = service.ask("GET", PATH)
        assert (status, len(json.loads(content)["messages"])) == (200, COUNT)


@pytest.mark.parametrize("kind", [JSON, NDJSON])
def test_a_page_in_pieces_is_the_page(tmp_path: Path, kind: str) -> None:
    with flow(tmp_path, hot__segment_bytes=32 << 20) as service:
        body = "\x01" * 20_000  # six times as long as text
        fill(service, body.encode())
        status, headers, content = service.ask("GET", PATH, accept=kind)
        assert (status, headers.get("transfer-encoding")) == (200, "chunked")
        assert len(content) > 6 * 20_000 * COUNT
        found: Any = json.loads(content) if kind == JSON else [json.loads(line) for line in content.splitlines()]
        messages, beside = (found.pop("messages"), found) if kind == JSON else (found[:-1], found[-1])
        assert [message["body"] for message in messages] == [body] * COUNT
        assert (beside["next_cursor"], beside["coverage"]["complete"]) == (None, True)
        (queue,) = (queue for queue in service.engine.topic("t").queues if queue.max_offset)
        pulled = f"/v1/topics/t/queues/{queue.queue_id}/messages?limit={COUNT}"
        content = service.ask("GET", pulled, accept=kind)[2]
        found = json.loads(content if kind == JSON else content.splitlines()[-1])
        assert (found["status"], found["next_offset"]) == ("FOUND", COUNT)


@pytest.mark.parametrize("write", [lines, lambda messages, beside: document({}, messages, beside)])
def test_no_more_text_is_made_than_somebody_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object
) -> None:
    made = 0

    def counted(message: object) -> dict[str, object]:
        nonlocal made
        made += 1
        return {"body": "x" * 100_000}

    monkeypatch.setattr("tierlog.service.api.answer_forms.message_json", counted)
    pieces = write([object()] * 100, {"end": True})  # type: ignore[operator]
    for number, piece in enumerate(pieces, 1):
        assert made == min(3 * number, 100)
        assert len(piece) < 310_000
    assert made == 100


def test_an_append_is_answered_however_much_others_hold(tmp_path: Path) -> None:
    with (
        flow(tmp_path, serve__answer_memory_bytes=1 << 20, serve__wait_ms=10, hot__segment_bytes=32 << 20) as service,
        contextlib.ExitStack() as stack,
    ):
        fill(service)
        stack.enter_context(take_nothing(service))
        status, answer = service.post(b'{"body": "x"}\n' * 2_000)
        assert (status, len(answer["results"])) == (200, 2_000)
        assert len(json.dumps(answer)) > 1 << 17
