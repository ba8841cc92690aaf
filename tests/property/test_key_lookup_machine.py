"""Key and time look-ups as a state machine beside plain lists: every state of files and tiers, one or two stores.

Append, roll, seal, compact, archive, publish, raise the border, merge index objects, erase, rewrite, expire, sweep,
stop cleanly, be killed (between steps or at a request), lose power; and after any of them every reader is asked.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support.index.index_merge import Shape
from tests.support.oracles.plain_search import Tally
from tests.support.stores.look_up_stores import ABSENT, DAY_MS, KEYS, TOPICS, LookUpStore, Sending, SharedBucket, Sizes
from tierlog.index.search.query import Query
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis

STORES = st.integers(0, 1)
SHARES = st.floats(0, 1, allow_nan=False, width=16)
SKEWS = st.one_of(st.integers(-2000, 2000), st.integers(-4 * DAY_MS, 4 * DAY_MS), st.just(-1_700_000_000_000))
MANY_KEYS = tuple(f"many-{number}" for number in range(30))

sendings = st.builds(
    Sending,
    topic=st.sampled_from(TOPICS),
    keys=st.one_of(
        st.just(("often",)),
        st.lists(st.sampled_from(KEYS), max_size=3).map(tuple),
        st.just(("Aa", "BB", "Aa")),
        st.just(MANY_KEYS),
    ),
    skew_ms=SKEWS,
    size=st.sampled_from([20, 20, 100, 600, 3000]),
    queue_id=st.sampled_from([-1, 0, 1]),
)
shapes = st.builds(
    Shape, parts=st.sampled_from([1, 1, 2, 5]), page_bytes=st.sampled_from([200, 65_536]),
    filter_bits=st.sampled_from([0, 2, 24]),
)  # fmt: skip
STEPS = (
    "roll", "seal", "compact", "dispatch", "archive_rolled", "archive_everything", "drop_hot", "drop_archived", "round",
    "rewrite",
)  # fmt: skip
STOPS = ("reopen", "kill", "power_cut")


class LookUpMachine(RuleBasedStateMachine):
    """Every step is taken by one of the stores; the clock and the bucket are shared."""

    tally = Tally()
    #: At the end one in so many of all topics and keys is asked for.
    one_in = 1
    shared: SharedBucket

    @initialize(
        stores=st.sampled_from([("one",), ("one", "two-1")]),
        segment_bytes=st.sampled_from([16_384, 65_536]),
        items=st.sampled_from([5, 20, 20, 60]),
        retention_ms=st.sampled_from([0, 0, 2 * DAY_MS]),
        cache_bytes=st.sampled_from([1, 16 << 20]),
        before=st.lists(
            st.sampled_from(["archive_everything", "archive_rolled", "drop_archived"]), min_size=1, max_size=5
        ),
    )
    def make(
        self, stores: tuple[str, ...], segment_bytes: int, items: int, retention_ms: int, cache_bytes: int,
        before: list[str],
    ) -> None:  # fmt: skip
        sizes = Sizes(segment_bytes, items=items, cold_retention_ms=retention_ms, cache_bytes=cache_bytes)
        self.shared = SharedBucket(sizes, store_ids=stores, tally=self.tally)
        self.tally.count("examples")
        for number, step in enumerate(before):  # most of what can go wrong needs some files of each kind
            for store in range(len(stores)):
                self.append_many(store, TOPICS[number % 2], 60, 700)
                self.run_maintenance(store, step)

    def store(self, number: int) -> LookUpStore:
        self.tally.count("steps")
        return self.shared.stores[number % len(self.shared.stores)]

    # ---- messages and time

    @rule(store=STORES, batch=st.lists(sendings, min_size=1, max_size=25))
    def append(self, store: int, batch: list[Sending]) -> None:
        self.store(store).append(batch)
        self.tally.count("appended", len(batch))

    @rule(store=STORES, topic=st.sampled_from(TOPICS), count=st.integers(20, 120), step_ms=st.sampled_from([0, 1, 700]))
    def append_many(self, store: int, topic: str, count: int, step_ms: int) -> None:
        chosen = self.store(store)
        for number in range(0, count, 10):
            self.shared.clock.advance(step_ms)
            keys = [("often",), ("often", KEYS[number // 10 % len(KEYS)])]
            chosen.append([Sending(topic, keys[each % 2], 100 * each - 500, 150) for each in range(10)])
        self.tally.count("appended", count)

    @rule(step_ms=st.sampled_from([1, 999, 1000, 60_000, 3_600_000, DAY_MS]))
    def time_passes(self, step_ms: int) -> None:
        self.shared.clock.advance(step_ms)

    @rule(step_ms=st.integers(-5000, 5000))
    def clock_steps(self, step_ms: int) -> None:
        self.shared.clock.step(step_ms)

    # ---- files and tiers

    @rule(store=STORES, step=st.sampled_from(STEPS))
    def run_maintenance(self, store: int, step: str) -> None:
        getattr(self.store(store), step)()

    @rule(
        store=STORES, step=st.sampled_from(["archive_everything", "drop_hot", "round", "rewrite"]),
        request=st.integers(1, 12), after=st.booleans(),
    )  # fmt: skip
    def is_killed_at_a_request(self, store: int, step: str, request: int, after: bool) -> None:
        chosen = self.store(store)
        chosen.append([Sending(TOPICS[0], ("often",), 0, 2000)] * 5)
        self.tally.count("kills at a request", chosen.killed_at(getattr(chosen, step), request, after=after))

    @rule(store=STORES, how=st.sampled_from(STOPS))
    def stops(self, store: int, how: str) -> None:
        getattr(self.store(store), how)()

    @rule(store=STORES, run=st.integers(0, 3), first=st.integers(0, 20), count=st.integers(2, 12), shape=shapes)
    def merge(self, store: int, run: int, first: int, count: int, shape: Shape) -> None:
        self.tally.count("merges", self.store(store).merge(run, first, count, shape))

    @rule(store=STORES)
    def merge_that_is_never_committed(self, store: int) -> None:
        self.store(store).merge(0, 0, 5, commit=False)

    @rule()
    def sweep(self) -> None:
        self.shared.sweep()

    # ---- removal

    @rule(
        store=STORES, topic=st.sampled_from(TOPICS), key=st.sampled_from([None, *KEYS]), first=SHARES, last=SHARES,
        is_whole=st.booleans(),
    )  # fmt: skip
    def erase(self, store: int, topic: str, key: str | None, first: float, last: float, is_whole: bool) -> None:
        bounds = (0, END_OF_TIME_MS) if is_whole else self.shared.window("inside", first, last, TimeAxis.STORE)
        self.store(store).erase(Query(topic, key, *bounds))
        self.tally.count("erasures")

    @rule(store=STORES, topic=st.sampled_from(TOPICS), retention_ms=st.sampled_from([None, 60_000, DAY_MS]))
    def retain(self, store: int, topic: str, retention_ms: int | None) -> None:
        self.store(store).retain(topic, retention_ms)

    # ---- reading

    @rule(
        topic=st.sampled_from(TOPICS), key=st.sampled_from([None, ABSENT, "many-3", "often", *KEYS]),
        kind=st.sampled_from(["ever", "inside", "inside", "borders", "borders", "instant", "beside"]),
        first=SHARES, last=SHARES, limit=st.one_of(st.integers(1, 4), st.integers(5, 500)),
        axis=st.sampled_from(list(TimeAxis)), order=st.sampled_from(list(Order)),
    )  # fmt: skip
    def query(
        self, topic: str, key: str | None, kind: str, first: float, last: float, limit: int, axis: TimeAxis,
        order: Order,
    ) -> None:  # fmt: skip
        from_ms, to_ms = self.shared.window(kind, first, last, axis)
        self.shared.ask(Query(topic, key, from_ms, to_ms, limit, axis, order))

    def teardown(self) -> None:
        if hasattr(self, "shared"):
            self.shared.ask_everything(one_in=self.one_in)
            self.shared.sweep()  # what killed attempts left for longer than a day is a finding
            found = [line for store in self.shared.stores for line in store.engine.check(deep=True)]
            found += self.shared.cold.check(deep=True)
            assert found == [], found


def run(examples: int, steps: int, one_in: int) -> None:
    LookUpMachine.tally, LookUpMachine.one_in = Tally(), one_in
    run_state_machine_as_test(
        LookUpMachine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
    print(f"\nlook-ups beside a plain list: {LookUpMachine.tally}")


def test_every_answer_equals_a_scan_of_all_that_was_appended() -> None:
    run(2, 12, one_in=5)


@pytest.mark.slow
def test_every_answer_equals_a_scan_of_all_that_was_appended_in_long_histories() -> None:
    run(12, 50, one_in=1)
