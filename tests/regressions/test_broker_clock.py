"""A broker's clock may have stepped back, and its log is out of the order of store times: no query misses anything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import NOW_MS, record
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Boundary, Order, TimeAxis
from tierlog.tiering.format.record import Record, encode_record
from tierlog.tiering.hot.snapshot_queue import offset_by_time, shown_queues

SEGMENT = 262_144


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """One queue; the clock steps back by 50 minutes three times, over two hours in all."""
    numbers, made, at, time_ms = random.Random(1), [], 0, NOW_MS + 9_000_000
    for number in range(600):
        time_ms += numbers.randrange(3000) - (3_000_000 if number in (150, 300, 450) else 0)
        text = f"KEYS\x01k{number} all\x02".encode()
        made.append(record(topic="a", queue_offset=number, physical_offset=at, store_ms=time_ms, properties_text=text))
        at += len(encode_record(made[-1]))
    return made


@pytest.fixture
def engine(tmp_path: Path, records: list[Record]) -> Iterator[Store]:
    (tmp_path / "commitlog").mkdir()
    data = b"".join(encode_record(each) for each in records)
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(data.ljust(SEGMENT, b"\0"))
    settings = tiny_settings(hot__segment_bytes=None, hot__queue_file_units=None)
    opened = Store.open(tmp_path, settings=settings, read_only=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("key", [None, "all"])
@pytest.mark.parametrize("order", Order)
def test_every_window(engine: Store, records: list[Record], key: str | None, order: Order) -> None:
    numbers = random.Random(2)
    for _ in range(40):
        from_ms, to_ms = sorted(numbers.choice(records).store_ms + numbers.randrange(-1500, 1500) for _ in range(2))
        inside = [(each.store_ms, each.physical_offset) for each in records if from_ms <= each.store_ms < to_ms]
        wanted = sorted(inside, reverse=order is Order.NEWEST)
        if from_ms == to_ms:
            continue
        for limit in (7, 1000):
            answer = engine.query(Query("a", key, from_ms, to_ms, limit=limit, order=order))
            assert [(each.record.store_ms, each.record.physical_offset) for each in answer.messages] == wanted[:limit]


@pytest.mark.slow
def test_one_message_at_its_own_instant(engine: Store, records: list[Record]) -> None:
    for number, each in enumerate(records):
        for key in (f"k{number}", None):
            answer = engine.query(Query("a", key, each.store_ms, each.store_ms + 1, axis=TimeAxis.STORE))
            assert each.physical_offset in {message.record.physical_offset for message in answer.messages}


def test_offset_of_a_time(engine: Store, records: list[Record]) -> None:
    hot = engine._hot
    with hot.snapshot() as snapshot:
        queue = shown_queues(hot, snapshot, hot.topics.get("a"))[0]
        for time_ms in (records[0].store_ms - 9_000_000, *(each.store_ms for each in records[::37]), NOW_MS * 2):
            after = [each.queue_offset for each in records if each.store_ms >= time_ms]
            before = [each.queue_offset for each in records if each.store_ms <= time_ms]
            assert offset_by_time(queue, time_ms, Boundary.LOWER) == min(after, default=len(records))
            assert offset_by_time(queue, time_ms, Boundary.UPPER) == max(before, default=0)


def test_offset_of_a_time_before_the_first_message_though_a_later_one_is_as_old(
    engine: Store, records: list[Record]
) -> None:
    time_ms = min(each.store_ms for each in records) + 1000
    assert time_ms < records[0].store_ms
    before = [each.queue_offset for each in records if each.store_ms <= time_ms]
    assert engine.offset_by_time("a", 0, time_ms, Boundary.UPPER) == max(before)
    assert engine.offset_by_time("a", 0, time_ms, Boundary.LOWER) == 0
