"""Coverage claimed the whole interval for a tier of which a part was unreachable, out of budget or not looked at."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.index.search.query import Answer, Query, TierCoverage
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis
from tierlog.tiering.message.batch import Message

_ARCHIVED = 300
_COUNT = 340
_BEGIN_MS = ManualClock().now_ms()
_BORN_MS = 1_000_000


class ClaimsWorld(World):
    """300 archived messages and 40 hot ones, one a millisecond; born times go back and forth."""

    def __init__(self) -> None:
        super().__init__(settings=tiny_settings(cold__cache_bytes=1))  # so that every page asks for what it needs
        self.open()
        for number in range(_COUNT):
            born_ms = self.time_ms(number, TimeAxis.BORN)
            self.engine.append(
                [Message("t", b"%d" % number + bytes(1200), ["k"], queue_id=number % 2, born_ms=born_ms)]
            )
            self.clock.advance(1)
            if number == _ARCHIVED - 1:
                self.archive()
        self.archived = self.cold()

    @staticmethod
    def time_ms(number: int, axis: TimeAxis) -> int:
        return _BEGIN_MS + number if axis is TimeAxis.STORE else _BORN_MS + number * 7 % _COUNT

    def assert_true(self, answer: Answer, query: Query) -> None:
        """Every message of a tier inside what is claimed of it is in the answer."""
        found = {int(message.record.body.rstrip(b"\0")) for message in answer.messages}
        (store,) = answer.coverage.stores
        for claim, held in ((store.hot, range(_ARCHIVED, _COUNT)), (store.cold, range(_ARCHIVED))):
            if claim is not None:
                assert query.from_ms <= claim.from_ms < claim.to_ms <= query.to_ms
                times = {number: self.time_ms(number, query.axis) for number in held}
                claimed = {number for number, time in times.items() if claim.from_ms <= time < claim.to_ms}
                assert claimed <= found, (query, store)


@pytest.fixture(scope="module")
def store() -> ClaimsWorld:
    return ClaimsWorld()


def queries(axis: TimeAxis, order: Order, max_requests: int | None = None) -> list[Query]:
    middle = ClaimsWorld.time_ms(100, axis)
    return [
        Query("t", key, from_ms, limit=limit, axis=axis, order=order, max_requests=max_requests)
        for key, limit, from_ms in product((None, "k"), (7, 1000), (0, middle))
    ]


@pytest.mark.parametrize("axis", TimeAxis)
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("budget", [0, 1, 2, 5, 9, 14, 20, 60, 1000])
def test_out_of_budget(store: ClaimsWorld, axis: TimeAxis, order: Order, budget: int) -> None:
    for query in queries(axis, order, budget):
        for engine in (store.engine, store.archived):
            answer = engine.query(query)
            store.assert_true(answer, query)
            assert answer.coverage.requests <= budget
            assert answer.coverage.complete == (answer.coverage.cut_by != "budget")


@pytest.mark.parametrize("axis", TimeAxis)
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("pattern", ["*/index/*", "*/log/*0000131072-*", "*/log/*", "*/manifest/*", "*/state/*", "*"])
def test_unreachable(store: ClaimsWorld, axis: TimeAxis, order: Order, pattern: str) -> None:
    for query in queries(axis, order):
        for engine in (store.engine, store.archived):
            store.bucket.fail_before("get_range", pattern, times=None)
            answer = engine.query(query)
            store.bucket.heal()
            store.assert_true(answer, query)
            assert answer.coverage.complete == (not answer.coverage.failures)


def test_what_is_certain_is_claimed(store: ClaimsWorld) -> None:
    """From the newest on as far as the budget went; and the hot tier, which needs none, in full."""
    answer = store.engine.query(Query("t", limit=1000, max_requests=12))
    (covered,) = answer.coverage.stores
    assert covered.hot == TierCoverage(0, END_OF_TIME_MS)
    assert covered.cold is not None
    assert _BEGIN_MS < covered.cold.from_ms < _BEGIN_MS + _ARCHIVED - 20
    answer = store.engine.query(Query("t", limit=1000, max_requests=12, order=Order.OLDEST))
    (covered,) = answer.coverage.stores
    assert covered.hot == TierCoverage(0, END_OF_TIME_MS)
    assert covered.cold is not None
    assert _BEGIN_MS + 20 < covered.cold.to_ms < _BEGIN_MS + _ARCHIVED


def test_an_archive_read_alone_claims_nothing_newer_than_itself(store: ClaimsWorld) -> None:
    answer = store.archived.query(Query("t", limit=1000))
    (covered,) = answer.coverage.stores
    assert (len(answer.messages), answer.coverage.complete, covered.hot) == (_ARCHIVED, True, None)
    assert covered.cold is not None
    assert (covered.cold.from_ms, covered.cold.to_ms) == (0, _BEGIN_MS + _ARCHIVED)
    answer = store.archived.query(Query("t", limit=1000, from_ms=_BEGIN_MS + _ARCHIVED))
    assert (answer.messages, answer.coverage.stores[0].cold) == ([], None)
    answer = store.archived.query(Query("t", limit=1000, axis=TimeAxis.BORN))
    assert answer.coverage.stores[0].cold is not None
    assert answer.coverage.stores[0].cold.to_ms == END_OF_TIME_MS


def test_the_head_is_a_request_like_others(store: ClaimsWorld) -> None:
    coverage = store.archived.query(Query("t", max_requests=0)).coverage
    assert (coverage.requests, coverage.complete, coverage.cut_by, coverage.stores[0].cold) == (
        0,
        False,
        "budget",
        None,
    )
