"""A page of large messages had no limit but their number, and all of their bodies were held at once."""

from __future__ import annotations

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.searcher import search
from tierlog.index.search.store_search import TieredStoreSearch
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.memory import MemoryObjectStore

_COUNT = 100
_BODY = 1_000
_PAGE = 5_600
"""Room for five messages."""


@pytest.fixture(scope="module", params=["hot", "cold", "both"])
def engine(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Store:
    clock = ManualClock()
    objects = MemoryObjectStore(clock)
    folder = tmp_path_factory.mktemp("store")
    engine = Store.open(folder, settings=tiny_settings(), clock=clock, cold_url="memory://archive", objects=objects)
    for number in range(_COUNT):
        engine.append([Message("t", b"%03d" % number + bytes(_BODY), ["k"], queue_id=0)])
        clock.advance(number % 2)
        if number == {"cold": _COUNT - 1, "both": _COUNT // 2}.get(request.param):
            engine.archive(everything=True, drop_hot=True)
    return engine


def ask(engine: Store, query: Query, page_bytes: int) -> Answer:
    stores = [TieredStoreSearch(engine.store_id, engine._hot, engine._index, engine._cold_index)]
    return search(stores, query, page_bytes=page_bytes)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(("page_bytes", "each"), [(_PAGE, 5), (1, 1)])
def test_pages_are_cut_by_bytes_and_follow_each_other(
    engine: Store, key: str | None, order: Order, page_bytes: int, each: int
) -> None:
    found: list[int] = []
    cursor = None
    while True:
        answer = ask(engine, Query("t", key, limit=1000, order=order, cursor=cursor), page_bytes)
        assert answer.coverage.complete
        found += [int(message.record.body[:3]) for message in answer.messages]
        cursor = answer.next_cursor
        if cursor is None:
            break
        assert (len(answer.messages), answer.coverage.cut_by) == (each, "limit")
    assert found == sorted(range(_COUNT), reverse=order is Order.NEWEST)


@pytest.mark.parametrize("axis", TimeAxis)
@pytest.mark.parametrize("order", Order)
def test_no_more_than_about_two_pages_are_held(
    engine: Store, monkeypatch: pytest.MonkeyPatch, axis: TimeAxis, order: Order
) -> None:
    held: set[int] = set()
    most = 0

    class Counted(StoredMessage):
        def __init__(self, *fields: object) -> None:
            super().__init__(*fields)  # type: ignore[arg-type]
            nonlocal most
            held.add(id(self))
            most = max(most, len(held))

        def __del__(self) -> None:
            held.discard(id(self))

    monkeypatch.setattr("tierlog.index.search.hot_search.StoredMessage", Counted)
    monkeypatch.setattr("tierlog.index.search.segment_search.StoredMessage", Counted)
    answer = ask(engine, Query("t", limit=1000, axis=axis, order=order), _PAGE)
    assert len(answer.messages) == 5
    assert 5 < most <= 14
