"""Rows written straight to the archive of a new store, by real tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline.new_stores import (
    STORE_ID,
    batches_of,
    everything,
    expected,
    pulled,
    reader_of,
    rows_of,
    shown,
)
from tierlog.index.new_store.part import NewStore
from tierlog.index.objects.derivation import IndexSizes
from tierlog.pipeline.source import TierlogDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = {"segment_bytes": "16384", "index_slots": "100", "index_items": "150"}


def frame(spark: SparkSession, rows: list[dict[str, object]], partitions: int) -> DataFrame:
    import pyarrow as pa

    table = pa.Table.from_batches(list(batches_of(rows)))
    return spark.createDataFrame(table).repartitionByRange(partitions, "store_time").sortWithinPartitions("store_time")


def save(rows: DataFrame, cold: str, store_id: str = STORE_ID, **options: str) -> None:
    rows.write.format("tierlog").options(cold=cold, store=store_id, **{**SIZES, **options}).mode("append").save()


def store_at(cold: str, store_id: str = STORE_ID) -> NewStore:
    return NewStore(cold, store_id, 16_384, IndexSizes(100, 150))


def objects_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_a_data_frame_is_read_back_as_it_was_and_the_store_is_not_written_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(TierlogDataSource)
    cold, rows = f"file://{tmp_path}/cold", rows_of(400)
    save(frame(spark, rows, 3), cold)
    with reader_of(store_at(cold)) as engine:
        by_time = everything(engine)
        assert sorted(map(repr, map(shown, by_time))) == sorted(map(repr, map(expected, rows)))
        assert sum(map(len, pulled(engine).values())) == 400
        findings = engine.check_report(deep=True)
        assert (findings.lines(), findings.notes) == ([], [])
    read = spark.read.format("tierlog").option("cold", cold).option("view", "keys").load()
    assert [row.body for row in read.where("key = 'k123'").collect()] == [rows[123]["body"]]
    before = {path: path.stat().st_mtime_ns for path in objects_below(tmp_path)}
    with pytest.raises(Exception, match="store 'history' has an archive here already"):
        save(frame(spark, rows, 1), cold)
    assert {path: path.stat().st_mtime_ns for path in objects_below(tmp_path)} == before


@pytest.mark.slow
def test_a_task_that_fails_in_the_middle_leaves_nothing_and_the_next_write_succeeds(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(TierlogDataSource)
    cold, rows = f"file://{tmp_path}/cold", rows_of(400)
    broken = [*rows[:390], {**rows[390], "keys": ["two words"]}, *rows[391:]]
    with pytest.raises(Exception, match=r"row 1?90 of partition 1: bad key 'two words'"):
        save(frame(spark, broken, 2), cold)
    assert not (tmp_path / "cold" / STORE_ID / "head").exists()
    with pytest.raises(Exception, match="no archive of any store here"):
        spark.read.format("tierlog").option("cold", cold).load().collect()
    save(frame(spark, rows, 2), cold)
    with reader_of(store_at(cold)) as engine:
        assert len(everything(engine)) == 400
        findings = engine.check_report(deep=True)
        assert (findings.lines(), findings.notes) == ([], []), "what the failed tasks stored is gone"


@pytest.mark.slow
def test_what_is_wrong_with_columns_or_options_is_one_error_before_any_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(TierlogDataSource)
    cold = f"file://{tmp_path}/cold"
    rows = frame(spark, rows_of(10), 1)
    for wrong, words in (
        (rows.withColumnRenamed("tag", "tags"), "no such column 'tags' in a message"),
        (rows.selectExpr("*", "1 as queue_offset"), "column 'queue_offset' is given out by the archive"),
        (rows.withColumn("keys", rows.tag.cast("int")), "column 'keys' is int, it has to be array<string> or string"),
        (rows.drop("topic"), "the topic comes from a column 'topic' or from the option"),
        (rows.drop("body"), "a message needs a column 'body'"),
    ):
        with pytest.raises(Exception, match=words):
            save(wrong, cold)
    with pytest.raises(Exception, match="bad store id 'No Id'"):
        save(rows, cold, "No Id")
    with pytest.raises(Exception, match="give option 'url' or 'cold'"):
        save(rows, cold, url="http://127.0.0.1:1")
    with pytest.raises(Exception, match="an archive is never overwritten"):
        rows.write.format("tierlog").options(cold=cold, store=STORE_ID).mode("overwrite").save()
    assert objects_below(tmp_path / "cold") == []


@pytest.mark.slow
def test_rows_of_two_columns_are_enough_where_an_option_names_the_topic(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(TierlogDataSource)
    cold = f"file://{tmp_path}/cold"
    save(spark.range(50, numPartitions=2).selectExpr("concat('k', id) keys", "string(id) body"), cold, topic="numbers")
    with reader_of(store_at(cold)) as engine:
        queues = pulled(engine)
        assert {name: [int(each.record.body) for each in found] for name, found in queues.items()} == {
            ("numbers", 0): [*range(25)],
            ("numbers", 1): [*range(25, 50)],
        }
        assert len({each.record.store_ms for found in queues.values() for each in found}) == 1
        assert engine.check(deep=True) == []
