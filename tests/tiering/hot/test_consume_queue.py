"""Consume queues: units, pre-fill, borders between files, minima after the border rose, and every kind of stop."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.hot_stores import HotWorld, append, fill, queue_offsets
from tierlog.tiering.base.errors import StoreMismatchError
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.queue_unit import PREFILL, QueueUnit
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message

FILE_BYTES = 60 * 20


@pytest.fixture
def world() -> HotWorld:
    return HotWorld()


def queue_file(world: HotWorld, topic: str, base: int, queue_id: int = 0) -> bytes:
    return world.fs.read(world.paths.queue(topic, queue_id) / f"{base * 20:020d}")


def names(world: HotWorld, topic: str, queue_id: int = 0) -> list[int]:
    return [int(name) // 20 for name in world.fs.list_dir(world.paths.queue(topic, queue_id))]


def drop_below(hot: HotStore, border: int) -> None:
    hot.dispatch()
    hot.remove_below(border, forget=lambda _: None)


def test_unit_bytes(world: HotWorld) -> None:
    hot = world.open()
    first = append(hot, Message("a", b"x" * 100, tag="TagA", queue_id=0))
    append(hot, Message("a", b"x", queue_id=0))
    hot.dispatch()
    data = queue_file(world, "a", 0)
    assert len(data) == FILE_BYTES
    unit = QueueUnit.decode(data)
    assert (unit.physical_offset, unit.tag_hash) == (int(first.physical_offset[0]), tag_hash("TagA"))
    assert QueueUnit.decode(data, 20) == QueueUnit(unit.size, 91 + 1 + 1, 0)
    assert data[40:] == bytes(FILE_BYTES - 40)


def test_border_between_files(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 59)
    hot.dispatch()
    assert names(world, "a") == [0]
    fill(hot, "a", 1)
    hot.dispatch()
    assert names(world, "a") == [0]
    fill(hot, "a", 62)
    hot.dispatch()
    assert names(world, "a") == [0, 60, 120]
    view = hot.queue_views(hot.topics.get("a"))[0]
    units = view.units(0, 1000)
    assert units["physical_offset"].tolist() == sorted(units["physical_offset"].tolist())
    assert len(units) == len(view.units(-5, 122)) == 122
    assert view.units(58, 63).tolist() == units[58:63].tolist()
    assert len(view.units(122, 130)) == 0
    hot = world.open_again(hot)
    assert queue_offsets(hot, "a") == list(range(122))


def test_a_whole_range_crosses_many_files_at_once(world: HotWorld) -> None:
    hot = world.open()
    append(hot, *[Message("a", b"x", queue_id=0)] * 200)
    hot.dispatch()
    assert names(world, "a") == [0, 60, 120, 180]
    assert queue_offsets(hot, "a") == list(range(200))


def test_prefill_where_the_first_unit_is_not_zero(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 75)
    hot.roll()
    fill(hot, "b", 1)
    drop_below(hot, hot.log.last_base)
    hot.close()
    for base in names(world, "a"):
        world.fs.unlink(world.paths.queue("a", 0) / f"{base * 20:020d}")
    hot = world.open()
    assert append(hot, Message("a", b"x", queue_id=0)).queue_offset.tolist() == [75]
    hot.dispatch()
    assert names(world, "a") == [60]
    data = queue_file(world, "a", 60)
    assert data[: 15 * 20] == PREFILL * 15
    assert QueueUnit.decode(data, 15 * 20).physical_offset > 0
    assert data[16 * 20 :] == bytes(FILE_BYTES - 16 * 20)
    assert queue_offsets(hot, "a") == [75]
    hot = world.open_again(hot)
    assert queue_offsets(hot, "a") == [75]
    assert append(hot, Message("a", b"x", queue_id=0)).queue_offset.tolist() == [76]
    assert check_store(hot) == []


def test_no_prefill_at_the_start_of_a_file(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 60)
    hot.roll()
    fill(hot, "b", 1)
    drop_below(hot, hot.log.last_base)
    hot.close()
    world.fs.unlink(world.paths.queue("a", 0) / f"{0:020d}")
    hot = world.open()
    append(hot, Message("a", b"x", queue_id=0))
    assert queue_offsets(hot, "a") == [60]
    assert names(world, "a") == [60]


def test_minimum_follows_the_border(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 100)
    fill(hot, "b", 3)
    hot.dispatch()
    view = hot.queue_views(hot.topics.get("a"))[0]
    for border in (0, 4096, 8192, 12288):
        first = view.first_at_or_above(border)
        assert first == min(border // 4096 * 20, 100)
    assert view.first_at_or_above(hot.log.end) == view.next == 100
    drop_below(hot, 4 * 4096)
    assert queue_offsets(hot, "a") == list(range(80, 100))
    assert names(world, "a") == [60], "a file goes once its last record is below the border"
    hot = world.open_again(hot)
    assert queue_offsets(hot, "a") == list(range(80, 100))


def test_the_last_file_of_a_queue_never_goes(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 60)
    hot.roll()
    fill(hot, "b", 1)
    drop_below(hot, hot.log.last_base)
    assert names(world, "a") == [0]
    assert queue_offsets(hot, "a") == []
    assert hot.next_offset(hot.topics.get("a"), 0) == 60


def test_stale_units_above_the_checkpoint_are_derived_again(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 70)
    hot.checkpoint()
    fill(hot, "a", 70)
    hot.dispatch()
    for base, position in ((60, 30), (120, 0)):
        file = world.fs.open(world.paths.queue("a", 0) / f"{base * 20:020d}")
        file.write_at(position * 20, QueueUnit(7, 7, 7).encode())
        file.close()
    hot = world.open()
    assert queue_offsets(hot, "a") == list(range(140))
    assert check_store(hot) == []


def test_units_whose_records_were_lost_go(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 38)
    hot.dispatch()
    file = world.fs.open(world.paths.segment(4096))
    file.write_at(2000, bytes(2096))
    file.close()
    hot = world.open()
    assert queue_offsets(hot, "a") == list(range(30))
    assert queue_file(world, "a", 0)[600:] == bytes(600)
    assert append(hot, Message("a", b"x", queue_id=0)).queue_offset.tolist() == [30]


def test_a_file_of_another_size_is_refused(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 1)
    hot.close()
    world.queue_file_units = 61
    with pytest.raises(StoreMismatchError, match="queue file of 1200 bytes"):
        world.open()


@pytest.mark.parametrize("call", range(8))
def test_power_cut_while_a_queue_file_is_made(world: HotWorld, call: int) -> None:
    """It left a file of zero bytes, which every later open refused."""
    hot = world.open()
    fill(hot, "a", 1)
    assert isinstance(world.fs, CrashFileSystem)
    world.fs.cut_at = world.fs.calls + 1 + call
    with pytest.raises(PowerCut):
        dispatch_and_checkpoint(hot)
    for seed in range(8):
        again = HotWorld(fs=world.fs.crash(seed)).open()
        assert queue_offsets(again, "a") == [0]
        assert check_store(again) == []


def dispatch_and_checkpoint(hot: HotStore) -> None:
    hot.dispatch()
    hot.checkpoint()


def test_a_queue_begins_with_a_file_that_holds_a_message_once_there_is_one(world: HotWorld) -> None:
    hot = world.open()
    fill(hot, "a", 60)
    hot.roll()
    drop_below(hot, hot.log.last_base)
    assert names(world, "a") == [0]
    fill(hot, "a", 1)
    hot.dispatch()
    assert names(world, "a") == [0, 60]
    hot.checkpoint()
    assert names(world, "a") == [60]
    assert queue_offsets(world.open_again(hot), "a") == [60]
