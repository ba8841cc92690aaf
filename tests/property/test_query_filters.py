"""What filters let through is what a plain list comprehension does: over both tiers, pages, budgets and faults."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import small_settings
from tierlog.index.search.hot_search import HotTierSearch, hot_page
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.remote_search import RemoteSearch, check_page
from tierlog.index.search.results import range_behind_cursor
from tierlog.index.search.searcher import Searcher, search
from tierlog.service.archive.archived_stores import ArchiveRoot
from tierlog.service.engine.store import Store
from tierlog.service.wire.hot_page import hot_stream, read_hot_stream
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Order, Tier, TimeAxis
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.memory import MemoryObjectStore

_QUICK, _RUNS = 1, 12
_URL = "memory://filtered"
_TAGS = ("", "paid", "sent", "lost")
_REGIONS = ("eu", "us", "=", "")
#: Bodies that no filter may stumble over.
_ODD = (
    b"\xff\xfe\x00eu", b"[" * 500, b'{"region":' * 50, b'{"region": "eu"', b'{"region": NaN}', b"null", b"{}", b"[]",
    b'{"region": 1' + b"0" * 500 + b"}", b'{"region": "\\ud800"}', b'{"region": "\\u0065u"}', "{\u00a0}".encode(),
)  # fmt: skip


class FilteredStore:
    """One store, parts of which are hot, archived, or both; and everything that was put into it, as a list."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.bucket = FaultyObjectStore(MemoryObjectStore(self.clock))
        self.pool = WorkerPool(8)
        self.settings = small_settings(hot__segment_bytes=8192)
        self.engine = Store.open(
            root / "store", settings=self.settings, cold_url=_URL, store_id="a", clock=self.clock, objects=self.bucket
        )
        self.archive = ArchiveRoot(_URL, self.settings, self.clock, self.bucket)
        for number in range(8):
            self.append()
            if number % 3 == 1:
                # the first always: where all of it is hot, no budget ends
                self.engine.archive(everything=True, drop_hot=self.chance.random() < 0.7 or number == 1)

    def append(self) -> None:
        self.clock.advance(self.chance.choice([1, 7, 500]))
        self.engine.append([self.message() for _ in range(self.chance.randrange(5, 25))])

    def message(self) -> Message:
        chance = self.chance
        region = chance.choice(_REGIONS)
        number: Any = chance.choice([7, 7.5, True, None, "7", [7], {"deep": "eu"}])
        body = json.dumps({"region": region, "order": {"id": number}, "a.b": "eu"}).encode()
        if chance.random() < 0.2:
            body = chance.choice(_ODD)
        properties = {"region": "eu"} if chance.random() < 0.2 else {}
        return Message(
            "orders", body, [f"k{chance.randrange(3)}"], tag=chance.choice(_TAGS), properties=properties,
            born_ms=self.clock.now_ms() + chance.choice([0, -10_000, 10_000]),
        )  # fmt: skip

    def query(self) -> Query:
        chance = self.chance
        fields = (("region", "eu"), ("region", "="), ("order.id", "7"), ("order.id", "true"), ("a.b", "eu"))
        return Query(
            "orders", chance.choice([None, None, "k0"]), limit=chance.choice([3, 10, 30, 100]),
            axis=chance.choice(list(TimeAxis)), order=chance.choice(list(Order)),
            tag=chance.choice([None, None, "paid", "paid || sent"]),
            contains=chance.choice([(), (), ("eu",), ('"region"', "us")]),
            where=chance.choice([(), (fields[0],), (chance.choice(fields),), (fields[0], fields[2])]),
        )  # fmt: skip

    def oracle(self, query: Query) -> list[StoredMessage]:
        """What passes, of everything that a query without filters gives."""
        plain = Query(query.topic, query.key, limit=10_000, axis=query.axis, order=query.order)
        answer = self.engine.query(plain)
        assert answer.coverage.complete
        return [message for message in answer.messages if passes(query, message)]


def passes(query: Query, message: StoredMessage) -> bool:
    """Says anew what the filters promise."""
    body = message.record.body
    tags = None if query.tag is None else [tag.strip() for tag in query.tag.split("||")]
    is_field = [
        message.properties.get(name) == value or value in list(_values(_plain(body), name))
        for name, value in query.where
    ]
    return (tags is None or message.tag in tags) and all(t.encode() in body for t in query.contains) and all(is_field)


def _plain(body: bytes) -> object:
    try:
        return json.loads(body.decode(), parse_constant=lambda _: 1 / 0, parse_int=_Text, parse_float=_Text)
    except (ValueError, RecursionError, ZeroDivisionError):
        return None


class _Text(str):
    __slots__ = ()


def _values(value: object, path: str) -> Iterator[str]:
    if path == "":
        if isinstance(value, str):
            yield value
        elif value is None or isinstance(value, bool):
            yield json.dumps(value)
        return
    for name, inner in value.items() if isinstance(value, dict) else ():
        if path == name:
            yield from _values(inner, "")
        elif path.startswith(f"{name}."):
            yield from _values(inner, path[len(name) + 1 :])


def shown(messages: list[StoredMessage]) -> list[int]:
    return [message.record.physical_offset for message in messages]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[[int], FilteredStore]]:
    made: list[FilteredStore] = []

    def make(seed: int) -> FilteredStore:
        made.append(FilteredStore(tmp_path / str(len(made)), seed))
        return made[-1]

    yield make
    for store in made:
        store.bucket.heal()
        store.engine.close()


runs = pytest.mark.parametrize(
    "number", [*range(_QUICK), *(pytest.param(each, marks=pytest.mark.slow) for each in range(_QUICK, _RUNS))]
)


@runs
def test_pages_have_what_passes_and_a_limit_counts_only_that(
    number: int, seed: int, stores: Callable[[int], FilteredStore]
) -> None:
    store, matched = stores(seed + number), 0
    for _ in range(8):
        query = store.query()
        wanted, found = store.oracle(query), list[StoredMessage]()
        while True:
            answer = store.engine.query(query)
            coverage = answer.coverage
            assert coverage.complete
            assert coverage.examined_to_ms is None
            assert coverage.messages_read >= coverage.messages_matched >= len(answer.messages)
            found += answer.messages
            if answer.next_cursor is None:
                break
            assert len(answer.messages) == query.limit, "a page that is not full has no next"
            query = replace(query, cursor=answer.next_cursor)
        assert shown(found) == shown(wanted), query
        matched += len(found)
    assert matched > 10


@runs
def test_a_budget_that_ends_in_a_long_run_leaves_a_cursor_that_skips_nothing_and_repeats_nothing(
    number: int, seed: int, stores: Callable[[int], FilteredStore]
) -> None:
    store, cut = stores(seed + number), 0
    while cut < 3:
        query = replace(store.query(), max_requests=store.chance.choice([4, 8, 16]))
        if query.filters is None:
            continue
        wanted, found = store.oracle(query), list[StoredMessage]()
        while True:
            answer = fresh(store, query)
            coverage = answer.coverage
            found += answer.messages if coverage.complete or answer.next_cursor is not None else []
            assert shown(found) == shown(wanted)[: len(found)], query
            if coverage.examined_to_ms is not None:
                cut += 1
                assert (coverage.complete, coverage.cut_by) == (False, "budget")
                _check_examined(query, answer, wanted, len(found))
            if answer.next_cursor is not None:
                assert answer.next_cursor != query.cursor, "it would go round for ever"
                query = replace(query, cursor=answer.next_cursor)
            elif coverage.complete:
                break
            else:
                assert query.max_requests is not None
                query = replace(query, max_requests=2 * query.max_requests)
        assert shown(found) == shown(wanted), query


def fresh(store: FilteredStore, query: Query) -> Answer:
    """Asks with empty caches, so that every page has to spend its budget."""
    archive = ArchiveRoot(_URL, store.settings, store.clock, store.bucket)
    page = store.engine.hot_page(replace(query, max_requests=None))
    check_page(page, query, range_behind_cursor(query))
    searcher = store.chance.choice([Searcher(), Searcher(store.pool, 8)])
    return searcher.search([RemoteSearch(page, "http://x", archive.store("a").index)], query)


def _check_examined(query: Query, answer: Answer, wanted: list[StoredMessage], found: int) -> None:
    """What was claimed to be examined is: nothing that was not given is in it."""
    examined_ms = answer.coverage.examined_to_ms
    assert examined_ms is not None
    for message in wanted[found:]:
        time_ms = message.time_ms(query.axis)
        assert time_ms < examined_ms if query.order is Order.NEWEST else time_ms >= examined_ms
        for claim in answer.coverage.stores[0].claims():
            assert not claim.from_ms <= time_ms < claim.to_ms


@runs
def test_what_cannot_be_read_is_not_claimed_and_the_rest_is_filtered_all_the_same(
    number: int, seed: int, stores: Callable[[int], FilteredStore]
) -> None:
    store, failed = stores(seed + number), 0
    while failed < 3:
        query = replace(store.query(), limit=1000)
        wanted = store.oracle(query)
        store.bucket.fail_before("get_range", "*/log/*", times=store.chance.choice([1, 3]))
        answer = fresh(store, query)
        store.bucket.heal()
        failed += bool(answer.coverage.failures)
        assert answer.coverage.complete == (not answer.coverage.failures)
        assert set(shown(answer.messages)) <= set(shown(wanted))
        (covered,) = answer.coverage.stores
        for message in wanted:
            claim = covered.hot if message.tier is Tier.HOT else covered.cold
            if claim is not None and claim.from_ms <= message.time_ms(query.axis) < claim.to_ms:
                assert message.record.physical_offset in shown(answer.messages)


class TickingClock(ManualClock):
    """Time goes on whenever somebody looks."""

    def monotonic_s(self) -> float:
        self.advance(1)
        return super().monotonic_s()


@runs
def test_a_store_whose_time_runs_out_tells_how_far_it_came_and_the_querier_goes_on_there(
    number: int, seed: int, stores: Callable[[int], FilteredStore]
) -> None:
    store, cut = stores(seed + number), 0
    for _ in range(6):
        store.append()
    while cut < 3:
        query = replace(store.query(), timeout_ms=store.chance.randrange(3, 9))
        if query.filters is None:
            continue
        wanted, found = store.oracle(query), list[StoredMessage]()
        while True:
            page = read_hot_stream(hot_stream(_timed_page(store, query)))
            check_page(page, query, range_behind_cursor(query))
            index = store.archive.store("a").index
            answer = search([RemoteSearch(page, "http://x", index)], replace(query, timeout_ms=None))
            coverage = answer.coverage
            found += answer.messages if coverage.complete or answer.next_cursor is not None else []
            assert shown(found) == shown(wanted)[: len(found)], query
            if coverage.examined_to_ms is not None:
                cut += 1
                assert (coverage.complete, coverage.cut_by) == (False, "timeout")
                _check_examined(query, answer, wanted, len(found))
            if answer.next_cursor is not None:
                assert answer.next_cursor != query.cursor
                query = replace(query, cursor=answer.next_cursor)
            elif coverage.complete:
                break
            else:
                assert query.timeout_ms is not None
                query = replace(query, timeout_ms=2 * query.timeout_ms)
        assert shown(found) == shown(wanted), query


def _timed_page(store: FilteredStore, query: Query) -> Any:
    engine = store.engine
    tier = HotTierSearch("a", engine._hot, engine._index, engine._known)
    return hot_page(tier, engine._manifest, _URL, query, page_bytes=32 << 20, clock=TickingClock())
