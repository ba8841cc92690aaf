"""A store that follows a broker by each source: killed on either side, its log is the broker's in the end."""

from __future__ import annotations

from pathlib import Path

from tests.support.rocketmq.fake_broker import FakeBroker, FakeMaster
from tests.support.rocketmq.running_broker import SEGMENT_BYTES, RunningBroker
from tests.support.stores.followed import FollowedWorld, broker_log
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.rocketmq.broker_directory import BrokerDirectory
from tierlog.tiering.rocketmq.log_source import LogSource
from tierlog.tiering.rocketmq.remote_log import RemoteLog
from tierlog.tiering.rocketmq.remoting import BrokerClient, runtime_info


def follow(source: LogSource, store: FollowedStore, *, until: int) -> None:
    """What a follower does: its last bytes are compared, then it takes what comes."""
    first, mine = store.tail(2_000)
    source.begin(first)
    theirs = b""
    while len(theirs) < len(mine):
        theirs += bytes(source.read(2.0))
    assert theirs[: len(mine)] == mine
    source.begin(store.end)
    while store.end < until:
        data = source.read(2.0)
        store.append(source.position(), data)
    source.report(store.flush())
    store.publish_below = source.settled()


def test_a_directory_is_followed_over_kills_on_both_sides(tmp_path: Path) -> None:
    clock = ManualClock()
    broker, world = RunningBroker(tmp_path / "store", clock), FollowedWorld(clock=clock)
    source = BrokerDirectory(broker.paths.root, fs=LocalFileSystem(), clock=clock)
    for round_number in range(6):
        for number in range(30):
            broker.append(bytes([number]) * (20 * number))
        store = world.open()
        follow(source, store, until=broker.end)
        assert source.settled() == broker.end
        if round_number % 2:
            broker.start_again_at(broker.end)
    log = world.log_bytes()
    assert len(log) == broker.end > 5 * SEGMENT_BYTES
    assert {at: log[at : at + len(data)] for at, data in broker.written.items()} == broker.written
    source.close()


def test_a_master_is_followed_over_connections_and_kills() -> None:
    log, world = broker_log(), FollowedWorld()
    with FakeBroker() as broker, FakeMaster() as master:
        broker.tell_bounds(0, log.end, remainHowManyDataToFlush="0 B")
        client = BrokerClient(broker.address, clock=world.clock)
        source = RemoteLog(master.address, client, segment_bytes=SEGMENT_BYTES, clock=world.clock)
        store = world.open()
        at = 0
        for until in (log.end // 3, 2 * log.end // 3, log.end):
            source.begin(at)
            with master.connection() as slave:
                begin = slave.reported()
                while begin < until:
                    piece = log.read(begin, min(700, until - begin))
                    slave.send(begin, piece)
                    begin += len(piece)
                while at < until:
                    data = source.read(2.0)
                    store.append(source.position(), data)
                    at = source.position() + len(data)
            store.flush()
            store = world.open()
            at = store.end
        source.told(runtime_info(client))
        assert source.settled() == log.end
        assert world.log_bytes() == log.data
        source.close()
        client.close()
