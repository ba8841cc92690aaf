"""The log of a master over the network: every byte once and in place, whatever the master does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq.fake_broker import FakeBroker, FakeMaster, frame
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ClosedError, InvalidRequestError
from tierlog.tiering.rocketmq.log_source import LogSource, OffsetGoneError, SourceLostError
from tierlog.tiering.rocketmq.remote_log import RemoteLog, check_followable
from tierlog.tiering.rocketmq.remoting import BrokerClient, BrokerFacts, runtime_info

SEGMENT = 1 << 16
LOG = bytes(1) + bytes(number * 7 % 251 for number in range(1, 5 * SEGMENT))
WAIT_S = 10.0


class World:
    """A master, its broker, and what follows it."""

    def __init__(self, broker: FakeBroker, master: FakeMaster) -> None:
        self.broker, self.master = broker, master
        self.clock = ManualClock()
        self.client = BrokerClient(broker.address, clock=self.clock)
        self.logs: list[RemoteLog] = []

    def log(self, *, is_replica: bool = False) -> RemoteLog:
        self.logs.append(
            RemoteLog(self.master.address, self.client, segment_bytes=SEGMENT, clock=self.clock, is_replica=is_replica)
        )
        return self.logs[-1]

    def close(self) -> None:
        for log in self.logs:
            log.close()
        self.client.close()


@pytest.fixture
def world() -> Iterator[World]:
    with FakeBroker() as broker, FakeMaster() as master:
        broker.tell_bounds(0, len(LOG))
        found = World(broker, master)
        yield found
        found.close()


def settled(world: World, log: RemoteLog) -> int:
    """What is settled once the broker was asked again."""
    log.told(runtime_info(world.client))
    return log.settled()


def read_all(log: LogSource, end: int) -> tuple[int, bytes]:
    """Everything up to an offset, and where it began; each read goes on where the one before ended, in one segment."""
    found, first = b"", None
    while first is None or first + len(found) < end:
        data = bytes(log.read(WAIT_S))
        if not data:
            continue
        first = log.position() if first is None else first
        assert log.position() == first + len(found)
        assert log.position() // SEGMENT == (log.position() + len(data) - 1) // SEGMENT
        found += data
    return first, found


def frames_of(begin: int, sizes: list[int]) -> bytes:
    """The log from an offset on in frames of these sizes, cut where segments end, heartbeats for those of none."""
    at, found = begin, b""
    for size in sizes:
        count = min(size, SEGMENT - at % SEGMENT, len(LOG) - at)
        found += frame(at, LOG[at : at + count])
        at += count
    return found


def test_bytes_come_in_order_and_at_their_place(world: World) -> None:
    log = world.log()
    log.begin(3 * SEGMENT - 100)
    with world.master.connection() as slave:
        assert slave.reported() == 3 * SEGMENT - 100
        slave.socket.sendall(frames_of(3 * SEGMENT - 100, [60, 0, 60, 1, 0, 500, 32768]))
        end = 3 * SEGMENT - 100 + 60 + 40 + 1 + 500 + 32768
        assert read_all(log, end) == (3 * SEGMENT - 100, LOG[3 * SEGMENT - 100 : end])


def test_the_first_byte_of_the_whole_log_is_known_and_the_second_is_asked_for(world: World) -> None:
    log = world.log()
    log.begin(0)
    with world.master.connection() as slave:
        assert slave.reported() == 1
        slave.send(1, b"")
        assert log.read(WAIT_S) == b""
        slave.socket.sendall(frames_of(1, [1, 2, 300]))
        assert read_all(log, 304) == (0, LOG[:304])


@given(
    st.sampled_from([0, 1, 5, SEGMENT - 3, SEGMENT, 2 * SEGMENT - 13]),
    st.lists(st.sampled_from([0, 1, 11, 12, 13, 700, 32768]) | st.integers(1, 40_000), min_size=1, max_size=12),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=8),
)
def test_frames_may_arrive_in_any_pieces(begin: int, sizes: list[int], pieces: list[int]) -> None:
    with FakeBroker() as broker, FakeMaster() as master:
        broker.tell_bounds(0, len(LOG))
        world = World(broker, master)
        log = world.log()
        log.begin(begin)
        sent = frames_of(max(1, begin), sizes)
        count = len(sent) - 12 * len(sizes)
        with master.connection() as slave:

            def send() -> None:
                at, number = 0, 0
                while at < len(sent):
                    piece = pieces[number % len(pieces)]
                    slave.socket.sendall(sent[at : at + piece])
                    at, number = at + piece, number + 1

            thread = threading.Thread(target=send)
            thread.start()
            end = max(1, begin) + count
            if count:
                assert read_all(log, end) == (begin, LOG[begin:end])
            thread.join()
        world.close()


@pytest.mark.parametrize(
    "sent",
    [
        frame(101, b"x"),
        frame(99, b"x"),
        frame(-1, b"x"),
        frame(100, b"x" * 50) + frame(149, b"x"),
        (100).to_bytes(8, "big") + (-5).to_bytes(4, "big", signed=True),
        (100).to_bytes(8, "big") + (0x7FFFFFFF).to_bytes(4, "big"),
        (100).to_bytes(8, "big") + (SEGMENT - 99).to_bytes(4, "big"),
    ],
    ids=["ahead", "behind", "negative", "overlapping", "negative-length", "huge", "across-segments"],
)
def test_a_frame_that_cannot_be_ends_the_connection(world: World, sent: bytes) -> None:
    log = world.log()
    log.begin(100)
    with world.master.connection() as slave:
        slave.reported()
        slave.socket.sendall(sent)
        with pytest.raises(SourceLostError, match="the master sent"):
            read_all(log, 1 << 40)
        with pytest.raises(SourceLostError, match="not connected"):
            log.read(0)


def test_an_observer_asks_and_then_acknowledges_nothing(world: World) -> None:
    log = world.log()
    log.begin(500)
    with world.master.connection() as slave:
        assert slave.reported() == 500
        world.clock.advance(3_000)
        assert log.read(0) == b""
        assert slave.reported() == 500  # a master that reads both at once begins at the last
        slave.send(500, LOG[500:600])
        assert read_all(log, 600)[1] == LOG[500:600]
        log.report(600)
        assert not slave.reports_waiting()
        world.clock.advance(3_000)
        log.report(600)
        assert slave.reported() == 0


def test_a_replica_says_at_once_what_is_durable_here(world: World) -> None:
    log = world.log(is_replica=True)
    log.begin(500)
    with world.master.connection() as slave:
        assert slave.reported() == 500
        log.report(501)
        assert not slave.reports_waiting()
        slave.send(500, LOG[500:600])
        assert read_all(log, 600)[1] == LOG[500:600]
        log.report(600)
        assert slave.reported() == 600
        log.report(550)
        assert not slave.reports_waiting()
        world.clock.advance(3_000)
        assert log.read(0) == b""
        assert slave.reported() == 600


def test_a_master_that_says_nothing_for_20_seconds_is_lost(world: World) -> None:
    log = world.log()
    log.begin(0)
    with world.master.connection() as slave:
        world.clock.advance(19_000)
        slave.send(1, b"")
        assert log.read(WAIT_S) == b""
        world.clock.advance(19_000)
        assert log.read(0) == b""
        world.clock.advance(2_000)
        with pytest.raises(SourceLostError, match="has said nothing for 21 s"):
            log.read(0)


def test_a_heartbeat_is_a_sign_of_life_without_a_byte(world: World) -> None:
    log = world.log()
    log.begin(100)
    began_s = log.heard_s()
    with world.master.connection() as slave:
        assert log.read(0) == b""
        world.clock.advance(5_000)
        slave.send(100, b"")
        assert log.read(20.0) == b""
        assert log.heard_s() == began_s + 5


def test_half_a_head_and_silence_is_lost_too(world: World) -> None:
    log = world.log()
    log.begin(100)
    with world.master.connection() as slave:
        slave.socket.sendall(frame(100, b"x")[:7])
        assert log.read(0.2) == b""
        world.clock.advance(21_000)
        with pytest.raises(SourceLostError, match="nothing for 21 s"):
            log.read(0)


def test_a_master_that_closes_is_lost_and_the_log_goes_on_after_that(world: World) -> None:
    log = world.log()
    log.begin(100)
    with world.master.connection() as slave:
        slave.reported()
        slave.socket.sendall(frames_of(100, [50, 50])[:-20])
    assert read_all(log, 180)[1] == LOG[100:180]
    with pytest.raises(SourceLostError, match="closed the connection"):
        log.read(WAIT_S)
    log.begin(180)
    with world.master.connection() as slave:
        assert slave.reported() == 180
        slave.socket.sendall(frames_of(180, [20]))
        assert read_all(log, 200) == (180, LOG[180:200])


def test_a_master_that_is_not_there_is_lost(world: World) -> None:
    world.master.__exit__()
    with pytest.raises(SourceLostError, match="cannot be connected to"):
        world.log().begin(0)


def test_an_offset_that_the_broker_has_not_is_gone(world: World) -> None:
    world.broker.tell_bounds(SEGMENT, 2 * SEGMENT)
    log = world.log()
    for offset in (0, SEGMENT - 1, 2 * SEGMENT + 1):
        with pytest.raises(OffsetGoneError) as caught:
            log.begin(offset)
        assert (caught.value.min_offset, caught.value.max_offset) == (SEGMENT, 2 * SEGMENT)
    log.begin(2 * SEGMENT)


def test_closing_ends_a_read_that_waits(world: World) -> None:
    log = world.log()
    log.begin(0)
    with world.master.connection() as slave:
        slave.reported()
        threading.Timer(0.1, log.close).start()
        with pytest.raises(ClosedError):
            log.read(WAIT_S)
    with pytest.raises(ClosedError):
        log.begin(0)


def test_what_is_settled_is_what_the_broker_has_flushed(world: World) -> None:
    world.broker.tell_bounds(0, 10_000_000, remainHowManyDataToFlush="100 B")
    log = world.log()
    log.begin(0)
    assert settled(world, log) == 9_999_900
    world.broker.tell_bounds(0, 20_000_000, remainHowManyDataToFlush="1.5 MiB")
    asked = len(world.broker.asked)
    assert log.settled() == 9_999_900
    assert len(world.broker.asked) == asked
    # up to 1.55 MiB are not flushed
    assert settled(world, log) == 20_000_000 - (31 * (1 << 20) // 20 + 1)
    log.told({})
    assert log.settled() == 20_000_000 - (31 * (1 << 20) // 20 + 1)


def test_what_came_long_ago_is_settled_of_a_broker_that_does_not_tell(world: World) -> None:
    log = world.log()
    log.begin(500)
    assert settled(world, log) == 0
    with world.master.connection() as slave:
        slave.send(500, LOG[500:600])
        read_all(log, 600)
        world.clock.advance(1_000)
        assert settled(world, log) == 0
        world.clock.advance(19_000)
        assert settled(world, log) == 500
        world.clock.advance(1_000)
        assert settled(world, log) == 600


def test_a_broker_that_was_started_again_settles_nothing_of_an_older_connection(world: World) -> None:
    world.broker.tell_bounds(0, 1_000, remainHowManyDataToFlush="0 B", bootTimestamp="1")
    log = world.log()
    log.begin(0)
    assert settled(world, log) == 1_000
    # after a power cut: other messages lie there now, while nothing has ended the connection yet
    world.broker.tell_bounds(0, 2_000, remainHowManyDataToFlush="0 B", bootTimestamp="2")
    world.clock.advance(3_000)
    with pytest.raises(SourceLostError, match="started again"):
        settled(world, log)
    log.begin(0)
    assert settled(world, log) == 2_000


def test_what_is_remembered_of_the_age_of_bytes_does_not_grow(world: World) -> None:
    world.broker.tell_bounds(0, 1_000, remainHowManyDataToFlush="0 B")
    log = world.log()
    log.begin(0)
    for _ in range(100):
        settled(world, log)
        world.clock.advance(1_000)
    assert len(log._marks) <= 22


@pytest.mark.parametrize(("field", "name"), [("is_controller_mode", "controller mode"), ("is_dledger", "DLedger")])
def test_brokers_with_another_replication_are_refused_by_its_name(field: str, name: str) -> None:
    facts = BrokerFacts(
        name="broker-a", cluster="c", version="V5_4_0", role="ASYNC_MASTER", segment_bytes=1 << 30,
        ha_address="127.0.0.1:10912", is_controller_mode=False, is_dledger=False, file_reserved_hours=72,
        delete_hours=(4,), disk_max_used_percent=75,
    )  # fmt: skip
    check_followable(facts)
    changed: dict[str, Any] = {field: True}
    with pytest.raises(InvalidRequestError, match=rf"{name}.*--store") as caught:
        check_followable(replace(facts, **changed))
    # only what its files allow is recommended
    assert ("no source can follow it" in str(caught.value)) is (field == "is_dledger")
