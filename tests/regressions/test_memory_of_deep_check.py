"""A deep check that kept what it read would not end on an archive of any size."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.support.stores.archives import archive_world, fill
from tests.support.world import World


def grow(world: World, messages: int) -> None:
    engine = world.open()
    for start in range(0, messages, 250):
        fill(engine, world.clock, 250, start)
        engine.archive(everything=True, drop_hot=True)
    engine.close()


def peak_of_check(world: World) -> int:
    cold = world.cold(world.objects)  # the bucket that can fail keeps a list of its calls
    tracemalloc.start()
    try:
        assert cold.check(deep=True) == []
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_of_an_object_no_more_is_kept_than_its_entry() -> None:
    world = archive_world()
    grow(world, 500)
    peak_of_check(world)  # what is compiled and imported only once
    few, before = peak_of_check(world), segments_of(world)
    grow(world, 2500)
    added = segments_of(world) - before
    assert added > 50
    assert peak_of_check(world) - few < 8192 * added, "a segment holds 16 KiB of records, and index items beside them"


def segments_of(world: World) -> int:
    manifest = world.manifest()
    return len(list(manifest.log_entries(manifest.reader(), manifest.refresh())))
