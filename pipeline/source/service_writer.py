"""``df.write.format("tierlog").option("url", URL)`` and ``df.writeStream``: rows to a running service, each once.

The service knows a row by its producer and its number (:mod:`pipeline.base.client`). The producer of a batch write is
drawn once on the driver, or given as option ``producer``, with the partition; of a streaming write it is the query's
id, which its checkpoint keeps, with the batch and the partition. So neither a task that is tried again nor a batch that
a stream replays after a restart appends anything twice, as long as the rows come in the same order and the service's
window (``produce.window_ms``) still has the first attempt.

A write is no transaction: a job that fails leaves what its tasks have appended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tierlog.pipeline.base.client import RowSender, ServiceClient
from tierlog.pipeline.new_store.input_rows import InputRows
from tierlog.pipeline.source.options import SourceOptions
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, StoreMismatchError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import validate_topic

#: What Spark tells the tasks of a streaming query, as local properties.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
#: With a partition behind it, it has to fit an Idempotency-Key.
_PRODUCER = re.compile(r"[A-Za-z0-9_.~-]{1,48}")


@dataclass(frozen=True)
class AppendedMessages(WriterCommitMessage):
    """The count of what one task has appended."""

    messages: int


@dataclass(frozen=True)
class ServiceTarget:
    """The service and topic that the rows of one write go to; travels to every task."""

    url: str
    topic: str | None
    durability: Durability

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType, *, overwrite: bool) -> ServiceTarget:
        """Checks everything that can be known before a task runs.

        Raises :class:`InvalidRequestError` for columns and options that cannot be taken, :class:`StoreMismatchError`
        if the service is of another store than option ``store`` says, :class:`UnavailableError` if nobody answers.
        """
        if overwrite:
            raise InvalidRequestError("a log is never overwritten", hint='use mode("append")')
        assert options.url is not None
        if "store_time" in schema.fieldNames():
            raise InvalidRequestError("column 'store_time' is given out by the service", hint="drop it")
        topic = None if options.topic is None else validate_topic(options.topic)
        InputRows.of(schema, store_ms=0, topic=topic)
        with ServiceClient(options.url, tries=3) as client:
            found = client.stats()["store_id"]
        if options.store not in (None, found):
            raise StoreMismatchError(f"the service at {options.url} is of store {found}, not {options.store}")
        return cls(options.url, topic, options.durability)

    def send(self, producer: str, batches: Iterator[pa.RecordBatch]) -> AppendedMessages:
        """Sends one partition's rows; killed anywhere, the next attempt sends them again and appends the rest."""
        with ServiceClient(self.url) as client:
            return AppendedMessages(RowSender(client, producer, self.topic, self.durability).send(batches))


class ServiceWriter(DataSourceArrowWriter):
    """One batch write. Travels to every task."""

    def __init__(self, target: ServiceTarget, producer: str) -> None:
        """Use :func:`make_service_writer`."""
        self._target = target
        self._producer = producer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Appends one partition."""
        return self._target.send(f"{self._producer}-{_context().partitionId()}", iterator)


class ServiceStreamWriter(DataSourceStreamArrowWriter):
    """One streaming query's writes. Travels to every task."""

    def __init__(self, target: ServiceTarget) -> None:
        """Use :func:`make_service_stream_writer`."""
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Appends one partition of one batch."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise StoreError(
                "Spark does not say which batch this is, so a restart could append it twice",
                hint='use foreachBatch, and in it df.write with option("producer", f"{name}-{batch_id}")',
            )
        return self._target.send(f"{query}-{batch}-{context.partitionId()}", iterator)


def make_service_writer(
    options: SourceOptions, schema: StructType, *, overwrite: bool, randomness: Randomness
) -> ServiceWriter:
    """Returns the writer of one batch write; raises what :meth:`ServiceTarget.of` raises."""
    producer = options.producer or randomness.token_hex(16)
    if not _PRODUCER.fullmatch(producer):
        raise InvalidRequestError(
            f"bad option 'producer' {producer[:60]!r}", hint="1 to 48 ASCII letters, digits and _ . ~ -"
        )
    return ServiceWriter(ServiceTarget.of(options, schema, overwrite=overwrite), producer)


def make_service_stream_writer(options: SourceOptions, schema: StructType, *, overwrite: bool) -> ServiceStreamWriter:
    """Returns the writer of a streaming query; raises what :meth:`ServiceTarget.of` raises."""
    return ServiceStreamWriter(ServiceTarget.of(options, schema, overwrite=overwrite))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
