"""A DataFrame of message columns written to a new store in two passes, with queue offsets that are dense from 0.

The rows are kept on the executors' disks in the order that they will have in the log. The first pass counts the rows of
each queue in each partition, which says where every partition's offsets begin; the second archives. A partition that
Spark has to compute again has the same rows, which the counts prove.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSource, DataSourceWriter
from pyspark.sql.types import StructType

from tierlog.index.new_store.commit import NewTopics
from tierlog.index.new_store.part import BuiltPart, NewStore
from tierlog.pipeline.new_store.input_rows import InputRows
from tierlog.pipeline.new_store.writer import ArchiveWriter, QueuePlan
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError, StoreError
from tierlog.tiering.hot.topics import Topic

T = TypeVar("T")
_PARTITION = "__partition"
_SINK = "tierlog-ingest"
_AGAIN = "the input changed meanwhile: run the job again"
_NO_ROWS = QueuePlan((0,), other_start=None)
_OURS = re.compile(r"tierlog\.tiering\.base\.errors\.(\w+): (.*)")
_REFUSALS = (InvalidRequestError.__name__, MessageTooLargeError.__name__)
#: (partition, topic, queue id or None) and how many rows.
Count = tuple[int, str, int | None, int]


@dataclass(frozen=True, slots=True)
class CountedPlan:
    """The result of the first pass, for the second; travels."""

    store: NewStore
    rows: InputRows
    topic_ids: Mapping[str, int]
    queues: Mapping[int, QueuePlan]
    """By partition, of those with rows."""
    messages: int

    @classmethod
    def of(cls, store: NewStore, rows: InputRows, counts: Sequence[Count], queues: int) -> CountedPlan:
        """Plans where each partition begins in each queue; rows without one are spread over ``queues`` in turn."""
        sizes: dict[tuple[str, int], dict[int, int]] = {}
        for number, topic, queue_id, count in counts:
            if queue_id is None:
                spread = [(queue, (count - queue + queues - 1) // queues) for queue in range(min(queues, count))]
            else:
                spread = [(queue_id, count)]
            for queue, mine in spread:
                per_partition = sizes.setdefault((topic, queue), {})
                per_partition[number] = per_partition.get(number, 0) + mine
        starts: dict[int, dict[tuple[str, int], int]] = {number: {} for number, *_ in counts}
        for key, per_partition in sizes.items():
            order = sorted(per_partition)
            before = accumulate((per_partition[number] for number in order), initial=0)
            for number, start in zip(order, before, strict=False):
                starts[number][key] = start
        names = sorted({topic for _, topic, _, _ in counts})
        return cls(
            store, rows, {name: number for number, name in enumerate(names, 1)},
            {number: QueuePlan(tuple(range(queues)), mine, None) for number, mine in starts.items()},
            sum(count for *_, count in counts),
        )  # fmt: skip

    def plan(self, partition: int) -> QueuePlan:
        """Returns the queues and offsets that were counted."""
        return self.queues.get(partition, _NO_ROWS)

    def topic_id(self, topic: str) -> int:
        """Returns the id by the topic's number."""
        found = self.topic_ids.get(topic)
        if found is None:
            raise StoreError(f"topic {topic!r} came up after rows were counted", hint=_AGAIN)
        return found

    def new_topics(self, parts: Sequence[BuiltPart]) -> NewTopics:
        """Returns the topics as built; :class:`StoreError` if the parts do not hold the rows that were counted."""
        runs = [run for part in parts for run in part.runs]
        found = NewTopics.of([Topic(number, name, 1) for name, number in self.topic_ids.items()], runs)
        if found.gaps or sum(run.next - run.first for run in runs) != self.messages:
            raise StoreError("the rows are not those that were counted", hint=_AGAIN)
        return found


def keep(frame: DataFrame) -> DataFrame:
    """Keeps the rows, computed once, on disk; to be unpersisted."""
    return frame.persist(StorageLevel.DISK_ONLY)


def count(frame: DataFrame, topic: str | None) -> list[Count]:
    """Makes the first pass over rows that are kept."""
    columns = [
        sql.spark_partition_id().alias(_PARTITION),
        (sql.lit(topic) if topic is not None else sql.col("topic")).alias("topic"),
        (sql.col("queue_id") if "queue_id" in frame.columns else sql.lit(None)).cast("int").alias("queue_id"),
    ]
    counted = result_of(frame.select(*columns).groupBy(_PARTITION, "topic", "queue_id").count().collect)
    if missing := sum(row[3] for row in counted if row[1] is None):
        raise InvalidRequestError(f"{missing} rows have no topic")
    return [(row[0], row[1], row[2], row[3]) for row in counted]


def archive(frame: DataFrame, plan: CountedPlan, volume_id: str) -> None:
    """Makes the second pass and the commit, by the writer of the data source, which gets rows as Arrow batches.

    Raises the error of a row as the task did.
    """

    class Sink(DataSource):
        """Travels with the plan."""

        @classmethod
        def name(cls) -> str:
            return _SINK

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return ArchiveWriter(plan.store, plan.rows, plan, volume_id)

    frame.sparkSession.dataSource.register(Sink)
    result_of(frame.write.format(_SINK).mode("append").save)


def result_of(action: Callable[[], T]) -> T:
    """Runs an action of Spark. An error of a task of ours is raised again here; any other as :class:`StoreError`."""
    try:
        return action()
    except (PySparkException, Py4JJavaError) as error:
        ours = _OURS.findall(str(error))
        if ours:
            kind, text = ours[-1]
            refused = InvalidRequestError if kind in _REFUSALS else StoreError
            raise refused(text.strip()) from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise StoreError(f"Spark failed: {lines[0] if lines else error!r}") from error
