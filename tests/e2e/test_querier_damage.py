"""A querier whose table names a store that is not well: what the others have is found, and the damage is named."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.service.raw_server import Connection, raw_server
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.archive.querier import Querier
from tierlog.service.cluster.table import ClusterTable, StoreEntry
from tierlog.service.cluster.table_view import TableView
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

#: For those that answer at once, however slow this machine is; and for those that never do.
_PATIENT, _HASTY = 60_000, 4_000
_URL = "memory://querier"


class Cluster:
    """Store `a` as it should be, and a querier that is told where a store `b` is."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._stack, self._settings = stack, tiny_settings()
        self._bucket = MemoryObjectStore(SystemClock())
        engine = Store.open(
            folder / "a", settings=self._settings, cold_url=_URL, store_id="a", objects=self._bucket
        )  # fmt: skip
        stack.callback(engine.close)
        engine.append([Message("orders", b"archived")])
        engine.archive(everything=True, drop_hot=True)
        engine.append([Message("orders", b"hot")])
        self.url = stack.enter_context(served(engine, self._settings))

    def querier(self, url_of_b: str, ask_timeout_ms: int = _PATIENT) -> Querier:
        """Knows both by the table."""
        settings = tiny_settings(cluster__ask_timeout_ms=ask_timeout_ms)
        querier = Querier.open(_URL, settings=settings, objects=self._bucket)
        self._stack.callback(querier.close)
        view = querier.cluster
        assert isinstance(view, TableView)

        def entered(table: ClusterTable) -> ClusterTable:
            for store_id, url in (("a", self.url), ("b", url_of_b)):
                table = table.enter(store_id, StoreEntry(url, 1, "0" * 16))
            return table

        view.tables.change(entered)
        view.look()
        return querier


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def assert_named(querier: Querier, url: str, *words: str) -> None:
    for _ in range(2):  # the second time it is known for a while, and not asked
        answer = querier.query(Query("orders"))
        assert sorted(message.record.body for message in answer.messages) == [b"archived", b"hot"]
        assert not answer.coverage.complete
        assert url in [failure.object for failure in answer.coverage.failures]
        a, b = answer.coverage.stores
        assert (a.store_id, a.error, b.store_id, b.hot) == ("a", None, "b", None)
        assert b.error is not None
        assert all(word in b.error for word in words), b.error


def says(answer: bytes) -> Callable[[Connection], None]:
    def act(connection: Connection) -> None:
        connection.head()
        connection.send(answer)

    return act


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", ("no answer",)),
        (b"", ("no answer",)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<html>", ("no answer",)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", ("Arrow",)),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 6\r\n\r\n<html>", ("500",)),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", ("302",)),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", ("404",)),
    ],
    ids=["no HTTP", "nothing", "broken off", "no Arrow", "500", "elsewhere", "404 of somebody else"],
)
def test_garbage_is_named_and_costs_only_that_store(cluster: Cluster, answer: bytes, words: tuple[str, ...]) -> None:
    with raw_server(says(answer)) as url:
        assert_named(cluster.querier(url), url, *words)


def test_another_store_at_the_address_is_named_and_its_messages_are_not_there_twice(cluster: Cluster) -> None:
    url = cluster.url.replace("127.0.0.1", "localhost")
    assert_named(cluster.querier(url), url, "not answer for store b")


@pytest.mark.slow
@pytest.mark.parametrize("begins", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<html>"])
def test_a_store_that_hangs_is_waited_for_no_longer_than_told(cluster: Cluster, begins: bytes) -> None:
    ended = threading.Event()

    def act(connection: Connection) -> None:
        connection.head()
        connection.send(begins)
        ended.wait(60)

    with raw_server(act) as url:
        try:
            querier = cluster.querier(url, _HASTY)
            assert_named(querier, url, "no answer")
            assert querier.fan_out.silent == 1
        finally:
            ended.set()
