"""Gives the rows of one partition queues and offsets, and writes them into segments that are archived once full.

A partition has a stretch of the log of its own, so that tasks need not know of each other. What is not used of it
becomes a declared gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.new_store.input_rows import InputRows
from pipeline.new_store.part import BuiltPart, NewStore, PartBuilder, QueueRun
from tiering.batch import ANY_QUEUE, MessageBatch
from tiering.encoding import NO_HOST, encode_batch
from tiering.errors import CapacityError, InvalidRequestError, MessageTooLargeError, StoreError
from tiering.format.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from tiering.fs import ByteArray, LocalFileSystem
from tiering.hot.commit_log import Segment
from tiering.hot.topics import Topic

#: Bytes of log that a partition may fill; whole segments, so a little more for odd sizes of them.
_STRETCH_BYTES = 1 << 40
MOST_PARTITIONS = 1 << 20
#: Of a record with addresses of four bytes.
_STORE_MS_AT = 56
_TIME_BYTES = 8
#: Rows that are made messages at a time.
_PIECE_ROWS = 1 << 15


def stretch_bytes(store: NewStore) -> int:
    """The physical range of one partition: that of number ``n`` begins at ``n`` times this."""
    return -(-_STRETCH_BYTES // store.segment_bytes) * store.segment_bytes


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Which queues and offsets the rows of one partition get."""

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
    """Takes the messages of one partition in the order of their store times."""

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
        """Write the next messages; errors name one by its place in the batch (``position``).

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
        """The segment that is being written, a file that the page cache may write out."""
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
        """Archive what is left; everything that was built."""
        if self._position:
            self._close()
        runs = [
            QueueRun(topic, queue, self._plan.start(topic, queue), end)
            for (topic, queue), end in sorted(self._next.items())
        ]
        return self._builder.finish(runs)


def encode_rows(encoder: PartitionEncoder, rows: InputRows, batches: Iterable[pa.RecordBatch], partition: int) -> None:
    """Encode all rows of a partition; an :class:`InvalidRequestError` names the row by its number there."""
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
