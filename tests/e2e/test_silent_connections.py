"""Connections on which nobody says anything: counted from when they are accepted, and no harm to anybody else."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.service.access import line
from tests.support.service.certificates import Authority
from tests.support.service.flow_client import Flow, flow
from tests.support.stores.engines import tiny_settings
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.app import create_app
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.server.connections import Connections, kept_descriptors, share_descriptors
from tierlog.service.server.http_server import HttpServer, http_config
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import InvalidRequestError

HEAD = b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def open_silent(port: int, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(count)]


def status_on(connection: socket.socket, more: bytes = b"") -> int:
    connection.sendall(HEAD + more + b"\r\n")
    with http.client.HTTPResponse(connection) as answer:
        try:
            answer.begin()
        except http.client.RemoteDisconnected:
            return 0
        answer.read()  # its body may come later than its head
        return answer.status


def test_whoever_only_connects_keeps_nobody_out(tmp_path: Path) -> None:
    with flow(tmp_path, serve__max_connections=10) as service, contextlib.ExitStack() as stack:
        silent = open_silent(service.port, 50, stack)
        real = open_silent(service.port, 5, stack)
        assert [status_on(one) for one in real] == [200] * 5
        assert all(one.recv(1) == b"" for one in silent[:40]), "the first made room for those that came later"
        silent += open_silent(service.port, 50, stack)
        assert [status_on(one) for one in real] == [200] * 5, "who has asked something stays"


def test_the_number_of_connections_is_told(tmp_path: Path) -> None:
    with flow(tmp_path, serve__max_connections=3) as service, contextlib.ExitStack() as stack:
        held = open_silent(service.port, 3, stack)
        assert [status_on(one) for one in held] == [200] * 3
        (over,) = open_silent(service.port, 1, stack)
        assert b"503 Service Unavailable" in over.recv(65_536)
        text = told(held[0])
    assert "tierlog_http_connections 3.0" in text
    assert "tierlog_http_connections_limit 3.0" in text
    assert 'tierlog_http_refused_connections_total{reason="full"} 1.0' in text


def told(connection: socket.socket) -> str:
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    found = b""
    while data := connection.recv(1 << 20):
        found += data
    return found.decode()


# ---- callers, and TLS


@contextlib.contextmanager
def with_tokens(root: Path, tls: ServerTls | None, **bounds: object) -> Iterator[tuple[int, Connections]]:
    settings = tiny_settings(access__tokens=line("reader", "read", "*"), **bounds)
    engine = Store.open(root, settings=settings)
    app = create_app(engine, settings, control=AccessControl(settings.access, SystemClock()))
    more = {} if tls is None else {"ssl_context_factory": tls.shown}
    server = HttpServer(
        http_config(app, settings.serve, log_level="critical", **more), app.state.connections, settings.serve
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1], app.state.connections
        finally:
            server.should_exit = True
            thread.join()
            engine.close()


def test_a_stranger_who_asks_what_is_open_to_all_keeps_no_caller_out(tmp_path: Path) -> None:
    token = b"Authorization: Bearer t-reader\r\n"
    with with_tokens(tmp_path, None, serve__max_connections=4) as (port, _), contextlib.ExitStack() as stack:
        strangers = open_silent(port, 4, stack)
        assert [status_on(one) for one in strangers] == [401] * 4
        callers = open_silent(port, 4, stack)
        assert [status_on(one, token) for one in callers] == [200] * 4
        assert all(one.recv(1) == b"" for one in strangers)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, ServerTls]:
    authority = Authority(tmp_path_factory.mktemp("tls"), "ours")
    file, key = authority.sign("service")
    return authority, ServerTls(file, key, None)


def test_a_handshake_that_is_not_finished_counts_and_makes_room(
    tmp_path: Path, certificate: tuple[Authority, ServerTls]
) -> None:
    authority, tls = certificate
    context = ssl.create_default_context(cafile=authority.file)
    with (
        with_tokens(tmp_path, tls, serve__max_connections=5) as (port, connections),
        contextlib.ExitStack() as stack,
    ):
        half = open_silent(port, 20, stack)
        for number in range(3):
            plain = open_silent(port, 1, stack)[0]
            caller = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            assert status_on(caller, b"Authorization: Bearer t-reader\r\n") == 200, number
        assert connections.open <= 5
        assert all(one.recv(1) == b"" for one in half[:15])


def test_a_handshake_has_a_time(tmp_path: Path, certificate: tuple[Authority, ServerTls]) -> None:
    with (
        with_tokens(tmp_path, certificate[1], serve__receive_timeout_ms=50) as (port, _),
        contextlib.ExitStack() as stack,
    ):
        (half,) = open_silent(port, 1, stack)
        half.sendall(b"\x16\x03\x01\x02\x00")  # the start of a client's first word
        assert half.recv(1) == b""


# ---- the limit of open files


def limited(soft: int, hard: int, **bounds: object) -> tuple[int, int]:
    """What is shared out in a process of these limits, and its soft limit then."""
    settings = tiny_settings(**bounds)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            found = share_descriptors(settings, forwards=False)
        except InvalidRequestError:
            found = -1
        os.write(write, f"{found} {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told_by:
        most, after = told_by.read().split()
    return int(most), int(after)


def test_the_limit_is_raised_as_far_as_it_goes_and_the_store_has_its_share() -> None:
    kept = kept_descriptors(tiny_settings())
    assert limited(64, 8_000) == (4_096, kept + 4_096)
    assert limited(64, 1_024) == (1_024 - kept, 1_024)
    assert limited(64, 1_024, serve__max_connections=100) == (100, kept + 100)
    assert limited(64, kept + 3) == (-1, kept + 3), "a service for three connections is none"


def test_a_flood_beyond_the_limit_of_open_files_leaves_the_store_writable(tmp_path: Path) -> None:
    kept = kept_descriptors(Settings.load())
    limit = kept + 40
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}));"
        "from tierlog.service.main import main; raise SystemExit(main())"
    )
    command = [sys.executable, "-c", code, "serve", "--root", str(tmp_path / "store"), "--port", "0"]
    environment = {**os.environ, "TIERLOG_HOT_CHECKPOINT_INTERVAL_MS": "100", "TIERLOG_HOT_SEGMENT_BYTES": "65536"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: list[str] = []
        while not said or "serving http" not in said[-1]:
            said.append(process.stderr.readline())
        assert any(f"leaves 40 connections instead of 4096 (serve.max_connections): {kept}" in one for one in said)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        service = Flow(None, int(said[-1].strip().rstrip('"}').rpartition(":")[2]))  # type: ignore[arg-type]  # elsewhere
        with contextlib.ExitStack() as stack:
            open_silent(service.port, 300, stack)
            body = b'{"body": "%s"}\n' % (b"x" * 30_000)
            assert [service.post(body)[0] for _ in range(20)] == [200] * 20, "ten segments, with a checkpoint each"
            assert service.ask("GET", "/readyz")[0] == 200
            assert service.ask("POST", "/v1/admin/flush")[0] == 200
        process.send_signal(signal.SIGTERM)
        process.wait(30)
