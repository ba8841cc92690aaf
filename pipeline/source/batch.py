"""The batch read of an archive and a running service: plans partitions on the driver, reads them on executors.

What is read is narrowed by options alone, which belong to one ``load()``. Filters are not taken: Spark 4.3 keeps what a
reader planned with the filters of one scan for every other scan of the same ``load()``, and those that have none never
ask (``docs/decisions/0035-filters-are-options.md``).

The hot tail of a service, or all that it has, is read by pulls. The archive is pinned first, then the service is asked
where its queues end. Every message below the pinned head's ``archived_to`` comes from the archive and every other one
from the service, whichever tier it lies in by then: its physical offset tells, and never changes. So segments may move
from hot to cold while the tasks run, and each message is read once. What retention removes meanwhile is an error, never
left out.

A topic that is not archived, or was not for a while, leaves holes in its queues below ``archived_to``. The queue rows
of the pinned head tell them; what is in them is hot or nowhere, and pulled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore, warn_of_lost
from tierlog.pipeline.base.client import ServedPage, ServedQueueEnds, ServiceClient, lost_in
from tierlog.pipeline.read.partitions import (
    PART_BYTES,
    HitsPart,
    SegmentPart,
    of_topics,
    plan_key_reads,
    plan_parts,
    read_hits,
    read_part,
)
from tierlog.pipeline.read.predicate import ANY, EVERYTHING, Predicate, ValueRange
from tierlog.pipeline.read.views import keyed, projected, pulled_batch, shown_ms
from tierlog.pipeline.source.options import SourceOptions, View
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.generation import asked_name, is_wanted

_LOG = logging.getLogger(__name__)
_MESSAGE_BYTES = 1 << 10
"""What a message counts for in a task."""
_PULL = 1000
_MOST_TASKS = 256
"""Of one queue: its offsets may have gaps that the service cannot tell."""


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
        #: Of all topics; and of those that are wanted, by store.
        self._predicate = Predicate(
            stored=ValueRange(options.from_ms, options.to_ms), keys=options.keys, tags=options.tags
        )
        stores = self._archive.stores if self._archive is not None else {}
        self._predicates = {name: of_topics(self._predicate, store, options.topics) for name, store in stores.items()}

    def __getstate__(self) -> dict[str, object]:
        """Returns the state that executors need."""
        return {**self.__dict__, "_archive": self._archive and self._archive.for_known_entries()}

    def partitions(self) -> Sequence[InputPartition]:
        """Returns what has to be read, in tasks of about ``partition_bytes``."""
        found: list[InputPartition] = []
        if self._options.url is not None:
            found += plan_pulls(self._options, self._archive)
        if self._archive is not None:
            warn_of_lost(self._archive.lost(), self._options.from_ms, self._options.to_ms)
            for store in self._archive.stores.values():
                found += self._of_archive(store)
        if len(found) > 1 and self._predicate == EVERYTHING and not self._options.topics:
            _LOG.warning(
                "%d tasks read everything: a condition in where(…) comes after that; options topic, key, from, to and "
                "tag leave out what is not wanted before it is read", len(found),
            )  # fmt: skip
        return found

    def _of_archive(self, store: PinnedStore) -> Iterator[InputPartition]:
        part_bytes, to_scan, predicate = self._options.partition_bytes, ANY, self._predicates[store.store_id]
        by_key = plan_key_reads(store, predicate, part_bytes=part_bytes or PART_BYTES)
        if by_key is not None:
            indexed, to_scan = ValueRange(end=store.head.indexed_to), ValueRange(store.head.indexed_to)
            for hits in by_key:
                yield ArchivePartition(store.store_id, hits, indexed)
        for parts in plan_parts(store, predicate.within(to_scan), part_bytes=part_bytes):
            yield ArchivePartition(store.store_id, parts, to_scan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Returns the rows of a partition; none of the one that Spark makes up where there is nothing to read."""
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
            predicate = self._predicates[store.store_id].within(partition.physical_offsets)
            for part in partition.parts:
                if isinstance(part, HitsPart):
                    yield from read_hits(store, part, predicate)
                else:
                    yield from read_part(store, part, predicate)


@dataclass
class PulledPartition(InputPartition):
    """Queue offsets ``[first, end)`` of one queue of a service."""

    url: str
    store_id: str
    topic: str
    queue_id: int
    first: int
    end: int
    physical_offsets: ValueRange
    """Which of those messages are the service's to tell."""


def plan_pulls(options: SourceOptions, archive: ArchiveSnapshot | None) -> Iterator[PulledPartition]:
    """Plans pulls of what the service has beyond the archive, which was pinned before; of all of it without one.

    Raises :class:`InvalidRequestError` if it serves another store than those that are meant, and what its client does.
    """
    assert options.url is not None
    with ServiceClient(options.url) as client:
        stats = client.stats()
        store_id = str(stats["store_id"])
        if archive is None:
            warn_of_lost([(store_id, lost_in(stats) or ())], options.from_ms, options.to_ms)
        above = _above(options, archive, store_id, int(stats["log_end"]))
        log_begin, task_bytes = int(stats["log_begin"]), options.partition_bytes or PART_BYTES
        for topic in client.topics():
            if not is_wanted(topic.lasting_name, options.topics):
                continue
            name = asked_name(topic.lasting_name)  # which a generation that begins meanwhile does not change
            for queue in topic.queues:
                first = _first_at_or_above(client, name, queue, above)
                task = PulledPartition(
                    url=options.url,
                    store_id=store_id,
                    topic=name,
                    queue_id=queue.queue_id,
                    first=0,
                    end=0,
                    physical_offsets=ValueRange(above),
                )
                if archive is not None and log_begin < above:
                    store = archive.stores[store_id]
                    for begin, end in _holes(client, store, name, queue=queue, end=first, log_begin=log_begin):
                        hole = (_present_from(client, name, queue, begin), end)
                        for start, end in _ranges(queue, hole, task_bytes):
                            yield replace(task, first=start, end=end, physical_offsets=ValueRange(log_begin, above))
                for start, end in _ranges(queue, (first, queue.max_offset), task_bytes):
                    yield replace(task, first=start, end=end)


def _holes(
    client: ServiceClient, store: PinnedStore, topic: str, *, queue: ServedQueueEnds, end: int, log_begin: int
) -> Iterator[tuple[int, int]]:
    """Yields the queue offsets below ``end`` that the archive lacks and whose messages may still be hot."""
    manifest, head = store.manifest, store.head
    reader = manifest.reader()
    found = manifest.state(reader, head).find(topic)
    for topic_id in [] if found is None else [found.topic_id]:
        pieces = manifest.queue_row_pieces(
            reader, head, topic_id, queue.queue_id, backwards=True, from_offset=log_begin
        )
        for rows in pieces:
            for row in np.sort(rows, order="first_queue_offset")[::-1]:
                following = int(row["first_queue_offset"] + row["count"])
                if following < end:
                    yield following, end
                if row["segment"] < log_begin:
                    return  # what comes before this one is not hot
                end = min(end, int(row["first_queue_offset"]))
    first = _bisected(client, topic, queue, log_begin)
    if first < end:
        yield first, end


def _above(options: SourceOptions, archive: ArchiveSnapshot | None, store_id: str, log_end: int) -> int:
    """Returns the physical offset above which messages are read from the service."""
    if options.store not in (None, store_id):
        raise InvalidRequestError(
            f"the service at {options.url} serves store {store_id!r}, not {options.store!r}", hint="see option 'store'"
        )
    if archive is None:
        return 0
    pinned = archive.stores.get(store_id)
    if pinned is None:
        raise InvalidRequestError(
            f"the service at {options.url} serves store {store_id!r}, of which {archive.url} has no archive",
            hint=f"there are {', '.join(sorted(archive.stores))}",
        )
    head = pinned.head
    if head.beyond_gaps(log_end) < head.archived_to:
        raise InvalidRequestError(
            f"the log of the service at {options.url} ends at {log_end}, {archive.url} has it up to {head.archived_to}",
            hint="another volume writes this store now: give that one's URL",
        )
    return head.archived_to


def _first_at_or_above(client: ServiceClient, topic: str, queue: ServedQueueEnds, above: int) -> int:
    """Returns the queue offset from which on all messages that there are lie at or above a physical offset."""
    return _present_from(client, topic, queue, 0 if above == 0 else _bisected(client, topic, queue, above))


def _present_from(client: ServiceClient, topic: str, queue: ServedQueueEnds, first: int) -> int:
    """``first``, or the queue's first offset if that is greater."""
    page = client.pull(topic, queue.queue_id, first, 1)
    return page.next_offset if page.status is PullStatus.OFFSET_TOO_SMALL else first


def _bisected(client: ServiceClient, topic: str, queue: ServedQueueEnds, above: int) -> int:
    """Returns the least queue offset with nothing below ``above`` behind it, looked for from the queue's end.

    Queue offsets and physical offsets rise together.
    """

    def is_below(offset: int) -> bool:
        found = _next_message(client, topic, queue, offset)
        return found is not None and found["physical_offset"] < above

    high, step = queue.max_offset, 1
    low = high - step
    while low >= 0 and not is_below(low):
        high, step = low, 4 * step
        low = high - step
    low = max(low, -1)
    while high - low > 1:
        middle = (low + high) // 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return high


def _next_message(client: ServiceClient, topic: str, queue: ServedQueueEnds, offset: int) -> dict[str, Any] | None:
    """Returns the first message at or above an offset that is there; None if there is none."""
    while offset < queue.max_offset:
        page = client.pull(topic, queue.queue_id, offset, 1)
        if page.messages:
            return page.messages[0]
        if page.next_offset <= offset:
            return None
        offset = page.next_offset
    return None


def _ranges(queue: ServedQueueEnds, among: tuple[int, int], task_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the offsets ``[first, end)`` of the queue, without its declared gaps, a task each."""
    first, end = among
    for gap_first, gap_end in sorted(queue.gaps or []):
        yield from _cut(first, min(end, gap_first), task_bytes)
        first = max(first, gap_end)
    yield from _cut(first, end, task_bytes)


def _cut(first: int, end: int, task_bytes: int) -> Iterator[tuple[int, int]]:
    if first < end:
        count = max(1, min((end - first) * _MESSAGE_BYTES // task_bytes, _MOST_TASKS))
        borders = [first + (end - first) * number // count for number in range(count + 1)]
        yield from pairwise(borders)


def read_pulled(task: PulledPartition, predicate: Predicate) -> Iterator[pa.RecordBatch]:
    """Yields the messages of a task that fit. Raises :class:`ConflictError` if some of them are no longer there."""
    offset = task.first
    with ServiceClient(task.url) as client:
        while offset < task.end:
            page = client.pull(task.topic, task.queue_id, offset, min(_PULL, task.end - offset))
            _check(task, offset, page)
            found = [message for message in page.messages if _fits(task, predicate, message)]
            batch = predicate.chosen(pulled_batch(found))
            if batch.num_rows:
                yield batch
            offset = page.next_offset


def _check(task: PulledPartition, offset: int, page: ServedPage) -> None:
    where = f"{task.topic}/{task.queue_id}"
    hint = "plan the read again"
    if page.status is PullStatus.OFFSET_TOO_SMALL:
        raise ConflictError(
            f"messages {offset} to {page.next_offset - 1} of {where} were removed since the read was planned",
            path=task.url, hint=hint,
        )  # fmt: skip
    if page.next_offset <= offset:
        raise ConflictError(
            f"{where} ends at {page.max_offset}, and had {task.end} messages when the read was planned",
            path=task.url, hint=hint,
        )  # fmt: skip
    if any(message["store_id"] != task.store_id for message in page.messages):
        raise ConflictError(f"the service no longer serves store {task.store_id!r}", path=task.url, hint=hint)


def _fits(task: PulledPartition, predicate: Predicate, message: dict[str, Any]) -> bool:
    return (
        message["queue_offset"] < task.end
        and task.physical_offsets.contains(message["physical_offset"])
        and predicate.stored.contains(shown_ms(message["store_ms"]))
    )
