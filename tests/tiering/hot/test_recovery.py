"""What opening does after every kind of stop, one test a damage; ``docs/recovery.md`` says which RocketMQ bug each is.

Everything here is exact: one store, one damage. :mod:`tests.fault.test_every_crash_point` has all crash points.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.plain_start import WAYS, take
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import HotWorld, append, batch, fill, queue_offsets, sized_body
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import CorruptionError, MessageTooLargeError, StoreLockedError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message

SIZE = 200


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take(request.param, monkeypatch)


@pytest.fixture
def world() -> HotWorld:
    return HotWorld()


def crash_fs(world: HotWorld) -> CrashFileSystem:
    assert isinstance(world.fs, CrashFileSystem)
    return world.fs


def write(world: HotWorld, offset: int, data: bytes) -> None:
    """Change bytes of the log behind the store's back."""
    file = world.fs.open(world.paths.segment(offset - offset % world.segment_bytes))
    file.write_at(offset % world.segment_bytes, data)
    file.close()


def read(world: HotWorld, start: int, end: int) -> bytes:
    base = start - start % world.segment_bytes
    return world.fs.read(world.paths.segment(base))[start - base : end - base]


def unflushed(hot: HotStore, count: int) -> None:
    append(hot, *[Message("a", sized_body(SIZE, "a"), queue_id=0)] * count, durability=Durability.ASYNC)


def ends(hot: HotStore) -> tuple[int, int]:
    """Highest physical offset and queue offset."""
    hot.dispatch()
    return hot.log.end, hot.next_offset(hot.topics.get("a"), 0)


# ---- stops


def test_normal_stop(world: HotWorld) -> None:
    """RocketMQ's testRecover, part 1."""
    hot = world.open()
    fill(hot, "a", 100)
    before = ends(hot)
    hot = world.open_again(hot)
    assert ends(hot) == before
    assert queue_offsets(hot, "a") == list(range(100))


def test_abnormal_stop(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 100)
    before = ends(hot)
    crash_fs(world).kill()
    hot = world.open()
    assert ends(hot) == before
    assert check_store(hot) == []


def test_no_message_is_missing_in_its_queue_after_an_unclean_stop(world: HotWorld) -> None:
    """RocketMQ #467: dispatched or not, with a queue file flushed or not."""
    for dispatched in (0, 1, 37, 38):
        world = HotWorld()
        hot = world.open()
        fill(hot, "a", dispatched)
        hot.dispatch()
        hot.checkpoint()
        fill(hot, "a", 61 - dispatched)
        world.fs = crash_fs(world).crash(dispatched, lose_everything=True)
        assert queue_offsets(world.open(), "a") == list(range(61))


def test_damage_to_acknowledged_bytes_after_a_clean_stop_is_named_and_cuts_nothing_off(world: HotWorld) -> None:
    """testRecover, part 2. RocketMQ cuts the message off; here it was acknowledged, so it is damage and no tail."""
    hot = world.open()
    fill(hot, "a", 18)
    before = ends(hot)
    hot.close()
    write(world, 18 * SIZE - 4, bytes(16))
    hot = world.open()
    assert ends(hot) == before
    (finding,) = check_store(hot)
    assert "record is invalid" in finding
    with hot.snapshot() as snapshot:
        assert snapshot.record(16 * SIZE).queue_offset == 16
        with pytest.raises(CorruptionError):
            snapshot.record(17 * SIZE)


def test_damaged_last_message_after_an_unclean_stop(world: HotWorld) -> None:
    """testRecover, part 3: the 16 bytes behind the body are zero; both ends as before, and 100 more can be written."""
    hot = world.open()
    fill(hot, "a", 95)
    before = ends(hot)
    unflushed(hot, 1)
    crash_fs(world).kill()
    write(world, hot.log.end - 4, bytes(16))
    hot = world.open()
    assert ends(hot) == before
    fill(hot, "a", 100)
    assert queue_offsets(hot, "a") == list(range(195))
    assert check_store(hot) == []


def test_opening_again_and_again_cuts_nothing_more_off(world: HotWorld) -> None:
    """RocketMQ #6665: the confirm offset stayed behind, and each start truncated more."""
    hot = world.open()
    fill(hot, "a", 30)
    unflushed(hot, 3)
    world.fs = crash_fs(world).crash(0, lose_everything=True)
    seen = []
    for number in range(6):
        hot = world.open()
        seen.append(ends(hot))
        world.fs = crash_fs(world).crash(number, lose_everything=True)
    assert set(seen) == {seen[0]}
    assert seen[0][1] == 30


def test_recovery_point_is_corrected_after_losing_what_was_not_flushed(world: HotWorld) -> None:
    """RocketMQ #6703: the confirm offset stayed above the log's end, and readers were shown what was gone."""
    hot = world.open()
    fill(hot, "a", 5)
    unflushed(hot, 5)
    world.fs = crash_fs(world).crash(0, lose_everything=True)
    hot = world.open()
    checkpoint = Checkpoint.decode(world.fs.read(world.paths.checkpoint))
    assert checkpoint.confirm_offset == hot.log.end == hot.log.flushed == 5 * SIZE
    with hot.snapshot() as snapshot:
        assert snapshot.end == 5 * SIZE


def test_the_end_of_the_log_is_not_known_before_recovery(world: HotWorld) -> None:
    """RocketMQ #688: positions were the files' sizes until recovery had run."""
    hot = world.open()
    fill(hot, "a", 3)
    hot.close()
    fresh = HotStore(world.fs, world.paths, world.clock, hot._options, bytes(8))
    assert fresh.log.end == fresh.log.flushed == 0
    fresh.recover([])
    assert fresh.log.end == fresh.log.flushed == 3 * SIZE


def test_a_store_that_is_open_cannot_be_opened(tmp_path: Path) -> None:
    """RocketMQ's test_repeat_restart: the second start fails at once, later ones find everything."""
    engine = Store.open(tmp_path, settings=tiny_settings())
    engine.append([Message("a", b"x", queue_id=0)])
    for _ in range(3):
        with pytest.raises(StoreLockedError, match="holds the store"):
            Store.open(tmp_path, settings=tiny_settings())
        engine.close()
        engine = Store.open(tmp_path, settings=tiny_settings())
        assert engine.topic("a").queues[0].max_offset == 1
    engine.close()


def test_a_stop_with_a_backlog_is_not_a_clean_one(world: HotWorld) -> None:
    """RocketMQ's DefaultMessageStoreShutDownTest: what queues still lack is derived by the next open."""
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fill(hot, "a", 3)
    fs.refuse("write_at", "*/tmp/queue-*")
    hot.dispatch()
    hot.close()
    assert world.fs.exists(world.paths.abort)
    assert queue_offsets(world.open(), "a") == [0, 1, 2]


# ---- the end of the log


def test_torn_last_record(world: HotWorld) -> None:
    """Wherever it was torn, it goes, and nothing before it."""
    hot = world.open()
    fill(hot, "a", 2)
    unflushed(hot, 1)
    whole = crash_fs(world)
    for kept in range(SIZE - 2):  # the last two bytes are zeros anyway
        world.fs = whole.crash(0)
        write(world, 2 * SIZE, whole.read(world.paths.segment(0))[2 * SIZE :][:kept] + bytes(SIZE - kept))
        assert world.open().log.end == 2 * SIZE, f"{kept} bytes of the record are there"


def test_zeroed_tail(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 4)
    unflushed(hot, 6)
    crash_fs(world).kill()
    write(world, 4 * SIZE, bytes(6 * SIZE))
    hot = world.open()
    assert ends(hot) == (4 * SIZE, 4)


def test_stale_tail(world: HotWorld, seed: int) -> None:
    """Blocks of another file behind the log's end: they are no records, and zero once the store is open."""
    hot = world.open()
    fill(hot, "a", 4)
    crash_fs(world).kill()
    write(world, 4 * SIZE, random.Random(seed).randbytes(4096 - 4 * SIZE))
    hot = world.open()
    assert ends(hot) == (4 * SIZE, 4)
    world.fs = crash_fs(world).crash(0, lose_everything=True)
    assert read(world, 4 * SIZE, 4096) == bytes(4096 - 4 * SIZE)


def test_stale_record_behind_a_truncation_does_not_come_back(world: HotWorld) -> None:
    """RocketMQ #10666: a whole record of an earlier life lies exactly where the log ends after the next crash."""
    hot = world.open()
    fill(hot, "a", 2)
    unflushed(hot, 3)
    crash_fs(world).kill()
    write(world, 2 * SIZE, bytes(8))  # the power cut kept records 3 and 4 and lost 2
    hot = world.open()
    assert ends(hot) == (2 * SIZE, 2)
    fill(hot, "a", 1)  # as long as the one that was lost
    world.fs = crash_fs(world).crash(0, lose_everything=True)
    hot = world.open()
    assert ends(hot) == (3 * SIZE, 3)
    assert queue_offsets(hot, "a") == [0, 1, 2]


def test_stale_record_of_another_place_is_no_record(world: HotWorld) -> None:
    """A record says where it lies; one that was copied or left from another segment does not pass."""
    hot = world.open()
    fill(hot, "a", 4)
    crash_fs(world).kill()
    write(world, 4 * SIZE, read(world, 0, SIZE))
    assert ends(world.open()) == (4 * SIZE, 4)


def test_messages_at_the_end_of_an_earlier_segment_are_derived_again(world: HotWorld) -> None:
    """RocketMQ #1434: recovery began with the file after them."""
    hot = world.open()
    fill(hot, "a", 15)
    hot.dispatch()
    hot.checkpoint()
    fill(hot, "a", 45)
    hot.dispatch()
    world.fs = crash_fs(world).crash(0, lose_everything=True)
    hot = world.open()
    assert hot.log.last_base > 4096
    assert queue_offsets(hot, "a") == list(range(60))
    assert check_store(hot) == []


# ---- checkpoint


@pytest.mark.parametrize("content", [None, b"", bytes(4096), bytes(17)], ids=["missing", "empty", "zeros", "cut"])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_checkpoint(world: HotWorld, content: bytes | None, clean: bool) -> None:
    """Recovery begins at the log's first byte and finds the same."""
    hot = world.open()
    fill(hot, "a", 50)
    before = ends(hot)
    hot.checkpoint()
    if clean:
        hot.close()
    else:
        crash_fs(world).kill()
    world.fs.unlink(world.paths.checkpoint)
    if content is not None:
        file = world.fs.open(world.paths.checkpoint)
        file.write_at(0, content)
        file.close()
    hot = world.open()
    assert ends(hot) == before
    assert queue_offsets(hot, "a") == list(range(50))
    assert check_store(hot) == []


# ---- a crash inside recovery


def test_crash_at_every_call_of_a_recovery(world: HotWorld) -> None:
    """With a tail to zero, units to write again and an empty segment to remove; and again inside the second one."""
    hot = world.open()
    fill(hot, "a", 25)
    hot.dispatch()
    fill(hot, "a", 10)
    unflushed(hot, 4)
    crash_fs(world).kill()
    write(world, 4096 + 16 * SIZE, bytes(SIZE))
    world.fs.create(world.paths.segment(8192), 4096, prewrite=True)
    wreck = crash_fs(world)
    probe = HotWorld(fs=wreck.crash(0))
    expected = ends(probe.open())
    calls = crash_fs(probe).calls
    assert calls > 10
    for number in range(1, calls + 1):
        first = HotWorld(fs=wreck.crash(0, cut_at=number))
        with pytest.raises(PowerCut):
            first.open()
        second = HotWorld(fs=crash_fs(first).crash(number, cut_at=number % 7 + 1))
        with pytest.raises(PowerCut):
            second.open()
        third = HotWorld(fs=crash_fs(second).crash(number))
        hot = third.open()
        assert ends(hot) == expected, f"cut at {number}"
        assert check_store(hot) == []


# ---- refusals


def test_a_refused_message_leaves_no_hole(world: HotWorld) -> None:
    """RocketMQ #6570: an illegal message had taken its queue offset."""
    hot = world.open()
    for refused in (
        lambda: append(hot, Message("a", b"x", properties={"n": "v" * 32_768}, queue_id=0)),
        lambda: append(hot, Message("a", b"x", queue_id=0), Message("a", sized_body(4096, "a"), queue_id=0)),
        lambda: batch(Message("a", b"12345", queue_id=0), max_body_bytes=4),
    ):
        with pytest.raises(MessageTooLargeError):
            refused()
        assert hot.log.end == 0
    assert append(hot, Message("a", b"x", queue_id=0)).queue_offset.tolist() == [0]
    assert queue_offsets(world.open_again(hot), "a") == [0]
