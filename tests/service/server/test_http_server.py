"""What the server takes for a request, before any application is asked."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request

from tests.support.service.served import served_app
from tests.support.stores.engines import tiny_settings
from tierlog.service.config.settings import Settings

_SETTINGS: Settings = tiny_settings()


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def told(request: Request) -> dict[str, object]:
        body = await request.body()
        return {
            "loop": type(asyncio.get_running_loop()).__module__, "path": request.url.path, "body": body.decode(),
            "peer": request.client and request.client.host, "scheme": request.url.scheme,
            "headers": {name: value for name, value in request.headers.items() if name.startswith("x-")},
        }  # fmt: skip

    with served_app(app, _SETTINGS, threading.Event()) as url:
        yield "127.0.0.1", urlsplit(url).port or 0


def _answers(address: tuple[str, int], *pieces: bytes) -> list[tuple[int, dict[str, object]]]:
    """Status and body of each answer, until the server closes."""
    with socket.create_connection(address, timeout=30) as peer:
        for piece in pieces:
            peer.sendall(piece)
        said = b""
        while piece := peer.recv(65_536):
            said += piece
    found = []
    while said:
        head, _, rest = said.partition(b"\r\n\r\n")
        size = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith(b"content-length:"))
        text = rest[:size]
        found.append((int(head.split()[1]), json.loads(text) if text.startswith(b"{") else {"text": text.decode()}))
        said = rest[size:]
    return found


_END = b"Host: localhost\r\nConnection: close\r\n"


@pytest.mark.parametrize("cut", [0, 10, 60, 130])
def test_a_client_that_asks_for_an_upgrade_is_answered_without_it(address: tuple[str, int], cut: int) -> None:
    request = (
        b"POST /a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAEAAEAAAAIAAAAB\r\nContent-Length: 4\r\n\r\nbody"
    )
    following = b"POST /b HTTP/1.1\r\nContent-Length: 2\r\n" + _END + b"\r\nmo"
    found = _answers(address, request[:cut], request[cut:], following)
    assert [(status, said["path"], said["body"]) for status, said in found] == [(200, "/a", "body"), (200, "/b", "mo")]


def test_requests_that_follow_without_waiting_are_answered_in_turn(address: tuple[str, int]) -> None:
    found = _answers(
        address,
        b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
        b"GET /c HTTP/1.1\r\n" + _END + b"\r\n",
    )
    assert [(said["path"], said["body"]) for _, said in found] == [("/a", ""), ("/b", "x"), ("/c", "")]


def test_what_stands_behind_a_body_is_no_header(address: tuple[str, int]) -> None:
    request = b"POST / HTTP/1.1\r\nX-One: 1\r\nTransfer-Encoding: chunked\r\n" + _END
    ((status, said),) = _answers(address, request + b"\r\n3\r\nabc\r\n0\r\nX-Two: 2\r\n\r\n")
    assert (status, said["body"], said["headers"]) == (200, "abc", {"x-one": "1"})


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\x00\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n",
        b"nothing\r\n",
    ],
)
def test_what_two_servers_could_read_in_two_ways_is_refused(address: tuple[str, int], head: bytes) -> None:
    assert [status for status, _ in _answers(address, head + b"\r\n")] == [400]


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nA: ",
    ],
)
def test_neither_a_head_nor_trailers_go_on_for_ever(address: tuple[str, int], begin: bytes) -> None:
    with socket.create_connection(address, timeout=30) as peer:
        peer.sendall(begin)
        with pytest.raises(ConnectionError):
            peer.sendall(b"a" * (256 << 20))


def test_the_event_loop_is_the_one_that_was_measured(address: tuple[str, int]) -> None:
    ((_, said),) = _answers(address, b"GET / HTTP/1.1\r\n" + _END + b"\r\n")
    assert said["loop"] == "uvloop"


@pytest.mark.parametrize("asked", [b"", b"Upgrade: h2c\r\nConnection: Upgrade, close\r\n"])
@pytest.mark.parametrize("part", ["headers", "target"])
def test_a_head_has_the_greatest_size_that_is_set_however_it_comes(
    address: tuple[str, int], part: str, asked: bytes
) -> None:
    most = _SETTINGS.serve.max_header_bytes

    def head(size: int) -> bytes:
        fixed = b"GET /%s HTTP/1.1\r\n" + asked + _END + b"X-One: %s\r\n\r\n"
        filler = b"x" * (size - len(fixed) + 4)
        return fixed % ((filler, b"") if part == "target" else (b"", filler))

    (fits,) = _answers(address, head(most - 100))
    assert fits[0] == 200
    for size in (most + 100, 6 * most):
        for pieces in ([head(size)], [head(size)[:1000], head(size)[1000:]]):
            try:
                found = _answers(address, *pieces)
            except ConnectionError:
                assert size > 2 * most  # closed on what was still being sent, which may take the answer along
            else:
                assert found == [(400, {"text": "The head of the request is too long."})], size


def test_who_asks_is_who_the_socket_says(address: tuple[str, int]) -> None:
    forged = b"X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\nForwarded: for=203.0.113.9\r\n"
    (told,) = _answers(address, b"GET /peer HTTP/1.1\r\n" + forged + _END + b"\r\n")
    assert (told[1]["peer"], told[1]["scheme"]) == ("127.0.0.1", "http")
