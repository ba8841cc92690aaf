"""A query by columns gives the rows, cursors and claims of the query message by message, whatever lies where."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.results import PAGE_BYTES
from tierlog.service.archive.readers import StoreReader
from tierlog.service.wire.paged_query import PagedQuery
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA, message_batch
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.record_columns import RecordBatchBuilder

QUEUES = 3
#: In a record of hosts with IPv4 addresses.
_BODY_AT = 88
PAGES = [(3, PAGE_BYTES), (40, 4_000), (1000, PAGE_BYTES)]


class SearchedWorld(World):
    """A store that is written to, archived, erased from and expired by chance, born times in any order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(settings=tiny_settings(hot__default_queues=QUEUES))
        self.open()
        for _ in range(3):
            self.append()
        self.engine.archive()

    def message(self, topic: str) -> Message:
        chance = self.chance
        keys = [f"k{chance.randrange(4)}" for _ in range(chance.choice((0, 1, 1, 3)))]
        properties = {f"p{number}": "ä" * number for number in range(1, chance.choice((1, 1, 4)))}
        return Message(
            topic, chance.randbytes(chance.choice((1, 5, 300, 5000))), keys, chance.choice(("", "A", "B")),
            properties=properties, queue_id=chance.randrange(QUEUES),
            born_ms=self.clock.now_ms() + chance.choice((0, 0, -500, 700)),
        )  # fmt: skip

    def append(self) -> None:
        self.clock.advance(self.chance.choice((0, 1, 50)))
        for topic in ("t", "other"):
            self.engine.append([self.message(topic) for _ in range(self.chance.choice((1, 20, 60)))])

    def step(self) -> None:
        """Something that moves messages, or hides some."""
        now_ms = self.clock.now_ms()
        steps: list[Callable[[], object]] = [
            self.append, self.append, self.engine._hot.roll,
            lambda: self.engine.archive(everything=True),
            lambda: self.engine.archive(everything=True, drop_hot=True),
            lambda: self.engine.removal.erase(
                Query("t", self.chance.choice((None, "k1", "k2")), 0, now_ms - self.chance.randrange(1, 100))
            ),
            lambda: self.engine.removal.configure("t", cold_retention_ms=self.chance.choice((30, 10_000))),
            self.engine.run_tiers,
        ]  # fmt: skip
        self.chance.choice(steps)()


def pages_of(engine: StoreReader, query: Query, page_bytes: int) -> list[Answer]:
    """The answers of a query that is followed to its end."""
    found = [engine.query(query, page_bytes=page_bytes)]
    while found[-1].next_cursor is not None:
        found.append(engine.query(replace(query, cursor=found[-1].next_cursor), page_bytes=page_bytes))
    return found


def claims(answer: Answer) -> dict[str, Any]:
    told = answer.coverage.to_json()
    return {name: told[name] for name in ("complete", "cut_by", "stores", "failures")}


def compare(engine: StoreReader, query: Query, page_bytes: int) -> int:
    """Compares the pages of both ways one by one; how many rows there are."""
    plain = pages_of(engine, query, page_bytes)
    columns = pages_of(engine, replace(query, by_columns=True), page_bytes)
    assert len(columns) == len(plain)
    for one, other in zip(columns, plain, strict=True):
        assert one.rows is not None
        one.rows.validate(full=True)
        assert one.rows.equals(message_batch(other.messages, FOUND_SCHEMA))
        assert one.next_cursor == other.next_cursor
        assert claims(one) == claims(other)
        assert one.count == other.count
    if len(plain) == 1:
        assert columns[0].coverage.to_json()["segments"] == plain[0].coverage.to_json()["segments"]
    return sum(one.count for one in columns)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed in (1, 2, 3, 4) else []) for seed in range(6)]
)
def test_rows_cursors_and_claims_are_those_of_the_query_by_messages(seed: int) -> None:
    world, rows = SearchedWorld(seed), 0
    for turn in range(6):
        world.step()
        readers: list[StoreReader] = [world.engine, world.cold()]
        for reader, axis, order in product(readers, TimeAxis, Order):
            limit, page_bytes = world.chance.choice(PAGES) if turn < 5 else PAGES[2]
            window = world.chance.choice(((0, None), (world.clock.now_ms() - 120, world.clock.now_ms() - 20)))
            query = Query("t", from_ms=window[0], limit=limit, axis=axis, order=order)
            rows += compare(reader, query if window[1] is None else replace(query, to_ms=window[1]), page_bytes)
    assert rows > 100
    world.engine.close()


def test_no_record_of_ours_is_made_into_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SearchedWorld(5)
    world.archive()
    world.append()

    def fail(*_: object) -> None:
        raise AssertionError("a message was made")

    monkeypatch.setattr(RecordBatchBuilder, "add_plain", fail)
    found = [pages_of(world.engine, Query("t", limit=50, axis=axis, by_columns=True), 1 << 20) for axis in TimeAxis]
    assert [sum(page.count for page in pages) > 10 for pages in found] == [True, True]


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_record_of_the_log_costs_itself_and_the_answer_says_so(seed: int) -> None:
    world = SearchedWorld(seed)
    query = Query("t", limit=1000)
    held = world.engine.query(query).messages
    hot = [one for one in held if one.tier.value == "hot"] or held
    victim = world.chance.choice(hot).record
    log = world.engine._hot.log
    below = [one for one in log.segments() if one.base_offset <= victim.physical_offset]
    segment = max(below, key=lambda one: one.base_offset)
    data = segment.data.copy()
    data[victim.physical_offset - segment.base_offset + _BODY_AT] ^= 4
    log._segments[segment.base_offset] = replace(segment, data=data)
    for axis, order in product(TimeAxis, Order):
        plain = world.engine.query(replace(query, axis=axis, order=order))
        columns = world.engine.query(replace(query, axis=axis, order=order, by_columns=True))
        assert columns.rows is not None
        assert columns.coverage.complete == plain.coverage.complete
        assert columns.coverage.failures == plain.coverage.failures
        found = set(columns.rows.column("physical_offset").to_pylist())
        assert found >= {one.record.physical_offset for one in plain.messages}
        assert victim.physical_offset not in found
        (store,) = columns.coverage.stores
        time_ms = victim.store_ms if axis is TimeAxis.STORE else victim.born_ms
        assert store.hot is None or not store.hot.from_ms <= time_ms < store.hot.to_ms


@pytest.mark.parametrize("order", Order)
def test_a_segment_that_cannot_be_read_is_a_failure_of_both_ways(order: Order) -> None:
    world = SearchedWorld(2)
    world.archive()
    world.append()
    world.objects.delete(next(iter(world.objects.list("store/log/"))).key)
    query = Query("t", limit=1000, order=order)
    plain, columns = (world.cold().query(one) for one in (query, replace(query, by_columns=True)))
    assert columns.coverage.failures == plain.coverage.failures != []
    assert claims(columns) == claims(plain)


def test_a_followed_query_asks_for_as_many_rows_as_fill_a_page() -> None:
    world = SearchedWorld(4)
    asked: list[Query] = []

    def ask(query: Query, page_bytes: int) -> Answer:
        asked.append(query)
        return world.engine.query(query, page_bytes=page_bytes)

    pages = list(PagedQuery(ask, Query("t"), 64 << 10).pages())
    expected = world.engine.query(Query("t", limit=10_000)).messages
    assert pa.Table.from_batches(pages).combine_chunks().to_batches()[0].equals(message_batch(expected, FOUND_SCHEMA))
    assert asked[0].limit == 64
    assert all(query.by_columns for query in asked)
    asked.clear()
    list(PagedQuery(ask, Query("t", "k1"), 64 << 10).pages())
    assert not any(query.by_columns for query in asked)


def test_a_key_or_a_dry_run_is_not_by_columns() -> None:
    with pytest.raises(InvalidRequestError, match="by columns"):
        Query("t", "k", by_columns=True)
    with pytest.raises(InvalidRequestError, match="by columns"):
        Query("t", dry_run=True, by_columns=True)
