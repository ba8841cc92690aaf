"""The batch read: plans partitions on the driver, reads them on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pipeline.archive import ArchiveSnapshot, PinnedStore
from pipeline.key_reads import HitsPart, not_indexed, plan_key_reads, read_hits
from pipeline.parts import SegmentPart, plan_parts, read_parts
from pipeline.predicate import Predicate
from pipeline.rows import keyed
from pipeline.source.options import SourceOptions, View
from pipeline.source.pulled import PulledPartition, plan_pulls, read_pulled
from pipeline.source.pushed import Pushed


@dataclass
class ArchivePartition(InputPartition):
    """Parts of archived segments that are read from end to end."""

    store: PinnedStore
    parts: tuple[SegmentPart, ...]
    predicate: Predicate


@dataclass
class HitsPartition(InputPartition):
    """Places that the index gave."""

    store: PinnedStore
    parts: tuple[HitsPart, ...]
    predicate: Predicate


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned.

    Spark pickles the reader before it asks for partitions, so that whatever tasks need travels in those.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    @property
    def pushFilters(self) -> _PushFilters:  # type: ignore[override]  # see there
        """Takes the filters of the query."""
        return _PushFilters(self)

    def take_filters(self, filters: Iterable[Filter]) -> None:
        """Leave out what these filters rule out."""
        self._pushed = Pushed.of(filters, self._options.view)

    def partitions(self) -> Sequence[InputPartition]:
        """What has to be read, in tasks of about ``partition_bytes``."""
        options, archive = self._options, None
        if options.cold is not None:
            archive = ArchiveSnapshot.take(options.cold, () if options.store is None else (options.store,))
        found: list[InputPartition] = []
        if options.url is not None:
            found += plan_pulls(options, archive, self._pushed)
        if archive is not None and not self._pushed.is_empty:
            for store in archive.stores.values():
                if self._pushed.wants_store(store.store_id):
                    found += self._of_archive(store)
        return found

    def _of_archive(self, store: PinnedStore) -> Iterator[InputPartition]:
        predicate, bare = self._pushed.predicate, store.for_known_entries()
        tasks = plan_key_reads(store, predicate, part_bytes=self._options.partition_bytes)
        if tasks is not None:
            for hits in tasks:
                yield HitsPartition(bare, hits, predicate)
            predicate = not_indexed(store, predicate)
        for parts in plan_parts(store, predicate, part_bytes=self._options.partition_bytes):
            yield ArchivePartition(bare, parts, predicate)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; none of the one that Spark makes up where there is nothing to read."""
        batches = _messages_of(partition)
        return keyed(batches) if self._options.view is View.KEYS else batches


def _messages_of(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, ArchivePartition):
        yield from read_parts(partition.store, partition.parts, partition.predicate)
    elif isinstance(partition, HitsPartition):
        yield from read_hits(partition.store, partition.parts, partition.predicate)
    elif isinstance(partition, PulledPartition):
        yield from read_pulled(partition)


class _PushFilters:
    """A reader's ``pushFilters``, which gives every filter back.

    Spark does not begin a query with a reader that overrides the method unless filter push-down is switched on, which
    is right where rows depend on it. Here they do not, so this passes for the method of the base class.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.take_filters(filters)
        return filters


def make_batch_reader(options: SourceOptions) -> DataSourceReader:
    """The reader for a query."""
    return BatchReader(options)
