"""Queues and index after every kind of stop: what is torn, stale, missing or ahead is derived again from the log."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import ROOT, HotWorld, append, fill, queue_offsets
from tierlog.index.search.query import Query
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.queue_unit import PREFILL, UNIT_BYTES, QueueUnit
from tierlog.tiering.hot.dispatch import Dispatcher, LogRange
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message


@pytest.fixture
def world() -> HotWorld:
    return HotWorld()


def stop(world: HotWorld, hot: HotStore, *, clean: bool) -> None:
    assert isinstance(world.fs, CrashFileSystem)
    if clean:
        hot.close()
    else:
        world.fs.kill()


def write_unit(world: HotWorld, queue_offset: int, data: bytes) -> None:
    base = queue_offset - queue_offset % world.queue_file_units
    file = world.fs.open(world.paths.queue("a", 0) / f"{base * UNIT_BYTES:020d}")
    file.write_at((queue_offset - base) * UNIT_BYTES, data)
    file.close()


def queue_file(world: HotWorld, base: int, content: bytes | None) -> None:
    """Replace a queue file, or remove it."""
    path = world.paths.queue("a", 0) / f"{base * UNIT_BYTES:020d}"
    world.fs.unlink(path)
    if content is not None:
        file = world.fs.open(path)
        file.write_at(0, content)
        file.close()


# ---- queues


def test_torn_queue_unit(world: HotWorld) -> None:
    """Any bytes of the last unit may be missing: units above the checkpoint are written again."""
    for kept in range(UNIT_BYTES + 1):
        world = HotWorld()
        hot = world.open()
        fill(hot, "a", 3)
        hot.dispatch()
        whole = world.fs.read(world.paths.queue("a", 0) / f"{0:020d}")[40:60]
        stop(world, hot, clean=False)
        write_unit(world, 2, whole[:kept] + bytes(UNIT_BYTES - kept))
        hot = world.open()
        assert queue_offsets(hot, "a") == [0, 1, 2]
        assert check_store(hot) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "content", [bytes(60 * UNIT_BYTES), b"", bytes(7), bytes(3 * UNIT_BYTES + 7)],
    ids=["zeros", "no bytes", "part of a unit", "ends in a unit"],
)  # fmt: skip
def test_empty_last_queue_file(world: HotWorld, content: bytes, clean: bool) -> None:
    """RocketMQ #9728 and #10108: an empty last file, or one that ends inside a unit, kept the broker from starting."""
    hot = world.open()
    fill(hot, "a", 60)
    hot.dispatch()
    stop(world, hot, clean=clean)
    queue_file(world, 60, content)
    hot = world.open()
    assert queue_offsets(hot, "a") == list(range(60))
    fill(hot, "a", 3)
    assert queue_offsets(hot, "a") == list(range(63))
    hot = world.open_again(hot)
    assert queue_offsets(hot, "a") == list(range(63))
    assert check_store(hot) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("base", "content"), [(0, b""), (0, bytes(1190)), (60, None), (60, b""), (120, None), (120, bytes(1190))]
)
def test_damaged_queue_file_is_derived_again(world: HotWorld, base: int, content: bytes | None, clean: bool) -> None:
    """A missing first one is not among them: a queue may begin anywhere, so only the check can tell."""
    hot = world.open()
    fill(hot, "a", 150)
    hot.dispatch()
    hot.checkpoint()
    stop(world, hot, clean=clean)
    queue_file(world, base, content)
    hot = world.open()
    assert queue_offsets(hot, "a") == list(range(150))
    assert append(hot, Message("a", b"x", queue_id=0)).queue_offset.tolist() == [150]
    assert check_store(world.open_again(hot)) == []


class Keep:
    """A subscriber that keeps the ranges it is given."""

    def __init__(self) -> None:
        self.ranges: list[LogRange] = []

    def next_offset(self) -> int:
        return self.ranges[-1].end if self.ranges else 0

    def on_records(self, records: LogRange) -> None:
        self.ranges.append(records)


def test_the_same_records_twice_make_one_unit_each(world: HotWorld) -> None:
    """RocketMQ's testPutMessagePositionInfo_buildCQRepeatedly."""
    hot = world.open()
    fill(hot, "a", 5)
    hot.dispatch()
    keep = Keep()
    Dispatcher(hot.log, hot.topics, [keep]).run(hot.log.flushed)
    for records in keep.ranges * 2:
        hot.queues.on_records(records)
    fill(hot, "a", 1)
    assert queue_offsets(hot, "a") == list(range(6))


def test_minimum_follows_log_files_that_are_gone(world: HotWorld) -> None:
    """RocketMQ #8753: the minimum stayed although the log files it led to were deleted."""
    hot = world.open()
    fill(hot, "a", 90)
    hot.close()
    for base in (0, 4096, 8192):
        world.fs.unlink(world.paths.segment(base))
    for _ in range(2):
        hot = world.open()
        assert hot.border == 3 * 4096
        assert queue_offsets(hot, "a") == list(range(60, 90))
        assert check_store(hot) == []
        hot.close()


def test_first_unit_at_or_above_an_offset_is_what_a_plain_walk_finds(world: HotWorld) -> None:
    """RocketMQ's testCorrectMinOffset, over file borders, with pre-fill in front."""
    hot = world.open()
    fill(hot, "a", 75)
    hot.roll()
    fill(hot, "b", 1)
    hot.dispatch()
    hot.remove_below(hot.log.last_base, forget=lambda _: None)
    hot.close()
    for name in world.fs.list_dir(world.paths.queue("a", 0)):
        world.fs.unlink(world.paths.queue("a", 0) / name)
    hot = world.open()
    fill(hot, "a", 130)
    hot.dispatch()
    view = hot.queue_views(hot.topics.get("a"))[0]
    units = view.units(0, 1 << 40)
    assert (units["size"][:15] == QueueUnit.decode(PREFILL).size).all()
    places = units["physical_offset"][15:].tolist()
    assert (view.first, view.next) == (60, 205)
    for offset in [0, 1, *places, *(place + 1 for place in places), hot.log.end]:
        expected = next((75 + at for at, place in enumerate(places) if place >= offset), view.next)
        assert view.first_at_or_above(offset) == expected


def test_units_that_lead_nowhere_are_damage_and_derived_again(world: HotWorld) -> None:
    """A unit below the checkpoint that was changed is found by the check, and what it leads to is never served."""
    hot = world.open()
    fill(hot, "a", 5)
    hot.close()
    write_unit(world, 3, QueueUnit(777, 200, 0).encode())
    hot = world.open()
    assert any("physical_offset of unit 3 differs" in finding for finding in check_store(hot))
    assert queue_offsets(hot, "a") == list(range(5))
    assert check_store(hot) == []


# ---- queues and index of a whole store


def opened(fs: CrashFileSystem) -> Store:
    settings = Settings(
        hot=HotSettings(segment_bytes=4096, queue_file_units=60), index=IndexSettings(slots=10, items=41),
        advertise="10.0.0.1:1",
    )  # fmt: skip
    return Store.open(ROOT, settings=settings, fs=fs, clock=ManualClock(), randomness=SeededRandomness(1))


def made() -> CrashFileSystem:
    fs = CrashFileSystem()
    fs.make_dirs(ROOT.parent)
    return fs


def put(engine: Store, count: int) -> None:
    engine.append([Message("a", b"x" * 90, [f"k{number % 3}"], queue_id=0) for number in range(count)])


def counts(engine: Store) -> list[int]:
    return [len(engine.query(Query("a", f"k{key}", limit=1000)).messages) for key in range(3)]


def test_minimum_where_nothing_of_a_queue_is_left() -> None:
    """RocketMQ #10417: the minimum stayed when all queue files had been truncated away."""
    fs = made()
    engine = opened(fs)
    engine.append([Message("gone", b"x", queue_id=0)] * 7)
    put(engine, 60)
    engine._hot.dispatch()
    engine._hot.remove_below(engine._hot.log.last_base, forget=engine._index.remove_below)
    paths = StorePaths(ROOT)
    for clean in (True, False):
        if clean:
            engine.close()
        else:
            fs.kill()
        for name in fs.list_dir(paths.queue("gone", 0)):
            fs.unlink(paths.queue("gone", 0) / name)
        engine = opened(fs)
        pulled = engine.pull("gone", 0, 0, 10)
        assert (pulled.status, pulled.min_offset, pulled.max_offset) == (PullStatus.OFFSET_TOO_SMALL, 7, 7)
        assert engine.check() == []


def test_index_behind_the_log() -> None:
    fs = made()
    engine = opened(fs)
    put(engine, 120)
    expected = counts(engine)
    for state in ("sealed", "compacted", "uploaded"):
        fs.kill()
        engine = opened(fs)
        engine._index.compact_sealed()
        folder = StorePaths(ROOT).index / state
        for name in fs.list_dir(folder)[:2]:
            fs.unlink(folder / name)
        fs.kill()
        engine = opened(fs)
        assert counts(engine) == expected == [40, 40, 40]
        assert engine.check() == []


def test_index_ahead_of_the_log() -> None:
    """A disk that forgets flushed records, but not the index files derived from them: nothing leads nowhere."""
    fs = made()
    engine = opened(fs)
    put(engine, 30)
    engine.flush()
    older = fs.crash(0)
    put(engine, 90)
    engine.flush()
    engine._index.seal()
    folder = StorePaths(ROOT).index / "sealed"
    ahead = fs.list_dir(folder)
    assert ahead
    for name in ahead:
        file = older.open(folder / name)
        file.write_at(0, fs.read(folder / name))
        file.close()
    engine = opened(older)
    assert engine.check() == []
    assert counts(engine) == [10, 10, 10]
    put(engine, 60)
    assert counts(engine) == [30, 30, 30]
    assert engine.check() == []


@pytest.mark.parametrize(
    "damaged", [bytes(UNIT_BYTES), QueueUnit(1, 200, 0).encode(), QueueUnit(1 << 60, 200, 0).encode()]
)
def test_a_damaged_last_unit_lets_no_file_go_that_is_needed(damaged: bytes, world: HotWorld) -> None:
    """Its record is hot, and what it says is below the border; or the other way around, and a later file tells."""
    hot = world.open()
    fill(hot, "a", 240)
    border = hot.log.segments()[2].base_offset  # 20 records a segment, 60 units a file
    hot.dispatch()
    write_unit(world, 59, damaged)
    hot.remove_below(border, forget=lambda _: None)
    assert queue_offsets(hot, "a")[0] == 40
    assert world.fs.exists(world.paths.queue("a", 0) / f"{0:020d}")
    hot.remove_below(hot.log.segments()[5].base_offset, forget=lambda _: None)  # 140
    assert world.fs.list_dir(world.paths.queue("a", 0))[0] == f"{120 * UNIT_BYTES:020d}"
