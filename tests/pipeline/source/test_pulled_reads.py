"""An archive and the hot tail of its service are one: every message once, wherever it lies by the time it is read."""

from __future__ import annotations

import contextlib
import io
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from tests.support.pipeline.batch_reads import Row, at_ms, place, planned, read, rows_of
from tests.support.service.served import served
from tests.support.stores.engines import small_settings, tiny_settings
from tests.support.stores.irregular import followed_archive, irregular_log, sent
from tierlog.index.search.query import Query
from tierlog.pipeline.base.archive import ArchiveSnapshot
from tierlog.pipeline.jobs.export import tasks_of, write_task
from tierlog.pipeline.jobs.export_table import ExportPlan, ExportRequest
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError, NotFoundError
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

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


#: Generations 1, 2 and 3 of ``orders`` in one queue, and a topic that was made once.
_MADE_AGAIN = irregular_log(
    [
        *sent("orders", 0, range(40)),
        *sent("pays", 0, range(10), 40),
        *sent("orders", 0, range(30), 50),
        *sent("orders", 0, range(20), 80),
        *sent("noise", 0, range(40), 100),  # so that the segment before is closed
    ]
)
_NUMBERS = {"orders@1": range(40), "orders@2": range(50, 80), "orders@3": range(80, 100), "pays": range(40, 50)}
_NUMBERS_OF = {**_NUMBERS, "orders": [*range(40), *range(50, 100)], "orders@4": [], "pays@1": range(40, 50)}


@pytest.fixture(params=["cold", "url", "cold+url"])
def made_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options that read all three, whose second generation ends in the archive where the third one begins."""
    settings = small_settings()
    with followed_archive(tmp_path, _MADE_AGAIN, _MADE_AGAIN.records[85].at) as store:
        store.archive_all()
        _MADE_AGAIN.log.feed(store)
        store.flush()
        store._hot.dispatch()
        if request.param == "cold":
            store.archive_all()
        with served(store.store, settings) as url:
            both = {"cold": f"file://{tmp_path}/cold", "url": url}
            yield {name: both[name] for name in request.param.split("+")}


@pytest.mark.parametrize("names", [*_NUMBERS_OF, "pays,orders@2", "orders@1,orders@3"])
def test_a_generation_that_is_named_is_read_alone(made_again: dict[str, str], names: str) -> None:
    wanted = [number for name in names.split(",") for number in _NUMBERS_OF[name]]
    rows = rows_of({**made_again, "topic": names})
    assert sorted(int(row["body"].split(b".")[0].removeprefix(b"message ")) for row in rows) == sorted(wanted)
    for number in wanted[::17]:
        rows = rows_of({**made_again, "topic": names, "key": f"key-{number}"})
        assert [row["body"].split(b".")[0] for row in rows] == [b"message %d" % number]
    if names == "orders@1":
        assert rows_of({**made_again, "topic": names, "key": "key-55"}) == []


def test_a_generation_is_exported_alone(tmp_path: Path) -> None:
    with followed_archive(tmp_path, _MADE_AGAIN) as store:
        store.archive_all()
    snapshot = ArchiveSnapshot.take(f"file://{tmp_path}/cold")
    for name, numbers in _NUMBERS_OF.items():
        request = ExportRequest(snapshot.url, (), (name,), None, None, None, 1 << 20)
        plan, objects = ExportPlan.make(request, snapshot, "0"), MemoryObjectStore(ManualClock())
        for task in tasks_of(plan):
            write_task(objects, task, plan, None)
        files = [info.key for info in objects.list("") if info.key.endswith(".parquet")]
        bodies = [body for key in files for body in pq.read_table(io.BytesIO(objects.get(key)[0]))["body"].to_pylist()]
        exported = sorted(int(body.split(b".")[0].removeprefix(b"message ")) for body in bodies)
        assert exported == sorted(numbers), name
