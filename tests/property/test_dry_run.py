"""What a dry run says holds: the search that follows asks at least and at most as often, and reads all within that."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from tests.support.objects.priced_store import PricedStore
from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis
from tierlog.tiering.message.batch import Message

TOPICS = ("orders", "rare", "pays")
KEYS = tuple(f"key-{number}" for number in range(12))


class AskedWorld(World):
    """A store with an archive of random shape: some of it indexed, some archived only, some hot."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        settings = tiny_settings(
            index__slots=rng.choice([3, 50, 400]), index__items=rng.choice([40, 200, 1000]),
            cold__max_inline_entries=rng.choice([2, 6, 40]), query__concurrency=rng.choice([1, 4]),
        )  # fmt: skip
        super().__init__(settings=settings, seed=seed)
        self.begin_ms = self.clock.now_ms()
        self.priced = PricedStore(self.objects)
        self.open(objects=self.priced)
        number = 0
        for _ in range(rng.randrange(1, 7)):
            for _ in range(rng.randrange(20, 200)):
                number += 1
                self.clock.advance(rng.choice([0, 0, 3, 700]))
                keys = rng.sample(KEYS, k=rng.choice([0, 1, 1, 3])) + ([f"one-{number}"] if rng.random() < 0.3 else [])
                topic = TOPICS[0] if rng.random() < 0.8 else rng.choice(TOPICS)
                born_ms = self.clock.now_ms() - rng.randrange(100_000)
                body = b"%d" % number * rng.randrange(1, 60)
                self.engine.append([Message(topic, body, list(dict.fromkeys(keys)), born_ms=born_ms)])
            everything = rng.random() < 0.6
            self.engine.archive(everything=everything, drop_hot=rng.random() < 0.7)
        for topic in TOPICS:
            self.engine.append([Message(topic, b"last", [KEYS[0]])])
        self.end_ms = self.clock.now_ms()
        self.engine.archive(everything=rng.random() < 0.5, drop_hot=True)
        self.archive_reader = self.cold(self.priced)

    def reader(self) -> Store | Archive:
        """The store, or its archive alone; with nothing kept, or with what others left."""
        reader: Store | Archive = self.engine if self.rng.random() < 0.5 else self.archive_reader
        if self.rng.random() < 0.4:
            forget_all(reader)
        return reader

    def question(self) -> Query:
        rng = self.rng
        key = None if rng.random() < 0.3 else rng.choice([*KEYS, "absent", f"one-{rng.randrange(300)}"])
        times = sorted(rng.randrange(self.begin_ms - 50_000, self.end_ms + 50_000) for _ in range(2))
        from_ms, to_ms = (0, END_OF_TIME_MS) if rng.random() < 0.5 else (times[0], times[1] + 1)
        return Query(
            rng.choice(TOPICS), key, from_ms, to_ms, rng.choice([1, 3, 32, 500]), rng.choice(list(TimeAxis)),
            rng.choice(list(Order)),
        )  # fmt: skip


def forget_all(reader: Store | Archive) -> None:
    manifest = reader._manifest if isinstance(reader, Store) else reader._manifests["store"]
    assert manifest is not None
    for layer in (manifest.cache.metadata, manifest.cache.data):
        layer.drop([place for part in (layer._main, layer._scanned) for place in part])


@cache
def world_of(seed: int) -> AskedWorld:
    return AskedWorld(seed)


@pytest.mark.parametrize("seed", range(8))
def test_the_search_that_follows_keeps_within_the_estimate(seed: int) -> None:
    world = world_of(seed)
    for _ in range(40):
        reader, question = world.reader(), world.question()
        dry = reader.query(replace(question, dry_run=True))
        estimate = dry.estimate
        assert estimate is not None
        assert (dry.messages, dry.next_cursor, dry.coverage.cut_by) == ([], None, "dry_run")
        assert dry.coverage.requests == dry.coverage.manifest_requests
        least, likely, most = estimate.requests
        assert least <= likely <= most
        answer = reader.query(replace(question, max_requests=most))
        assert answer.coverage.cut_by != "budget", question
        assert answer.coverage.complete
        assert least <= answer.coverage.requests <= most, (question, estimate)
        if answer.next_cursor is not None:
            question = replace(question, cursor=answer.next_cursor)
            estimate = reader.query(replace(question, dry_run=True)).estimate
            assert estimate is not None
            answer = reader.query(replace(question, max_requests=estimate.requests.most))
            assert answer.coverage.complete, question
            if world.settings.query.concurrency == 1:  # else what the page before left in the air may come meanwhile
                assert estimate.requests.least <= answer.coverage.requests


def test_a_dry_run_asks_for_nothing_but_the_manifest() -> None:
    world = world_of(1)
    forget_all(world.archive_reader)
    asked: list[str] = []
    inner = world.priced.inner.get_range

    def get_range(key: str, start: int, end: int) -> bytes:
        asked.append(key)
        return inner(key, start, end)

    world.priced.inner.get_range = get_range  # type: ignore[method-assign]
    try:
        for _ in range(30):
            world.archive_reader.query(replace(world.question(), dry_run=True))
    finally:
        del world.priced.inner.get_range
    assert asked
    assert not [key for key in asked if key.endswith((".zst", ".idx"))]


def test_a_budget_that_does_not_suffice_for_the_manifest_is_told() -> None:
    cold = world_of(1).archive_reader

    def asked(budget: int | None) -> tuple[int, bool]:
        forget_all(cold)
        dry = cold.query(Query(TOPICS[0], KEYS[0], dry_run=True, max_requests=budget))
        assert dry.estimate is not None
        return dry.coverage.requests, dry.estimate.is_whole

    asked(None)  # what is remembered beside the caches is there from now on
    enough, _ = asked(None)
    assert enough > 1
    assert [asked(budget) for budget in range(enough)] == [(budget, False) for budget in range(enough)]
    assert asked(enough) == (enough, True)
