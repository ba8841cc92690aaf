"""The batch read of the data source without a session: plan, send the tasks on their way, read them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tierlog.pipeline.source import TierlogDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, InputPartition

Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at_ms(time_ms: int) -> datetime:
    """An instant as Spark hands it over."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def planned(options: dict[str, str]) -> tuple[DataSourceReader, list[InputPartition]]:
    """What goes to the executors: the reader, pickled as Spark does before it asks for partitions, and those."""
    source = TierlogDataSource(options)
    reader = source.reader(source.schema())
    sent = pickle.dumps(reader)
    partitions = list(reader.partitions())
    return pickle.loads(sent), partitions


def read(reader: DataSourceReader, partitions: Iterable[InputPartition]) -> list[Row]:
    """The rows of all tasks."""
    rows = []
    for partition in partitions:
        there, its = pickle.loads(pickle.dumps((reader, partition)))
        for batch in there.read(its):
            assert batch.num_rows
            rows += batch.to_pylist()
    return rows


def rows_of(options: dict[str, str]) -> list[Row]:
    """The rows of a read."""
    return read(*planned(options))


def place(row: Row) -> tuple[str, int, str]:
    """What no two rows have in common."""
    return row["store_id"], row["physical_offset"], row.get("key", "")
