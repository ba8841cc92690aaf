"""Gives every message of a batch its queue, its offsets and its store time, and writes the records to the log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import MessageTooLargeError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.record import BLANK_BYTES
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.hot.consume_queue import QueueKey
from tierlog.tiering.hot.topics import Topic, TopicRegistry
from tierlog.tiering.kernels.batch_layout import choose_queues, number_messages
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.message.batch import ANY_QUEUE, MessageBatch, encode_batch, no_such_queue
from tierlog.tiering.message.pending import LoneMessage

#: Records are encoded in pieces that stay in a processor's cache until they are written.
_PIECE_BYTES = 1 << 20


class AppendResult(NamedTuple):
    """The places of a batch's messages in the log and their queues, in the batch's order."""

    physical_offset: NDArray[np.int64]
    queue_id: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    store_ms: int


#: Bytes of the record of each message.
Sizes = NDArray[np.int64] | tuple[int]


class BatchWriter:
    """Writes at the log's end; one call at a time, by whoever holds the store's append lock."""

    def __init__(
        self, log: CommitLog, topics: TopicRegistry, clock: Clock, store_host: bytes, *, record_checksum: bool
    ) -> None:
        self._log = log
        self._topics = topics
        self._clock = clock
        self._store_host_bytes = store_host
        self._store_host = np.frombuffer(store_host, np.uint8)
        self._record_checksum = record_checksum
        self._buffer = np.empty(0, np.uint8)
        self._round_robin: dict[int, int] = {}
        self._next_offsets: dict[QueueKey, int] = {}
        #: Store time of the newest record, 0 before the first; never steps back.
        self.last_store_ms = 0
        #: Messages and their records' bytes since the store was opened.
        self.messages = self.bytes = 0

    def raise_next(self, key: QueueKey, queue_offset: int) -> None:
        """The queue's next message gets at least this offset."""
        self._next_offsets[key] = max(queue_offset, self._next_offsets.get(key, 0))

    def next_offset(self, topic: Topic, queue_id: int) -> int:
        """Returns the offset that the queue's next message gets."""
        return max(self._next_offsets.get((topic.topic_id, queue_id), 0), topic.floor(queue_id))

    def record_sizes(self, batch: MessageBatch | LoneMessage) -> Sizes:
        """Bytes of each record; :class:`MessageTooLargeError` for one that no segment can hold."""
        host_bytes = 8 + len(self._store_host)
        if isinstance(batch, LoneMessage):
            size = batch.record_size(host_bytes, checksum=self._record_checksum)
            self._check_fits(size, 0)
            return (size,)
        sizes = batch.record_sizes(host_bytes, checksum=self._record_checksum)
        if len(sizes):
            place = int(sizes.argmax())
            self._check_fits(int(sizes[place]), place)
        return sizes

    def _check_fits(self, size: int, place: int) -> None:
        if size > self._log.segment_bytes - BLANK_BYTES:
            raise MessageTooLargeError(
                f"message {place}: record of {size} bytes does not fit a segment", position=place
            )

    def check_queues(self, batch: MessageBatch | LoneMessage) -> None:
        """Raises :class:`InvalidRequestError` for a message to a queue that its topic does not have."""
        if isinstance(batch, LoneMessage):
            counts, most = [self._topics.queues_of(batch.topic)], batch.queue_id
        else:
            counts = [self._topics.queues_of(name) for name in batch.topics]
            most = int(batch.queue_id.max()) if len(batch) else 0
        if most < min(counts, default=1):
            return
        if isinstance(batch, LoneMessage):
            raise no_such_queue(batch.topic, most, counts[0], 0)
        beyond = np.flatnonzero(batch.queue_id >= np.array(counts)[batch.topic_index])
        if len(beyond):
            place = int(beyond[0])
            number = int(batch.topic_index[place])
            raise no_such_queue(batch.topics[number], int(batch.queue_id[place]), counts[number], place)

    def append(self, batch: MessageBatch | LoneMessage, sizes: Sizes) -> AppendResult:
        """Writes the batch, rolling where a segment ends.

        What :meth:`check_queues` refuses must not come here. Whatever needs a descriptor comes first: after
        :class:`OutOfResourcesError` nothing is written and no offset taken. After any other failure nobody may write
        again.
        """
        if isinstance(batch, LoneMessage):
            return self._append_lone(batch, sizes[0])
        ends = np.asarray(sizes).cumsum()
        topics = [self._topics.create(name) for name in batch.topics]
        self._log.reserve(self._rolls(ends))
        result = self._place(batch, topics)
        self.bytes += self._write(batch, np.asarray(sizes), ends, result)
        self.messages += len(batch)
        return result

    def append_records(self, records: ByteArray, count: int, last_store_ms: int) -> None:
        """Writes whole records that name this place of the log, and fit the active segment; their topics are known.

        Queues and offsets are what they say, and no counter moves.
        """
        self._log.write(records)
        self.last_store_ms = max(self.last_store_ms, last_store_ms)
        self.messages += count
        self.bytes += len(records)

    def _append_lone(self, message: LoneMessage, size: int) -> AppendResult:
        """Appends a batch of one, without the arrays of a larger one."""
        topic = self._topics.create(message.topic)
        queue_id = message.queue_id
        if queue_id == ANY_QUEUE:
            queue_id = self._round_robin.get(topic.topic_id, 0) % topic.queues
            self._round_robin[topic.topic_id] = (queue_id + 1) % topic.queues
        if size > self._log.room():
            self._log.roll()
        queue_offset = 0
        if message.has_queue_unit:
            queue_offset = self.next_offset(topic, queue_id)
            self._next_offsets[topic.topic_id, queue_id] = queue_offset + 1
        self.last_store_ms = max(self.last_store_ms, self._clock.now_ms())
        physical = self._log.end
        record = message.encode(
            physical=physical, store_ms=self.last_store_ms, store_host=self._store_host_bytes, queue_id=queue_id,
            queue_offset=queue_offset, checksum=self._record_checksum,
        )  # fmt: skip
        self._log.write(record)
        self.messages += 1
        self.bytes += size
        places = np.array((physical, queue_offset))
        return AppendResult(places[:1], np.array((queue_id,), np.int32), places[1:], self.last_store_ms)

    def _place(self, batch: MessageBatch, topics: list[Topic]) -> AppendResult:
        count = len(batch)
        queue_id = batch.queue_id.copy()
        queue_offset = np.empty(count, np.int64)
        at_topic, at_queue = address_of(batch.topic_index), address_of(queue_id)
        for number, topic in enumerate(topics):
            turn = self._round_robin.get(topic.topic_id, 0)
            counts = np.zeros(topic.queues, np.int64)
            at_counts = address_of(counts)
            turn = choose_queues(
                count=count, topic_index=at_topic, topic=number, queue_id=at_queue,
                queues=topic.queues, turn=turn, counts=at_counts,
            )  # fmt: skip
            self._round_robin[topic.topic_id] = turn
            queues = [queue for queue, messages in enumerate(counts.tolist()) if messages]
            following = counts  # from here on the offset that each queue's next message gets
            for queue in queues:
                following[queue] = self.next_offset(topic, queue)
            number_messages(
                count=count, topic_index=at_topic, topic=number, queue_id=at_queue,
                following=at_counts, queue_offset=address_of(queue_offset),
                client=0 if batch.client is None else address_of(batch.client),
            )  # fmt: skip
            ends = following.tolist()
            for queue in queues:
                self._next_offsets[topic.topic_id, queue] = ends[queue]
        self.last_store_ms = max(self.last_store_ms, self._clock.now_ms())
        return AppendResult(np.empty(count, np.int64), queue_id, queue_offset, self.last_store_ms)

    def _rolls(self, ends: NDArray[np.int64]) -> int:
        """Returns how often the log rolls under records that end so far behind the batch's start."""
        first = rolls = 0
        room = self._log.room()
        if not len(ends) or ends[-1] <= room:  # as nearly all batches
            return 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            first = int(ends.searchsorted(before + room, side="right"))
            if first < len(ends):
                rolls, room = rolls + 1, self._log.segment_bytes - BLANK_BYTES
        return rolls

    def _write(
        self, batch: MessageBatch, sizes: NDArray[np.int64], ends: NDArray[np.int64], result: AppendResult
    ) -> int:
        """Returns the bytes of all records."""
        total = int(ends[-1]) if len(batch) else 0
        first = 0
        while first < len(batch):
            before = int(ends[first - 1]) if first else 0
            room = self._log.room()
            most = before + min(room, _PIECE_BYTES)
            last = len(batch) if total <= most else int(ends.searchsorted(most, side="right"))
            if last == first and sizes[first] <= room:
                last += 1
            if last == first:
                self._log.roll()
                continue
            out = self._buffer_of(int(ends[last - 1]) - before)
            encode_batch(
                batch, first, last, sizes, out, physical=self._log.end, store_ms=result.store_ms,
                store_host=self._store_host, queue_id=result.queue_id, queue_offset=result.queue_offset,
                checksum=self._record_checksum,
            )  # fmt: skip
            places = result.physical_offset[first:last]
            np.subtract(ends[first:last], sizes[first:last], out=places)
            places += self._log.end - before
            self._log.write(out)
            first = last
        return total

    def _buffer_of(self, size: int) -> ByteArray:
        if size > len(self._buffer):
            self._buffer = np.empty(max(size, _PIECE_BYTES), np.uint8)
        return self._buffer[:size]
