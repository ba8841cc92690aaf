"""The batch read of the data source: rows, filters and errors in a real session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pipeline.archive_copies import put_on_disk
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.pipeline.base.archive import open_objects
from tierlog.pipeline.source import TierlogDataSource
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.message.batch import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
START_MS = 1_772_323_200_000  # 2026-03-01T00:00:00Z
TOPICS = ("orders", "pays", "rare")

CONDITIONS = [
    "topic = 'orders' AND key = 'k3'",
    "key IN ('k1', 'k2', 'k2', 'none', NULL)",
    f"key IN ({', '.join(repr(f'k{number}') for number in range(3, 40))}) AND topic = 'pays'",
    "topic IN ('rare', 'orders') AND queue_id = 1 AND queue_offset >= 3 AND queue_offset < 9",
    "key = 'all' AND store_time >= '2026-02-28 19:01:00' AND store_time < '2026-02-28 19:02:00.0005'",
    "store_time > timestamp'2026-03-01 00:01:00Z' AND born_time <= timestamp'2026-03-01 00:01:30.999999Z'",
    "physical_offset > 20000 AND physical_offset <= 70000 AND topic <> 'pays'",
    "store_id = 'two' AND (topic = 'rare' OR key = 'k5')",
    "key = 'k1' AND key = 'k2'",
    "topic LIKE 'or%' AND key = 'k4' AND tag = 't1' AND size(keys) = 2 AND tier = 'cold'",
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Store]]:
    """Two stores in one archive, of which something is erased, something is not indexed and something is still hot."""
    folder = tmp_path_factory.mktemp("stores")
    engines = []
    with contextlib.ExitStack() as stack:
        for store_id in ("one", "two"):
            clock = ManualClock(START_MS)
            engine = Store.open(
                folder / store_id, cold_url=f"file://{folder}/cold", store_id=store_id, clock=clock,
                settings=tiny_settings(hot__default_queues=2),
            )  # fmt: skip
            stack.callback(engine.close)
            engines.append(engine)
            for number in range(300):
                clock.advance(500)
                topic = TOPICS[2] if number % 20 == 7 else TOPICS[number % 2]
                keys = [f"k{number % 7}", "all"] if number % 9 else []
                born_ms = clock.now_ms() - 1000 * (number % 3)
                body = b"%s %d" % (store_id.encode(), number)
                engine.append([Message(topic, body.ljust(number % 500), keys, f"t{number % 2}", born_ms=born_ms)])
                if number in (99, 199):
                    engine.archive(everything=True, drop_hot=number == 99)
                if number == 150:
                    engine.removal.erase(Query("orders", "k6"))
            engine._hot.roll()
            engine.archive()
        yield engines


@pytest.fixture
def tierlog(spark: SparkSession) -> Iterator[SparkSession]:
    spark.dataSource.register(TierlogDataSource)
    yield spark
    spark.conf.set(PUSHDOWN, False)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def scanned_rows(engines: list[Store]) -> list[tuple[Any, ...]]:
    """What pulls of the stores give, a row for each key."""
    rows: list[tuple[Any, ...]] = []
    for engine in engines:
        for topic in engine.topics():
            for queue in topic.queues:
                offset = 0
                while offset < queue.max_offset:
                    page = engine.pull(topic.name, queue.queue_id, offset, 1000)
                    for message in page.messages:
                        record = message.record
                        times = [datetime.fromtimestamp(ms / 1000, UTC) for ms in (record.born_ms, record.store_ms)]
                        rows += [
                            (topic.name, queue.queue_id, record.queue_offset, message.keys, message.tag, *times,
                             record.physical_offset, engine.store_id, "cold", key)
                            for key in indexed_keys(record.properties)
                        ]  # fmt: skip
                    offset = page.next_offset
    return rows


def scanned(spark: SparkSession, engines: list[Store]) -> DataFrame:
    """The same as a table of Spark's."""
    return spark.createDataFrame(
        scanned_rows(engines),
        "topic string, queue_id int, queue_offset long, keys array<string>, tag string, born_time timestamp, "
        "store_time timestamp, physical_offset long, store_id string, tier string, key string",
    )


def places(rows: DataFrame) -> list[tuple[object, ...]]:
    columns = "store_id", "physical_offset", "key", "topic", "queue_offset", "store_time"
    return sorted(map(tuple, rows.select(*columns).collect()))


def cold_of(engines: list[Store]) -> str:
    assert engines[0].cold_url is not None
    return engines[0].cold_url


def test_rows_and_filters_are_those_of_the_stores_own_scan(tierlog: SparkSession, stores: list[Store]) -> None:
    tierlog.conf.set(PUSHDOWN, True)
    rows = tierlog.read.format("tierlog").option("view", "keys").load(cold_of(stores))
    found = sorted(map(tuple, rows.select("store_id", "physical_offset", "key").collect()))
    scan = scanned_rows(stores)
    assert found == sorted((row[8], row[7], row[10]) for row in scan)
    found = sorted(map(tuple, rows.where(CONDITIONS[0]).select("store_id", "physical_offset", "key").collect()))
    assert found == sorted((row[8], row[7], row[10]) for row in scan if row[0] == "orders" and row[10] == "k3") != []


@pytest.mark.slow
@pytest.mark.parametrize("is_pushed", [True, False])
def test_filters_mean_the_same_pushed_or_not(tierlog: SparkSession, stores: list[Store], is_pushed: bool) -> None:
    tierlog.conf.set(PUSHDOWN, is_pushed)
    tierlog.conf.set("spark.sql.session.timeZone", "America/New_York")
    wanted = scanned(tierlog, stores).cache()
    rows = tierlog.read.format("tierlog").option("cold", cold_of(stores)).option("view", "keys").load()
    for condition in CONDITIONS:  # all of one load(): none may leave something out for those that follow
        assert places(rows.where(condition)) == places(wanted.where(condition)), condition


@pytest.mark.slow
def test_the_hot_tail_of_a_service_is_part_of_the_rows(tierlog: SparkSession, stores: list[Store]) -> None:
    tierlog.conf.set(PUSHDOWN, True)
    one = stores[0]
    one.append([Message("orders", b"hot %d" % number, ["hot", "k1"]) for number in range(25)])
    with served(one, tiny_settings()) as url:
        read = tierlog.read.format("tierlog").option("view", "keys").option("url", url)
        rows = read.load(cold_of(stores))
        assert rows.where("tier = 'hot' AND key = 'hot'").count() == 25
        wanted = scanned(tierlog, stores)
        assert places(rows.where("key = 'k1'")) == places(wanted.where("key = 'k1'"))
        assert places(read.load().where("topic = 'rare'")) == places(scanned(tierlog, [one]).where("topic = 'rare'"))


@pytest.mark.slow
def test_what_an_executor_cannot_read_is_named_in_the_error(
    tierlog: SparkSession, stores: list[Store], tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    copy = put_on_disk(open_objects(cold_of(stores)), tmp_path)  # no process has anything of it in memory
    objects = open_objects(copy)
    key = next(info.key for info in objects.list("two/log/"))
    objects.delete(key)
    with pytest.raises(PySparkException) as raised:
        tierlog.read.format("tierlog").option("store", "two").load(copy).collect()
    assert key in str(raised.value)
    assert "ObjectNotFoundError" in str(raised.value)


WRONG = [
    ({"colt": "file:///x"}, "there is no option 'colt'; do you mean 'cold'?"),
    ({}, "neither an archive nor a service is named"),
    ({"cold": "file:///x", "view": "rows"}, "option 'view': 'rows' is no view"),
    ({"cold": "{tmp}"}, "no archive of any store here"),
    ({"cold": "{cold}", "store": "three"}, "no archive of store 'three' here"),
]


@pytest.mark.parametrize(("options", "words"), [WRONG[0], WRONG[4]])
def test_a_wrong_option_is_one_error_on_the_driver(
    tierlog: SparkSession, stores: list[Store], tmp_path: Path, options: dict[str, str], words: str
) -> None:
    from pyspark.errors import AnalysisException

    given = {name: text.format(tmp=f"file://{tmp_path}", cold=cold_of(stores)) for name, text in options.items()}
    with pytest.raises(AnalysisException) as raised:
        tierlog.read.format("tierlog").options(**given).load().collect()
    assert words in str(raised.value)
    assert str(raised.value).count("Error: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("options", "words"), WRONG[1:4])
def test_other_wrong_options_too(
    tierlog: SparkSession, stores: list[Store], tmp_path: Path, options: dict[str, str], words: str
) -> None:
    test_a_wrong_option_is_one_error_on_the_driver(tierlog, stores, tmp_path, options, words)
