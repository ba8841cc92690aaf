"""Messages of RocketMQ's clients, which go into the record as they were sent.

What a :class:`~tiering.message.batch.Message` has no field for is kept too: flag, sys_flag, born host, reconsume times,
prepared offset, and the property text as it is, in which the client put its keys and its tag.

The text is what a RocketMQ broker would store: of a message that comes alone, less what is for the broker only; of one
in a batch, as it came. A name of the store's own is taken out of both, since clients send back what they received:
nothing that a client sends is ever taken for the store's word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.client_batch import decode_client_batch
from tierlog.tiering.format.properties import RECORD_CHECKSUM, text_as_stored, without_store_fields
from tierlog.tiering.format.record import TRANSACTION_MASK, SysFlag, has_checksum
from tierlog.tiering.kernels.client_batch import STORE_NAMES, STORE_STARTS, measure_client_batch, take_client_batch
from tierlog.tiering.kernels.encode import CLIENT_FIELDS, pack_client_fields
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.message.batch import (
    LOST_SECTOR,
    MAX_QUEUES,
    BytesColumn,
    MessageBatch,
    check_body_bytes,
    check_property_bytes,
    no_such_queue,
    validate_queue_id,
    validate_topic,
)
from tierlog.tiering.message.pending import LoneMessage, numbers_column

_V6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
#: One record that holds many messages: only the queues of a broker's batch topics know it.
_INNER_BATCH = 0x80
_I32_END, _I64_END = 1 << 31, 1 << 63
_STORE_NAMES, _STORE_STARTS = address_of(STORE_NAMES), address_of(STORE_STARTS)


class ClientMessages:
    """Messages as clients of RocketMQ sent them. Not thread safe.

    What is wrong with one is raised as it is added (:class:`InvalidRequestError`, :class:`MessageTooLargeError`), and
    nothing of it is kept.
    """

    __slots__ = ("_count", "_max_body_bytes", "_parts", "_queues_of", "_topics")

    def __init__(self, max_body_bytes: int, queues_of: Callable[[str], int] = lambda topic: MAX_QUEUES) -> None:
        """``queues_of`` tells how many queues a topic has for messages that name one."""
        self._max_body_bytes = max_body_bytes
        self._queues_of = queues_of
        #: Legal names, with the queues that each has at least.
        self._topics: dict[str, int] = {}
        #: In the order in which they came: runs of single ones, and batches.
        self._parts: list[list[LoneMessage] | MessageBatch] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        marks: bytes = b"",
    ) -> int:
        """Keeps a message that came alone, and returns its place in the list.

        ``born_host`` is 4 or 16 bytes of IP, and the port as int32. ``marks`` is property text of the store's own,
        which goes behind the client's. Body and properties may be any buffers; what is not ``bytes`` is copied.
        """
        self._check_target(topic, queue_id)
        _check_fields(
            flag=flag, sys_flag=sys_flag, born_ms=born_ms, born_host=born_host, reconsume_times=reconsume_times,
            prepared_offset=prepared_offset,
        )  # fmt: skip
        check_body_bytes(len(body), self._max_body_bytes)
        text = text_as_stored(properties) + marks
        _check_text(text, 0, len(marks))
        fields = (
            topic, queue_id, born_ms, body if type(body) is bytes else bytes(body), text, flag, sys_flag & ~_V6,
            bytes(born_host), reconsume_times, prepared_offset,
        )  # fmt: skip
        return self._keep([LoneMessage(*fields)]).start

    def add_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        *,
        sys_flag: int = 0,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> range:
        """Keeps all messages of a client batch (:mod:`tiering.format.client_batch`), or none; returns their places.

        An error names the message by its place in the batch (``position``).
        """
        self._check_target(topic, queue_id)
        _check_fields(sys_flag=sys_flag, born_ms=born_ms, born_host=born_host, reconsume_times=reconsume_times)
        if sys_flag & TRANSACTION_MASK:
            raise InvalidRequestError("a batch cannot be part of a transaction")
        if not len(batch):
            raise InvalidRequestError("empty batch", hint="a batch has at least one message")
        batch = bytes(batch)
        done = np.empty(2, np.int64)
        count = measure_client_batch(
            batch=address_of(batch), length=len(batch), most_body=self._max_body_bytes, store=_STORE_NAMES,
            store_starts=_STORE_STARTS, store_count=len(STORE_STARTS) - 1, done=address_of(done),
        )  # fmt: skip
        host = bytes(born_host)
        if count < 0:
            same = (sys_flag & ~_V6, host, reconsume_times)
            rows = ((topic, queue_id, born_ms, body, text, flag, *same) for flag, body, text in self._entries(batch))
            return self._keep([LoneMessage(*row) for row in rows])
        row = pack_client_fields(0, sys_flag, reconsume_times, len(host), 0, host)
        client = np.frombuffer(bytearray(row) * count, CLIENT_FIELDS)
        bodies, texts = (BytesColumn(np.empty(size or 1, np.uint8), np.empty(count + 1, np.int64)) for size in done)
        take_client_batch(
            batch=address_of(batch), count=count, client=address_of(client),
            body=address_of(bodies.data), body_starts=address_of(bodies.starts),
            text=address_of(texts.data), text_starts=address_of(texts.starts),
        )  # fmt: skip
        return self._keep(
            MessageBatch(
                topics=(topic,),
                topic_index=np.zeros(count, np.int32),
                queue_id=np.full(count, queue_id, np.int32),
                born_ms=np.full(count, born_ms, np.int64),
                body=bodies,
                keys=BytesColumn.empty(count),
                tags=BytesColumn.empty(count),
                properties=texts,
                client=client,
            )
        )

    def lone(self) -> LoneMessage | None:
        """Returns the only message, if it came alone; what is in the list stays."""
        part = self._parts[0] if self._count == 1 else None
        return part[0] if isinstance(part, list) else None

    def to_batch(self, *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        """Returns all of them as a batch, in the order in which they came; what is in the list stays."""
        batches = [_batch_of(part) if isinstance(part, list) else part for part in self._parts]
        found = batches[0] if len(batches) == 1 else _joined(batches)
        if max_body_bytes < self._max_body_bytes:
            longest = int(found.body.lengths.max(initial=1))
            check_body_bytes(longest, max_body_bytes)
        return found

    def _keep(self, part: list[LoneMessage] | MessageBatch) -> range:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, list) and isinstance(part, list):
            last += part
        else:
            self._parts.append(part)
        first = self._count
        self._count += len(part)
        return range(first, self._count)

    def _check_target(self, topic: str, queue_id: int) -> None:
        if topic in self._topics and -1 <= queue_id < self._topics[topic]:
            return
        validate_topic(topic)
        validate_queue_id(queue_id)
        queues = self._queues_of(topic)
        if queue_id >= queues:
            raise no_such_queue(topic, queue_id, queues, 0)
        self._topics[topic] = queues

    def _entries(self, batch: bytes) -> list[tuple[int, bytes, bytes]]:
        """The plain way of a batch: the rules for its messages, and the errors that say which one breaks them."""
        entries = []
        for place, (flag, body, text) in enumerate(decode_client_batch(batch)):
            text = without_store_fields(text)
            try:
                check_body_bytes(len(body), self._max_body_bytes)
            except InvalidRequestError as error:
                raise type(error)(f"message {place}: {error.message}", position=place, hint=error.hint) from None
            _check_text(text, place)
            entries.append((flag, body, text))
        return entries


def _check_fields(
    *, sys_flag: int, born_ms: int, born_host: bytes, reconsume_times: int, flag: int = 0, prepared_offset: int = 0
) -> None:
    if len(born_host) not in (8, 20):
        raise InvalidRequestError(f"a born host of {len(born_host)} bytes is no address with a port")
    for value in (flag, sys_flag, reconsume_times):
        if not -_I32_END <= value < _I32_END:
            raise InvalidRequestError(f"{value} is not a number of 32 bits")
    for value in (born_ms, prepared_offset):
        if not -_I64_END <= value < _I64_END:
            raise InvalidRequestError(f"{value} is not a number of 64 bits")
    if sys_flag & _INNER_BATCH:
        raise InvalidRequestError("a record cannot hold many messages", hint="send them as a batch")


def _check_text(text: bytes, place: int, marks_bytes: int = 0) -> None:
    check_property_bytes(len(text), place)
    if LOST_SECTOR in text:
        raise InvalidRequestError(
            f"message {place}: the property text has {len(LOST_SECTOR)} zero bytes in a row", position=place
        )
    # its last bytes would be taken for the record's own checksum
    if not marks_bytes and has_checksum(text, len(text)):
        raise InvalidRequestError(
            f"message {place}: the last property has a name or value that ends in {RECORD_CHECKSUM!r}", position=place
        )


def _batch_of(rows: Sequence[LoneMessage]) -> MessageBatch:
    topic, queue_id, born_ms, body, text, flag, sys_flag, host, reconsumed, prepared = zip(*rows, strict=True)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(topic))}
    fields = map(pack_client_fields, flag, sys_flag, reconsumed, map(len, host), prepared, host)
    return MessageBatch(
        topics=tuple(numbers),
        topic_index=numbers_column(topic, np.int32, numbers.__getitem__),
        queue_id=numbers_column(queue_id, np.int32),
        born_ms=numbers_column(born_ms, np.int64),
        body=BytesColumn.of(body),
        keys=BytesColumn.empty(len(rows)),
        tags=BytesColumn.empty(len(rows)),
        properties=BytesColumn.of(text),
        client=np.frombuffer(b"".join(fields), CLIENT_FIELDS),
    )


def _joined(batches: Sequence[MessageBatch]) -> MessageBatch:
    """Returns batches of client messages as one."""
    names = dict.fromkeys(name for batch in batches for name in batch.topics)
    numbers = {name: number for number, name in enumerate(names)}
    count = sum(map(len, batches))
    indexes = [np.array([numbers[name] for name in one.topics], np.int32)[one.topic_index] for one in batches]
    return MessageBatch(
        topics=tuple(numbers),
        topic_index=np.concatenate([np.empty(0, np.int32), *indexes]),
        queue_id=np.concatenate([np.empty(0, np.int32), *(one.queue_id for one in batches)]),
        born_ms=np.concatenate([np.empty(0, np.int64), *(one.born_ms for one in batches)]),
        body=_joined_column([one.body for one in batches]),
        keys=BytesColumn.empty(count),
        tags=BytesColumn.empty(count),
        properties=_joined_column([one.properties for one in batches]),
        client=np.concatenate([np.empty(0, CLIENT_FIELDS), *(one.client for one in batches if one.client is not None)]),
    )


def _joined_column(columns: Sequence[BytesColumn]) -> BytesColumn:
    data: list[ByteArray] = [column.data[: column.starts[-1]] for column in columns]
    starts, end = [np.zeros(1, np.int64)], 0
    for column in columns:
        starts.append(column.starts[1:] + end)
        end += int(column.starts[-1])
    return BytesColumn(np.concatenate([*data, np.zeros(1, np.uint8)]), np.concatenate(starts))
