"""``check --deep`` finds nothing wrong with an archive from which records were kept out, erased, or expired."""

from __future__ import annotations

import pytest

from tests.support.stores.archives import build, fill
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store


def set_archived(engine: Store, name: str, *, archive: bool) -> None:
    topic = engine._hot.topics.get(name)
    engine._hot.topics.set_options(topic, archive=archive, cold_retention_ms=None, hold=False)


@pytest.fixture
def world() -> World:
    return build(unindexed=False)


def verify(world: World, engine: Store) -> None:
    assert engine.check(deep=True) == []
    assert world.cold().check(deep=True) == []
    assert world.cold().repair().done == []


def test_a_topic_that_was_not_archived_for_a_while(world: World) -> None:
    engine = world.open()
    set_archived(engine, "pays", archive=False)
    fill(engine, world.clock, 50, 200)
    engine.archive(everything=True, drop_hot=True)
    verify(world, engine)
    set_archived(engine, "pays", archive=True)
    fill(engine, world.clock, 50, 250)
    engine.archive(everything=True)
    verify(world, engine)
    engine.close()


def test_erased_messages(world: World) -> None:
    engine = world.open()
    engine.removal.erase(Query("orders", "key-1"), dry_run=False, wait=True)
    verify(world, engine)
    engine.removal.erase(Query("rare"), dry_run=False, wait=True)
    fill(engine, world.clock, 30, 200)
    engine.archive(everything=True, drop_hot=True)
    verify(world, engine)
    engine.close()


def test_an_index_object_made_again_after_an_erasure(world: World) -> None:
    engine = world.open()
    engine.removal.erase(Query("orders", "key-1"), dry_run=False, wait=True)
    before = world.cold().query(Query("orders", "key-2", limit=1000)).messages
    entry = next(iter(world.manifest().refresh().index))
    del world.objects._objects[entry.key]
    assert world.cold().repair().left == []
    verify(world, engine)
    assert world.cold().query(Query("orders", "key-2", limit=1000)).messages == before
    engine.close()
