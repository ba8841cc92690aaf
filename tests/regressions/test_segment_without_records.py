"""A segment that holds nothing but a blank record ends the background's rounds: its first record has no store time."""

from __future__ import annotations

from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all, send


def test_segments_with_nothing_but_a_blank_record_are_archived_listed_and_removed() -> None:
    world = World(settings=small_settings())
    world.settings = small_settings(hot__retention_ms=60_000)
    engine = world.open("a")
    send(engine, "orders", 0, 4, queue_id=0)
    engine._hot.roll()
    for _ in range(3):
        engine._hot.log.roll()
    send(engine, "orders", 4, 8, queue_id=0)
    assert engine.check(deep=True) == []
    assert len(engine.files()) >= 5
    engine.archive(until_ms=world.clock.now_ms() + 1)
    world.clock.advance(120_000)
    engine.run_tiers()
    engine.archive(everything=True, drop_hot=True)
    assert engine._hot.border == engine._hot.log.last_base
    assert numbers_of(read_all(engine, "orders", 0)) == list(range(8))
    assert engine.check(deep=True) == []
