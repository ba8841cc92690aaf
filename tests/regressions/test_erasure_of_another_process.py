"""Hot copies of an erasure that a job had carried out came back when the store closed it at its first look."""

from __future__ import annotations

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.pipeline.removal_jobs import erase_in_bulk
from tests.support.stores.removal_world import RemovalWorld, asked
from tierlog.index.search.query import Query


@pytest.mark.parametrize("restarts", [False, True])
def test_hot_copies_stay_hidden_after_the_tombstone_left_the_head(restarts: bool) -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 40, ("t",))
    engine.archive(everything=True)
    erase_in_bulk(world, "t", "k1")
    assert engine._manifest is not None
    engine._manifest.refresh()
    assert engine.removal.run_once()
    assert engine._manifest.refresh().tombstones == ()
    if restarts:
        dead = FaultyObjectStore(world.objects)
        dead.fail_before("*", times=None)
        engine = world.open(objects=dead)
    assert asked(engine, Query("t")) == [one.message.body for one in world.visible()]
    assert len(world.visible()) < 40
