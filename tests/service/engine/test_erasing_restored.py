"""Erasures and holds outlive the volume that they were asked of."""

from __future__ import annotations

import pytest

from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all, send
from tierlog.index.search.query import Query
from tierlog.service.cli.salvager import salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError, TopicNotFoundError
from tierlog.tiering.base.randomness import SeededRandomness


def numbers(engine: Store) -> list[int]:
    queues = engine.topic("orders").queues
    return sorted(number for queue in queues for number in numbers_of(read_all(engine, "orders", queue.queue_id)))


def finish(engine: Store) -> None:
    engine.archive(everything=True)
    while engine.removal.run_once():
        pass


def test_a_new_volume_goes_on_with_the_erasures_of_the_lost_one() -> None:
    world = World(settings=small_settings())
    old = world.open("a")
    send(old, "orders", 0, 40)
    old.archive(everything=True)
    send(old, "orders", 40, 50)
    erased = [old.removal.erase(Query("orders", f"key-{number}"))["tombstone_id"] for number in (7, 45)]
    old.close()
    new = world.open("b", restore=True)
    kept = [number for number in range(40) if number != 7]
    assert numbers(new) == kept
    send(new, "orders", 50, 60)
    finish(new)
    assert numbers(new) == [*kept, *range(50, 60)]
    states = {receipt["tombstone_id"]: receipt["state"] for receipt in new.removal.receipts()}
    assert states == dict.fromkeys(erased, "rewritten")
    assert world.head().tombstones == ()
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(77), world.objects)
    report = salvage(world.place("a"), components, LocalWriter(new), lambda done, of: None)
    assert (report.appended, report.skipped) == (9, 1)
    assert numbers(new) == [*kept, *(n for n in range(40, 50) if n != 45), *range(50, 60)]
    assert new.query(Query("orders", "key-45")).messages == []
    assert new.check(deep=True) == []


def test_a_hold_and_a_retention_are_known_to_a_new_volume() -> None:
    world = World(settings=small_settings())
    old = world.open("a")
    send(old, "orders", 0, 40)
    old.removal.configure("orders", hold=True, cold_retention_ms=60_000)
    old.archive(everything=True)
    old.close()
    new = world.open("b", restore=True)
    assert (new.topic("orders").hold, new.topic("orders").cold_retention_ms) == (True, 60_000)
    with pytest.raises(ConflictError, match="on hold"):
        new.removal.erase(Query("orders"))
    world.clock.advance(10_000_000)
    finish(new)
    assert numbers(new) == list(range(40))
    new.removal.configure("orders", hold=False)
    world.clock.advance(60_000)
    finish(new)
    assert numbers(new) == []


def test_a_deleted_topic_stays_deleted_on_a_new_volume_and_none_of_it_is_salvaged() -> None:
    world = World(settings=small_settings())
    old = world.open("a")
    send(old, "orders", 0, 20)
    send(old, "others", 0, 5)
    old.archive(everything=True)
    old.removal.delete_topic("orders")
    send(old, "others", 5, 9)
    old.close()
    new = world.open("b", restore=True)
    assert [topic.name for topic in new.topics()] == ["others"]
    with pytest.raises(TopicNotFoundError):
        new.query(Query("orders"))
    finish(new)
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(77), world.objects)
    assert salvage(world.place("a"), components, LocalWriter(new), lambda done, of: None).appended == 4
    send(new, "orders", 50, 60)
    assert numbers(new) == list(range(50, 60))
    assert all(queue.min_offset >= 2**32 for queue in new.topic("orders").queues)
    assert new.check(deep=True) == []


def test_a_topic_deleted_after_the_takeover_is_not_salvaged_from_the_old_volume() -> None:
    world = World(settings=small_settings())
    old = world.open("a")
    send(old, "orders", 0, 20)
    send(old, "others", 0, 5)
    old.archive(everything=True)
    send(old, "orders", 20, 30)
    send(old, "others", 5, 9)
    old.close()
    new = world.open("b", restore=True)
    new.removal.delete_topic("orders")
    finish(new)
    assert world.head().tombstones == ()
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(77), world.objects)
    assert salvage(world.place("a"), components, LocalWriter(new), lambda done, of: None).appended == 4
    assert [topic.name for topic in new.topics()] == ["others"]
    assert new.check(deep=True) == []
