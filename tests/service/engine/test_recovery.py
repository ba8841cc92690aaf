"""Opening needs no bucket: whatever it answered before it died, the store is open, and is as it was."""

from __future__ import annotations

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore, StoreCall
from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all, send
from tierlog.service.engine.store import Store


class DyingObjectStore(FaultyObjectStore):
    """Answers so many calls, and then no more."""

    def __init__(self, inner: FaultyObjectStore, answers: int) -> None:
        super().__init__(inner)
        self._left = answers

    def _begin(self, operation: str, key: str) -> None:
        if not self._left:
            self.die()
        self._left -= 1
        super()._begin(operation, key)


@pytest.fixture
def world() -> World:
    """A store with archived messages, and one that only a tail has beside the log."""
    world = World(settings=small_settings())
    engine = world.open()
    send(engine, "orders", 0, 20, queue_id=0)
    engine.archive(everything=True)
    send(engine, "orders", 20, 30, queue_id=0)
    return world


def opened(world: World, objects: FaultyObjectStore) -> Store:
    return world.open(objects=objects)


def test_a_bucket_that_dies_during_recovery_does_not_keep_the_store_closed(world: World) -> None:
    whole = FaultyObjectStore(world.bucket)
    opened(world, whole)
    asked = len(whole.calls)
    assert asked > 0
    for answers in range(asked + 1):
        engine = opened(world, DyingObjectStore(world.bucket, answers))
        assert numbers_of(read_all(engine, "orders", 0))[20:] == list(range(20, 30))
    engine = world.open()
    assert numbers_of(read_all(engine, "orders", 0)) == list(range(30))
    assert engine.check(deep=True) == []


def test_the_head_is_asked_once_before_the_store_is_open(world: World) -> None:
    whole = FaultyObjectStore(world.bucket)
    opened(world, whole)
    head = [one for one in whole.calls if one.key == "store/head"]
    assert head in ([StoreCall("get", "store/head")], [StoreCall("get_if_changed", "store/head")])
