"""The power goes at every single call that changes something: promises hold, nothing is twice, ``check`` is clean.

One seeded workload makes every kind of step over every kind of file. For each of its N calls the disk is taken as
a power cut at that call leaves it, with unflushed sectors and names dropped, kept or torn by seed; the store is opened,
compared with the notes of the run, and once more after a second cut inside that recovery. Nothing is drawn by lot but
what the disk keeps: :mod:`tests.fault.test_power_cut` has longer workloads and samples their calls.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.crash_fs import PowerCut
from tests.support.power_world import ROOT, PowerWorld, Wreck, reopen, verify_engine

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


def cut_everywhere(seed: int, rounds: int, largest_batch: int) -> tuple[int, Counter[str]]:
    """Crash at each call of the workload; returns how many there were, and how many recoveries of which kind."""
    tried: Counter[str] = Counter()
    kinds: set[str] = set()

    def examine(wreck: Wreck) -> None:
        kinds.add(file_kind(Path("/" + wreck.call.partition(" /")[2])))
        try:
            fs = wreck.fs.crash(0)
            engine = reopen(wreck, fs, wreck.objects.copy())
            calls = fs.calls
            verify_engine(engine, wreck.notes, queries=wreck.number % 3 == 0)
            tried["recoveries"] += 1
            second = wreck.fs.crash(0, cut_at=random.Random(wreck.seed).randrange(1, calls + 1))
            objects = wreck.objects.copy(second)
            with pytest.raises(PowerCut):
                reopen(wreck, second, objects, 1)
            verify_engine(
                reopen(wreck, second.crash(wreck.seed), objects.copy(), 2), wreck.notes,
                queries=wreck.number % 3 == 1,
            )  # fmt: skip
            tried["recoveries after a crash in recovery"] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, cut at call {wreck.number}: {wreck.call}")
            raise

    world = PowerWorld(seed, segment_bytes=4096, largest_batch=largest_batch)
    world.watch(lambda *_: True, examine)
    steps = world.run_each(rounds)
    assert set(steps) == {step.__name__ for _, step in world._weighted()}
    assert kinds >= FILE_KINDS, f"the workload changes nothing in {FILE_KINDS - kinds}"
    assert tried["recoveries"] == tried["recoveries after a crash in recovery"] == world.fs.calls
    return world.fs.calls, tried


def test_every_crash_point_of_a_short_workload(seed: int, record_property: Callable[[str, object], None]) -> None:
    calls, tried = cut_everywhere(seed, 1, 3)
    record_property("crash_points", calls)
    print(f"seed {seed}: crashed at each of {calls} calls; {dict(tried)}; nothing lost, nothing twice")


@pytest.mark.slow
@pytest.mark.timeout(900)  # thousands of crashes with two recoveries each
@pytest.mark.parametrize("run", range(3))
def test_every_crash_point_of_longer_workloads(
    run: int, seed: int, record_property: Callable[[str, object], None]
) -> None:
    calls, tried = cut_everywhere(seed, 2, 8)
    record_property("crash_points", calls)
    print(f"seed {seed}: crashed at each of {calls} calls; {dict(tried)}; nothing lost, nothing twice")
