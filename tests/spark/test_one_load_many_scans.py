"""Every scan of one ``load()`` has rows of its own: what one of them asks for is never missing from another."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.source import TierlogDataSource
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import Filter

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Place = tuple[str, str, int]


def sent(number: int) -> tuple[str, str]:
    """Topic and key of a message."""
    return f"t{number % 3}", f"k{number % 7}"


#: What the archive holds: topic, key and body's number of each message.
PLACES: list[Place] = [(*sent(number), number) for number in range(90)]


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")
    url = f"file://{folder}/cold"
    with contextlib.closing(Store.open(folder / "s", settings=tiny_settings(), cold_url=url)) as engine:
        for topic, key, number in PLACES:
            engine.append([Message(topic, b"%d" % number, [key])])
        engine.archive(everything=True)
    return url


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["pushdown", "default"])
def loaded(spark: SparkSession, cold: str, request: pytest.FixtureRequest) -> Iterator[DataFrame]:
    """One ``load()``, of which each test makes several scans, with Spark's push-down on and off."""
    spark.dataSource.register(TierlogDataSource)
    spark.conf.set(PUSHDOWN, request.param)
    frame = spark.read.format("tierlog").option("view", "keys").load(cold)
    frame.createOrReplaceTempView("messages")
    yield frame
    spark.catalog.dropTempView("messages")
    spark.conf.set(PUSHDOWN, False)


def places(rows: DataFrame) -> list[Place]:
    found = rows.selectExpr("topic", "key", "cast(decode(body, 'utf-8') AS int) number").collect()
    return sorted((row.topic, row.key, row.number) for row in found)


def of(fits: Callable[[Place], bool]) -> list[Place]:
    return sorted(filter(fits, PLACES))


def test_a_frame_is_whole_after_a_part_of_it_was_read(loaded: DataFrame) -> None:
    assert places(loaded.where("topic = 't1'")) == of(lambda place: place[0] == "t1")
    assert places(loaded) == sorted(PLACES)
    assert places(loaded.where("key = 'k3'")) == of(lambda place: place[1] == "k3")
    assert loaded.count() == len(PLACES)


def test_frames_that_were_made_before_any_was_read_are_read_in_any_order(loaded: DataFrame) -> None:
    by_topic = {topic: loaded.where(f"topic = '{topic}'") for topic in ("t0", "t1", "t2")}
    for frame in by_topic.values():
        frame.explain()
    for topic in ("t2", "t0", "t1", "t2"):
        assert places(by_topic[topic]) == [place for place in sorted(PLACES) if place[0] == topic]


def test_a_union_has_what_both_sides_have(loaded: DataFrame) -> None:
    both = loaded.where("topic = 't0'").union(loaded.where("topic = 't2'"))
    assert places(both) == of(lambda place: place[0] != "t1")
    with_all = loaded.where("key = 'k1'").union(loaded)
    assert places(with_all) == sorted(of(lambda place: place[1] == "k1") + PLACES)


def test_a_self_join_has_every_pair(loaded: DataFrame) -> None:
    left = loaded.where("topic = 't0'").selectExpr("key", "topic left_topic")
    right = loaded.where("topic = 't1' AND key = 'k2'").selectExpr("key", "topic right_topic")
    counts = Counter(place[:2] for place in PLACES)
    assert left.join(right, "key").count() == counts["t0", "k2"] * counts["t1", "k2"] > 0


@pytest.mark.parametrize("is_adaptive", [True, False])
def test_subqueries_see_the_whole_table(loaded: DataFrame, is_adaptive: bool) -> None:
    spark = loaded.sparkSession
    spark.conf.set("spark.sql.adaptive.enabled", is_adaptive)
    try:
        found = spark.sql(
            "SELECT * FROM messages WHERE topic = 't1' AND key IN (SELECT key FROM messages WHERE topic = 't2' AND "
            "key <> 'k0') AND (SELECT count(*) FROM messages) = 90 AND EXISTS (SELECT 1 FROM messages WHERE key = 'k6')"
        )
        assert places(found) == of(lambda place: place[0] == "t1" and place[1] != "k0")
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def test_a_view_is_whole_for_every_query(loaded: DataFrame) -> None:
    spark = loaded.sparkSession
    assert spark.sql("SELECT * FROM messages WHERE topic = 't0'").count() == 30
    assert spark.sql("SELECT * FROM messages").count() == 90
    spark.sql("CREATE OR REPLACE TEMP VIEW narrow AS SELECT * FROM messages WHERE topic = 't1'")
    assert places(spark.sql("SELECT * FROM narrow UNION ALL SELECT * FROM messages WHERE key = 'k5'")) == sorted(
        of(lambda place: place[0] == "t1") + of(lambda place: place[1] == "k5")
    )
    spark.catalog.dropTempView("narrow")


def test_what_is_cached_is_what_was_asked_for(loaded: DataFrame) -> None:
    narrow = loaded.where("topic = 't0'").cache()
    whole = loaded.cache()
    try:
        assert whole.count() == 90
        assert places(narrow) == of(lambda place: place[0] == "t0")
        assert places(whole.where("key = 'k4'")) == of(lambda place: place[1] == "k4")
    finally:
        narrow.unpersist()
        whole.unpersist()


def test_a_stream_and_batches_of_it_are_whole(loaded: DataFrame, cold: str, tmp_path: Path) -> None:
    seen: list[tuple[list[Place], int]] = []
    stream = loaded.sparkSession.readStream.format("tierlog").option("view", "keys").load(cold)

    def take(batch: DataFrame, number: int) -> None:
        seen.append((places(batch.where("topic = 't1'")), batch.count()))

    for name, frame in (("narrow", stream.where("topic <> 't0'")), ("whole", stream)):
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", f"file://{tmp_path}/{name}")
        writer.trigger(availableNow=True).start().awaitTermination()
    assert [count for _, count in seen] == [60, 90]
    assert [found for found, _ in seen] == [of(lambda place: place[0] == "t1")] * 2


def test_options_are_those_of_their_load_and_columns_those_that_were_named(loaded: DataFrame, cold: str) -> None:
    read = loaded.sparkSession.read.format("tierlog").option("cold", cold).option("view", "keys")
    narrow = read.option("topic", "t1").option("key", '["k1", "k2"]').load()
    wanted = of(lambda place: place[0] == "t1" and place[1] in ("k1", "k2"))
    joined = loaded.join(narrow.selectExpr("key other", "physical_offset"), "physical_offset")
    assert places(narrow) == places(joined) == wanted
    assert places(narrow.where("key = 'k2'").union(narrow)) == sorted([*wanted, *(p for p in wanted if p[1] == "k2")])
    projected = loaded.sparkSession.read.format("tierlog").schema("body binary, topic string").load(cold)
    assert projected.columns == ["body", "topic"]
    assert sorted(map(tuple, projected.selectExpr("topic", "cast(decode(body, 'utf-8') AS int)").collect())) == sorted(
        (topic, number) for topic, _, number in PLACES
    )


# --------------------------------------------------------------------------------------- why nothing is pushed


class Numbers(DataSource):
    """The numbers 0 to 9, of which only those that are asked for are made."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number int"

    def reader(self, schema: object) -> DataSourceReader:
        return NumbersReader()


class NumbersReader(DataSourceReader):
    wanted: range | tuple[int, ...] = range(10)

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        for each in filters:
            if type(each).__name__ == "EqualTo":
                self.wanted = (each.value,)  # type: ignore[attr-defined]
        return filters

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in self.wanted)


def test_spark_hands_the_filters_of_one_scan_to_the_others(spark: SparkSession) -> None:
    """Why :class:`TierlogDataSource` takes no filters (``docs/decisions/0035``); if this fails, Spark has mended it."""
    spark.dataSource.register(Numbers)
    spark.conf.set(PUSHDOWN, True)
    try:
        numbers = spark.read.format("numbers").load()
        assert numbers.where("number = 3").count() == 1
        assert numbers.count() == 1  # 10 are right
    finally:
        spark.conf.set(PUSHDOWN, False)
