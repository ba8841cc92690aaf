"""A recovery point inside a record made the next open cut the log off there: acknowledged messages were gone."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import HotWorld, append, fill, queue_offsets
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.message.batch import Message

COUNT = 50


def stopped(*, clean: bool) -> HotWorld:
    """A store with messages of 200 bytes before and behind its recovery point."""
    world = HotWorld(segment_bytes=1 << 16)
    hot = world.open()
    fill(hot, "a", COUNT // 2)
    hot.dispatch()
    hot.checkpoint()
    fill(hot, "a", COUNT // 2)
    if clean:
        hot.close()
    else:
        assert isinstance(world.fs, CrashFileSystem)
        world.fs.kill()
    return world


def put(world: HotWorld, confirm_offset: int) -> None:
    file = world.fs.open(world.paths.checkpoint)
    file.write_at(0, Checkpoint(confirm_offset=confirm_offset).encode())
    file.close()


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("confirm_offset", [0, 200, 200 * 3 + 8, 200 * COUNT - 200, 200 * COUNT - 64])
def test_a_recovery_point_that_is_wrong_loses_nothing(confirm_offset: int, clean: bool) -> None:
    """Inside a record, or ahead of the queues."""
    world = stopped(clean=clean)
    put(world, confirm_offset)
    hot = world.open()
    assert queue_offsets(hot, "a") == list(range(COUNT))
    append(hot, Message("a", b"x", queue_id=0))
    assert queue_offsets(hot, "a") == list(range(COUNT + 1))
    assert check_store(hot) == []


@pytest.mark.parametrize("clean", [False, True])
def test_a_recovery_point_beyond_the_log_is_refused_and_nothing_is_cut_off(clean: bool) -> None:
    world = stopped(clean=clean)
    log = world.fs.read(world.paths.segment(0))
    put(world, 200 * COUNT + 4096)
    with pytest.raises(CorruptionError, match="damaged below its checkpoint"):
        world.open()
    assert world.fs.read(world.paths.segment(0)) == log
