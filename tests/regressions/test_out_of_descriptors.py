"""Without a file descriptor for one checkpoint, as under a flood of connections, the store was read-only for good."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.fs.scarce_fs import ScarceFileSystem
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import HotWorld, append, fill, queue_offsets, sized_body
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFailedError, OutOfResourcesError, ReadOnlyError, UnavailableError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import Durability
from tierlog.tiering.base.write_guard import FlushGuard
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def until_it_passes(step: Callable[[], object], clock: ManualClock) -> None:
    """Take a step again as long as there is no descriptor for it, or what it reads waits for one."""
    for _ in range(2_000):
        try:
            step()
        except UnavailableError:
            clock.advance(60_000)
            continue
        return
    raise AssertionError("never passed")


# ---- a store


def life(hot: HotStore, clock: ManualClock) -> Iterator[Callable[[], object]]:
    """Steps that between them make and remove files of every kind; each may be taken again."""
    for round_ in range(3):
        topic = f"t{round_}"
        yield lambda topic=topic: append(hot, Message(topic, b"new topic", queue_id=0))  # type: ignore[misc]
        yield lambda queues=3 + round_: hot.create_topic("wide", queues)  # type: ignore[misc]
        for _ in range(30):  # more than a segment
            yield lambda: fill(hot, "a", 1)
        many = [Message("b", sized_body(300, "b"), queue_id=0) for _ in range(40)]
        yield lambda many=many: append(hot, *many)  # type: ignore[misc]  # several segments at once
        yield hot.dispatch
        yield lambda: clock.advance(60_000)
        yield hot.checkpoint
        yield hot.roll
        yield hot.dispatch
        yield hot.checkpoint
        yield lambda: hot.remove_below(hot.log.last_base - 5 * hot.log.segment_bytes, forget=lambda border: None)


def offsets_are_whole(hot: HotStore, topic: str, end: int) -> None:
    """A batch that was refused is not there, not even a part: whoever sends it again has it once."""
    found = queue_offsets(hot, topic)
    assert found == list(range(end - len(found), end))
    assert hot.next_offset(hot.topics.get(topic), 0) == end


@pytest.mark.parametrize("step_width", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_store_outlives_the_want_of_a_descriptor_at_any_call(step_width: int) -> None:
    world = HotWorld()
    number = 0
    while True:
        number += step_width
        world = HotWorld()
        fs = ScarceFileSystem(world.fs)
        hot = world.open(fs=fs)
        first = fs.calls + number
        fs.refuses = lambda call, first=first: call == first  # type: ignore[misc]
        for step in life(hot, world.clock):
            until_it_passes(step, world.clock)
        if not fs.refused:
            break
        assert hot.guard.read_only_reason is None
        hot.dispatch()
        hot.checkpoint()
        assert hot.dispatch_error is None
        assert world.fs.list_dir(world.paths.commitlog)[0] == f"{hot.border:020}", "removed at last"
        for each in (hot, HotWorld(_cut(world)).open()):
            offsets_are_whole(each, "a", 90)
            offsets_are_whole(each, "b", 120)
            assert check_store(each) == []
    assert number > 100


def _cut(world: HotWorld) -> CrashFileSystem:
    assert isinstance(world.fs, CrashFileSystem)
    return world.fs.crash(1, lose_everything=True)


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_goes_on_where_descriptors_are_short_all_the_time(seed: int) -> None:
    clock, crash = ManualClock(), CrashFileSystem()
    fs, objects = ScarceFileSystem(crash), MemoryObjectStore(clock)
    engine = Store.open(
        Path("/store"), settings=tiny_settings(), clock=clock, fs=fs, cold_url="memory://archive", objects=objects
    )
    chance = random.Random(seed)
    fs.refuses = lambda number: chance.random() < 0.3
    for batch in range(12):
        messages = [Message("t", bytes(2_000), [f"k{batch}"], queue_id=0) for _ in range(50)]
        until_it_passes(lambda: engine.append(messages, key=IdempotencyKey("p", 50 * batch)), clock)  # noqa: B023 - at once
        until_it_passes(engine.flush, clock)
        clock.advance(60_000)
    until_it_passes(lambda: engine.archive(everything=True, drop_hot=True), clock)
    until_it_passes(lambda: engine.append([Message("t", b"last", ["k"], queue_id=0)]), clock)
    assert fs.refused
    assert engine.read_only_reason is None
    fs.refuses = lambda number: False
    clock.advance(60_000)
    engine.flush()
    assert engine.index_error is None
    (queue,) = (queue for queue in engine.topic("t").queues if queue.queue_id == 0)
    assert (queue.min_offset, queue.max_offset) == (0, 601), "each message once, however often it was sent"
    engine.close()


# ---- which errors pass, and which are final


@pytest.mark.parametrize("number", SCARCE)
def test_what_the_system_has_not_to_spare_is_told_from_a_disk_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fs = LocalFileSystem()
    file = fs.open(tmp_path / "file")

    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        for name in ("open", "listdir", "mkdir"):
            patched.setattr(f"tierlog.tiering.base.fs.os.{name}", refuse)
        calls: list[Callable[[], object]] = [
            lambda: fs.open(tmp_path / "file"), lambda: fs.map_read(tmp_path / "file"),
            lambda: fs.flush_dir(tmp_path), lambda: fs.list_dir(tmp_path), lambda: fs.make_dirs(tmp_path / "x"),
            lambda: fs.create(tmp_path / "y", 10, prewrite=True),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(OutOfResourcesError):
                call()
    with monkeypatch.context() as patched:
        for name in ("pwrite", "fdatasync", "fsync"):
            patched.setattr(f"tierlog.tiering.base.fs.os.{name}", refuse)
        calls = [
            lambda: file.write_at(0, b"x"), file.flush, lambda: fs.flush_dir(tmp_path),
            lambda: fs.create(tmp_path / "y", 10, prewrite=False),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(DiskFailedError):
                call()
    file.close()


def test_a_file_that_could_not_be_opened_for_its_flush_is_flushed_later() -> None:
    guard = FlushGuard()
    with pytest.raises(OutOfResourcesError), guard.flushing():
        raise OutOfResourcesError("too many open files")
    guard.check()
    with pytest.raises(DiskFailedError, match="EIO"), guard.flushing():
        raise DiskFailedError("EIO")
    with pytest.raises(DiskFailedError, match="earlier"):
        guard.check()


def test_a_checkpoint_whose_flush_failed_is_still_the_last() -> None:
    world = HotWorld()
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fill(hot, "a", 3)
    hot.dispatch()
    fs.refuse("flush", "*/consumequeue/*", times=1)
    with pytest.raises(DiskFailedError):
        hot.checkpoint()
    with pytest.raises(ReadOnlyError, match="checkpoint failed"):
        append(hot, Message("a", b"x"), durability=Durability.ASYNC)
