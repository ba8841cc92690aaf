"""A flood of one kind of requests, all waiting for an archive that never answers, leaves the others answered."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

from tests.support.objects.black_hole import black_hole
from tests.support.service.flow_client import NDJSON, Flow, flow

FLOOD = 300


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


def answers(service: Flow) -> None:
    """Health, an append, a hot query and a hot pull, while others wait."""
    assert service.ask("GET", "/readyz")[0] == 200
    status, answer = service.post(b'{"body": "new", "keys": ["fresh"], "queue_id": 0}\n')
    assert status == 200, answer
    status, _, content = service.ask("GET", f"/v1/topics/t/messages?key=fresh&from={answer['results'][0]['store_ms']}")
    assert (status, [one["body"] for one in json.loads(content).get("messages", ())]) == (200, ["new"]), content
    offset = answer["results"][0]["queue_offset"]
    status, _, content = service.ask("GET", f"/v1/topics/t/queues/0/messages?offset={offset}")
    assert (status, json.loads(content)["status"]) == (200, "FOUND")


@pytest.mark.slow
@pytest.mark.usefixtures("aws")
def test_producers_and_readers_that_wait_for_a_dead_archive_leave_the_others_answered(tmp_path: Path) -> None:
    with flow(tmp_path) as before:
        before.fill(300, 500)
        before.engine.archive(everything=True, drop_hot=True)
    with black_hole() as url:
        service_json = tmp_path / "store" / "tierlog" / "store.json"
        told = json.loads(service_json.read_text())
        told["cold_url"] = "s3://bucket/prefix"
        del told["crc32"]  # a file that a person changed has none
        service_json.write_text(json.dumps(told))
        bounds = {
            "cold__s3_endpoint": url, "cold__tail_timeout_ms": 600_000, "serve__request_timeout_ms": 600_000,
            "query__timeout_ms": 600_000,
        }  # fmt: skip
        with flow(tmp_path, "s3://bucket/prefix", **bounds) as service, contextlib.ExitStack() as stack:
            service.post(b'{"body": "first"}\n')
            body, cold = b'{"body": "waits"}\n', "/v1/topics/t/messages?key=k"
            statuses: list[int] = []
            threads = []
            for _ in range(FLOOD):
                append = (
                    "POST /v1/topics/t/messages?durability=archived HTTP/1.1\nHost: 127.0.0.1\n"
                    f"Content-Type: {NDJSON}\nContent-Length: {len(body)}"
                )
                stack.enter_context(service.connect(append)).sendall(body)
                stack.enter_context(service.connect(f"GET {cold} HTTP/1.1\nHost: 127.0.0.1"))
            for _ in range(10):
                threads.append(threading.Thread(target=lambda: statuses.append(service.ask("GET", cold)[0])))
                threads[-1].start()
            for _ in range(3):
                answers(service)
            for thread in threads:
                thread.join()
            assert statuses == [429] * 10
