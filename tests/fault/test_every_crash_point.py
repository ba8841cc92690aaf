"""The power goes at every single call that changes something: promises hold, nothing is twice, ``check`` is clean.

One seeded workload makes every kind of step over every kind of file. For each of its N calls the disk is taken as
a power cut at that call leaves it, with unflushed sectors and names dropped, kept or torn by seed; the store is opened,
compared with the notes of the run, and once more after a second cut inside that recovery. Nothing is drawn by lot but
what the disk keeps: :mod:`tests.fault.test_power_cut` has longer workloads and samples their calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.power_world import PowerWorld, Wreck, recover_twice, verify_engine
from tests.support.world import ROOT
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Visibility

pytestmark = pytest.mark.usefixtures("in_small_steps")
#: What the workload must have changed, so that no kind of file is left out unnoticed.
FILE_KINDS = {
    "commitlog", "consumequeue", "index", "index/writing", "index/sealed", "index/compacted", "index/uploaded", "tmp",
    "tierlog/topics.json", "tierlog/store.json", "tierlog/classic_index.json", "tierlog/head.json",
    "tierlog/groups.json", "tierlog/index.json", "checkpoint", "abort",
}  # fmt: skip


def file_kind(path: Path) -> str:
    parts = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ("archive",)
    folder = "/".join(parts[:2]) if parts[:1] in (("index",), ("tierlog",)) else "/".join(parts[:1])
    return re.sub(r"/\d+$", "", folder)


def cut_everywhere(
    seed: int, rounds: int, largest_batch: int, visibility: Visibility = Visibility.FLUSHED
) -> tuple[int, Counter[str]]:
    """Crash at each call of the workload; returns how many there were, and how many recoveries of which kind."""
    tried: Counter[str] = Counter()
    kinds: set[str] = set()

    def take(wreck: Wreck) -> None:
        kinds.add(file_kind(Path("/" + wreck.call.partition(" /")[2])))

        def examine(engine: Store, _: CrashFileSystem, again: bool) -> None:
            verify_engine(engine, wreck.notes, queries=wreck.number % 3 == again)
            tried["recoveries after a crash in recovery" if again else "recoveries"] += 1

        recover_twice(wreck, examine)

    world = PowerWorld(seed, segment_bytes=4096, largest_batch=largest_batch, visibility=visibility)
    world.watch(lambda *_: True, take)
    steps = world.run_each(rounds)
    assert set(steps) == {step.__name__ for _, step in world._weighted()}
    assert kinds >= FILE_KINDS, f"the workload changes nothing in {FILE_KINDS - kinds}"
    assert tried["recoveries"] == tried["recoveries after a crash in recovery"] == world.fs.calls
    return world.fs.calls, tried


@pytest.mark.slow
def test_every_crash_point_of_a_short_workload(seed: int, record_property: Callable[[str, object], None]) -> None:
    calls, tried = cut_everywhere(seed, 1, 3)
    record_property("crash_points", calls)
    print(f"seed {seed}: crashed at each of {calls} calls; {dict(tried)}; nothing lost, nothing twice")


@pytest.mark.slow
def test_every_crash_point_where_readers_see_what_is_written(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    calls, tried = cut_everywhere(seed, 1, 3, Visibility.WRITTEN)
    record_property("crash_points", calls)
    print(f"seed {seed}: crashed at each of {calls} calls; {dict(tried)}; nothing flushed is lost, nothing twice")


@pytest.mark.slow
@pytest.mark.timeout(900)  # some 1,300 crashes with two recoveries each
def test_every_crash_point_of_a_workload_with_larger_batches(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    calls, tried = cut_everywhere(seed, 1, 8)
    record_property("crash_points", calls)
    print(f"seed {seed}: crashed at each of {calls} calls; {dict(tried)}; nothing lost, nothing twice")
