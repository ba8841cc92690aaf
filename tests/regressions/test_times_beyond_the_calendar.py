"""Messages with born times from the year 10000 on were taken, and then missing in answers that said complete."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from pyspark.sql.types import BinaryType, StructField, StructType, TimestampType

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.engines import small_settings, tiny_settings
from tests.support.stores.hot_stores import ROOT
from tests.support.world import World, read_all, send
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.remote_search import RemoteSearch
from tierlog.index.search.results import PAGE_BYTES
from tierlog.index.search.searcher import search
from tierlog.pipeline.new_store.input_rows import InputRows
from tierlog.service.api.application.app import create_app
from tierlog.service.archive.archived_stores import ArchiveRoot
from tierlog.service.cli.line_loader import EPOCH_MS, TimestampParser
from tierlog.service.cli.salvager import BORN_PROPERTY, salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.producers import AsyncProducer, Producer
from tierlog.service.engine.store import Store
from tierlog.service.wire.hot_page import hot_stream, read_hot_stream
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.times import format_time
from tierlog.tiering.base.types import END_OF_TIME_MS, Durability, Order, TimeAxis
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.batch import BORN_END_MS, Message, MessageBatch

#: 2026-03-01 in microseconds, as some clients send it.
MICROSECONDS = 1_772_344_800_000_000
LAST_MS = BORN_END_MS - 1
HINT = "milliseconds since the epoch, from 1970 to 9999; this looks like microseconds"


@pytest.fixture
def engine() -> Iterator[Store]:
    engine = Store.open(ROOT, settings=tiny_settings(), clock=ManualClock(), fs=CrashFileSystem())
    yield engine
    engine.close()


def one_by_one(engine: Store, born_ms: int) -> None:
    with Producer(engine) as producer:
        producer.send("t", b"x", born_ms=born_ms)


def beside_the_loop(engine: Store, born_ms: int) -> None:
    async def main() -> None:
        async with AsyncProducer(engine) as producer:
            await producer.send("t", b"x", born_ms=born_ms)

    asyncio.run(main())


def in_columns(engine: Store, column: str, values: pa.Array) -> None:
    engine.append(ArrowMessages(pa.table({"body": [b"x"] * len(values), column: values}), "t"))


WAYS: dict[str, Callable[[Store, int], object]] = {
    "alone": lambda engine, ms: engine.append([Message("t", b"x", born_ms=ms)]),
    "alone, in a hurry": lambda engine, ms: engine.append([Message("t", b"x", born_ms=ms)], Durability.ASYNC),
    "beside others": lambda engine, ms: engine.append([Message("t", b"x"), Message("t", b"x", born_ms=ms)]),
    "Producer": one_by_one,
    "AsyncProducer": beside_the_loop,
    "Arrow": lambda engine, ms: in_columns(engine, "born_ms", pa.array([5, ms], pa.int64())),
    "Arrow, in s": lambda engine, ms: in_columns(engine, "born_time", pa.array([5, -(-ms // 1000)], pa.timestamp("s"))),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_no_calendar_says_is_refused_with_a_hint(engine: Store, way: Callable[[Store, int], object]) -> None:
    with pytest.raises(InvalidRequestError, match="bad born time 1772344800000000") as refused:
        way(engine, MICROSECONDS)
    assert refused.value.hint is not None
    assert HINT in refused.value.hint
    for ms in (LAST_MS + 1, 1 << 62):
        with pytest.raises(InvalidRequestError, match=r"bad born time|out of bounds"):
            way(engine, ms)
    assert [topic.queues[0].max_offset for topic in engine.topics()] in ([], [0])
    way(engine, LAST_MS // 1000 * 1000)
    way(engine, 0)


def test_nanoseconds_are_told_from_microseconds() -> None:
    with pytest.raises(InvalidRequestError, match="this looks like nanoseconds"):
        MessageBatch.of([Message("t", b"x", born_ms=MICROSECONDS * 1000)], now_ms=0, max_body_bytes=9)
    with pytest.raises(InvalidRequestError) as refused:
        MessageBatch.of([Message("t", b"x", born_ms=-1)], now_ms=0, max_body_bytes=9)
    assert "looks like" not in str(refused.value)


def test_a_timestamp_that_is_no_int64_of_ms_is_refused(engine: Store) -> None:
    with pytest.raises(InvalidRequestError, match="born_time"):
        in_columns(engine, "born_time", pa.array([1 << 60], pa.timestamp("s")))


@pytest.mark.parametrize("count", [1, 5, 500])
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_over_http_the_hint_is_in_the_answer(engine: Store, count: int, kind: str) -> None:
    client = TestClient(create_app(engine, tiny_settings()), "http://localhost", raise_server_exceptions=False)

    def post(born_ms: int) -> Any:
        rows = [{"body": "x" * 30}] * (count - 1) + [{"body": "x", "born_ms": born_ms}]
        text = json.dumps({"messages": rows}) if "ndjson" not in kind else "\n".join(map(json.dumps, rows))
        return client.post("/v1/topics/t/messages", content=text, headers={"Content-Type": kind})

    answer = post(MICROSECONDS)
    assert answer.status_code == 422
    assert HINT in answer.json()["detail"]
    assert post(LAST_MS).status_code == 200


def test_over_http_as_arrow(engine: Store) -> None:
    client = TestClient(create_app(engine, tiny_settings()), "http://localhost", raise_server_exceptions=False)
    table = pa.table({"body": [b"x"], "born_ms": pa.array([MICROSECONDS])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    kind = {"Content-Type": "application/vnd.apache.arrow.stream"}
    answer = client.post("/v1/topics/t/messages", content=sink.getvalue().to_pybytes(), headers=kind)
    assert answer.status_code in (400, 422)
    assert HINT in answer.text


def test_a_line_of_a_log_file_and_a_row_of_a_new_store(engine: Store) -> None:
    times = TimestampParser(re.compile(r"^\d+"), EPOCH_MS, year=None, now_ms=0)
    with pytest.raises(InvalidRequestError, match="this looks like microseconds"):
        times.of_line(f"{MICROSECONDS} x")
    assert times.of_line(f"{LAST_MS} x") == LAST_MS
    schema = StructType([StructField("body", BinaryType()), StructField("born_time", TimestampType())])
    rows = InputRows.of(schema, store_ms=5, topic="t")
    batch = pa.record_batch({"body": [b"x"], "born_time": pa.array([MICROSECONDS * 1000], pa.timestamp("us", "UTC"))})
    with pytest.raises(InvalidRequestError, match="this looks like microseconds"):
        rows.messages(batch)


# what is stored already

#: Five times that people know, and ten beyond: one at the very end of the year 9999, one that int64 just holds.
BORN = [
    0, 5, 1_772_344_800_000, 1_772_344_800_001, LAST_MS - 1,
    LAST_MS, LAST_MS + 1, LAST_MS + 2, *(MICROSECONDS + number for number in range(5)), 1 << 62, (1 << 63) - 1,
]  # fmt: skip
EARLY = [-(1 << 63), -(1 << 40), -1]


class OddTimes(World):
    """A store into which somebody wrote such records before they were refused; some hot, some archived, or all."""

    def __init__(self, root: Path, *, archived: int) -> None:
        super().__init__(root, store_id="a")
        self.open()
        self.times = [*BORN, *EARLY]
        for number, born_ms in enumerate(self.times):
            self.write(number, born_ms)
            if number == archived:
                self.engine.archive(everything=True, drop_hot=True)

    def write(self, number: int, born_ms: int) -> None:
        self.clock.advance(10)
        message = Message("t", b"%d" % number, ["k"], queue_id=number % 2)
        batch = MessageBatch.of([message], now_ms=0, max_body_bytes=100)
        old = replace(batch, born_ms=np.array([born_ms], np.int64))
        self.engine._hot.append(old, Durability.FLUSHED, None, create_topics=True)


@pytest.fixture(params=[-1, 8, len(BORN) + len(EARLY) - 1], ids=["hot", "both", "archived"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    found = OddTimes(tmp_path / "store", archived=request.param)
    yield found
    found.engine.close()


def paged(ask: Callable[[Query], Answer], query: Query) -> list[int]:
    """Born times of all pages."""
    found: list[int] = []
    while True:
        answer = ask(query)
        assert answer.coverage.complete
        found += [message.record.born_ms for message in answer.messages]
        if answer.next_cursor is None:
            return found
        query = replace(query, cursor=answer.next_cursor)


def ways_to_ask(world: World) -> Iterator[Callable[[Query], Answer]]:
    """The engine, and a querier that has the archive and the page of the hot tier."""
    yield world.engine.query
    archive = ArchiveRoot("memory://c", world.settings, world.clock, world.bucket)
    cold = archive.store("a").index if world.engine.stats()["archived_to"] else None

    def remote(query: Query) -> Answer:
        page = read_hot_stream(hot_stream(world.engine.hot_page(query, page_bytes=PAGE_BYTES)))
        return search([RemoteSearch(page, "http://a", cold)], query)

    yield remote


@pytest.mark.parametrize("order", Order)
def test_an_open_range_reaches_everything(world: OddTimes, order: Order) -> None:
    expected = sorted(world.times, reverse=order is Order.NEWEST)
    for ask in ways_to_ask(world):
        for key, limit in product((None, "k"), (1, 4, 100)):
            assert paged(ask, Query("t", key, axis=TimeAxis.BORN, order=order, limit=limit)) == expected
            assert len(paged(ask, Query("t", key, order=order, limit=limit))) == len(expected)


RANGES = [
    (5, END_OF_TIME_MS), (LAST_MS, END_OF_TIME_MS), (0, LAST_MS), (0, END_OF_TIME_MS + 1), (0, MICROSECONDS + 2),
    (MICROSECONDS, 1 << 62), (END_OF_TIME_MS, 1 << 63), (-2, 6), (-(1 << 63), 0), (1, 2),
]  # fmt: skip


@pytest.mark.parametrize("order", Order)
def test_a_bounded_range_gives_what_lies_in_it(world: OddTimes, order: Order) -> None:
    for (from_ms, to_ms), key in product(RANGES, (None, "k")):
        low = from_ms if from_ms else -(1 << 63)
        high = to_ms if to_ms != END_OF_TIME_MS else 1 << 63
        expected = sorted((ms for ms in world.times if low <= ms < high), reverse=order is Order.NEWEST)
        query = Query("t", key, from_ms, to_ms, axis=TimeAxis.BORN, order=order, limit=3)
        assert paged(world.engine.query, query) == expected, query


@pytest.mark.parametrize("order", Order)
def test_a_page_claims_what_was_searched(world: OddTimes, order: Order) -> None:
    """Whatever is claimed of a tier, all that it holds there is in the pages so far, or has the last one's time."""
    for ask in ways_to_ask(world):
        query = Query("t", axis=TimeAxis.BORN, order=order, limit=4)
        seen: set[int] = set()
        while True:
            answer = ask(query)
            page = [message.record.born_ms for message in answer.messages]
            seen.update(page)
            claims = [claim for store in answer.coverage.stores for claim in store.claims()]
            assert claims
            for claim in claims:
                claimed = [ms for ms in world.times if claim.from_ms <= ms < claim.to_ms]
                assert set(claimed) <= seen
            json.dumps(answer.coverage.to_json())
            if answer.next_cursor is None:
                break
            query = replace(query, cursor=answer.next_cursor)


def test_whole_claims_are_said_as_the_query_asks(world: OddTimes) -> None:
    answer = world.engine.query(Query("t", axis=TimeAxis.BORN, limit=100))
    for claim in answer.coverage.stores[0].claims():
        assert (claim.from_ms, claim.to_ms) == (0, END_OF_TIME_MS)


def test_such_times_are_shown_as_numbers(world: OddTimes) -> None:
    client = TestClient(create_app(world.engine, world.settings), "http://localhost")
    rows = client.get("/v1/topics/t/messages?time=born&limit=100").json()["messages"]
    assert [row["born_ms"] for row in rows] == sorted(world.times, reverse=True)
    assert format_time(MICROSECONDS) == str(MICROSECONDS)
    table = pa.ipc.open_stream(
        client.get(
            "/v1/topics/t/messages?time=born&limit=100", headers={"Accept": "application/vnd.apache.arrow.stream"}
        ).content
    ).read_all()
    assert table["born_ms"].to_pylist() == sorted(world.times, reverse=True)
    assert client.get("/v1/timeline").status_code == 200


def test_salvage_keeps_what_an_append_would_refuse() -> None:
    world = World(settings=small_settings())
    old = world.open("a")
    send(old, "orders", 0, 4)
    old.archive(everything=True)
    batch = MessageBatch.of([Message("orders", b"odd 1.", queue_id=0)] * 2, now_ms=0, max_body_bytes=100)
    odd = replace(batch, born_ms=np.array([MICROSECONDS, -7], np.int64))
    old._hot.append(odd, Durability.FLUSHED, None, create_topics=True)
    old.close()
    new = world.open("b", restore=True)
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(77), world.objects)
    report = salvage(world.place("a"), components, LocalWriter(new), lambda done, of: None)
    assert report.appended == 2
    found = [one for one in read_all(new, "orders", 0) if one.record.body == b"odd 1."]
    assert [(one.record.born_ms, one.properties[BORN_PROPERTY]) for one in found] == [
        (LAST_MS, str(MICROSECONDS)), (0, "-7"),
    ]  # fmt: skip
