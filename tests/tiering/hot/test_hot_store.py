"""The hot store: what is acknowledged is kept, a refusing disk ends writing and not reading, offsets never repeat."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.hot_stores import (
    STORE_HOST_V6,
    HotWorld,
    append,
    batch,
    fill,
    queue_offsets,
    sized_body,
    snapshot_of,
)
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ClosedError,
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    InvalidRequestError,
    MessageTooLargeError,
    ReadOnlyError,
    StoreError,
    StoreLockedError,
    StoreMismatchError,
)
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.types import Durability
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore


@pytest.fixture
def world() -> HotWorld:
    return HotWorld()


def crash(world: HotWorld, seed: int = 0, *, lose_everything: bool = False) -> HotWorld:
    """The same store after a power cut."""
    assert isinstance(world.fs, CrashFileSystem)
    world.fs = world.fs.crash(seed, lose_everything=lose_everything)
    return world


def place_of(hot: HotStore, offset: int) -> tuple[str, int, int, bytes]:
    with hot.snapshot() as snapshot:
        found = snapshot.record(offset)
        return found.topic, found.queue_id, found.queue_offset, found.body


# ---- placing


def test_round_robin_over_the_queues(world: HotWorld) -> None:
    hot = world.open()
    hot.topics.create("orders", 3)
    first = append(hot, *[Message("orders", b"x")] * 4)
    second = append(hot, *[Message("orders", b"x")] * 3)
    assert first.queue_id.tolist() + second.queue_id.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert first.queue_offset.tolist() + second.queue_offset.tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_topics_take_turns_on_their_own(world: HotWorld) -> None:
    hot = world.open()
    result = append(hot, Message("a", b"x"), Message("b", b"x"), Message("a", b"x"), Message("b", b"x"))
    assert result.queue_id.tolist() == [0, 0, 1, 1]
    assert result.queue_offset.tolist() == [0, 0, 0, 0]


def test_explicit_queue_ids_are_taken_and_make_no_queues(world: HotWorld) -> None:
    hot = world.open()
    hot.create_topic("a", 6)
    result = append(hot, Message("a", b"x", queue_id=5), Message("a", b"x"), Message("a", b"x", queue_id=5))
    assert result.queue_id.tolist() == [5, 0, 5]
    assert result.queue_offset.tolist() == [0, 0, 1]
    end = hot.log.end
    with pytest.raises(InvalidRequestError, match="message 1: topic 'a' has 6 queues, and no queue 6") as refused:
        append(hot, Message("a", b"x", queue_id=5), Message("a", b"x", queue_id=6))
    assert refused.value.position == 1
    with pytest.raises(InvalidRequestError, match="topic 'new' has 2 queues"):
        append(hot, Message("new", b"x", queue_id=2))
    assert (hot.log.end, hot.topics.find("new"), hot.guard.read_only_reason) == (end, None, None)
    assert world.open_again(hot).topics.get("a").queues == 6


def test_records_are_what_was_sent(world: HotWorld) -> None:
    hot = world.open(store_host=STORE_HOST_V6)
    message = Message("orders", b"body", ["k1", "k2"], "tag", {"n": "v"}, 77, 1)
    result = append(hot, message)
    with hot.snapshot() as snapshot:
        found = snapshot.record(int(result.physical_offset[0]))
    assert (found.body, found.born_ms, found.queue_id, found.store_host) == (b"body", 77, 1, STORE_HOST_V6)
    assert found.properties == {"KEYS": "k1 k2", "TAGS": "tag", "n": "v"}
    assert found.store_ms == result.store_ms


def test_a_batch_crosses_segments(world: HotWorld) -> None:
    hot = world.open()
    messages = [Message("orders", sized_body(300, "orders"), queue_id=number % 2) for number in range(60)]
    result = append(hot, *messages)
    assert hot.log.last_base == 4 * 4096
    for message, offset, queue_offset in zip(messages, result.physical_offset, result.queue_offset, strict=True):
        assert place_of(hot, int(offset)) == ("orders", message.queue_id, queue_offset, message.body)
    assert check_store(hot) == []


def test_an_empty_batch_changes_nothing(world: HotWorld) -> None:
    hot = world.open()
    assert len(append(hot).physical_offset) == 0
    assert hot.log.end == 0


# ---- time


def test_store_times_never_step_back(world: HotWorld) -> None:
    hot = world.open()
    times = []
    for step in (0, 5, -10_000, 3, 9_000, 2_000):
        world.clock.step(step)
        times.append(append(hot, Message("a", b"x")).store_ms)
    assert times == sorted(times)
    assert times[2] == times[1]
    world.clock.step(-1_000_000)
    hot = world.open_again(hot)
    assert append(hot, Message("a", b"x")).store_ms == times[-1]
    assert check_store(hot) == []


def test_store_times_do_not_step_back_over_an_empty_log(world: HotWorld) -> None:
    hot = world.open()
    before = append(hot, Message("a", b"x")).store_ms
    hot.roll()
    hot.dispatch()
    hot.remove_below(4096, forget=lambda _: None)
    world.clock.step(-1_000_000)
    hot = world.open_again(hot)
    assert append(hot, Message("a", b"x")).store_ms == before


# ---- sizes


def test_record_larger_than_a_segment_is_refused_before_anything_is_written(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "orders", 3)
    before = (hot.log.end, [topic.name for topic in hot.topics.all()], snapshot_of(world.fs, world.root))
    too_long = Message("new-topic", sized_body(4096 - 8 + 1, "new-topic"))
    with pytest.raises(MessageTooLargeError, match="message 1: record of 4089 bytes") as caught:
        append(hot, Message("orders", b"x"), too_long)
    assert caught.value.position == 1
    assert (hot.log.end, [topic.name for topic in hot.topics.all()], snapshot_of(world.fs, world.root)) == before
    assert hot.guard.read_only_reason is None
    assert append(hot, Message("orders", sized_body(4096 - 8, "orders"))).physical_offset.tolist() == [4096]


# ---- durability


def test_flushed_survives_a_power_cut_and_async_may_not(world: HotWorld) -> None:
    hot = world.open()
    append(hot, Message("a", b"kept", queue_id=0))
    append(hot, Message("a", b"lost", queue_id=0), durability=Durability.ASYNC)
    assert hot.log.flushed < hot.log.end
    hot = crash(world, lose_everything=True).open()
    assert queue_offsets(hot, "a") == [0]
    append(hot, Message("a", b"next", queue_id=0))
    assert queue_offsets(hot, "a") == [0, 1]
    assert check_store(hot) == []


def test_readers_see_the_log_up_to_its_flushed_position(world: HotWorld) -> None:
    hot = world.open()
    append(hot, Message("a", b"x", queue_id=0), durability=Durability.ASYNC)
    assert queue_offsets(hot, "a") == []
    hot.flush()
    assert queue_offsets(hot, "a") == [0]


def test_a_killed_process_loses_nothing_that_was_written(world: HotWorld) -> None:
    hot = world.open()
    append(hot, Message("a", b"x", queue_id=0), durability=Durability.ASYNC)
    hot = world.open()
    assert queue_offsets(hot, "a") == [0]
    assert queue_offsets(crash(world, lose_everything=True).open(), "a") == [0], "recovery made it durable"


def test_abort_tells_a_clean_stop_from_another(world: HotWorld) -> None:
    hot = world.open()
    assert world.fs.exists(world.paths.abort)
    hot.close()
    hot.close()
    assert not world.fs.exists(world.paths.abort)
    with pytest.raises(ClosedError):
        append(hot, Message("a", b"x"))


def test_a_log_that_ends_below_its_checkpoint_is_not_recovered(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 10)
    hot.close()
    checkpoint = Checkpoint.decode(world.fs.read(world.paths.checkpoint))
    ahead = Checkpoint(checkpoint.physic_ms, checkpoint.logics_ms, confirm_offset=checkpoint.confirm_offset + 4096)
    file = world.fs.open(world.paths.checkpoint)
    file.write_at(0, ahead.encode())
    before = snapshot_of(world.fs, world.paths.commitlog)
    with pytest.raises(CorruptionError, match="below its checkpoint"):
        world.open()
    assert snapshot_of(world.fs, world.paths.commitlog) == before


# ---- a disk that refuses


DISK_FAULTS: list[tuple[str, str, StoreError, int | None]] = [
    ("write_at", "*/commitlog/*", DiskFailedError("input/output error"), None),
    ("write_at", "*/commitlog/*", DiskFullError("no space left"), 50),
    ("flush", "*/commitlog/*", DiskFailedError("input/output error"), None),
]


@pytest.mark.parametrize(("operation", "pattern", "error", "after_bytes"), DISK_FAULTS)
def test_a_refusing_disk_ends_writing_and_not_reading(
    world: HotWorld, operation: str, pattern: str, error: StoreError, after_bytes: int | None
) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fill(hot, "a", 5)
    assert queue_offsets(hot, "a") == [0, 1, 2, 3, 4]
    fs.refuse(operation, pattern, error=error, after_bytes=after_bytes)
    with pytest.raises(type(error)):
        append(hot, Message("a", b"unacknowledged" * 5, queue_id=0))
    fs.heal()  # a failed flush is never tried again as if nothing had happened
    refusals: list[Callable[[], object]] = [
        lambda: append(hot, Message("a", b"x")),
        lambda: append(hot, Message("a", b"x"), durability=Durability.ASYNC),
        hot.flush, hot.roll, hot.checkpoint,
    ]  # fmt: skip
    for refused in refusals:
        with pytest.raises(ReadOnlyError, match="read-only"):
            refused()
    assert error.message in (hot.guard.read_only_reason or "")
    assert queue_offsets(hot, "a") == [0, 1, 2, 3, 4]
    hot.close()
    hot = crash(world, 3).open()
    assert queue_offsets(hot, "a")[:5] == [0, 1, 2, 3, 4]
    assert check_store(hot) == []
    append(hot, Message("a", b"goes on", queue_id=0))


@pytest.mark.parametrize(("operation", "pattern"), [("create", "*/tmp/*"), ("rename", "*/commitlog/*"),
                                                    ("flush_dir", "*/commitlog")])  # fmt: skip
def test_no_room_for_the_next_segment(world: HotWorld, operation: str, pattern: str) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fill(hot, "a", 18, size=200)
    hot.dispatch()
    fs.refuse(operation, pattern, error=DiskFullError("no space left"))
    with pytest.raises(DiskFullError):
        fill(hot, "a", 10, size=200)
    assert hot.guard.read_only_reason is not None
    kept = queue_offsets(hot, "a")
    assert kept == list(range(len(kept)))
    assert len(kept) >= 18
    hot = crash(world, 1).open()
    assert queue_offsets(hot, "a") == kept
    assert check_store(hot) == []


@pytest.mark.parametrize(("operation", "pattern"), [("write_at", "*/tmp/queue-*"), ("write_at", "*/consumequeue/*")])
def test_a_queue_that_cannot_be_written_waits_for_room(world: HotWorld, operation: str, pattern: str) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fs.refuse(operation, pattern, error=DiskFullError("no space left"))
    append(hot, Message("a", b"x", queue_id=0))
    hot.dispatch()
    assert "no space left" in (hot.dispatch_error or "")
    assert hot.guard.read_only_reason is None
    assert queue_offsets(crash(world).open(), "a") == [0], "it was acknowledged"
    append(hot, Message("a", b"y", queue_id=0))
    for _ in range(3):  # not tried at every call
        hot.dispatch()
    assert len(fs.refused) == 1
    fs.heal()
    world.clock.advance(1_000)
    assert queue_offsets(hot, "a") == [0, 1]
    assert hot.dispatch_error is None


def test_a_topic_that_cannot_be_made_durable_is_not_made(world: HotWorld) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fs.refuse("rename", "*/topics.json")
    with pytest.raises(DiskFailedError):
        append(hot, Message("new", b"x"))
    assert hot.topics.find("new") is None
    assert hot.guard.read_only_reason is not None


# ---- offsets


def test_queue_offsets_go_on_over_stops_of_all_kinds(world: HotWorld) -> None:
    hot = world.open()
    for number in range(12):
        fill(hot, "a", 7)
        if number % 3 == 0:
            hot = world.open_again(hot)
        elif number % 3 == 1:
            hot = crash(world, number).open()
    assert queue_offsets(hot, "a") == list(range(84))
    assert check_store(hot) == []


def test_floors_outlive_every_segment_of_a_queue(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "gone", 5)
    fill(hot, "stays", 30)
    hot.roll()
    fill(hot, "stays", 2)
    hot.dispatch()
    forgotten: list[int] = []
    hot.remove_below(hot.log.last_base, forget=forgotten.append)
    assert forgotten == [hot.border] == [hot.log.begin]
    assert hot.topics.get("gone").floors == {0: 5}
    assert append(hot, Message("gone", b"x", queue_id=0)).queue_offset.tolist() == [5]
    for again in range(3):
        hot = crash(world, again).open() if again % 2 else world.open_again(hot)
        assert append(hot, Message("gone", b"x", queue_id=0)).queue_offset.tolist() == [6 + again]
        assert check_store(hot) == []
    assert queue_offsets(hot, "gone") == [5, 6, 7, 8]


def test_no_offset_twice_where_only_the_floor_knows(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "gone", 5)
    hot.roll()
    hot.dispatch()
    hot.remove_below(4096, forget=lambda _: None)
    hot = crash(world, lose_everything=True).open()
    # the queue's files may be gone as well: they are derived, and nothing is left to derive them from
    for name in world.fs.list_dir(world.paths.queue("gone", 0)):
        world.fs.unlink(world.paths.queue("gone", 0) / name)
    hot = crash(world).open()
    assert hot.next_offset(hot.topics.get("gone"), 0) == 5
    assert append(hot, Message("gone", b"x", queue_id=0)).queue_offset.tolist() == [5]
    assert queue_offsets(hot, "gone") == [5]


def test_the_last_segment_never_goes(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 30)
    with pytest.raises(StoreError, match="never goes"):
        hot.remove_below(hot.log.last_base + 4096, forget=lambda _: None)
    hot.remove_below(0, forget=lambda _: None)
    assert hot.border == 0


def test_a_removal_waits_for_readers_and_their_maps_last(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 30)
    with hot.snapshot() as snapshot:
        first = snapshot.segments[0]
    hot.dispatch()
    hot.remove_below(hot.log.last_base, forget=lambda _: None)
    assert decode_record(first.data.data, 0).queue_offset == 0
    with hot.snapshot() as snapshot:
        assert 0 not in snapshot.segments
        assert snapshot.border == hot.log.last_base


@pytest.mark.parametrize("published_below", [4096, 8192, 12288])
def test_segments_below_a_hole_go_if_they_are_published(world: HotWorld, published_below: int) -> None:
    hot = world.open()
    fill(hot, "a", 65)
    hot.close()
    assert hot.log.bases() == [0, 4096, 8192, 12288]
    world.fs.unlink(world.paths.segment(4096))
    hot = world.open(published_below=published_below)
    assert hot.log.bases() == [8192, 12288]
    assert hot.border == 8192


def test_segments_below_a_hole_that_are_not_published_are_kept(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 65)
    hot.close()
    world.fs.unlink(world.paths.segment(4096))
    before = snapshot_of(world.fs, world.paths.commitlog)
    with pytest.raises(CorruptionError, match="not in the archive"):
        world.open()
    assert snapshot_of(world.fs, world.paths.commitlog) == before


def test_a_segment_of_another_size_is_refused(world: HotWorld) -> None:
    world.open().close()
    world.segment_bytes = 8192
    with pytest.raises(StoreMismatchError, match="4096 bytes in a store of 8192-byte segments"):
        world.open()


# ---- one writer


def test_second_opener_in_this_process(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    path = tmp_path / "lock"
    with fs.lock(path), pytest.raises(StoreLockedError, match=f"pid {os.getpid()} on "), LocalFileSystem().lock(path):
        pass
    with fs.lock(tmp_path / "lock"):
        pass


_HOLD = """
import sys
from pathlib import Path
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
with LocalFileSystem().lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_opener_in_another_process_is_told_the_holder(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path / "lock")], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match=f"pid {holder.pid} on ") as caught, \
                LocalFileSystem().lock(tmp_path / "lock"):  # fmt: skip
            pass
        assert caught.value.hint is not None
        holder.kill()
        holder.wait()
    with LocalFileSystem().lock(tmp_path / "lock"):
        pass


def test_a_batch_is_checked_against_the_limit_of_bodies() -> None:
    with pytest.raises(MessageTooLargeError):
        batch(Message("a", b"12345"), max_body_bytes=4)


# ---- a store stays what it was made as


def listing(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize(
    ("segment_bytes", "queue_file_units", "cold_url", "store_id", "named"),
    [
        (8192, 60, None, None, "segment size 4096, not 8192"),
        (4096, 61, None, None, "queue-file units 60, not 61"),
        (4096, 60, "memory://other", None, "cold URL memory://made-with, not memory://other"),
        (4096, 60, None, "other", "store id mine, not other"),
    ],
)
def test_opening_as_something_else_is_refused_and_changes_nothing(
    tmp_path: Path, segment_bytes: int, queue_file_units: int, cold_url: str | None, store_id: str | None, named: str
) -> None:
    def open_as(segment_bytes: int, queue_file_units: int, cold_url: str | None, store_id: str | None) -> Store:
        hot = HotSettings(segment_bytes=segment_bytes, queue_file_units=queue_file_units)
        settings = Settings(hot=hot, index=IndexSettings(slots=10, items=50), advertise="10.0.0.1:1")
        return Store.open(
            tmp_path / "store", settings=settings, cold_url=cold_url, store_id=store_id,
            objects=MemoryObjectStore(ManualClock()), clock=ManualClock(),
        )  # fmt: skip

    engine = open_as(4096, 60, "memory://made-with", "mine")
    engine.append([Message("orders", b"x", ["k"])] * 50)
    engine.close()
    before = listing(tmp_path)
    with pytest.raises(StoreMismatchError, match=named):
        open_as(segment_bytes, queue_file_units, cold_url, store_id)
    assert listing(tmp_path) == before
    engine = open_as(4096, 60, None, None)
    assert engine.cold_url == "memory://made-with"
    assert engine.check() == []
    engine.close()


def test_a_close_that_fails_lets_go_of_the_store(tmp_path: Path) -> None:
    """The lock stayed with a store that could be neither used nor closed."""
    fs = FaultyFileSystem(LocalFileSystem())

    def opened(fs: FileSystem) -> Store:
        hot = HotSettings(segment_bytes=4096, queue_file_units=60)
        settings = Settings(hot=hot, index=IndexSettings(slots=10, items=50), advertise="10.0.0.1:1")
        return Store.open(tmp_path / "store", settings=settings, fs=fs, clock=ManualClock())

    engine = opened(fs)
    engine.append([Message("orders", b"kept")])
    engine.append([Message("orders", b"unflushed")], Durability.ASYNC)
    fs.refuse("flush", "*/commitlog/*")
    with pytest.raises(DiskFailedError):
        engine.close()
    engine = opened(LocalFileSystem())
    assert engine.topic("orders").queues[0].max_offset == 1
    engine.close()
