"""What other stores tell of their queues, asked over REST: how often, for how long, and what is kept of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.objects.black_hole import black_hole
from tests.support.service.fixed_cluster import FixedCluster
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.cluster.queue_counts import QueueCounts
from tierlog.service.config.cluster import ClusterSettings
from tierlog.service.engine.groups import QueueEnds
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import NotFoundError, TopicNotFoundError, UnavailableError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.remote.endpoint import ServiceAccess

OWN, B, C = "store-a", "store-b", "store-c"
SETTINGS = ClusterSettings(refresh_ms=10_000, retry_ms=1_000, ask_timeout_ms=20_000)
QUEUE = ("orders", B, 1)
NOBODY = "http://127.0.0.1:1"


def counts_of(urls: dict[str, str], clock: ManualClock, settings: ClusterSettings = SETTINGS) -> QueueCounts:
    return QueueCounts(FixedCluster(OWN, urls, {}), settings, clock, ServiceAccess())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Store]:
    engine = Store.open(tmp_path / "b", settings=tiny_settings(), store_id=B)
    engine.create_topic("orders", 3)
    engine.append([Message("orders", b"x", queue_id=1)] * 5)
    yield engine
    engine.close()


class _Counting(BaseHTTPRequestHandler):
    """A service that answers what its server was told, and counts."""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Counted)
        server.paths.append(self.path)
        assert server.go_on.wait(20)
        body = server.body
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Counted(ThreadingHTTPServer):
    daemon_threads = True
    body = b'{"offsets": [{"queue_id": 0, "min_offset": 2, "max_offset": 9, "gaps": [[4, 6]]}]}'
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Counting)
        self.paths: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def counted() -> Iterator[Counted]:
    with Counted() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join(20)


def test_a_running_service_tells_its_queues_and_where_they_end(theirs: Store, clock: ManualClock) -> None:
    with served(theirs, tiny_settings()) as url:
        counts = counts_of({OWN: NOBODY, B: url}, clock)
        assert counts.counts("orders") == {}
        counts.refresh(["orders", "nobody"])
        assert (counts.counts("orders"), counts.counts("nobody")) == ({B: 3}, {})
        assert counts.last_known(QUEUE) == QueueEnds(0, 5)
        for queue in (("orders", B, 3), ("nobody", B, 0)):
            with pytest.raises(TopicNotFoundError):
                counts.last_known(queue)
        theirs.append([Message("orders", b"x", queue_id=1)])
        assert counts.ends({QUEUE: 5}) == {QUEUE: 5}, "what is known is enough"
        assert counts.ends({QUEUE: 6, ("orders", B, 0): 0}) == {QUEUE: 6, ("orders", B, 0): 0}
        with pytest.raises(NotFoundError, match="no such store"):
            counts.ends({("orders", C, 0): 0})


def test_what_is_known_is_kept_for_a_while_then_asked_for_again(counted: Counted, clock: ManualClock) -> None:
    counts = counts_of({B: counted.url}, clock)
    for _ in range(3):
        counts.refresh(["orders"])
    assert len(counted.paths) == 1
    counts.refresh(["orders"], age_ms=0)
    assert len(counted.paths) == 2
    clock.advance(9_999)
    counts.refresh(["orders"])
    assert len(counted.paths) == 2
    clock.advance(1)
    counts.refresh(["orders"])
    assert len(counted.paths) == 3


def test_a_store_that_went_down_keeps_its_queues_and_is_left_alone_for_a_while(
    counted: Counted, clock: ManualClock
) -> None:
    counts = counts_of({B: counted.url}, clock)
    counts.refresh(["orders"])
    counted.status, counted.body = 503, b"{}"
    clock.advance(10_000)
    for _ in range(3):
        counts.refresh(["orders"])
    assert len(counted.paths) == 2, "not each time"
    assert counts.counts("orders") == {B: 1}
    assert counts.ends({("orders", B, 0): 9}) == {("orders", B, 0): 9}
    with pytest.raises(UnavailableError):
        counts.last_known(("orders", B, 0))
    with pytest.raises(UnavailableError):
        counts.ends({("orders", B, 0): 10})
    assert len(counted.paths) == 2
    clock.advance(1_000)
    counted.status, counted.body = 200, Counted.body
    counts.refresh(["orders"])
    assert counts.last_known(("orders", B, 0)) == QueueEnds(2, 9, ((4, 6),))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"offsets": 3}', b'{"offsets": [{"queue_id": 0}]}', b'{"offsets": [{"queue_id": "x"}]}']
)
def test_an_answer_that_is_none_tells_nothing(counted: Counted, clock: ManualClock, body: bytes) -> None:
    counted.body = body
    counts = counts_of({B: counted.url}, clock)
    counts.refresh(["orders"])
    assert counts.counts("orders") == {}
    with pytest.raises(UnavailableError):
        counts.ends({("orders", B, 0): 1})


def test_a_store_that_hangs_is_not_waited_for_for_long_and_delays_no_other(theirs: Store, clock: ManualClock) -> None:
    settings = ClusterSettings(ask_timeout_ms=500, retry_ms=0)
    with black_hole() as hanging, served(theirs, tiny_settings()) as url:
        counts = counts_of({B: url, C: hanging}, clock, settings)
        for _ in range(40):  # a busy machine may not answer in time either
            counts.refresh(["orders"])
            if counts.counts("orders"):
                break
        assert counts.counts("orders") == {B: 3}
        with pytest.raises(UnavailableError):
            counts.ends({("orders", C, 0): 1})
        assert counts.ends({QUEUE: 5}) == {QUEUE: 5}


def test_those_who_ask_together_share_one_request_and_who_knows_enough_waits_for_none(
    counted: Counted, clock: ManualClock
) -> None:
    counts = counts_of({B: counted.url}, clock)
    counted.go_on.clear()
    threads = [threading.Thread(target=counts.refresh, args=(["orders"],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    while not counted.paths:
        pass
    counted.go_on.set()
    for thread in threads:
        thread.join(20)
    assert (counts.counts("orders"), len(counted.paths)) == ({B: 1}, 1)
    counted.go_on.clear()
    clock.advance(10_000)
    counts.refresh(["orders"], wait=False)
    counts.refresh(["orders"])  # one is on its way, and something is known
    counted.go_on.set()


def test_a_commit_hears_what_is_true_now_not_what_was_asked_before_it(counted: Counted, clock: ManualClock) -> None:
    counts = counts_of({B: counted.url}, clock)
    counted.go_on.clear()
    counts.refresh(["orders"], wait=False)
    while not counted.paths:
        pass
    ends: list[dict[tuple[str, str, int], int]] = []
    commit = threading.Thread(target=lambda: ends.append(counts.ends({("orders", B, 0): 9})))
    commit.start()
    while not any(ticket.is_urgent for ticket in counts._stores[B]._tickets.values()):
        pass
    counted.go_on.set()
    commit.join(20)
    assert ends == [{("orders", B, 0): 9}]
    assert len(counted.paths) == 2


def test_lag_counts_neither_what_is_gone_nor_what_will_never_be() -> None:
    ends = QueueEnds(10, 100, ((20, 30), (90, 120)))
    assert [ends.lag(offset) for offset in (None, 0, 25, 50, 100, 130)] == [70, 70, 60, 40, 0, 0]
    assert QueueEnds(10, 100, None).lag(20) is None, (
        "a store that does not know its gaps does not know that there are none"
    )


def test_an_idle_connection_that_the_store_closed_is_opened_again(theirs: Store, clock: ManualClock) -> None:
    with contextlib.ExitStack() as first:
        url = first.enter_context(served(theirs, tiny_settings()))
        counts = counts_of({B: url}, clock)
        counts.refresh(["orders"])
    clock.advance(10_000)
    with served(theirs, tiny_settings(), port=int(url.rpartition(":")[2])):
        counts.refresh(["orders"])
        assert counts.last_known(QUEUE) == QueueEnds(0, 5)
