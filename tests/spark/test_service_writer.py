"""Rows written to a running service, as a batch and as a stream: each once, whatever is tried again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.source import TierlogDataSource
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.message.stored_message import StoredMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Service:
    engine: Store
    url: str

    def messages(self, topic: str = "t") -> list[StoredMessage]:
        self.engine.flush()
        found: list[StoredMessage] = []
        for queue in self.engine.topic(topic).queues:
            offset = 0
            while offset < queue.max_offset:
                page = self.engine.pull(topic, queue.queue_id, offset, 10_000)
                found += page.messages
                offset = page.next_offset
        return found

    def bodies(self, topic: str = "t") -> list[str]:
        return sorted(one.record.body.decode() for one in self.messages(topic))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = tiny_settings(hot__segment_bytes=1 << 20)
    engine = Store.open(tmp_path / "store", settings=settings)
    engine.start()
    try:
        with served(engine, settings) as url:
            yield Service(engine, url)
        assert engine.check() == []
    finally:
        engine.close()


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    spark.dataSource.register(TierlogDataSource)


def write(frame: DataFrame, service: Service, **options: str) -> None:
    frame.write.format("tierlog").option("url", service.url).options(**options).mode("append").save()


def test_every_column_is_appended(spark: SparkSession, service: Service) -> None:
    rows = spark.sql(
        "SELECT 't' topic, cast(concat('body ', id) AS binary) body, array('a', concat('k', id)) keys, 'tag' tag, "
        "map('p', cast(id AS string)) properties, timestamp_millis(1000 + id) born_time, cast(id % 3 AS int) queue_id "
        "FROM range(0, 1000, 1, 2) UNION ALL "
        "SELECT 'other', cast('x' AS binary), null, null, null, null, null"
    )
    write(rows, service)
    assert len(service.messages()) == 1000
    assert service.bodies("other") == ["x"]
    for one in service.messages():
        number = int(one.record.body.split()[1])
        assert (one.keys, one.tag, one.properties) == (["a", f"k{number}"], "tag", {"p": str(number)})
        assert (one.record.born_ms, one.record.queue_id) == (1000 + number, number % 3)


def test_a_write_with_a_producer_of_its_own_can_be_done_again(spark: SparkSession, service: Service) -> None:
    rows = spark.range(0, 300, 1, 3).selectExpr("concat('body ', id) body", "concat('k', id) keys")
    for _ in range(2):
        write(rows, service, topic="t", producer="nightly-2026-03-01")
    assert service.bodies() == sorted(f"body {n}" for n in range(300))
    assert {tuple(one.keys) for one in service.messages()} == {(f"k{n}",) for n in range(300)}
    write(rows, service, topic="t")
    assert len(service.messages()) == 600


def test_what_cannot_be_written_is_one_error_before_any_task(spark: SparkSession, service: Service) -> None:
    with pytest.raises(Exception, match="no such column 'colour'"):
        write(spark.sql("SELECT 'x' body, 'red' colour"), service, topic="t")
    rows = spark.sql("SELECT 'x' body").write.format("tierlog").option("url", service.url).option("topic", "t")
    with pytest.raises(Exception, match="a log is never overwritten"):
        rows.mode("overwrite").save()
    assert service.engine.topics() == []


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ("body int", {"topic": "t"}, "column 'body' is int, it has to be binary or string"),
        ("tag string", {"topic": "t"}, "a message needs a column 'body'"),
        ("body string", {}, "the topic comes from a column 'topic' or from the option"),
        ("body string, store_time timestamp", {"topic": "t"}, "given out by the service"),
        ("body string, queue_offset bigint", {"topic": "t"}, "column 'queue_offset' is given out"),
        ("body string", {"topic": "a b"}, "bad topic name 'a b'"),
        ("body string", {"topic": "t", "store": "another"}, "is of store"),
        ("body string", {"topic": "t", "durability": "maybe"}, "'maybe' is no durability"),
        ("body string", {"topic": "t", "producer": "a b"}, "bad option 'producer'"),
        ("body string", {"topic": "t", "view": "keys"}, "option 'view' has no meaning here"),
        ("body string", {"topic": "t", "url": "http://user:pw@h"}, "no user name and no password"),
    ],
)
def test_a_driver_refuses(
    spark: SparkSession, service: Service, schema: str, options: dict[str, str], words: str
) -> None:
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    source = TierlogDataSource({"url": service.url, **options})
    with pytest.raises(StoreError, match=words):
        source.writer(columns, overwrite=False)


def test_a_row_that_is_no_message_is_named(spark: SparkSession, service: Service) -> None:
    for column, words in (("null", "row 3 of the partition has no body"), ("''", "number 3 from this partition")):
        rows = spark.range(0, 5, 1, 1).selectExpr(f"if(id = 3, {column}, 'x') body")
        with pytest.raises(Exception, match=words):
            write(rows, service, topic="t")


def stream_from(spark: SparkSession, folder: Path, service: Service, checkpoint: Path, **options: str) -> None:
    rows = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).json(str(folder))
    query = (
        rows.writeStream.format("tierlog").option("url", service.url).option("topic", "t").options(**options)
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


@pytest.mark.slow
def test_a_stream_that_replays_a_batch_appends_it_once(spark: SparkSession, service: Service, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    for number in range(3):
        lines = "".join(f'{{"body": "{number}-{row}"}}\n' for row in range(50))
        (folder / f"{number}.json").write_text(lines)
    stream_from(spark, folder, service, checkpoint)
    expected = sorted(f"{number}-{row}" for number in range(3) for row in range(50))
    assert service.bodies() == expected
    commits = sorted((checkpoint / "commits").glob("*[0-9]"))
    assert len(commits) == 3
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)  # as if the driver had been killed before it noted the last batch
    (folder / "3.json").write_text('{"body": "new"}\n')
    stream_from(spark, folder, service, checkpoint)
    assert service.bodies() == sorted([*expected, "new"])


RETRIED = """
import sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from tierlog.pipeline.source import TierlogDataSource

url, mark = sys.argv[1:]
spark = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
         .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(TierlogDataSource)

@udf("string")
def fragile(number):
    import os
    context = TaskContext.get()
    if context.attemptNumber() < 2 and number % 5000 == 4321:
        Path(f"{mark}-{context.partitionId()}-{context.attemptNumber()}").touch()
        if context.attemptNumber() == 1:
            os.kill(os.getpid(), 9)
        raise RuntimeError("on purpose")
    return "body %d " % number + "x" * (number % 2000)

rows = spark.range(0, 10000, 1, 2).select(fragile("id").alias("body"))
rows.write.format("tierlog").option("url", url).option("topic", "t").mode("append").save()
spark.stop()
"""


@pytest.mark.slow
def test_a_task_that_fails_and_then_is_killed_appends_nothing_twice(service: Service, tmp_path: Path) -> None:
    mark = tmp_path / "failed"
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", RETRIED, service.url, str(mark)], env=environment, cwd=tmp_path,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(tmp_path.glob("failed-*"))) == 4  # two partitions, twice each
    assert sorted(int(body.split()[1]) for body in service.bodies()) == list(range(10_000))
