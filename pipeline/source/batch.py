"""The batch read: plans partitions on the driver, reads them on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipeline.archive import ArchiveSnapshot, PinnedStore
from pipeline.frames import read_frames
from pipeline.rows import keyed
from pipeline.source.options import SourceOptions, View
from tiering.errors import InvalidRequestError
from tiering.format.manifest import LogEntry


@dataclass
class SegmentPartition(InputPartition):
    """One archived segment."""

    store: PinnedStore
    entry: LogEntry


class BatchReader(DataSourceReader):
    """Reads the archive as it is when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each segment."""
        if self._options.cold is None:
            raise InvalidRequestError("no archive is named", hint="give option 'cold'")
        wanted = [] if self._options.store is None else [self._options.store]
        return [
            SegmentPartition(store, entry)
            for store in ArchiveSnapshot.take(self._options.cold, wanted).stores.values()
            for entry in store.manifest.log_entries(store.manifest.reader(), store.head)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if isinstance(partition, SegmentPartition):
            batches = read_frames(partition.store, partition.entry)
            yield from keyed(batches) if self._options.view is View.KEYS else batches


def make_batch_reader(options: SourceOptions) -> DataSourceReader:
    """The reader for a query."""
    return BatchReader(options)
