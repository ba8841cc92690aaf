"""Writes a DataFrame to the archive of a new store: a task for each partition, and one commit of the driver.

Each task archives its partition by itself, in a stretch of the log that its number gives it; the driver names what the
tasks that count have stored. Objects of attempts that do not count are named by nobody (``index.new_store.commit``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tierlog.index.new_store.commit import NewTopics, discard, publish, refuse_existing
from tierlog.index.new_store.part import BuiltPart, NewStore, PartBuilder, PartQueue
from tierlog.pipeline.new_store.input_rows import InputRows
from tierlog.tiering.base.errors import CapacityError, InvalidRequestError, MessageTooLargeError, StoreError
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.message.batch import ANY_QUEUE, NO_HOST, MessageBatch, encode_batch

#: Bytes of log that a partition may fill; whole segments, so a little more for odd sizes of them.
_STRETCH_BYTES = 1 << 40
MOST_PARTITIONS = 1 << 20
#: Of a record with addresses of four bytes.
_STORE_MS_AT = 56
_TIME_BYTES = 8
#: Rows that are made messages at a time.
_PIECE_ROWS = 1 << 15


def stretch_bytes(store: NewStore) -> int:
    """Returns the physical range of one partition: that of number ``n`` begins at ``n`` times this."""
    return -(-_STRETCH_BYTES // store.segment_bytes) * store.segment_bytes


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """The queues and offsets that the rows of one partition get."""

    free: tuple[int, ...]
    """Queues that a topic's rows without one take in turn."""
    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """First offset of the partition in queues of a topic."""
    other_start: int | None = 0
    """The same of every queue not in ``starts``; None: rows of such a queue were not expected."""

    def start(self, topic: str, queue_id: int) -> int:
        """First offset of the partition's rows in a queue."""
        found = self.starts.get((topic, queue_id), self.other_start)
        if found is None:
            raise StoreError(
                f"rows of queue {topic}/{queue_id} came up that were not there when rows were counted",
                hint="the input changed meanwhile: run the job again",
            )
        return found


class PartitionEncoder:
    """Gives the messages of one partition queues and offsets, and writes them into segments, archived once full.

    Messages come in the order of their store times. A partition has a stretch of the log of its own, so that tasks need
    not know of each other. What is not used of it becomes a declared gap.
    """

    def __init__(
        self, store: NewStore, partition: int, builder: PartBuilder, plan: QueuePlan, topic_id: Callable[[str], int]
    ) -> None:
        """``builder`` begins where the partition's stretch does."""
        self._store = store
        self._builder = builder
        self._plan = plan
        self._topic_id = topic_id
        self._topics: dict[str, Topic] = {}
        self._turns: dict[str, int] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._base = partition * stretch_bytes(store)
        self._end = self._base + stretch_bytes(store)
        self._position = 0
        self._data: ByteArray | None = None
        self._fs = LocalFileSystem()
        self.last_store_ms = 0
        """Store time of the newest message; the next may not be older."""

    def add(self, batch: MessageBatch, store_ms: NDArray[np.int64]) -> None:
        """Writes the next messages; errors name one by its place in the batch (``position``).

        Raises :class:`InvalidRequestError` for store times that step back, :class:`MessageTooLargeError` for a record
        that no segment holds.
        """
        if not len(batch):
            return
        self._check_times(store_ms)
        sizes = batch.record_sizes(2 * len(NO_HOST))
        if sizes.max() > self._store.segment_bytes - BLANK_BYTES:
            place = int(sizes.argmax())
            raise MessageTooLargeError(f"record of {sizes[place]} bytes does not fit a segment", position=place)
        queue_id, queue_offset = self._place(batch)
        ends = np.cumsum(sizes)
        first = 0
        while first < len(batch):
            before = int(ends[first - 1]) if first else 0
            room = self._store.segment_bytes - BLANK_BYTES - self._position
            last = int(np.searchsorted(ends, before + room, side="right"))
            if last == first:
                self._close()
                continue
            out = self._segment()[self._position : self._position + int(ends[last - 1]) - before]
            encode_batch(
                batch, first, last, sizes, out, physical=self._base + self._position, store_ms=0, store_host=NO_HOST,
                queue_id=queue_id, queue_offset=queue_offset,
            )  # fmt: skip
            starts = ends[first:last] - sizes[first:last] - before
            times = store_ms[first:last].astype(">i8").view(np.uint8).reshape(-1, _TIME_BYTES)
            out[starts[:, None] + np.arange(_STORE_MS_AT, _STORE_MS_AT + _TIME_BYTES)] = times
            self._position += len(out)
            first = last

    def _check_times(self, store_ms: NDArray[np.int64]) -> None:
        before = np.concatenate(([self.last_store_ms], store_ms[:-1]))
        falling = np.flatnonzero(store_ms < before)
        if len(falling):
            place = int(falling[0])
            if store_ms[place] < 0:
                raise InvalidRequestError("a store time before 1970", position=place)
            raise InvalidRequestError(
                f"store time {store_ms[place]} ms follows {before[place]} ms: store times never step back",
                position=place, hint="sort within partitions by store_time",
            )  # fmt: skip
        self.last_store_ms = int(store_ms[-1])

    def _place(self, batch: MessageBatch) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        queue_id, queue_offset = batch.queue_id.copy(), np.empty(len(batch), np.int64)
        for number, name in enumerate(batch.topics):
            mine = batch.topic_index == number
            free = np.flatnonzero(mine & (queue_id == ANY_QUEUE))
            turn = self._turns.get(name, 0)
            queue_id[free] = np.array(self._plan.free, np.int32)[(turn + np.arange(len(free))) % len(self._plan.free)]
            self._turns[name] = turn + len(free)
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = Topic(self._topic_id(name), name, 1)
            for queue in np.unique(queue_id[mine]).tolist():
                chosen = np.flatnonzero(mine & (queue_id == queue))
                start = self._next.get((name, queue))
                if start is None:
                    start = self._plan.start(name, queue)
                queue_offset[chosen] = start + np.arange(len(chosen))
                self._next[name, queue] = start + len(chosen)
        return queue_id, queue_offset

    def _segment(self) -> ByteArray:
        """Returns the segment that is being written, a file that the page cache may write out."""
        if self._data is None:
            if self._base >= self._end:
                raise CapacityError(f"a partition is over {_STRETCH_BYTES} bytes", hint="make more partitions")
            path = self._builder.folder / "segment"
            self._fs.create(path, self._store.segment_bytes, prewrite=False)
            self._data = self._fs.map_write(path)
            self._fs.unlink(path)  # the map keeps it
        return self._data

    def _close(self) -> None:
        data, position = self._segment(), self._position
        blank = BLANK.pack(len(data) - position, MAGIC_BLANK)
        data[position : position + BLANK_BYTES] = np.frombuffer(blank, np.uint8)
        self._builder.add(Segment(self._base, data), list(self._topics.values()))
        self._data, self._position = None, 0
        self._base += self._store.segment_bytes

    def finish(self) -> BuiltPart:
        """Archives what is left; returns everything that was built."""
        if self._position:
            self._close()
        runs = [
            PartQueue(topic, queue, self._plan.start(topic, queue), end)
            for (topic, queue), end in sorted(self._next.items())
        ]
        return self._builder.finish(runs)


def encode_rows(encoder: PartitionEncoder, rows: InputRows, batches: Iterable[pa.RecordBatch], partition: int) -> None:
    """Encodes all rows of a partition; an :class:`InvalidRequestError` names the row by its number there."""
    before = 0
    for arrow in batches:
        for start in range(0, arrow.num_rows, _PIECE_ROWS):
            piece = arrow.slice(start, _PIECE_ROWS)
            try:
                encoder.add(*rows.messages(piece))
            except InvalidRequestError as error:
                if error.position is None:
                    raise
                text = error.message.removeprefix(f"message {error.position}: ")
                row = before + start + error.position
                raise type(error)(f"row {row} of partition {partition}: {text}", hint=error.hint) from error
        before += arrow.num_rows


class Places(Protocol):
    """The ids, queues and offsets that tasks give out, though they do not know of each other. Travels to every task."""

    def plan(self, partition: int) -> QueuePlan:
        """Queues and first offsets of one partition's rows."""
        ...

    def topic_id(self, topic: str) -> int:
        """Returns the id of a topic, the same in every task."""
        ...

    def new_topics(self, parts: Sequence[BuiltPart]) -> NewTopics:
        """Returns the state of the topics of all parts, which ascend; a :class:`StoreError` refuses them."""
        ...


@dataclass(frozen=True)
class StoredPart(WriterCommitMessage):
    """The part that one task has stored."""

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
        """Archives one partition. Killed: objects that nobody names; the next attempt stores its own."""
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
        """Makes the store visible with what the tasks have stored. Killed before the head is put: nothing is."""
        parts = _parts(messages)
        try:
            topics = self._places.new_topics(parts)
            refuse_existing(self._store)
        except StoreError:
            discard(self._store, [name for part in parts for name in part.names])
            raise
        publish(self._store, parts, topics, SystemRandomness(), volume_id=self._volume_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deletes what the tasks have stored, unless the commit was tried: it may have come through unheard."""
        parts = _parts(messages)
        if len(parts) < len(messages):
            discard(self._store, [name for part in parts for name in part.names])


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[BuiltPart]:
    found = [message.part for message in messages if isinstance(message, StoredPart)]
    return sorted(found, key=lambda part: part.first)
