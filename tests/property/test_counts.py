"""Counts per interval are those of a plain list, as far as they say; over both tiers, axes, budgets and faults."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.objects.priced_store import PricedStore
from tests.support.service.served import served
from tests.support.stores.engines import small_settings
from tests.support.stores.removal_world import filled
from tierlog.index.search.counts import CountQuery, IntervalCounts
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.querier import Querier
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError, TopicNotFoundError
from tierlog.tiering.base.types import TimeAxis
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

_QUICK, _RUNS = 2, 16
_URL = "memory://counted"


class CountedLog:
    """One store, parts of which are hot, archived, or both."""

    def __init__(
        self, root: Path, seed: int, clock: ManualClock, inner: MemoryObjectStore, store_id: str = "a"
    ) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.faulty = FaultyObjectStore(inner)
        self.priced = PricedStore(self.faulty)
        self.settings = small_settings()
        self.engine = Store.open(
            root / store_id, settings=self.settings, cold_url=_URL, store_id=store_id, clock=clock, objects=self.priced
        )
        for number in range(8):
            self.append()
            if number % 3 == 1:
                self.engine.archive(everything=True, drop_hot=self.chance.random() < 0.7)

    def append(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            self.clock.advance(self.chance.choice([1, 7, 500]))
            born = [self.clock.now_ms() + self.chance.choice([0, -10_000, 90_000]) for _ in range(20)]
            self.engine.append([Message(self.chance.choice("tu"), b"x" * 30, born_ms=each) for each in born])

    def times(self, axis: TimeAxis) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        answer = self.engine.query(Query("t", limit=10_000))
        assert answer.coverage.complete
        return np.array([message.time_ms(axis) for message in answer.messages])

    def query(self) -> CountQuery:
        chance, now_ms = self.chance, self.clock.now_ms()
        axis = chance.choice(list(TimeAxis))
        query = CountQuery("t", axis=axis, buckets=chance.choice([1, 3, 60, 1000]))
        if chance.random() < 0.5:
            query = replace(query, from_ms=now_ms - chance.choice([100, 1_000, 5_000]))
        if chance.random() < 0.5:
            query = replace(query, to_ms=now_ms - chance.choice([-100_000, 0, 50]))
        if chance.random() < 0.3:
            query = replace(query, interval_ms=chance.choice([500, 1_000]))  # at most 200 of them
        return query

    def archive(self) -> Archive:
        return Archive.open(_URL, settings=self.settings, clock=self.clock, objects=self.priced)


def check(query: CountQuery, found: IntervalCounts, times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Compares counts with a list of times: exactly where they say so, else as far as they were estimated."""
    low = query.from_ms if query.from_ms is not None else int(times.min())
    high = query.to_ms if query.to_ms is not None else int(times.max()) + 1
    if low >= high:
        assert (found.counts, found.from_ms) == ([], found.to_ms)
        return
    assert (found.from_ms, found.to_ms) == (low, high)
    wanted = [0] * len(range(low, high, found.interval_ms))
    assert len(wanted) <= (query.buckets if query.interval_ms is None else 1000)
    for time_ms in times[(times >= low) & (times < high)].tolist():
        wanted[(time_ms - low) // found.interval_ms] += 1
    off = np.abs(np.array(found.counts) - np.array(wanted))
    if found.exact:
        assert off.max() == 0
    assert found.coverage.complete
    assert off.max() <= found.estimated
    if query.from_ms is None and query.to_ms is None:
        assert sum(found.counts) == len(times), "everything is counted, whatever is estimated"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Callable[[int], CountedLog]]:
    with contextlib.ExitStack() as stack:

        def make(seed: int) -> CountedLog:
            clock = ManualClock()
            made = CountedLog(tmp_path / str(seed), seed, clock, MemoryObjectStore(clock))
            stack.callback(made.engine.close)
            stack.callback(made.faulty.heal)
            return made

        yield make


runs = pytest.mark.parametrize(
    "number", [*range(_QUICK), *(pytest.param(each, marks=pytest.mark.slow) for each in range(_QUICK, _RUNS))]
)


@runs
def test_counts_of_both_tiers_are_those_of_a_plain_list(
    number: int, seed: int, log: Callable[[int], CountedLog]
) -> None:
    made = log(seed + number)
    for _ in range(20):
        query = made.query()
        check(query, made.engine.counts(query), made.times(query.axis))
    hot = replace(made.query(), axis=TimeAxis.STORE, from_ms=None, to_ms=None, interval_ms=None)
    assert made.engine.counts(replace(hot, buckets=1)).exact


@runs
def test_an_archive_alone_counts_what_is_archived_and_a_bounded_number_of_requests_only_estimates_more(
    number: int, seed: int, log: Callable[[int], CountedLog]
) -> None:
    made = log(seed + number)
    made.engine.archive(everything=True, drop_hot=True)
    times = {axis: made.times(axis) for axis in TimeAxis}
    for _ in range(8):
        query, estimated = replace(made.query(), interval_ms=None), []
        for budget in (None, 30, 15, 8, 4, 2, 1, 0):
            with made.archive() as archive:
                before = made.priced.requests.total()
                if budget == 0:  # the topic itself cannot be looked up
                    assert not archive.counts(replace(query, max_requests=0)).coverage.complete
                    continue
                found = archive.counts(replace(query, max_requests=budget))
                assert found.coverage.requests == made.priced.requests.total() - before
            assert budget is None or found.coverage.requests <= budget
            if found.coverage.complete:
                check(query, found, times[query.axis])
                estimated.append(found.estimated)
            else:
                assert (found.coverage.cut_by, found.exact) == ("budget", False)
        assert estimated == sorted(estimated), "less to spend is never more exact"


@runs
def test_a_directory_that_cannot_be_read_is_estimated_and_a_part_of_the_manifest_makes_it_incomplete(
    number: int, seed: int, log: Callable[[int], CountedLog]
) -> None:
    made = log(seed + number)
    made.engine.archive(everything=True, drop_hot=True)
    query = CountQuery("t", buckets=1000)
    with made.archive() as archive:
        whole = archive.counts(query)
    with made.archive() as archive:
        made.faulty.fail_before("get_range", "*/log/*", times=None)
        found = archive.counts(query)
        assert sum(found.counts) == sum(whole.counts)
        assert (found.coverage.complete, bool(found.coverage.failures), found.exact) == (True, True, False)
    made.faulty.heal()
    with made.archive() as archive:
        made.faulty.fail_before("get_range", "*/manifest/*", times=None)
        found = archive.counts(query)
        assert (found.coverage.complete, bool(found.coverage.failures), found.exact) == (False, True, False)


def test_a_querier_adds_what_its_stores_count_and_says_which_one_is_down(tmp_path: Path) -> None:
    clock = ManualClock()
    inner = MemoryObjectStore(clock)
    logs = [CountedLog(tmp_path, 5 + at, clock, inner, name) for at, name in enumerate(("a", "b", "c"))]
    settings = small_settings(cluster__ask_timeout_ms=60_000, cluster__retry_ms=0)
    try:
        times = np.concatenate([one.times(TimeAxis.STORE) for one in logs])
        with contextlib.ExitStack() as stack:
            urls = [stack.enter_context(served(one.engine, settings)) for one in logs[:2]]
            down = contextlib.ExitStack()
            urls.append(down.enter_context(served(logs[2].engine, settings)))
            with Querier.open(None, [*urls, _URL], settings=settings, objects=inner) as querier:
                for query in (CountQuery("t"), CountQuery("t", buckets=3, from_ms=int(times.min()) + 20)):
                    found = querier.counts(query)
                    check(query, found, times)
                    assert [store.store_id for store in found.coverage.stores] == ["a", "b", "c"]
                with pytest.raises(TopicNotFoundError):
                    querier.counts(CountQuery("nobody"))
                down.close()
                found = querier.counts(CountQuery("t"))
                assert (found.coverage.complete, found.exact) == (False, False)
                (silent,) = [store for store in found.coverage.stores if store.error]
                assert silent.store_id == "c"
                assert sum(found.counts) > len(logs[0].times(TimeAxis.STORE)) + len(logs[1].times(TimeAxis.STORE)) - 1
    finally:
        for one in logs:
            one.engine.close()


def test_what_has_expired_is_not_counted() -> None:
    world = filled()
    engine = world.open()
    engine.archive(everything=True, drop_hot=True)
    before = engine.counts(CountQuery("t", buckets=1000))
    assert before.coverage.complete
    assert sum(before.counts) == sum(one.message.topic == "t" for one in world.sent)
    engine.removal.configure("t", cold_retention_ms=50_000)
    world.clock.advance(10_000)
    engine.run_tiers()
    present = sum(one.message.topic == "t" and not world.has_expired(engine, one) for one in world.sent)
    found = engine.counts(CountQuery("t", buckets=1000))
    assert 0 < present < sum(before.counts)
    assert abs(sum(found.counts) - present) <= found.estimated


@pytest.mark.parametrize(
    "bad",
    [
        {"buckets": 0}, {"buckets": 1001}, {"interval_ms": 0}, {"from_ms": 5, "to_ms": 5}, {"max_requests": -1},
        {"timeout_ms": 0}, {"from_ms": 0, "to_ms": 100_000, "interval_ms": 1},
    ],
)  # fmt: skip
def test_a_question_for_counts_that_means_nothing_is_refused(
    bad: dict[str, int], log: Callable[[int], CountedLog]
) -> None:
    with pytest.raises(InvalidRequestError):
        log(1).engine.counts(CountQuery("t", **bad))  # type: ignore[arg-type]
