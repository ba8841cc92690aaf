"""A store from which messages are erased and expire shows what a plain list shows, whatever happens in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores.removal_world import KEYS, RemovalWorld
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError, NotFoundError
from tierlog.tiering.base.types import END_OF_TIME_MS

TOPICS = ("t", "u")
MINUTE_MS = 60_000
#: A share of the time that has passed, in tenths.
MOMENT = st.integers(0, 10)

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 20)),
    st.tuples(st.just("erase"), st.sampled_from(TOPICS), st.sampled_from([None, *KEYS]), MOMENT, MOMENT),
    st.tuples(st.just("archive")),
    st.tuples(st.just("roll")),
    st.tuples(st.just("drop_hot")),
    st.tuples(st.just("round")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("pass"), st.integers(1, 300)),
    st.tuples(st.just("retain"), st.sampled_from(TOPICS), st.sampled_from([None, 1, 5, 60])),
    st.tuples(st.just("hold"), st.sampled_from(TOPICS), st.booleans()),
)


class Run:
    """One sequence of steps."""

    def __init__(self, retention_minutes: int | None) -> None:
        self.least_minutes: dict[str, int] = {}
        self.retention_minutes = retention_minutes
        self.world = RemovalWorld(cold__retention_ms=(retention_minutes or 0) * MINUTE_MS)
        self.began_ms = self.world.clock.now_ms()
        self.engine: Store = self.world.open()
        self.engine.archive()  # the archive is there from the first contact on

    def take(self, step: tuple[Any, ...]) -> None:
        """Take one step; what must be refused is refused and nothing else."""
        name, *arguments = step
        getattr(self, f"_{name}")(*arguments)

    def _append(self, count: int) -> None:
        self.world.append(self.engine, count, TOPICS)

    def _erase(self, topic: str, key: str | None, first: int, last: int) -> None:
        span_ms = self.world.clock.now_ms() - self.began_ms
        from_ms, to_ms = (self.began_ms + span_ms * share // 10 for share in sorted((first, last)))
        bounds = (from_ms, to_ms) if from_ms < to_ms else (0, END_OF_TIME_MS)
        known = {info.name: info.hold for info in self.engine.topics()}
        if known.get(topic) is False:
            self.world.erase(self.engine, topic, key, *bounds)
            return
        try:
            self.engine.removal.erase(Query(topic, key, *bounds))
        except NotFoundError:
            assert topic not in known
        except ConflictError:
            assert known[topic]
        else:
            raise AssertionError("an erasure that is forbidden was taken")

    def _archive(self) -> None:
        self.engine.archive(everything=True)

    def _roll(self) -> None:
        self.engine._hot.roll()

    def _drop_hot(self) -> None:
        self.engine.archive(everything=True, drop_hot=True)

    def _round(self) -> None:
        self.engine.run_tiers()

    def _restart(self) -> None:
        self.engine = self.world.open()

    def _pass(self, minutes: int) -> None:
        self.world.clock.advance(minutes * MINUTE_MS)

    def _retain(self, topic: str, minutes: int | None) -> None:
        if topic in {info.name for info in self.engine.topics()}:
            self.engine.removal.configure(topic, cold_retention_ms=minutes and minutes * MINUTE_MS)
            if minutes:
                self.least_minutes[topic] = min(minutes, self.least_minutes.get(topic, minutes))

    def _hold(self, topic: str, hold: bool) -> None:
        if topic in {info.name for info in self.engine.topics()}:
            self.engine.removal.configure(topic, hold=hold)

    def verify(self) -> None:
        """Every way of reading, and that nothing has expired before its time."""
        self.world.verify(self.engine)
        now_ms = self.world.clock.now_ms()
        for one in self.world.sent:
            if self.world.has_expired(self.engine, one):
                ages = [self.least_minutes.get(one.message.topic), self.retention_minutes]
                assert one.store_ms < now_ms - min(age for age in ages if age) * MINUTE_MS


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(STEPS, max_size=14), st.sampled_from([None, None, 30]))
def test_every_reader_sees_what_was_neither_erased_nor_has_expired(
    steps: list[tuple[Any, ...]], retention_minutes: int | None
) -> None:
    run = Run(retention_minutes)
    run._append(25)
    for step in steps:
        run.take(step)
        run.verify()
    for topic in TOPICS:
        run._hold(topic, False)
    run.world.finish(run.engine)
    run.verify()
    for number, one in enumerate(run.world.sent):
        if run.world.is_erased(number):
            assert not run.world.bucket_holds(one.message.body)
        elif not run.world.has_expired(run.engine, one):
            assert run.world.bucket_holds(one.message.body)
    assert run.engine.check(deep=True) == []
