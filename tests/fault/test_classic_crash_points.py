"""The power goes at every call of a workload with the classic index: it holds each item of the hot log once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.rocketmq.classic_world import ClassicWorld, items_of, numbered, wanted_items
from tests.support.stores.hot_stores import append
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.tiering.hot.store import HotStore

pytestmark = pytest.mark.usefixtures("in_small_steps")


def check(world: ClassicWorld, hot: HotStore, classic: ClassicIndex) -> None:
    data = [world.fs.read(file.path) for file in classic.files()]
    assert items_of(classic.files(), data, hot.border) == wanted_items(hot)
    on_disk = [name for name in world.fs.list_dir(world.paths.index) if name.isdecimal()]
    assert on_disk == [file.path.name for file in classic.files()]


def workload(world: ClassicWorld, seed: int) -> None:
    """Stops, kills of the process, checkpoints, rolls and removals, each several times."""
    draw = random.Random(seed)
    hot, classic = world.open_both()
    for start in range(0, 60, 4):
        append(hot, *numbered(start, draw.randrange(1, 5)))
        world.clock.advance(draw.choice([0, 0, 700]))
        hot.dispatch()
        step = draw.choice(["close", "kill", "checkpoint", "roll", "remove", "nothing"])
        if step == "close":
            hot.close()
        if step in ("close", "kill"):
            hot, classic = world.open_both()
        elif step == "checkpoint":
            hot.checkpoint()
        elif step == "roll":
            hot.roll()
        elif step == "remove":
            hot.remove_below(hot.log.last_base, forget=lambda _: None)
        check(world, hot, classic)
    hot.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_crash_point_leaves_each_item_once(seed: int) -> None:
    tried = 0
    fs = CrashFileSystem(seed=seed)
    world = ClassicWorld(fs=fs)

    def examine(number: int, operation: str, path: Path) -> None:
        nonlocal tried
        try:
            after = ClassicWorld(fs=fs.crash(number))
            hot, classic = after.open_both()
            check(after, hot, classic)
            assert isinstance(after.fs, CrashFileSystem)
            calls = after.fs.calls
            inside = fs.crash(number, cut_at=random.Random(number).randrange(1, calls + 1))
            with pytest.raises(PowerCut):
                ClassicWorld(fs=inside).open_both()
            after = ClassicWorld(fs=inside.crash(number + 1))
            hot, classic = after.open_both()
            check(after, hot, classic)
            append(hot, *numbered(900, 4))
            hot.dispatch()
            check(after, hot, classic)
            tried += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, cut at call {number}: {operation} {path}")
            raise

    fs.on_call = examine
    workload(world, seed)
    assert tried == fs.calls > 100
