"""A real master with a Java producer, followed by both sources: each gives the bytes of its files."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rocketmq.real_brokers import CLOCK, until
from tests.support.rocketmq.real_clients import Doors, RealClient, fresh, java_client, real_server
from tests.tools.cache import ToolMissingError
from tests.tools.rocketmq_clients import JAVA_5, built
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.rocketmq.broker_directory import BrokerDirectory
from tierlog.tiering.rocketmq.broker_files import read_state
from tierlog.tiering.rocketmq.log_source import LogSource, OffsetGoneError
from tierlog.tiering.rocketmq.remote_log import RemoteLog, check_followable
from tierlog.tiering.rocketmq.remoting import (
    BrokerAddress,
    BrokerClient,
    copied_state,
    facts_of,
    find_brokers,
    runtime_info,
)

pytestmark = pytest.mark.timeout(300)
_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("followed")


@pytest.fixture(scope="module")
def real(folder: Path) -> Iterator[Doors]:
    try:
        program = built(JAVA_5)
    except ToolMissingError as error:
        pytest.skip(f"RocketMQ's clients cannot be built: {error}")
    with real_server(program, folder) as found:
        yield found


@pytest.fixture(scope="module")
def producer(real: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    with java_client(built(JAVA_5), "Remoting5", tmp_path_factory.mktemp("producer"), real.remoting) as client:
        yield client


@pytest.fixture(scope="module")
def master(real: Doors) -> BrokerAddress:
    found: list[BrokerAddress] = []

    def answers() -> bool:
        with contextlib.suppress(StoreError):  # right after its start it is not registered, or cannot tell its bounds
            found[:] = [find_brokers([real.remoting], "broker-a", clock=CLOCK)]
            with contextlib.closing(BrokerClient(found[0].address, clock=CLOCK)) as client:
                return bool(runtime_info(client))
        return False

    until(answers, lambda: "the broker answers")
    return found[0]


@pytest.fixture
def client(master: BrokerAddress) -> Iterator[BrokerClient]:
    found = BrokerClient(master.address, clock=CLOCK)
    yield found
    found.close()


class Follower:
    """Reads a source in a thread until it has all up to an offset; bytes by the base of their segment."""

    def __init__(self, source: LogSource, begin: int) -> None:
        self.source = source
        self.pieces: dict[int, bytearray] = {}
        self.failure: BaseException | None = None
        self._end: int | None = None
        source.begin(begin)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            reached = self.source.position()
            while self._end is None or reached < self._end:
                data = self.source.read(0.2)
                if not data:
                    continue
                base = self.source.position() - self.source.position() % self.source.segment_bytes
                piece = self.pieces.setdefault(base, bytearray())
                assert self.source.position() == base + len(piece)
                piece += data
                reached = base + len(piece)
                self.source.report(reached)
        except BaseException as error:
            self.failure = error

    def finish(self, end: int) -> None:
        """Waits until everything below an offset was read."""
        self._end = end
        self._thread.join(_LIMIT_S)
        assert not self._thread.is_alive(), "the source gave no more"
        assert self.failure is None, self.failure


def test_both_sources_give_the_bytes_of_the_files(folder: Path, producer: RealClient, client: BrokerClient) -> None:
    paths = StorePaths(folder / "store")
    facts = facts_of(client)
    check_followable(facts)
    assert (facts.name, facts.segment_bytes, facts.role) == ("broker-a", 16 << 20, "ASYNC_MASTER")
    topic = fresh("followed")
    producer.send(topic, "first", count=10)
    sources: list[LogSource] = [
        RemoteLog(facts.ha_address, client, segment_bytes=facts.segment_bytes, clock=CLOCK, is_replica=is_replica)
        for is_replica in (False, True)
    ]
    sources.append(BrokerDirectory(paths.root, fs=LocalFileSystem(), clock=CLOCK))
    begin = sources[0].bounds().min_offset
    followers = [Follower(source, begin) for source in sources]
    for number in range(6):
        producer.send(topic, f"small-{number}", count=500, how="async")
        producer.send(topic, f"large-{number}", count=30, body=random.Random(number).randbytes(100_000).hex())
    end = sources[0].bounds().max_offset
    assert end > facts.segment_bytes
    for follower in followers:
        follower.finish(end)
    for follower in followers:
        for base, piece in follower.pieces.items():
            found, wanted = bytes(piece), paths.segment(base).read_bytes()[: len(piece)]
            assert found == wanted, f"{type(follower.source).__name__} differs in segment {base}"
    for source in sources:
        if isinstance(source, RemoteLog):
            source.told(runtime_info(client))
        assert source.settled() >= end  # the broker flushes at once
        with pytest.raises(OffsetGoneError):
            source.begin(end + (1 << 30))
        source.close()


def test_what_a_broker_tells_beside_its_log_is_in_its_files_too(
    folder: Path, producer: RealClient, client: BrokerClient
) -> None:
    topic, group = fresh("told"), fresh("group")
    producer.send(topic, "told", count=8)
    assert len(producer.consumed(topic, group, 8)) == 8
    told = copied_state(client)
    found = {each.name: each for each in told.topics}[topic]
    assert found.queue_count > 0
    assert group in [each.name for each in told.groups]
    kept = read_state(LocalFileSystem(), StorePaths(folder / "store"))
    assert {each.name: each for each in kept.topics}[topic].queue_count == found.queue_count
    assert group in [each.name for each in kept.groups]
