"""A message whose seconds are saturated in the index was found by key while hot, and lost once archived."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Order
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

_70_YEARS_MS = 70 * 366 * 86_400_000


@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("order", Order)
def test_saturated_seconds_stand_for_any_time_beyond(tmp_path: Path, *, is_archived: bool, order: Order) -> None:
    clock = ManualClock()
    objects = MemoryObjectStore(clock)
    engine = Store.open(tmp_path, settings=tiny_settings(), clock=clock, cold_url="memory://archive", objects=objects)

    def append(body: bytes) -> None:
        engine.append([Message("t", body, ["k"], queue_id=0)])

    append(b"early")
    clock.advance(_70_YEARS_MS)
    append(b"late")
    clock.advance(10_000)
    append(b"later")
    if is_archived:
        engine.archive(everything=True, drop_hot=True)
    now_ms = clock.now_ms()
    found = engine.query(Query("t", "k", from_ms=now_ms - 11_000, to_ms=now_ms + 1, order=order)).messages
    expected = [b"late", b"later"]
    assert [message.record.body for message in found] == (expected if order is Order.OLDEST else expected[::-1])
    (first,) = engine.query(Query("t", "k", limit=1, order=order)).messages
    assert first.record.body == (b"early" if order is Order.OLDEST else b"later"), "an early stop must not miss it"
    engine.close()
