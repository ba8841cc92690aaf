"""An archive and the hot tail of its service are one: every message once, wherever it lies by the time it is read."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.pipeline.batch_reads import Row, at_ms, place, planned, read, rows_of
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError, NotFoundError
from tierlog.tiering.message.batch import Message

TOPICS = ("orders", "pays")


@dataclass
class Service:
    """A served store and what it was sent."""

    engine: Store
    clock: ManualClock
    url: str
    cold: str
    bodies: list[bytes] = field(default_factory=list)

    def append(self, count: int) -> None:
        for _ in range(count):
            number = len(self.bodies)
            self.clock.advance(10)
            self.bodies.append(b"%d-" % number * (1 + number % 40))
            keys = [f"k{number % 5}", "all"]
            topic, tag, queue_id = TOPICS[number % 2], f"t{number % 3}", number // 2 % 2
            self.engine.append([Message(topic, self.bodies[-1], keys, tag, queue_id=queue_id)])

    def both(self, **more: str) -> dict[str, str]:
        return {"cold": self.cold, "url": self.url, "partition_bytes": "20000", **more}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    cold, clock, settings = f"file://{tmp_path}/cold", ManualClock(), tiny_settings(hot__default_queues=2)
    engine = Store.open(tmp_path / "s", cold_url=cold, store_id="s", settings=settings, clock=clock)
    with contextlib.closing(engine), served(engine, settings) as url:
        engine.archive()
        yield Service(engine, clock, url, cold)


def bodies(rows: list[Row]) -> list[bytes]:
    return sorted(row["body"] for row in rows)


def test_cold_and_hot_messages_are_rows_once_each(service: Service) -> None:
    service.append(300)
    service.engine.archive(everything=True)
    service.append(200)
    rows = rows_of(service.both())
    assert bodies(rows) == sorted(service.bodies)
    assert Counter(row["tier"] for row in rows) == {"cold": 300, "hot": 200}
    assert bodies(rows_of({"cold": service.cold})) == sorted(service.bodies[:300])
    for row in rows:
        message = service.engine.message(row["message_id"])
        record = message.record
        assert (row["topic"], row["queue_id"], row["queue_offset"], row["physical_offset"]) == (
            record.topic, record.queue_id, record.queue_offset, record.physical_offset
        )  # fmt: skip
        assert (row["keys"], row["properties"], row["store_id"]) == (message.keys, [*message.properties.items()], "s")
        assert (row["store_time"], row["born_time"]) == (at_ms(record.store_ms), at_ms(record.born_ms))


@pytest.mark.parametrize("archived_before", [0, 40])
def test_hot_messages_of_a_topic_that_is_not_archived_are_rows_below_archived_to_too(
    service: Service, archived_before: int
) -> None:
    service.append(archived_before + 2)
    if archived_before:
        service.engine.archive(everything=True)
    service.engine.removal.configure("orders", archive=False)
    service.append(40)
    service.engine.archive(everything=True)
    assert bodies(rows_of(service.both())) == sorted(service.bodies)
    service.engine.removal.configure("orders", archive=True)
    service.append(40)
    service.engine.archive(everything=True)
    service.append(10)
    assert bodies(rows_of(service.both())) == sorted(service.bodies)
    assert bodies(rows_of(service.both(topic="orders"))) == sorted(service.bodies[::2])


def test_a_service_alone_is_read_whole(service: Service) -> None:
    service.append(200)
    service.engine.archive(everything=True, drop_hot=True)
    service.append(50)
    rows = rows_of({"url": service.url, "partition_bytes": "10000"})
    assert bodies(rows) == sorted(service.bodies)


@pytest.mark.parametrize("seed", range(6))
def test_segments_that_move_while_tasks_run_are_read_once(service: Service, seed: int) -> None:
    """Between planning and each task the store appends, archives and drops hot copies."""
    chance = random.Random(seed)
    engine = service.engine
    steps: list[Callable[[], object]] = [
        lambda: service.append(chance.choice((1, 30, 150))), engine._hot.roll, engine.archive,
        lambda: engine.archive(everything=True), lambda: engine.archive(everything=True, drop_hot=True),
    ]  # fmt: skip
    for _ in range(chance.choice((0, 3, 6))):
        chance.choice(steps)()
    service.append(60)
    sent = sorted(service.bodies)
    reader, partitions = planned(service.both())
    rows = []
    for partition in chance.sample(partitions, len(partitions)):
        chance.choice(steps)()
        rows += read(reader, [partition])
    assert bodies(rows) == sent


def test_options_hold_for_what_is_hot(service: Service) -> None:
    service.append(200)
    service.engine.archive(everything=True)
    service.append(100)
    everything = rows_of(service.both(view="keys"))
    middle = everything[len(everything) // 2]["store_time"]
    middle_ms = str(round(middle.timestamp() * 1000))
    asked: list[tuple[dict[str, str], Callable[[Row], bool]]] = [
        ({"topic": "pays"}, lambda row: row["topic"] == "pays"),
        ({"key": "k3"}, lambda row: row["key"] == "k3"),
        ({"key": '["k1", "k2", "none"]'}, lambda row: row["key"] in ("k1", "k2")),
        ({"from": middle_ms, "topic": "orders"}, lambda row: row["store_time"] >= middle and row["topic"] == "orders"),
        ({"to": middle_ms}, lambda row: row["store_time"] < middle),
        ({"tag": "t1"}, lambda row: row["tag"] == "t1"),
    ]
    for options, fits in asked:
        found = rows_of(service.both(view="keys", **options))
        wanted = [row for row in everything if fits(row)]
        assert 0 < len(wanted) < len(everything)
        assert {row["tier"] for row in wanted} == {"cold", "hot"} or "from" in options or "to" in options
        assert sorted(found, key=place) == sorted(wanted, key=place)


def test_what_is_erased_is_in_neither_part(service: Service) -> None:
    service.append(100)
    service.engine.archive(everything=True)
    service.append(100)
    service.engine.removal.erase(Query("orders", "k1"))
    erased = {body for number, body in enumerate(service.bodies) if number % 2 == 0 and number % 5 == 1}
    assert bodies(rows_of(service.both())) == sorted(set(service.bodies) - erased)


def test_messages_removed_between_plan_and_read_are_an_error(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = tiny_settings(hot__default_queues=1, hot__retention_ms=60_000)
    engine = Store.open(tmp_path / "s", store_id="s", settings=settings, clock=clock)
    with contextlib.closing(engine), served(engine, settings) as url:
        service = Service(engine, clock, url, "")
        for topic in TOPICS:
            engine.create_topic(topic, 2)
        service.append(400)
        assert bodies(rows_of({"url": url})) == sorted(service.bodies)
        reader, partitions = planned({"url": url})
        clock.advance(600_000)
        engine.run_tiers()
        assert engine.topic("orders").queues[0].min_offset > 0
        with pytest.raises(ConflictError, match="were removed since the read was planned"):
            read(reader, partitions)
        left = rows_of({"url": url})
        assert 0 < len(left) < len(service.bodies)


def test_a_service_of_another_store_is_refused(service: Service, tmp_path: Path) -> None:
    cold, settings = f"file://{tmp_path}/others", tiny_settings()
    with contextlib.closing(Store.open(tmp_path / "o", cold_url=cold, store_id="o", settings=settings)) as other:
        other.archive()
        with pytest.raises(InvalidRequestError, match=r"serves store 's', of which .* has no archive"):
            planned({"cold": cold, "url": service.url})
        with pytest.raises(InvalidRequestError, match="serves store 's', not 'o'"):
            planned({"url": service.url, "store": "o"})
        with pytest.raises(NotFoundError, match="no archive of store 'wrong' here"):
            planned({"cold": cold, "store": "wrong"})
