"""Rows for new archives, the tasks that write them, and an archive's answers compared with the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from tests.support.stores.engines import tiny_settings
from tierlog.index.new_store.commit import topic_id_of
from tierlog.index.new_store.part import BuiltPart, NewStore, PartBuilder
from tierlog.index.objects.derivation import IndexSizes
from tierlog.index.search.query import Query
from tierlog.pipeline.new_store.input_rows import InputRows
from tierlog.pipeline.new_store.writer import PartitionEncoder, QueuePlan, encode_rows, stretch_bytes
from tierlog.pipeline.read.views import MESSAGES, MESSAGES_SPARK
from tierlog.service.archive.archive import Archive
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.message.stored_message import StoredMessage

STORE_ID = "history"
BEGIN_MS = 1_600_000_000_000
Row = dict[str, Any]
CHOSEN = ("topic", "keys", "tag", "properties", "born_time", "store_time", "body")


def new_store(folder: Path, store_id: str = STORE_ID) -> NewStore:
    """A store so small that a few hundred rows cross every border."""
    return NewStore(f"file://{folder}/cold", store_id, 16_384, IndexSizes(100, 150))


def rows_of(count: int, *, begin: int = 0, topics: int = 3, queues: int = 0) -> list[Row]:
    """Rows one second apart, each with a key of its own; some columns are null now and then."""
    return [
        {
            "topic": f"topic-{number % topics}",
            "keys": [f"k{number}", f"group-{number % 5}"] if number % 7 else None,
            "tag": "TagA" if number % 2 else None,
            "properties": [("colour", "grün"), ("UNIQ_KEY", f"u{number}")] if number % 3 else None,
            "born_time": (BEGIN_MS + 1000 * number - 5) * 1000 if number % 11 else None,
            "store_time": (BEGIN_MS + 1000 * number) * 1000,
            "body": b"%d " % number * (1 + number % 50),
            **({"queue_id": number % queues} if queues else {}),
        }
        for number in range(begin, begin + count)
    ]


def batches_of(rows: Sequence[Row], size: int = 100) -> Iterator[pa.RecordBatch]:
    """The rows as a task gets them."""
    names = [name for name in MESSAGES.names if name in rows[0]]
    schema = pa.schema([MESSAGES.field(name).with_nullable(True) for name in names])
    for start in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(list(rows[start : start + size]), schema)


def input_rows(rows: Sequence[Row]) -> InputRows:
    """What the driver says of such rows."""
    return InputRows.of(StructType([MESSAGES_SPARK[name] for name in rows[0]]), store_ms=BEGIN_MS)


def build(
    store: NewStore, partition: int, rows: Sequence[Row], plan: QueuePlan | None = None,
    topic_id: Callable[[str], int] = topic_id_of,
) -> BuiltPart:  # fmt: skip
    """What one task does."""
    plan = plan or QueuePlan((partition,))
    with PartBuilder.open(store, partition * stretch_bytes(store), SeededRandomness(partition + 1)) as builder:
        encoder = PartitionEncoder(store, partition, builder, plan, topic_id)
        if rows:
            encode_rows(encoder, input_rows(rows), batches_of(rows), partition)
        return encoder.finish()


@contextlib.contextmanager
def reader_of(store: NewStore) -> Iterator[Archive]:
    """The archive as a command reads it."""
    engine = Archive.open(store.url, settings=tiny_settings(), store_id=store.store_id)
    try:
        yield engine
    finally:
        engine.close()


def everything(engine: Archive) -> list[StoredMessage]:
    """Every message of every topic, found by time."""
    found: list[StoredMessage] = []
    for topic in engine.topics():
        answer = engine.query(Query(topic.name, limit=10_000, to_ms=END_OF_TIME_MS))
        assert answer.coverage.complete
        found += answer.messages
    return sorted(found, key=lambda message: message.record.physical_offset)


def pulled(engine: Archive) -> dict[tuple[str, int], list[StoredMessage]]:
    """Every queue from its beginning to its end, as a consumer reads it."""
    queues: dict[tuple[str, int], list[StoredMessage]] = {}
    for topic in engine.topics():
        for queue in topic.queues:
            offset, messages = queue.min_offset, queues.setdefault((topic.name, queue.queue_id), [])
            while offset < queue.max_offset:
                result = engine.pull(topic.name, queue.queue_id, offset, 50)
                messages += result.messages
                assert result.next_offset > offset
                offset = result.next_offset
    return {name: messages for name, messages in queues.items() if messages}


def shown(message: StoredMessage) -> Row:
    """A message as the row it was made of; null is what the column has where there is nothing."""
    return {
        "topic": message.record.topic,
        "keys": message.keys,
        "tag": message.tag,
        "properties": message.properties,
        "born_time": message.record.born_ms * 1000,
        "store_time": message.record.store_ms * 1000,
        "body": message.record.body,
    }


def expected(row: Row) -> Row:
    """What :func:`shown` has to give for a row."""
    return {
        **{name: row[name] for name in CHOSEN},
        "keys": row["keys"] or [],
        "tag": row["tag"] or "",
        "properties": dict(row["properties"] or ()),
        "born_time": row["store_time"] if row["born_time"] is None else row["born_time"],
    }
