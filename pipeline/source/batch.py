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

from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore
from tierlog.pipeline.read.key_reads import HitsPart, plan_key_reads, read_hits
from tierlog.pipeline.read.partitions import PART_BYTES, SegmentPart, plan_parts, read_part
from tierlog.pipeline.read.predicate import ANY, EVERYTHING, Predicate, ValueRange
from tierlog.pipeline.read.views import keyed, projected
from tierlog.pipeline.source.options import SourceOptions, View
from tierlog.pipeline.source.pulled import PulledPartition, plan_pulls, read_pulled

_LOG = logging.getLogger(__name__)


@dataclass
class ArchivePartition(InputPartition):
    """Parts of archived segments that are read from end to end, or places in them that the index gave."""

    store_id: str
    parts: tuple[SegmentPart | HitsPart, ...]
    physical_offsets: ValueRange
    """Which of their records."""


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned.

    Spark pickles the reader, sends it to executors once for all tasks, and asks it for partitions after that, of which
    each goes with its task. So the heads, whose open erasures may have 100 kB, are pinned when the reader is made.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """The schema is the view's or a projection of it. Raises what :meth:`ArchiveSnapshot.take` raises."""
        self._options = options
        self._schema = schema
        self._archive: ArchiveSnapshot | None = None
        if options.cold is not None:
            self._archive = ArchiveSnapshot.take(options.cold, () if options.store is None else (options.store,))
        self._predicate = Predicate(
            options.topics or None,
            stored=ValueRange(options.from_ms, options.to_ms),
            keys=options.keys,
            tags=options.tags,
        )

    def __getstate__(self) -> dict[str, object]:
        """Returns the state that executors need."""
        return {**self.__dict__, "_archive": self._archive and self._archive.for_known_entries()}

    def partitions(self) -> Sequence[InputPartition]:
        """Returns what has to be read, in tasks of about ``partition_bytes``."""
        found: list[InputPartition] = []
        if self._options.url is not None:
            found += plan_pulls(self._options, self._archive)
        if self._archive is not None:
            for store in self._archive.stores.values():
                found += self._of_archive(store)
        if len(found) > 1 and self._predicate == EVERYTHING:
            _LOG.warning(
                "%d tasks read everything: a condition in where(…) comes after that; options topic, key, from, to and "
                "tag leave out what is not wanted before it is read", len(found),
            )  # fmt: skip
        return found

    def _of_archive(self, store: PinnedStore) -> Iterator[InputPartition]:
        part_bytes, to_scan = self._options.partition_bytes, ANY
        by_key = plan_key_reads(store, self._predicate, part_bytes=part_bytes or PART_BYTES)
        if by_key is not None:
            indexed, to_scan = ValueRange(end=store.head.indexed_to), ValueRange(store.head.indexed_to)
            for hits in by_key:
                yield ArchivePartition(store.store_id, hits, indexed)
        for parts in plan_parts(store, self._predicate.within(to_scan), part_bytes=part_bytes):
            yield ArchivePartition(store.store_id, parts, to_scan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; none of the one that Spark makes up where there is nothing to read."""
        batches = self._messages_of(partition)
        if self._options.view is View.KEYS:
            batches = keyed(batches, self._options.keys)
        return projected(batches, self._schema)

    def _messages_of(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PulledPartition):
            yield from read_pulled(partition, self._predicate)
        elif isinstance(partition, ArchivePartition):
            assert self._archive is not None
            store = self._archive.stores[partition.store_id]
            predicate = self._predicate.within(partition.physical_offsets)
            for part in partition.parts:
                if isinstance(part, HitsPart):
                    yield from read_hits(store, part, predicate)
                else:
                    yield from read_part(store, part, predicate)
