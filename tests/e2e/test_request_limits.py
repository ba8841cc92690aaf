"""Bodies, connections and numbers of requests: what is over a bound is told so, and nothing is appended."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from tests.support.service.flow_client import NDJSON, Flow, flow
from tierlog.service.wire.documents import ARROW_STREAM

LIMIT = 200_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    root = tmp_path_factory.mktemp("limits")
    with flow(root, serve__max_request_bytes=LIMIT, serve__receive_timeout_ms=300) as found:
        found.fill(1)
        yield found


def lines(count: int, body: str = "x") -> bytes:
    return b"".join(json.dumps({"body": f"{number}:{body}"}).encode() + b"\n" for number in range(count))


def compressed(encoding: str, data: bytes) -> bytes:
    return gzip.compress(data) if encoding == "gzip" else zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "GZIP"])
def test_a_body_may_come_compressed(service: Flow, encoding: str) -> None:
    before = service.count()
    status, answer = service.post(compressed(encoding.lower(), lines(50)), content_encoding=encoding)
    assert (status, len(answer.get("results", ()))) == (200, 50), answer
    assert service.count() == before + 50


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_members_one_behind_the_other_are_one_body(service: Flow, encoding: str) -> None:
    body = compressed(encoding, lines(3)) + compressed(encoding, lines(2))
    assert len(service.post(body, content_encoding=encoding)[1]["results"]) == 5


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_ends_at_the_limit(service: Flow, encoding: str) -> None:
    bomb = compressed(encoding, b"\n" * 100_000_000)
    assert len(bomb) < LIMIT / 1.9
    before = service.count()
    status, problem = service.post(bomb, content_encoding=encoding)
    assert (status, problem["status"]) == (413, 413)
    assert service.count() == before


@pytest.mark.parametrize("encoding", ["gzip", None])
def test_buffers_that_are_compressed_inside_an_arrow_stream_count_as_they_decode(
    service: Flow, encoding: str | None
) -> None:
    sink = io.BytesIO()
    table = pa.table({"body": ["x" * 1000] * 5_000})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    body = sink.getvalue()
    assert len(body) < LIMIT
    headers = {} if encoding is None else {"content_encoding": encoding}
    body = body if encoding is None else gzip.compress(body)
    before = service.count()
    assert service.post(body, content_type=ARROW_STREAM, **headers)[0] == 413
    assert service.count() == before


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "deflate"])
def test_an_unknown_encoding_is_told_which_there_are(service: Flow, encoding: str) -> None:
    path = "/v1/topics/t/messages"
    status, headers, _ = service.ask("POST", path, lines(1), content_type=NDJSON, content_encoding=encoding)
    assert (status, headers["accept-encoding"]) == (415, "gzip, zstd")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "other", "behind"])
def test_a_damaged_body_appends_nothing(service: Flow, encoding: str, damage: str) -> None:
    body = compressed(encoding, lines(500, "body" * 20))
    body = {"cut": body[:-9], "other": b"{" + body, "behind": body + b"more"}[damage]
    before = service.count()
    assert service.post(body, content_encoding=encoding)[0] == 422
    assert service.count() == before


def status_of(connection: socket.socket) -> int:
    answer = b""
    while b"\r\n\r\n" not in answer and (data := connection.recv(65_536)):
        answer += data
    return int(answer.split()[1]) if answer else 0


def test_a_body_that_comes_too_slowly_is_given_up_and_may_be_sent_again(service: Flow) -> None:
    before = service.count()
    head = (
        "POST /v1/topics/t/messages HTTP/1.1\nHost: 127.0.0.1\nContent-Type: application/x-ndjson\n"
        f"Idempotency-Key: slow\nContent-Length: {len(lines(9))}"
    )
    with service.connect(head) as connection:
        connection.sendall(lines(9)[:-1])
        assert status_of(connection) == 408
        assert connection.recv(1_000) is not None  # the rest of the answer, then the end
    assert service.count() == before
    for _ in range(2):
        assert service.post(lines(9), idempotency_key="slow")[0] == 200
    assert service.count() == before + 9


def test_a_head_that_does_not_come_ends_the_connection(service: Flow) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(b"GET /livez HT")
        assert connection.recv(1_000) == b""


def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    with (
        flow(tmp_path, serve__max_connections=1) as service,
        service.connect("GET /livez HTTP/1.1\nHost: 127.0.0.1") as first,
    ):
        assert status_of(first) == 200
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as second:
            assert status_of(second) == 503


@pytest.mark.slow
def test_a_flood_of_bodies_is_told_to_come_back_and_each_is_there_once(tmp_path: Path) -> None:
    with flow(
        tmp_path, serve__body_memory_bytes=1 << 20, serve__wait_ms=20, serve__max_request_bytes=1 << 20
    ) as service:
        service.fill(1)
        body = lines(1_000, "y" * 80)  # eight times its bytes: two do not fit at once
        # whoever has not sent its body holds the room that it announced
        head = (
            f"POST /v1/topics/t/messages HTTP/1.1\nHost: 127.0.0.1\nContent-Type: {NDJSON}\nContent-Length: {len(body)}"
        )
        with service.connect(head + "\nExpect: 100-continue") as holding:
            assert b" 100 " in holding.recv(1_000)
            refused = []
            for number in range(4):
                status, headers, _ = service.ask(
                    "POST", "/v1/topics/t/messages", body, content_type=NDJSON, idempotency_key=f"p{number}"
                )
                refused.append((status, headers.get("retry-after")))
            assert refused == [(429, "1")] * 4
            assert service.count() == 1
            holding.sendall(body)
            assert status_of(holding) == 200
        for number in range(4):
            assert [service.post(body, idempotency_key=f"p{number}")[0] for _ in range(2)] == [200, 200]
        assert service.count() == 1 + 5 * 1_000


@pytest.mark.slow
def test_a_request_that_took_too_long_may_be_sent_again_and_is_there_once(tmp_path: Path) -> None:
    with flow(tmp_path, serve__request_timeout_ms=10) as service:
        service.fill(1)
        body = lines(15_000)
        seen = set()
        for _ in range(500):
            status, problem = service.post(body, idempotency_key="late")
            seen.add((status, problem.get("type", "").rpartition(":")[2]))
            if status == 409 and problem["type"].endswith("request-under-way"):
                continue
            if (status == 503 and service.count() > 1) or status == 200:
                break
        assert seen <= {(503, "deadline"), (409, "request-under-way"), (200, "")}
        assert (503, "deadline") in seen
    with flow(tmp_path) as service:
        assert service.post(body, idempotency_key="late")[0] == 200
        assert service.count() == 1 + 15_000


@pytest.mark.slow
def test_a_reader_that_takes_nothing_is_cut_off_and_its_place_is_free(tmp_path: Path) -> None:
    with flow(tmp_path, serve__max_streams=1, serve__send_timeout_ms=200, hot__segment_bytes=32 << 20) as service:
        service.fill(2_500, 8_000)  # more than the sockets' buffers take
        with service.connect("GET /v1/topics/t/messages?all=true HTTP/1.1\nHost: 127.0.0.1", 4_096) as stuck:
            assert stuck.recv(10).startswith(b"HTTP/1.1 2")
            status, headers, _ = service.ask("GET", "/v1/topics/t/messages?all=true&limit=1&key=none")
            tries = 0
            while status == 429 and tries < 20_000:
                assert headers["retry-after"] == "1"
                status, headers, _ = service.ask("GET", "/v1/topics/t/messages?all=true&limit=1&key=none")
                tries += 1
            assert status == 200
            with contextlib.suppress(OSError):
                read = b""
                while data := stuck.recv(1 << 20):
                    read = (read + data)[-10:]
                assert not read.endswith(b"0\r\n\r\n")  # the end of an answer


def test_long_polls_have_a_number_of_their_own(tmp_path: Path) -> None:
    with flow(tmp_path, serve__max_long_polls=1) as service:
        service.fill(1)
        queue = next(one for one in service.engine.topic("t").queues if one.max_offset)
        path = f"/v1/topics/t/queues/{queue.queue_id}/messages?offset=1&wait_ms=60000"
        with service.connect(f"GET {path} HTTP/1.1\nHost: 127.0.0.1"):
            status = 200
            for _ in range(500):  # until the first is there
                status, _, _ = service.ask("GET", path.replace("60000", "1"))
                if status == 429:
                    break
            assert status == 429
            assert service.ask("GET", path.replace("60000", "0"))[0] == 200
