"""``df.write.format("tierlog").option("cold", URL).option("store", ID)``: rows straight to the archive of a new store.

Each task archives its partition by itself, in a stretch of the log that its number gives it; the driver names what the
tasks that count have stored. Objects of attempts that do not count are named by nobody (``pipeline.new_store.commit``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from index.from_archive import IndexSizes
from pipeline.new_store.commit import NewTopics, discard, publish, refuse_existing
from pipeline.new_store.encoder import (
    MOST_PARTITIONS,
    PartitionEncoder,
    QueuePlan,
    encode_rows,
    stretch_bytes,
)
from pipeline.new_store.input_rows import InputRows
from pipeline.new_store.part import BuiltPart, NewStore, PartBuilder
from pipeline.new_store.topic_ids import check_ids, topic_id_of
from pipeline.source.options import SourceOptions
from tiering.batch import MAX_QUEUES, validate_topic
from tiering.clock import Clock
from tiering.errors import InvalidRequestError, StoreError
from tiering.hot.identity import DEFAULT_SEGMENT_BYTES, validate_store_id
from tiering.hot.topics import Topic
from tiering.randomness import Randomness, SystemRandomness

#: What tells the offsets of one partition's rows apart from those of another's, where rows name their queues.
_OFFSET_BITS = 32


@dataclass(frozen=True)
class StoredPart(WriterCommitMessage):
    """What one task has stored."""

    part: BuiltPart


class ArchiveWriter(DataSourceArrowWriter):
    """One batch write. Travels to every task."""

    def __init__(self, store: NewStore, rows: InputRows, volume_id: str) -> None:
        """Use :func:`make_archive_writer`. ``volume_id`` is this write's own, by which its head is known again."""
        self._store = store
        self._rows = rows
        self._volume_id = volume_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Archive one partition. Killed: objects that nobody names; the next attempt stores its own."""
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        begin = partition * stretch_bytes(self._store)
        with PartBuilder.open(self._store, begin, SystemRandomness()) as builder:
            encoder = PartitionEncoder(self._store, partition, builder, self._plan(partition), topic_id_of)
            encode_rows(encoder, self._rows, iterator, partition)
            return StoredPart(encoder.finish())

    def _plan(self, partition: int) -> QueuePlan:
        """Without queues in the rows a partition is a queue of its own, dense from 0."""
        if partition >= MOST_PARTITIONS:
            raise InvalidRequestError(f"a store is written by at most {MOST_PARTITIONS} tasks", hint="use coalesce")
        if "queue_id" in self._rows.columns:
            return QueuePlan((partition % MAX_QUEUES,), other_start=partition << _OFFSET_BITS)
        if partition >= MAX_QUEUES:
            raise InvalidRequestError(
                f"more than {MAX_QUEUES} partitions, and each becomes a queue",
                hint=f"use df.coalesce({MAX_QUEUES}) or fewer, or give a column queue_id",
            )
        return QueuePlan((partition,))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the store visible with what the tasks have stored. Killed before the head is put: nothing is."""
        parts = _parts(messages)
        try:
            names = {run.topic for part in parts for run in part.runs}
            check_ids(names)
            found = [Topic(topic_id_of(name), name, 1) for name in sorted(names)]
            topics = NewTopics.of(found, [run for part in parts for run in part.runs])
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


def make_archive_writer(
    options: SourceOptions, schema: StructType, *, overwrite: bool, clock: Clock, randomness: Randomness
) -> ArchiveWriter:
    """The writer of one batch write.

    Raises :class:`InvalidRequestError` for columns or options that cannot be taken, :class:`StoreMismatchError` if the
    store has an archive.
    """
    if overwrite:
        raise InvalidRequestError("an archive is never overwritten", hint='use mode("append") and a new store id')
    if options.cold is None or options.store is None:
        raise InvalidRequestError("a new archive needs a store id", hint="give option 'store'")
    store_id = validate_store_id(options.store)
    assert store_id is not None
    sizes = IndexSizes()
    store = NewStore(
        options.cold, store_id, options.segment_bytes or DEFAULT_SEGMENT_BYTES,
        IndexSizes(options.index_slots or sizes.slots, options.index_items or sizes.items),
    )  # fmt: skip
    topic = None if options.topic is None else validate_topic(options.topic)
    rows = InputRows.of(schema, store_ms=clock.now_ms(), topic=topic)
    refuse_existing(store)
    return ArchiveWriter(store, rows, randomness.token_hex(8))
