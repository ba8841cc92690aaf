"""The newest message of a topic by time took a look at every hot message's queue unit before the first was read."""

from __future__ import annotations

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search import hot_search
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.format.record import Record
from tierlog.tiering.hot.consume_queue import QueueView
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.message.batch import Message

_EACH = 2_000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """2,000 messages in each of two queues, one a millisecond in each; born times run backwards."""
    clock = ManualClock()
    settings = tiny_settings(hot__segment_bytes=1 << 20)
    engine = Store.open(tmp_path_factory.mktemp("store"), settings=settings, clock=clock)
    for number in range(_EACH):
        engine.append(
            [Message("t", b"%d" % number, queue_id=queue, born_ms=10_000 - number) for queue in (0, 1)],
        )
        clock.advance(1)
    return engine


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("stretch", [(0, None), (500, 1500)])
def test_a_page_looks_at_few_units(
    engine: Store, monkeypatch: pytest.MonkeyPatch, order: Order, stretch: tuple[int, int | None]
) -> None:
    looked_at = 0
    units = QueueView.units

    def counted(view: QueueView, start: int, end: int) -> UnitArray:
        nonlocal looked_at
        found = units(view, start, end)
        looked_at += len(found)
        return found

    monkeypatch.setattr(QueueView, "units", counted)
    begin_ms = ManualClock().now_ms()
    first, last = stretch[0], _EACH if stretch[1] is None else stretch[1]
    answer = engine.query(Query("t", from_ms=begin_ms + first, to_ms=begin_ms + last, limit=1, order=order))
    (message,) = answer.messages
    assert int(message.record.body) == (first if order is Order.OLDEST else last - 1)
    assert answer.next_cursor is not None
    assert looked_at < 100


@pytest.mark.parametrize("order", Order)
def test_a_page_by_born_time_decodes_few_records(engine: Store, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    decoded = 0
    record = HotSnapshot.record

    def counted(snapshot: HotSnapshot, physical_offset: int) -> Record:
        nonlocal decoded
        decoded += 1
        return record(snapshot, physical_offset)

    monkeypatch.setattr(HotSnapshot, "record", counted)
    answer = engine.query(Query("t", from_ms=9_000, to_ms=9_500, limit=3, axis=TimeAxis.BORN, order=order))
    assert {message.record.born_ms for message in answer.messages} <= {9_000, 9_001, 9_499, 9_498}
    assert answer.next_cursor is not None
    assert decoded < 20


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("axis", TimeAxis)
def test_all_pages_together_are_all_messages(engine: Store, order: Order, axis: TimeAxis) -> None:
    found: list[int] = []
    cursor = None
    while True:
        answer = engine.query(Query("t", limit=700, axis=axis, order=order, cursor=cursor))
        assert answer.coverage.complete
        found += [int(message.record.body) for message in answer.messages]
        cursor = answer.next_cursor
        if cursor is None:
            break
    is_rising = (order is Order.OLDEST) == (axis is TimeAxis.STORE)
    assert found == sorted([*range(_EACH), *range(_EACH)], reverse=not is_rising)


@pytest.mark.parametrize("order", Order)
def test_a_search_by_born_time_is_cut_when_its_time_is_over(
    engine: Store, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    monkeypatch.setattr(hot_search, "_BORN_STEP", 100)
    checked, looked_at = SnapshotQueue.checked, 0
    clock = engine._clock
    assert isinstance(clock, ManualClock)

    def slow(
        queue: SnapshotQueue, start: int, end: int, *, with_sums: bool = False
    ) -> tuple[UnitArray, dict[int, StoreError]]:
        nonlocal looked_at
        looked_at += end - start
        clock.advance(10)
        return checked(queue, start, end, with_sums=with_sums)

    monkeypatch.setattr(SnapshotQueue, "checked", slow)
    answer = engine.query(Query("t", axis=TimeAxis.BORN, limit=1, order=order, timeout_ms=50))
    assert answer.coverage.cut_by == "timeout"
    assert not answer.coverage.complete
    assert looked_at <= 600
