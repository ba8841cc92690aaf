"""The one client that asks services and waits: what it keeps, sends once more, bounds and refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.service.raw_server import Connection, raw_server
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    CorruptionError,
    InvalidRequestError,
    MessageTooLargeError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.remote.endpoint import ServiceAccess, ServiceAddress
from tierlog.tiering.remote.http_client import HttpClient


def answer(status: str, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


class Server:
    """Answers so many requests of each connection, then closes it."""

    def __init__(self, *requests: int, reply: bytes) -> None:
        self._requests, self._reply = list(requests), reply
        self.heads: list[bytes] = []
        self.connections = 0

    def act(self, connection: Connection) -> None:
        self.connections += 1
        for _ in range(self._requests.pop(0)):
            self.heads.append(connection.head())
            connection.send(self._reply)


@contextmanager
def serving(*requests: int, reply: bytes = b"") -> Iterator[tuple[Server, ServiceAddress]]:
    server = Server(*requests, reply=reply or answer("200 OK"))
    with raw_server(server.act) as url:
        yield server, ServiceAddress.parse(url)


def client(*, kept: int = 0, most_bytes: int | None = None, access: ServiceAccess | None = None) -> HttpClient:
    return HttpClient(access or ServiceAccess(), 10, kept=kept, most_bytes=most_bytes)


def test_a_connection_is_kept_if_that_is_wanted() -> None:
    with serving(2) as (server, address):
        asking = client(kept=1)
        assert [asking.ask(address, "GET", "/").status for _ in range(2)] == [200, 200]
        asking.close()
    assert server.connections == 1
    with serving(1, 1) as (server, address):
        asking = client()
        assert [asking.ask(address, "GET", "/").document() for _ in range(2)] == [{}, {}]
    assert server.connections == 2
    assert all(b"\r\nConnection: close" in head for head in server.heads)


def test_a_read_over_a_connection_that_was_closed_meanwhile_is_sent_once_more() -> None:
    with serving(1, 1) as (server, address):
        asking = client(kept=4)
        assert [asking.ask(address, "GET", "/").status for _ in range(2)] == [200, 200]
        asking.close()
    assert server.connections == 2


def test_a_change_never_is() -> None:
    with serving(1, 1) as (server, address):
        asking = client(kept=4)
        asking.ask(address, "POST", "/", b"{}")
        with pytest.raises(UnavailableError, match="no answer from"):
            asking.ask(address, "POST", "/", b"{}")
        asking.close()
    assert len(server.heads) == 1


def test_nor_is_a_read_that_a_new_connection_lost() -> None:
    with serving(0) as (server, address), pytest.raises(UnavailableError, match="no answer from"):
        client(kept=4).ask(address, "GET", "/")
    assert server.connections == 1


def test_an_answer_may_have_so_many_bytes() -> None:
    with serving(2, reply=answer("200 OK", b"x" * 8)) as (server, address):
        asking = client(kept=1, most_bytes=8)
        assert [asking.ask(address, "GET", "/").content for _ in range(2)] == [b"x" * 8] * 2
        asking.close()
    assert server.connections == 1
    with (
        serving(1, reply=answer("200 OK", b"x" * 9)) as (_, address),
        pytest.raises(CorruptionError, match="more than 8 bytes"),
    ):
        client(kept=1, most_bytes=8).ask(address, "GET", "/")


@pytest.mark.parametrize("most_bytes", [None, 1000])
def test_an_answer_that_is_cut_off_is_none(most_bytes: int | None) -> None:
    with (
        serving(1, reply=answer("200 OK", b"x" * 9)[:-1]) as (_, address),
        pytest.raises(UnavailableError, match="no answer from"),
    ):
        client(kept=1, most_bytes=most_bytes).ask(address, "GET", "/")


def test_what_a_service_refuses_is_its_own_error_again() -> None:
    problem = b'{"type": "urn:tierlog:problem:topic-not-found", "detail": "no topic"}'
    with serving(1, reply=answer("404 Not Found", problem)) as (_, address):
        assert isinstance(client().ask(address, "GET", "/").error(), TopicNotFoundError)
    with serving(1, reply=answer("302 Found")) as (_, address):
        assert "sends elsewhere (302)" in str(client().ask(address, "GET", "/").error())


def test_a_token_is_not_sent_where_others_can_read_it() -> None:
    with pytest.raises(InvalidRequestError, match="plain HTTP"):
        client(access=ServiceAccess("t0ken")).ask(ServiceAddress.parse("http://192.0.2.1"), "GET", "/")


def test_a_name_that_no_machine_can_have_is_no_answer() -> None:
    with pytest.raises(UnavailableError, match="no answer from"):
        client().ask(ServiceAddress.parse(f"http://{'a' * 70}.example"), "GET", "/")


def test_a_change_that_may_be_repeated_is_sent_once_more() -> None:
    with serving(1, 1) as (server, address):
        asking = client(kept=4)
        for _ in range(2):
            assert asking.ask(address, "POST", "/", b"{}", is_repeatable=True).status == 200
        asking.close()
    assert server.connections == 2


def test_connecting_may_have_less_time_than_an_answer() -> None:
    def act(connection: Connection) -> None:
        connection.head()
        threading.Event().wait(0.3)
        connection.send(answer("200 OK"))

    with raw_server(act) as url:
        address = ServiceAddress.parse(url)
        assert client().ask(address, "GET", "/", timeout_s=30, connect_s=0.2).status == 200
        with pytest.raises(UnavailableError, match="timed out"):
            client().ask(address, "GET", "/", timeout_s=0.1, connect_s=30)


def test_an_answer_that_comes_before_the_body_was_sent_is_read() -> None:
    def act(connection: Connection) -> None:
        connection.head()
        connection.send(answer("413 Too Large", b'{"detail": "over the limit"}'))

    with raw_server(act) as url:
        asking = client(kept=1)
        found = asking.ask(ServiceAddress.parse(url), "POST", "/", b"x" * 64_000_000, is_repeatable=True)
        assert found.status == 413
        assert isinstance(found.error(), MessageTooLargeError)
        asking.close()


class Deaf:
    """Answers on each connection until it is deaf to those that it has; new ones it hears."""

    def __init__(self, together: int) -> None:
        self.swallowed = self.connections = 0
        self.is_deaf = False
        self.over = threading.Event()
        self._barrier = threading.Barrier(together)

    def act(self, connection: Connection) -> None:
        self.connections += 1
        is_old = not self.is_deaf
        while True:
            connection.head()
            if is_old and self.is_deaf:
                self.swallowed += 1
                self.over.wait(60)
                return
            if is_old:
                self._barrier.wait(60)
            connection.send(answer("200 OK"))


def test_connections_that_died_in_silence_cost_one_wait() -> None:
    deaf, clock = Deaf(3), ManualClock()
    with raw_server(deaf.act) as url:
        address = ServiceAddress.parse(url)
        asking = HttpClient(ServiceAccess(), 60, kept=4, clock=clock)
        threads = [threading.Thread(target=asking.ask, args=(address, "GET", "/")) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        deaf.is_deaf = True
        with pytest.raises(UnavailableError, match="timed out"):
            asking.ask(address, "GET", "/", timeout_s=0.2)
        assert asking.ask(address, "GET", "/").status == 200
        assert (deaf.swallowed, deaf.connections) == (1, 4)
        asking.close()
        deaf.over.set()


def test_a_connection_that_nobody_used_for_long_is_not_trusted() -> None:
    clock = ManualClock()
    with serving(2, 1) as (server, address):
        asking = HttpClient(ServiceAccess(), 10, kept=4, clock=clock)
        for wait_s in (0, 14, 16):
            clock.advance(wait_s * 1000)
            assert asking.ask(address, "GET", "/").status == 200
        asking.close()
    assert server.connections == 2
