"""A segment that is archived again from its hot copy brought back what had been removed from the archive."""

from __future__ import annotations

import pytest

from tests.support.objects.damage import Damage, changed, flipped, remove
from tests.support.stores.removal_world import RemovalWorld
from tierlog.service.engine.store import Store

DAMAGES: dict[str, Damage] = {"missing": remove, "a bit": changed(lambda data: flipped(data, 40))}


def damage_hot_segments(world: RemovalWorld, engine: Store, damage: Damage) -> int:
    """Damage every archived segment that is hot as well; how many there are."""
    assert engine._manifest is not None
    head = engine._manifest.refresh()
    entries = engine._manifest.log_entries(engine._manifest.reader(), head)
    hot = [entry for entry in entries if entry.base >= engine._hot.border]
    for entry in hot:
        damage(world.objects, entry.key)
    return len(hot)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_held", [False, True], ids=["", "held since"])
def test_what_was_erased_stays_away_after_its_tombstone_is_closed(damage: str, is_held: bool) -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 60)
    engine.archive(everything=True)
    world.erase(engine, "t", "k0")
    world.finish(engine)
    assert engine._manifest is not None
    assert engine._manifest.head is not None
    assert engine._manifest.head.tombstones == ()
    engine.removal.configure("t", hold=is_held)
    assert damage_hot_segments(world, engine, DAMAGES[damage]) > 1
    assert engine.repair().left == []
    for number, one in enumerate(world.sent):
        assert world.bucket_holds(one.message.body) != world.is_erased(number)
    engine.archive(everything=True, drop_hot=True)
    world.verify(engine)
    engine = world.open()
    world.verify(engine)
    assert engine.check(deep=True) == []


def test_what_was_erased_stays_away_although_its_topic_is_on_hold_before_the_erasure_is_done() -> None:
    """The erasure does not come back to segments that it has been through."""
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 60)
    engine.archive(everything=True)
    world.append(engine, 10)
    world.erase(engine, "t", "k0")
    while engine.removal.run_once():
        pass
    assert engine._manifest is not None
    assert engine._manifest.head is not None
    assert len(engine._manifest.head.tombstones) == 1
    engine.removal.configure("t", hold=True)
    damage_hot_segments(world, engine, remove)
    assert engine.repair().left == []
    engine.removal.configure("t", hold=False)
    world.finish(engine)
    assert engine._manifest.refresh().tombstones == ()
    for number, one in enumerate(world.sent):
        assert world.bucket_holds(one.message.body) != world.is_erased(number)


def test_what_has_expired_stays_away() -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 60)
    engine.archive(everything=True)
    engine.removal.configure("t", cold_retention_ms=60_000)
    world.clock.advance(61_000)
    world.finish(engine)
    expired = [one for one in world.sent if world.has_expired(engine, one)]
    assert len(expired) > 20
    assert damage_hot_segments(world, engine, remove) > 1
    assert engine.repair().left == []
    assert not any(world.bucket_holds(one.message.body) for one in expired)
    world.verify(engine)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_topic_that_is_not_archived_since_keeps_its_archived_messages(damage: str) -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 60)
    engine.archive(everything=True)
    engine.removal.configure("t", archive=False)
    damage_hot_segments(world, engine, DAMAGES[damage])
    assert engine.repair().left == []
    engine.archive(everything=True, drop_hot=True)
    world.verify(engine)


def test_an_index_object_that_reaches_into_what_was_dropped_is_made_again_for_the_rest() -> None:
    world = RemovalWorld(cold__retention_ms=60_000)
    engine = world.open()
    world.append(engine, 20)
    engine._hot.roll()
    world.append(engine, 10)
    engine.archive(everything=True, drop_hot=True)
    world.clock.advance(51_000)
    assert engine._manifest is not None
    while engine.removal.run_once():
        pass
    head = engine._manifest.refresh()
    (old,) = [each for each in head.index if each.first < head.cold_min < each.next]
    remove(world.objects, old.key)
    assert engine.repair().left == []
    world.verify(engine)
