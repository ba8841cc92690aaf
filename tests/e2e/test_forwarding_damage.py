"""The other node is down, dies, hangs, or is somebody else: nothing is lost silently, nothing is done twice."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.service.fixed_cluster import Node, Nodes, nodes
from tests.support.service.raw_server import Connection, raw_server
from tests.support.stores.engines import tiny_settings

_OK = b"HTTP/1.1 200 OK\r\nTierlog-Store: store-b\r\nContent-Type: application/json\r\n"
_PATH = "/v1/topics/orders/messages"
_BODY = {"messages": [{"body": "x"}]}
_MIB = 1 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, Node]]:
    with nodes(tmp_path_factory.mktemp("cluster")) as found:
        found.homes["orders"] = "store-b"
        yield found, found.add("store-a", settings=tiny_settings(serve__max_forwards=2))


@pytest.fixture
def a(made: tuple[Nodes, Node]) -> Node:
    return made[1]


@contextlib.contextmanager
def _store_b(made: tuple[Nodes, Node], url: str) -> Iterator[None]:
    made[0].places["store-b"] = url
    try:
        yield
        assert made[1].ask("GET", "/v1/stats").status_code == 200, "what is this node's own goes on"
    finally:
        del made[0].places["store-b"]


def _refused(answer: httpx.Response, url: str) -> str:
    """The hint of a 503 that says where the store should be."""
    found = answer.json()
    assert (answer.status_code, found["type"]) == (503, "urn:tierlog:problem:unavailable")
    assert (found["address"], found["store_id"]) == (url, "store-b")
    assert int(answer.headers["retry-after"]) > 0
    return str(found["hint"])


def test_a_node_that_is_down_is_named_and_nothing_was_done(made: tuple[Nodes, Node], a: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with _store_b(made, url):
        looked = a.cluster.refreshes
        assert "nothing was done" in _refused(a.ask("POST", _PATH, _BODY), url)
        assert a.cluster.refreshes > looked


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", _PATH, "may have been appended or not; with an Idempotency-Key"),
        ("PUT", "/v1/topics/orders", "done or not"),
        ("DELETE", "/v1/topics/orders?store_id=store-b", "done or not"),
    ],
)
def test_a_change_whose_answer_is_lost_is_told_so_and_never_sent_again(
    made: tuple[Nodes, Node], a: Node, method: str, path: str, hint: str
) -> None:
    heads = []
    with raw_server(lambda connection: heads.append(connection.head())) as url, _store_b(made, url):
        assert hint in _refused(a.ask(method, path, _BODY if method != "DELETE" else None), url)
    assert len(heads) == 1


def test_a_node_that_dies_in_the_middle_of_a_body_leaves_it_open_what_was_done(
    made: tuple[Nodes, Node], a: Node
) -> None:
    def act(connection: Connection) -> None:
        connection.head()
        connection.some()

    with raw_server(act) as url, _store_b(made, url):
        answer = a.http.post(_PATH, content=bytes(20 * _MIB))
        assert "appended or not" in _refused(answer, url)


@pytest.mark.parametrize("framing", [b"Content-Length: 1000\r\n\r\n[", b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n"])
def test_an_answer_that_breaks_off_never_looks_whole(made: tuple[Nodes, Node], a: Node, framing: bytes) -> None:
    def act(connection: Connection) -> None:
        connection.head()
        connection.send(_OK + framing)

    with raw_server(act) as url, _store_b(made, url), pytest.raises(httpx.RemoteProtocolError):
        a.ask("GET", f"{_PATH}?store_id=store-b")


@pytest.mark.parametrize("said", [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
def test_what_is_no_http_is_no_answer(made: tuple[Nodes, Node], a: Node, said: bytes) -> None:
    def act(connection: Connection) -> None:
        connection.head()
        connection.send(said)

    with raw_server(act) as url, _store_b(made, url):
        _refused(a.ask("GET", f"{_PATH}?store_id=store-b"), url)


def test_a_stranger_at_the_address_is_not_believed(made: tuple[Nodes, Node], a: Node) -> None:
    def act(connection: Connection) -> None:
        connection.head()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with raw_server(act) as url, _store_b(made, url):
        answer = a.ask("POST", _PATH, _BODY)
        _refused(answer, url)
        assert "no store of a cluster answers instead" in answer.json()["detail"]


def test_a_node_that_hangs_takes_its_own_places_only_and_hears_when_the_client_goes_away(
    made: tuple[Nodes, Node], a: Node
) -> None:
    asked, left = threading.Semaphore(0), threading.Semaphore(0)

    def act(connection: Connection) -> None:
        connection.head()
        asked.release()
        while connection.some():
            pass
        left.release()

    peer = urlsplit(a.url)
    with raw_server(act) as url, _store_b(made, url):
        waiting = [socket.create_connection((peer.hostname, peer.port)) for _ in range(2)]
        for one in waiting:
            one.sendall(f"GET {_PATH}?store_id=store-b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert asked.acquire(timeout=30)
        full = a.ask("GET", f"{_PATH}?store_id=store-b")
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert "serve.max_forwards" in full.json()["hint"]
        assert a.ask("POST", "/v1/topics/own/messages", _BODY).status_code == 200
        for one in waiting:
            one.close()
            assert left.acquire(timeout=30)


def test_a_node_that_is_silent_for_too_long_is_given_up(tmp_path: Path) -> None:
    def act(connection: Connection) -> None:
        connection.head()
        while connection.some():
            pass

    with nodes(tmp_path) as found, raw_server(act) as url:
        found.places["store-b"], found.homes["orders"] = url, "store-b"
        a = found.add("store-a", settings=tiny_settings(cluster__forward_idle_ms=200))
        answer = a.ask("POST", _PATH, _BODY)
        assert "appended or not" in _refused(answer, url)
        assert "forward_idle_ms" in answer.json()["detail"]


@pytest.mark.slow
def test_nodes_that_disagree_send_nothing_round_and_append_nothing(tmp_path: Path) -> None:
    with nodes(tmp_path) as found:
        a = found.add("store-a", homes={"orders": "store-b"})
        b = found.add("store-b", homes={"orders": "store-a"})
        assert "nothing was done" in _refused(a.ask("POST", _PATH, _BODY), b.url)
        assert a.cluster.refreshes > 0
        told = b.ask("POST", _PATH, _BODY, headers={"Tierlog-Forwarded": "store-a", "Tierlog-Store": "store-b"})
        assert (told.status_code, told.json()["title"], told.headers["tierlog-store"]) == (
            421,
            "misdirected request",
            "store-b",
        )
        # store-c says that it is where store-b is
        c = found.add("store-c", places={**found.places, "store-b": b.url}, homes={"orders": "store-c"})
        found.places["store-b"] = c.url
        answer = a.ask("POST", _PATH, _BODY)
        assert (answer.status_code, answer.json()["address"]) == (503, c.url)
        assert a.ask("POST", "/v1/admin/flush?store_id=store-b").status_code == 503
        assert [node.bodies("orders") for node in (a, b, c)] == [set(), set(), set()]


def test_a_connection_that_the_other_side_has_closed_since_harms_nothing(made: tuple[Nodes, Node], a: Node) -> None:
    def act(connection: Connection) -> None:
        connection.head()
        connection.send(_OK + b"Content-Length: 2\r\n\r\n{}")

    with raw_server(act) as url, _store_b(made, url):
        answers = [a.ask("GET", f"{_PATH}?store_id=store-b") for _ in range(5)]
        assert [answer.text for answer in answers] == ["{}"] * 5


@pytest.mark.slow
def test_a_large_body_is_held_back_while_the_other_node_takes_nothing(made: tuple[Nodes, Node], a: Node) -> None:
    """Sockets hold some MiB each; what a node itself would hold has no bound but this."""
    go_on, size_bytes, arrived = threading.Event(), 128 * _MIB, []

    def act(connection: Connection) -> None:
        connection.head()
        go_on.wait(60)
        total = 0
        while total < size_bytes:
            total += len(connection.some())
        arrived.append(total)
        connection.send(_OK + b"Content-Length: 2\r\n\r\n{}")

    peer = urlsplit(a.url)
    with raw_server(act) as url, _store_b(made, url), socket.create_connection((peer.hostname, peer.port)) as client:
        client.sendall(f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size_bytes}\r\n\r\n".encode())
        client.settimeout(2)
        sent, piece = 0, bytes(_MIB)
        with contextlib.suppress(TimeoutError):
            while sent < size_bytes:
                sent += client.send(piece[: size_bytes - sent])
        assert sent < size_bytes // 2
        go_on.set()
        client.settimeout(60)
        while sent < size_bytes:
            sent += client.send(piece[: size_bytes - sent])
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert arrived == [size_bytes]


@pytest.mark.slow
def test_an_endless_answer_is_held_back_while_the_client_takes_nothing(made: tuple[Nodes, Node], a: Node) -> None:
    stalled, most = threading.Event(), 128 * _MIB
    sent = []

    def act(connection: Connection) -> None:
        connection.head()
        connection.send(_OK + b"Content-Length: %d\r\n\r\n" % most)
        connection.limit(2)
        total = 0
        with contextlib.suppress(OSError):
            while total < most:
                total += connection.send_some(bytes(_MIB))
        sent.append(total)
        stalled.set()

    peer = urlsplit(a.url)
    with raw_server(act) as url, _store_b(made, url), socket.create_connection((peer.hostname, peer.port)) as client:
        client.sendall(f"GET {_PATH}?store_id=store-b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert stalled.wait(60)
        assert sent[0] < most // 2
