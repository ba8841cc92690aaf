"""A volume restored where the clock is behind stored messages before those archived: queries then lost archived ones.

The store time of the first hot message bounds those of the archive, which holds only where times never step back.
"""

from __future__ import annotations

import pytest

from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, send
from tierlog.index.search.query import Query
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Boundary, Order, Tier

HOUR_MS = 3_600_000


@pytest.mark.parametrize("key", ["key-7", None])
def test_archived_messages_that_seem_newer_than_hot_ones_are_found(key: str | None) -> None:
    world = World(settings=small_settings())
    first = world.open("a")
    world.clock.advance(HOUR_MS)
    send(first, "orders", 7, 8, queue_id=0)
    archived_ms = world.clock.now_ms()
    first.archive(everything=True)
    first.close()
    world.clock = ManualClock(archived_ms - HOUR_MS)
    engine = world.open("b", restore=True)
    for _ in range(3):
        send(engine, "orders", 7, 8, queue_id=0)
    for order in Order:
        answer = engine.query(Query("orders", key, archived_ms, archived_ms + 1, order=order))
        assert (numbers_of(answer.messages), answer.coverage.complete) == ([7] * 4, True)
        page = engine.query(Query("orders", key, limit=2, order=order))
        assert [message.tier for message in page.messages] == [message.tier for message in answer.messages[:2]]
    assert engine.query(Query("orders", key, order=Order.OLDEST)).messages[0].tier is Tier.COLD
    assert engine.offset_by_time("orders", 0, archived_ms, Boundary.LOWER) == 0
    engine.close()


def test_store_times_never_step_back_from_what_is_archived() -> None:
    world = World(settings=small_settings())
    first = world.open("a")
    world.clock.advance(HOUR_MS)
    send(first, "orders", 0, 40)
    archived_ms = world.clock.now_ms()
    first.archive(everything=True)
    first.close()
    world.clock = ManualClock(archived_ms - HOUR_MS)
    world.open("b", restore=True).close()
    engine = world.open("b")
    send(engine, "orders", 40, 41)
    assert engine.query(Query("orders", "key-40")).messages[0].record.store_ms == archived_ms
    assert engine.stats()["clock_behind_ms"] == HOUR_MS
    engine.close()
