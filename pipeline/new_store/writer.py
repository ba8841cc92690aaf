"""Writes a DataFrame to the archive of a new store: a task for each partition, and one commit of the driver.

Each task archives its partition by itself, in a stretch of the log that its number gives it; the driver names what the
tasks that count have stored. Objects of attempts that do not count are named by nobody (``pipeline.new_store.commit``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pipeline.new_store.commit import NewTopics, discard, publish, refuse_existing
from pipeline.new_store.encoder import MOST_PARTITIONS, PartitionEncoder, QueuePlan, encode_rows, stretch_bytes
from pipeline.new_store.input_rows import InputRows
from pipeline.new_store.part import BuiltPart, NewStore, PartBuilder
from tiering.errors import InvalidRequestError, StoreError
from tiering.randomness import SystemRandomness


class Places(Protocol):
    """Which ids, queues and offsets tasks give out that do not know of each other. Travels to every task."""

    def plan(self, partition: int) -> QueuePlan:
        """Queues and first offsets of one partition's rows."""
        ...

    def topic_id(self, topic: str) -> int:
        """The id of a topic, the same in every task."""
        ...

    def new_topics(self, parts: Sequence[BuiltPart]) -> NewTopics:
        """What the store's state says of the topics of all parts, which ascend; a :class:`StoreError` refuses them."""
        ...


@dataclass(frozen=True)
class StoredPart(WriterCommitMessage):
    """What one task has stored."""

    part: BuiltPart


class ArchiveWriter(DataSourceArrowWriter):
    """One batch write. Travels to every task."""

    def __init__(self, store: NewStore, rows: InputRows, places: Places, volume_id: str) -> None:
        """``volume_id`` is who the head will say wrote the log."""
        self._store = store
        self._rows = rows
        self._places = places
        self._volume_id = volume_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Archive one partition. Killed: objects that nobody names; the next attempt stores its own."""
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        if partition >= MOST_PARTITIONS:
            raise InvalidRequestError(f"a store is written by at most {MOST_PARTITIONS} tasks", hint="use coalesce")
        begin = partition * stretch_bytes(self._store)
        with PartBuilder.open(self._store, begin, SystemRandomness()) as builder:
            encoder = PartitionEncoder(
                self._store, partition, builder, self._places.plan(partition), self._places.topic_id
            )
            encode_rows(encoder, self._rows, iterator, partition)
            return StoredPart(encoder.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the store visible with what the tasks have stored. Killed before the head is put: nothing is."""
        parts = _parts(messages)
        try:
            topics = self._places.new_topics(parts)
            refuse_existing(self._store)
        except StoreError:
            discard(self._store, [name for part in parts for name in part.names])
            raise
        publish(self._store, parts, topics, SystemRandomness(), volume_id=self._volume_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have stored, unless the commit was tried: it may have come through unheard."""
        parts = _parts(messages)
        if len(parts) < len(messages):
            discard(self._store, [name for part in parts for name in part.names])


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[BuiltPart]:
    found = [message.part for message in messages if isinstance(message, StoredPart)]
    return sorted(found, key=lambda part: part.first)
