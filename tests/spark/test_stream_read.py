"""The streaming read in a real session: micro-batches, checkpoints, limits and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.source import TierlogDataSource
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS = tiny_settings(hot__segment_bytes=16_384)


class Streamed:
    """A served store with an archive, and streams of it into a Parquet folder with one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, stack: contextlib.ExitStack) -> None:
        self._spark = spark
        self._folder = folder
        self.cold = f"file://{folder}/cold"
        self.engine = Store.open(folder / "store", cold_url=self.cold, store_id="s", settings=SETTINGS)
        stack.callback(self.engine.close)
        self.url = stack.enter_context(served(self.engine, SETTINGS))
        self.appended: list[tuple[str, int, int, str]] = []
        spark.dataSource.register(TierlogDataSource)

    def append(self, topic: str, count: int) -> None:
        messages = [Message(topic, b"%d" % (len(self.appended) + at), [f"k{at}"]) for at in range(count)]
        self.appended += [
            (topic, result.queue_id, result.queue_offset, message.body.decode())
            for message, result in zip(messages, self.engine.append(messages), strict=True)
        ]

    def stream(self, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("tierlog")
        return reader.options(**options).load()

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        selected = frame.selectExpr("topic", "queue_id", "queue_offset", "CAST(body AS STRING) AS body")
        writer = selected.writeStream.format("parquet").option("checkpointLocation", f"{self._folder}/checkpoint")
        return writer.trigger(**trigger).start(f"{self._folder}/out")

    def available_now(self, **options: str) -> list[int]:
        """Run until what is there was read; the rows of each batch."""
        query = self.start(self.stream(**options), availableNow=True)
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    def rows(self) -> list[tuple[str, int, int, str]]:
        return sorted(tuple(row) for row in self._spark.read.parquet(f"{self._folder}/out").collect())


@pytest.fixture
def streamed(spark: SparkSession, tmp_path: Path) -> Iterator[Streamed]:
    with contextlib.ExitStack() as stack:
        yield Streamed(spark, tmp_path, stack)


def test_a_stream_goes_on_from_its_checkpoint_whichever_tier_holds_what_follows(streamed: Streamed) -> None:
    streamed.append("orders", 300)
    streamed.engine.archive(everything=True, drop_hot=True)
    streamed.append("orders", 50)
    both = {"cold": streamed.cold, "url": streamed.url}
    batches = streamed.available_now(**both, maxMessagesPerTrigger="200")
    assert [rows for rows in batches if rows] == [200, 150]
    assert streamed.rows() == sorted(streamed.appended)
    streamed.append("orders", 40)
    streamed.append("pays", 20)
    streamed.engine.archive(everything=True, drop_hot=True)
    streamed.available_now(**both)
    assert streamed.rows() == sorted(streamed.appended)


@pytest.mark.slow
def test_a_running_stream_sees_what_is_appended_archived_and_dropped(streamed: Streamed) -> None:
    streamed.append("orders", 10)
    query = streamed.start(streamed.stream(url=streamed.url), processingTime="0 seconds")
    try:
        for round_ in range(4):
            streamed.append("orders", 60)
            streamed.append(f"new-{round_}", 5)
            streamed.engine.archive(everything=True, drop_hot=round_ % 2 == 0)
            query.processAllAvailable()
            assert streamed.rows() == sorted(streamed.appended)
    finally:
        query.stop()


@pytest.mark.slow
def test_a_batch_that_failed_is_read_again_as_it_was_planned(streamed: Streamed, spark: SparkSession) -> None:
    """``latest`` is elsewhere after the restart, and Spark does not keep where the stream began."""
    streamed.append("orders", 100)
    folder = streamed._folder
    seen: dict[int, list[list[tuple[int, int]]]] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        rows = sorted((row.queue_id, row.queue_offset) for row in frame.select("queue_id", "queue_offset").collect())
        has_failed = any(len(tries) for number, tries in seen.items() if number)
        seen.setdefault(batch, []).append(rows)
        if batch and not has_failed:
            raise RuntimeError("the sink fails")

    def start() -> StreamingQuery:
        frame = streamed.stream(url=streamed.url, start="latest")
        writer = frame.writeStream.option("checkpointLocation", f"{folder}/foreach").foreachBatch(keep)
        return writer.trigger(processingTime="0 seconds").start()

    query = start()
    query.processAllAvailable()
    streamed.append("orders", 30)
    with pytest.raises(Exception, match="the sink fails"):
        query.processAllAvailable()
    streamed.append("orders", 20)
    streamed.engine.archive(everything=True, drop_hot=True)
    query = start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    (failed,) = [batch for batch, tries in seen.items() if len(tries) == 2]
    assert seen[failed][0] == seen[failed][1]
    read = sorted(row for tries in seen.values() for row in tries[-1])
    assert read == sorted(row[1:3] for row in streamed.appended[100:])


@pytest.mark.slow
def test_a_stream_begins_at_a_time_and_shows_the_view_keys(streamed: Streamed, spark: SparkSession) -> None:
    streamed.append("orders", 40)
    first_ms = streamed.engine.stats()["last_store_ms"]
    assert isinstance(first_ms, int)
    while streamed.engine._clock.now_ms() <= first_ms:
        pass
    streamed.append("orders", 25)
    streamed.engine.archive(everything=True)
    frame = streamed.stream(cold=streamed.cold, topic="orders", start=str(first_ms + 1), view="keys")
    query = frame.writeStream.format("memory").queryName("keyed").trigger(availableNow=True).start()
    query.awaitTermination()
    found = [(int(row.body), row.key) for row in spark.table("keyed").collect()]
    assert sorted(found) == [(40 + at, f"k{at}") for at in range(25)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "ordres"}, "no such topic 'ordres'"),
        ({"store": "other"}, "no archive of store 'other' here"),
        ({"start": "yesterday"}, "option 'start': cannot read the time 'yesterday'"),
        ({"topic": "a b"}, "bad topic name 'a b'"),
        ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss': 'maybe' is neither true nor false"),
    ],
)
def test_what_is_wrong_ends_the_query_with_one_clear_error(
    streamed: Streamed, options: dict[str, str], words: str
) -> None:
    streamed.append("orders", 10)
    streamed.engine.archive(everything=True)
    with pytest.raises(Exception, match=r"InvalidRequestError|NotFoundError") as raised:
        streamed.available_now(cold=streamed.cold, **options)
    assert words in str(raised.value)


@pytest.mark.slow
def test_messages_that_expired_before_they_were_read_end_the_query(streamed: Streamed) -> None:
    streamed.append("orders", 40)
    streamed.engine.archive(everything=True)
    streamed.available_now(cold=streamed.cold)
    streamed.append("orders", 400)
    streamed.engine.archive(everything=True, drop_hot=True)
    streamed.engine.removal.configure("orders", cold_retention_ms=1)
    streamed.append("orders", 40)
    streamed.engine.run_tiers()
    streamed.engine.archive(everything=True)
    with pytest.raises(Exception, match=r"offsets \[\d+, \d+\) of topic 'orders' queue \d+ of store s are not there"):
        streamed.available_now(cold=streamed.cold)
    streamed.available_now(cold=streamed.cold, failOnDataLoss="false")
    read = {row[1:3] for row in streamed.rows()}
    assert {row[1:3] for row in streamed.appended[:40]} <= read
    assert len(read) < len(streamed.appended)
