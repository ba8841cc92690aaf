"""Pages follow each other while the store moves: what was there all the time comes once and in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.index.index_merge import Shape
from tests.support.oracles.plain_search import Kept, as_kept, is_behind, matching
from tests.support.stores.look_up_stores import DAY_MS, TOPICS, Sending, SharedBucket, Sizes
from tierlog.index.search.query import Query
from tierlog.tiering.base.types import Order, TimeAxis

_QUICK = 1
_RUNS = 24


class MovingStore:
    """One store, and a random step between any two pages."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shared = SharedBucket(Sizes(items=self.chance.choice([5, 20, 60])))
        self.store = self.shared.stores[0]
        for _ in range(3):
            self.append(60)
            self.store.archive_everything()
        self.store.drop_archived()
        self.append(60)
        self.steps: list[tuple[int, Callable[[], object]]] = [
            (4, lambda: self.append(20)), (2, self.store.archive_everything), (2, self.store.drop_hot),
            (1, self.store.roll), (1, self.store.seal), (4, self.merge), (2, self.erase), (2, self.store.rewrite),
            (1, self.expire), (1, self.store.round), (1, self.store.reopen), (1, self.store.kill),
            (1, self.shared.sweep),
        ]  # fmt: skip

    def append(self, count: int) -> None:
        """Messages of two topics, most with the key that is asked for; some are born days before others."""
        for start in range(0, count, 5):
            self.shared.clock.advance(self.chance.choice([0, 1, 1000, 60_000]))
            self.store.append(
                [
                    Sending(TOPICS[(start + number) % 2], ("often",) if number % 4 else ("Aa",), self.skew_ms(), 150)
                    for number in range(5)
                ]
            )

    def skew_ms(self) -> int:
        return self.chance.choice([0, 0, -500, -3 * DAY_MS, 2 * DAY_MS])

    def merge(self) -> None:
        shape = Shape(self.chance.choice([1, 3]), self.chance.choice([200, 65_536]))
        self.store.merge(0, self.chance.randrange(9), self.chance.randrange(2, 9), shape)

    def erase(self) -> None:
        window = self.shared.window("inside", self.chance.random(), self.chance.random(), TimeAxis.STORE)
        self.store.erase(Query("Aa", self.chance.choice([None, "often", "Aa"]), window[0], window[0] + 30_000))

    def expire(self) -> None:
        self.store.retain("Aa", self.chance.choice([600_000, DAY_MS]))
        self.shared.clock.advance(61_000)
        self.store.rewrite()

    def step(self) -> None:
        self.chance.choices([step for _, step in self.steps], [weight for weight, _ in self.steps])[0]()

    def page_through(self, query: Query, *, cold: bool) -> int:
        """Ask page after page with steps between them; how many pages there were."""
        held = self.store.archived if cold else self.store.held
        always = {each.kept for each in matching(query, held())}
        ever, found, pages = set(always), list[Kept](), 0
        while True:
            answer = (self.shared.cold.query if cold else self.store.engine.query)(query)
            assert answer.coverage.complete, answer.coverage
            assert answer.coverage.failures == []
            pages += 1
            there = {each.kept for each in matching(query, held())}
            page = [as_kept(message) for message in answer.messages]
            assert set(page) <= there, "a page shows what is not there"
            found += page
            always &= there
            ever |= there
            if answer.next_cursor is None:
                break
            query = replace(query, cursor=answer.next_cursor)
            for _ in range(self.chance.randrange(3)):
                self.step()
        places = [kept.place(query.axis) for kept in found]
        is_in_order = all(is_behind(later, place, query.order) for place, later in pairwise(places))
        assert is_in_order, f"not in order, or twice: {query}"
        assert always <= set(found), f"{query}: lost {sorted(always - set(found), key=lambda kept: kept.offset)[:3]}"
        assert set(found) <= ever
        return pages


def run(seed: int) -> None:
    moving = MovingStore(seed)
    pages = 0
    for number in range(5):
        query = Query(
            "Aa", ("often", "often", None)[number % 3], limit=moving.chance.choice([1, 4, 7, 30]) if number else 4,
            axis=moving.chance.choice(list(TimeAxis)), order=moving.chance.choice(list(Order)),
        )  # fmt: skip
        pages += moving.page_through(query, cold=number % 2 == 1)
    assert pages > 5, "no page was followed by another"
    assert moving.store.engine.query(Query("Aa", limit=1)).coverage.complete


@pytest.mark.parametrize(
    "number", [*range(_QUICK), *(pytest.param(each, marks=pytest.mark.slow) for each in range(_QUICK, _RUNS))]
)
def test_every_message_that_stays_comes_once_and_in_order(number: int, seed: int) -> None:
    try:
        run(seed + number)
    except BaseException as error:
        error.add_note(f"seed {seed + number}")
        raise
