"""When messages are durable: group commit, the bound of ``async``, a failed flush, and the segment made ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import ROOT, HotWorld, append, batch, fill, queue_offsets
from tierlog.service.engine.background import CLOCK_ALARM_MS
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError, ReadOnlyError, StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.types import Durability
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message

LOG = "*/commitlog/*"


@pytest.fixture
def world() -> HotWorld:
    return HotWorld()


class Appends:
    """Appends of one message each, on threads of their own."""

    def __init__(self, hot: HotStore) -> None:
        self.hot = hot
        self.done = 0
        self.errors: list[StoreError] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, count: int) -> None:
        """Return when all of them have written and wait for a flush."""
        size = len(self._threads) + count
        for number in range(count):
            self._threads.append(threading.Thread(target=self._append, args=(b"%d" % number,)))
            self._threads[-1].start()
        wait_until(lambda: self.hot.log.end == size * 107, "the appends did not write")

    def _append(self, body: bytes) -> None:
        try:
            append(self.hot, Message("orders", body.ljust(10), queue_id=0))
            with self._lock:
                self.done += 1
        except StoreError as error:
            with self._lock:
                self.errors.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(otherwise)


# ---- group commit


def test_all_who_wait_share_one_flush(world: HotWorld) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    held, appends = fs.hold("flush", LOG), Appends(hot)
    appends.start(1)
    held.wait_until_reached()
    appends.start(9)
    assert appends.done == 0, "acknowledged before the flush"
    held.release()
    appends.join()
    assert (appends.done, hot.log.flushes) == (10, 2)


def test_nobody_waits_for_more_than_what_they_wrote(world: HotWorld) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    append(hot, Message("orders", b"mine"))
    mine, flushes = hot.log.flushed, hot.log.flushes
    append(hot, Message("orders", b"another's"), durability=Durability.ASYNC)
    fs.refuse("flush", LOG)
    assert hot.flush(mine) == mine
    assert hot.log.flushes == flushes


def test_who_waits_behind_a_failed_flush_is_not_acknowledged(world: HotWorld) -> None:
    """The next fdatasync succeeds although the bytes are gone: the kernel tells an error once."""
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    held, appends = fs.hold("flush", LOG), Appends(hot)
    fs.refuse("flush", LOG, times=1)
    appends.start(1)
    held.wait_until_reached()
    appends.start(4)
    held.release()
    appends.join()
    assert (appends.done, len(appends.errors)) == (0, 5)
    assert all(isinstance(error, ReadOnlyError) for error in appends.errors)
    assert hot.log.flushed == 0
    assert "scripted failure" in (hot.guard.read_only_reason or "")


# ---- async


def test_async_leaves_no_more_unflushed_than_its_bound_and_one_batch(world: HotWorld) -> None:
    hot = HotStore(
        world.fs, world.paths, world.clock, HotOptions(segment_bytes=65_536, flush_dirty_bytes=1000), bytes(8)
    )
    hot.recover([])
    unflushed = []
    for _ in range(60):
        append(hot, Message("orders", b"x" * 200), durability=Durability.ASYNC)
        unflushed.append(hot.log.end - hot.log.flushed)
    assert 0 < max(unflushed) <= 1000
    assert hot.log.flushes > 5


def test_flushing_goes_on_while_queues_cannot_be_written(tmp_path: Path) -> None:
    fs = FaultyFileSystem(LocalFileSystem())
    engine = Store.open(tmp_path, settings=tiny_settings(hot__flush_interval_ms=1), fs=fs)
    held = fs.hold("write_at", "*/consumequeue/*")
    engine.start()
    try:
        engine.append([Message("orders", b"first")])
        held.wait_until_reached()
        engine.append([Message("orders", b"second")], Durability.ASYNC)
        wait_until(lambda: engine.stats()["unflushed_bytes"] == 0, "the async append was never flushed")
    finally:
        held.release()
        engine.close()


# ---- the next segment


def created(fs: CrashFileSystem) -> list[str]:
    names: list[str] = []

    def note(_: int, operation: str, path: Path) -> None:
        if operation == "create" and not path.name.startswith("queue-"):
            names.append(path.name)

    fs.on_call = note
    return names


def test_append_finds_the_next_segment_made(world: HotWorld) -> None:
    hot = world.open()
    assert isinstance(world.fs, CrashFileSystem)
    names = created(world.fs)
    fill(hot, "a", 4)
    assert not hot.prepare_segment(), "too early"
    fill(hot, "a", 8)
    assert hot.prepare_segment()
    assert not hot.prepare_segment(), "made already"
    assert names == ["0" * 16 + "4096"]
    fill(hot, "a", 20)
    assert hot.log.last_base == 4096
    assert names == ["0" * 16 + "4096"], "appending made a segment although one was ready"
    assert queue_offsets(hot, "a") == list(range(32))
    assert check_store(hot) == []


def test_a_segment_that_was_made_and_not_needed_leaves_nothing(world: HotWorld) -> None:
    for stop in (HotStore.close, lambda _: world.fs.kill()):  # type: ignore[attr-defined]
        hot = world.open()
        fill(hot, "a", 8)
        hot.log.prepare_next()
        assert world.fs.list_dir(world.paths.tmp) == [f"{hot.log.last_base + 4096:020d}"]
        stop(hot)
        again = world.open()
        assert world.fs.list_dir(world.paths.tmp) == []
        assert check_store(again) == []
        again.close()


def test_no_room_to_make_the_next_segment_ahead_stops_nobody(world: HotWorld) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fill(hot, "a", 12)
    fs.refuse("create", "*/tmp/*", error=DiskFullError("no space left"))
    with pytest.raises(DiskFullError):
        hot.prepare_segment()
    append(hot, Message("a", b"there is room for this", queue_id=0))
    assert hot.guard.read_only_reason is None
    fs.heal()
    fill(hot, "a", 20)
    assert queue_offsets(hot, "a") == list(range(33))


def test_a_roll_by_age_makes_the_segment_before_it_stops_appends(world: HotWorld) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fill(hot, "a", 2)
    held = fs.hold("create", "*/tmp/*")
    roll = threading.Thread(target=hot.roll)
    roll.start()
    held.wait_until_reached()
    append(hot, Message("a", b"beside it", queue_id=0))
    held.release()
    roll.join()
    assert hot.log.last_base == 4096
    assert queue_offsets(hot, "a") == [0, 1, 2]


def test_background_makes_the_next_segment(tmp_path: Path) -> None:
    engine = Store.open(tmp_path, settings=tiny_settings())
    engine.start()
    engine.append([Message("orders", b"x" * 40_000)])
    wait_until(lambda: bool(list((tmp_path / "tmp").glob("0*65536"))), "no segment was prepared")
    engine.close()
    assert not list((tmp_path / "tmp").iterdir())


# ---- time


def test_clock_that_was_far_ahead_raises_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    engine = Store.open(ROOT, settings=tiny_settings(), fs=CrashFileSystem(), clock=clock)
    clock.step(86_400_000)
    engine.append([Message("orders", b"from tomorrow")])
    assert engine.stats()["clock_behind_ms"] == 0
    clock.step(-86_400_000)
    (late,) = engine.append([Message("orders", b"from today")])
    assert late.store_ms == clock.now_ms() + 86_400_000, "store times never step back"
    assert engine.stats()["clock_behind_ms"] == 86_400_000 > CLOCK_ALARM_MS
    engine._background._watch_clock()
    engine._background._watch_clock()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "86400 s behind the newest message" in caplog.text
    clock.step(86_400_000)
    engine._background._watch_clock()
    assert "caught up" in caplog.records[-1].message


def test_turning_read_only_is_logged_once(world: HotWorld, caplog: pytest.LogCaptureFixture) -> None:
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    fs.refuse("flush", LOG)
    with pytest.raises(DiskFailedError):
        append(hot, Message("orders", b"x"))
    with pytest.raises(ReadOnlyError):
        hot.append(batch(Message("orders", b"x")), Durability.FLUSHED)
    assert [record.message for record in caplog.records] == [
        "the store is read-only now: flush failed: scripted failure"
    ]


def test_who_is_covered_leaves_though_another_flush_is_on_its_way(world: HotWorld) -> None:
    """With a plain lock they would queue behind it, and hardly two requests would share a flush."""
    fs = FaultyFileSystem(world.fs)
    hot = world.open(fs=fs)
    first, appends = fs.hold("flush", LOG), Appends(hot)
    appends.start(1)
    first.wait_until_reached()
    appends.start(9)
    second = fs.hold("flush", LOG)
    first.release()
    second.wait_until_reached()
    wait_until(lambda: appends.done == 1, "the first was covered by its own flush")
    late = Appends(hot)
    late._threads = appends._threads  # counts what the log holds already
    third = fs.hold("flush", LOG)
    late.start(1)
    second.release()
    third.wait_until_reached()
    wait_until(lambda: appends.done == 10, "nine were covered and wait all the same")
    assert late.done == 0
    third.release()
    late.join()
    assert (appends.done, late.done, hot.log.flushes) == (10, 1, 3)
