"""An index file is stopped at every call on its way: writing, full, sealed, compacted, uploaded, deleted.

Calls to the disk and to the object store alike; the process is killed, or the power goes and what was not flushed is
forgotten. Then the store opens and is stopped once more inside that recovery. Each time every key is in the index
once, on the side of the watermark where it belongs, answers are the same, and a deep check finds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.index_world import IndexWorld, verify_world
from tests.support.stores.power_world import Wreck, recover_twice, spread_calls
from tierlog.service.engine.store import Store

pytestmark = pytest.mark.usefixtures("in_small_steps")
#: What happens to an index file on its way, by the start of the call.
WAY = (
    "create /store/index/writing", "rename /store/index/sealed", "create /store/tmp/compact-",
    "write_at /store/tmp/compact-", "flush /store/tmp/compact-", "rename /store/index/compacted",
    "unlink /store/index/sealed", "before upload", "after upload", "before put", "after put",
    "rename /store/index/uploaded", "unlink /store/index/uploaded", "rename /store/tierlog/index.json",
)  # fmt: skip


def stop_at(seed: int, wanted: Callable[[int], bool], *, killed: bool, met: set[str] | None = None) -> Counter[str]:
    """Stop at each wanted call; how often by the call. All calls of the run go into ``met``."""
    tried: Counter[str] = Counter()

    def take(wreck: Wreck) -> None:
        def examine(engine: Store, fs: CrashFileSystem, _: bool) -> None:
            verify_world(engine, fs, wreck.notes)

        recover_twice(wreck, examine)
        tried[wreck.call] += 1

    world = IndexWorld(seed)
    world.watch(lambda number, _: wanted(number), take, killed=killed)
    if met is not None:
        stop = world.fs.on_call
        assert stop is not None

        def on_call(number: int, operation: str, path: Path) -> None:
            met.add(f"{operation} {path}")
            stop(number, operation, path)

        world.fs.on_call = on_call
    world.live()
    return tried


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "power cut"])
def test_stopped_at_some_calls_of_every_kind(seed: int, killed: bool) -> None:
    world = IndexWorld(seed)
    calls = spread_calls(world, world.live, 20, "index|compact|/head$")
    tried = stop_at(seed, calls.__contains__, killed=killed)
    assert tried.total() == 20


@pytest.mark.slow
@pytest.mark.timeout(900)  # hundreds of stops with two recoveries and deep checks each
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "power cut"])
def test_stopped_at_every_second_call(seed: int, killed: bool, record_property: Callable[[str, object], None]) -> None:
    """Which of two is by the seed; the other way of stopping has those between."""
    met: set[str] = set()
    tried = stop_at(seed, lambda number: number % 2 == (seed + killed) % 2, killed=killed, met=met)
    missing = [step for step in WAY if not any(call.startswith(step) for call in met)]
    assert not missing, f"the workload does not get to {missing}"
    record_property("crash_points", tried.total())
    print(f"seed {seed}: stopped at {tried.total()} calls and in each recovery, killed: {killed}")
