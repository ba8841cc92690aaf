"""The batch read: plans partitions on the driver, reads them on executors.

What is read is narrowed by options alone, which belong to one ``load()``. Filters are not taken: Spark 4.3 keeps what a
reader planned with the filters of one scan for every other scan of the same ``load()``, and those that have none never
ask (``docs/decisions/0035-filters-are-options.md``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.archive import ArchiveSnapshot, PinnedStore
from pipeline.key_reads import HitsPart, not_indexed, plan_key_reads, read_hits
from pipeline.parts import SegmentPart, plan_parts, read_parts
from pipeline.predicate import EVERYTHING, Predicate, Span
from pipeline.rows import keyed, projected
from pipeline.source.options import SourceOptions, View
from pipeline.source.pulled import PulledPartition, plan_pulls, read_pulled

_LOG = logging.getLogger(__name__)


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

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """The schema is the view's or a projection of it."""
        self._options = options
        self._schema = schema
        self._predicate = Predicate(
            options.topics or None, stored=Span(options.from_ms, options.to_ms), keys=options.keys, tags=options.tags
        )

    def partitions(self) -> Sequence[InputPartition]:
        """What has to be read, in tasks of about ``partition_bytes``."""
        options, archive = self._options, None
        if options.cold is not None:
            archive = ArchiveSnapshot.take(options.cold, () if options.store is None else (options.store,))
        found: list[InputPartition] = []
        if options.url is not None:
            found += plan_pulls(options, archive)
        if archive is not None:
            for store in archive.stores.values():
                found += self._of_archive(store)
        if len(found) > 1 and self._predicate == EVERYTHING:
            _LOG.warning(
                "%d tasks read everything: a condition in where(…) comes after that; options topic, key, from, to and "
                "tag leave out what is not wanted before it is read", len(found),
            )  # fmt: skip
        return found

    def _of_archive(self, store: PinnedStore) -> Iterator[InputPartition]:
        predicate, bare = self._predicate, store.for_known_entries()
        tasks = plan_key_reads(store, predicate, part_bytes=self._options.partition_bytes)
        if tasks is not None:
            for hits in tasks:
                yield HitsPartition(bare, hits, predicate)
            predicate = not_indexed(store, predicate)
        for parts in plan_parts(store, predicate, part_bytes=self._options.partition_bytes):
            yield ArchivePartition(bare, parts, predicate)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; none of the one that Spark makes up where there is nothing to read."""
        batches = _messages_of(partition, self._predicate)
        if self._options.view is View.KEYS:
            batches = keyed(batches, self._options.keys)
        return projected(batches, self._schema)


def _messages_of(partition: InputPartition, predicate: Predicate) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, ArchivePartition):
        yield from read_parts(partition.store, partition.parts, partition.predicate)
    elif isinstance(partition, HitsPartition):
        yield from read_hits(partition.store, partition.parts, partition.predicate)
    elif isinstance(partition, PulledPartition):
        yield from read_pulled(partition, predicate)
