"""``df.write.format("tierlog").option("cold", URL).option("store", ID)``: rows to the archive of a new store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from tierlog.index.new_store.commit import NewTopics, check_ids, refuse_existing, topic_id_of
from tierlog.index.new_store.part import BuiltPart, NewStore
from tierlog.index.objects.derivation import IndexSizes
from tierlog.pipeline.new_store.input_rows import InputRows
from tierlog.pipeline.new_store.writer import ArchiveWriter, QueuePlan
from tierlog.pipeline.source.options import SourceOptions
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.hot.identity import DEFAULT_SEGMENT_BYTES, validate_store_id
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.message.batch import MAX_QUEUES, validate_topic

#: What tells the offsets of one partition's rows apart from those of another's, where rows name their queues.
_OFFSET_BITS = 32


@dataclass(frozen=True, slots=True)
class PlacesByNumber:
    """Places for partitions of which nothing is known but their numbers."""

    have_queues: bool
    """Whether rows name their queues."""

    def plan(self, partition: int) -> QueuePlan:
        """Plans a partition; without queues in the rows it is a queue of its own, dense from 0."""
        if self.have_queues:
            return QueuePlan((partition % MAX_QUEUES,), other_start=partition << _OFFSET_BITS)
        if partition >= MAX_QUEUES:
            raise InvalidRequestError(
                f"more than {MAX_QUEUES} partitions, and each becomes a queue",
                hint=f"use df.coalesce({MAX_QUEUES}) or fewer, or give a column queue_id",
            )
        return QueuePlan((partition,))

    def topic_id(self, topic: str) -> int:
        """Returns the id by the name alone."""
        return topic_id_of(topic)

    def new_topics(self, parts: Sequence[BuiltPart]) -> NewTopics:
        """Topics by their names; :class:`InvalidRequestError` if two have the same id."""
        runs = [run for part in parts for run in part.runs]
        names = sorted({run.topic for run in runs})
        check_ids(names)
        return NewTopics.of([Topic(topic_id_of(name), name, 1) for name in names], runs)


def make_archive_writer(
    options: SourceOptions, schema: StructType, *, overwrite: bool, clock: Clock, randomness: Randomness
) -> ArchiveWriter:
    """Returns the writer of one batch write.

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
    return ArchiveWriter(store, rows, PlacesByNumber("queue_id" in rows.columns), randomness.token_hex(8))
