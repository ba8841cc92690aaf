"""A querier answers as the engines of its stores do, whatever moves between their pages and its search."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.hot_search import HotPage
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.remote_search import RemoteSearch, UnansweredSearch, check_page
from tierlog.index.search.results import PAGE_BYTES, range_behind_cursor
from tierlog.index.search.searcher import search
from tierlog.service.archive.archived_stores import ArchiveRoot
from tierlog.service.engine.store import Store
from tierlog.service.wire.hot_page import hot_stream, read_hot_stream
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CorruptionError, TopicNotFoundError, UnavailableError
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import Place, StoredMessage
from tierlog.tiering.objects.memory import MemoryObjectStore

_QUICK, _RUNS = 1, 8
_PAGES = 3
_URL = "memory://querier"


class Stores:
    """Some stores with one bucket, and a reader of it that has none of them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.bucket = MemoryObjectStore(self.clock)
        self.settings = tiny_settings()
        self.engines = [
            Store.open(
                root / name, settings=self.settings, cold_url=_URL, store_id=name, clock=self.clock,
                objects=self.bucket,
            )
            for name in ("a", "b", "c")[: self.chance.choice([2, 3])]
        ]  # fmt: skip
        self.archive = ArchiveRoot(_URL, self.settings, self.clock, self.bucket)
        for engine in self.engines:
            self.append(engine)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def append(self, engine: Store) -> None:
        self.clock.advance(self.chance.choice([0, 1, 500]))
        count = self.chance.randrange(1, 15)
        skew_ms = self.chance.choice([0, -10_000, 10_000])
        engine.append(
            [
                Message("orders", b"%d" % number * self.chance.choice([1, 100]), [f"k{number % 3}"],
                        born_ms=self.clock.now_ms() + skew_ms)
                for number in range(count)
            ]
        )  # fmt: skip

    def move(self) -> None:
        """Something that takes no message away."""
        engine = self.chance.choice(self.engines)
        kind = self.chance.randrange(3)
        if kind == 0:
            self.append(engine)
        else:
            engine.archive(everything=True, drop_hot=kind == 1)

    def erase(self) -> None:
        engine = self.chance.choice(self.engines)
        engine.archive(everything=True)
        engine.removal.erase(Query("orders", f"k{self.chance.randrange(3)}"))

    def pages(self, query: Query) -> list[HotPage]:
        """As they come over the network."""
        few = self.chance.choice([PAGE_BYTES, PAGE_BYTES, 2000])
        found = [read_hot_stream(hot_stream(engine.hot_page(query, page_bytes=few))) for engine in self.engines]
        for page in found:
            check_page(page, query, range_behind_cursor(query))
        return found

    def search(self, query: Query, pages: list[HotPage]) -> Answer:
        return search(
            [RemoteSearch(page, "http://x", self.archive.store(page.store_id).index) for page in pages], query
        )

    def oracle(self, query: Query) -> list[StoredMessage]:
        """Everything behind the cursor, as each store by itself answers."""
        found = [message for engine in self.engines for message in _all(engine, replace(query, limit=10_000))]
        return sorted(found, key=lambda one: one.place(query.axis), reverse=query.order is Order.NEWEST)


def _all(engine: Store, query: Query) -> Iterator[StoredMessage]:
    answer = engine.query(query)
    assert answer.coverage.complete
    assert answer.next_cursor is None
    yield from answer.messages


def _shown(messages: list[StoredMessage], query: Query) -> list[tuple[Place, bytes]]:
    return [(message.place(query.axis), message.record.body) for message in messages]


@pytest.mark.parametrize(
    "number", [*range(_QUICK), *(pytest.param(each, marks=pytest.mark.slow) for each in range(_QUICK, _RUNS))]
)
def test_the_stores_together_answer_as_each_by_itself_whatever_moves_meanwhile(
    number: int, seed: int, tmp_path: Path
) -> None:
    stores = Stores(tmp_path, seed + number)
    try:
        for _ in range(3):
            chance = stores.chance
            for _ in range(chance.randrange(4)):
                stores.move()
            if chance.random() < 0.3:
                stores.erase()
            query = Query(
                "orders", chance.choice([None, "k0", "k1"]), limit=chance.choice([1, 3, 10, 100]),
                axis=chance.choice(list(TimeAxis)), order=chance.choice(list(Order)),
            )  # fmt: skip
            for _ in range(_PAGES):
                wanted, pages = stores.oracle(query), stores.pages(query)
                for _ in range(chance.randrange(3)):
                    stores.move()
                answer = stores.search(query, pages)
                found = _shown(answer.messages, query)
                assert found == _shown(wanted, query)[: len(found)], f"seed {seed + number}: {query}"
                assert answer.coverage.complete
                assert len(found) <= query.limit
                assert (answer.next_cursor is not None) == (len(found) < len(wanted))
                assert found or not wanted
                if answer.next_cursor is None:
                    break
                query = replace(query, cursor=answer.next_cursor)
    finally:
        stores.close()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path, 1)
    yield found
    found.close()


def test_a_silent_store_makes_the_answer_incomplete_and_its_archive_is_searched(stores: Stores) -> None:
    query = Query("orders", limit=1000)
    silent, *others = stores.engines
    silent.archive(everything=True, drop_hot=True)
    archived = len(silent.query(query).messages)
    stores.append(silent)
    index = stores.archive.store(silent.store_id).index
    error = UnavailableError("no answer from http://gone")
    pages = [RemoteSearch(engine.hot_page(query), "http://x", None) for engine in others]
    answer = search([UnansweredSearch(silent.store_id, "http://gone", error, index, max_age_s=0), *pages], query)
    assert sum(message.store_id == silent.store_id for message in answer.messages) == archived > 0
    assert not answer.coverage.complete
    assert [failure.object for failure in answer.coverage.failures] == ["http://gone"]
    told = answer.coverage.stores[0]
    assert (told.store_id, told.hot, told.error) == (silent.store_id, None, str(error))


def test_a_topic_that_a_silent_store_may_have_is_not_said_to_be_unknown(stores: Stores) -> None:
    silent = stores.engines[0]
    silent.archive(everything=True)
    index = stores.archive.store(silent.store_id).index
    search_of = UnansweredSearch(silent.store_id, "http://gone", UnavailableError("gone"), index, max_age_s=0)
    answer = search([search_of], Query("payments"))
    assert (answer.messages, answer.coverage.complete) == ([], False)


def test_an_erasure_is_obeyed_at_once_though_the_head_that_was_read_does_not_know_it(stores: Stores) -> None:
    query, engine = Query("orders", "k0", limit=1000), stores.engines[0]
    engine.archive(everything=True, drop_hot=True)
    index = stores.archive.store(engine.store_id).index
    index.manifest.refresh()
    assert search([RemoteSearch(engine.hot_page(query), "http://x", index)], query).messages
    engine.removal.erase(Query("orders", "k0"))
    assert not search([RemoteSearch(engine.hot_page(query), "http://x", index)], query).messages
    engine.removal.delete_topic("orders")
    with pytest.raises(TopicNotFoundError):
        engine.hot_page(query)


def test_an_answer_about_something_else_is_refused(stores: Stores) -> None:
    page = stores.engines[0].hot_page(Query("orders", limit=5))
    for wrong in (Query("payments"), Query("orders", "nobody's"), Query("orders", limit=1), Query("orders", to_ms=1)):
        with pytest.raises(CorruptionError):
            check_page(page, wrong, range_behind_cursor(wrong))
    data = hot_stream(page)
    for garbage in (b"", data[:50], data[: len(data) // 2], b"<html>", data.replace(b"border", b"brodre")):
        with pytest.raises(CorruptionError):
            read_hot_stream(garbage)


def test_an_archive_that_is_not_read_here_is_said_to_be_missing(stores: Stores) -> None:
    query, engine = Query("orders"), stores.engines[0]
    engine.archive(everything=True, drop_hot=True)
    answer = search([RemoteSearch(engine.hot_page(query), "http://x", None)], query)
    assert not answer.coverage.complete
    assert answer.coverage.failures[0].object == _URL
