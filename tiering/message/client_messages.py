"""Messages of RocketMQ's clients, which go into the record as they were sent.

What a :class:`~tiering.message.batch.Message` has no field for is kept too: flag, sys_flag, born host, reconsume times,
prepared offset, and the property text as it is, in which the client put its keys and its tag.

The text is what a RocketMQ broker would store: of a message that comes alone, less what is for the broker only; of one
in a batch, as it came. A name of the store's own is taken out of both, since clients send back what they received:
nothing that a client sends is ever taken for the store's word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError

import numpy as np

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import EVER
from tierlog.tiering.format.client_batch import decode_client_batch
from tierlog.tiering.format.properties import NAME_END, RECORD_CHECKSUM, text_as_stored, without_store_fields
from tierlog.tiering.format.record import TRANSACTION_MASK, SysFlag, has_checksum
from tierlog.tiering.kernels.client_batch import STORE_NAMES, STORE_STARTS, measure_client_batch, take_client_batch
from tierlog.tiering.kernels.encode import CLIENT_FIELDS, pack_client_fields, unpack_client_fields
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.message.batch import (
    ANY_QUEUE,
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
from tierlog.tiering.message.pending import ClientFields, LoneMessage, numbers_column

_V6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
#: One record that holds many messages: only the queues of a broker's batch topics know it.
_INNER_BATCH = 0x80
_MIN_MS, _MAX_MS = EVER.from_ms, EVER.to_ms - 1
_FLAG = Struct("=i")
_LOOKS_LIKE_CHECKSUM = f"{RECORD_CHECKSUM}{NAME_END}".encode()
_STORE_NAMES, _STORE_STARTS = address_of(STORE_NAMES), address_of(STORE_STARTS)


_Row = tuple[str, int, int, bytes, bytes, bytes]


class ClientMessages:
    """Messages as clients of RocketMQ sent them. Not thread safe.

    What is wrong with one is raised as it is added (:class:`InvalidRequestError`, :class:`MessageTooLargeError`), and
    nothing of it is kept.
    """

    __slots__ = ("_count", "_max_body_bytes", "_parts", "_queues_of", "_rows", "_topics")

    def __init__(self, max_body_bytes: int, queues_of: Callable[[str], int] = lambda topic: MAX_QUEUES) -> None:
        """``queues_of`` tells how many queues a topic has for messages that name one."""
        self._max_body_bytes = max_body_bytes
        self._queues_of = queues_of
        #: Legal names, with the queues that each has at least.
        self._topics: dict[str, int] = {}
        #: Batches, and runs of single messages between them.
        self._parts: list[MessageBatch] = []
        #: The single messages behind them: topic, queue, born time, body, property text, row of other fields.
        self._rows: list[_Row] = []
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
    ) -> int:
        """Keeps a message that came alone, and returns its place in the list.

        ``born_host`` is 4 or 16 bytes of IP, and the port as int32. A body that is another buffer than ``bytes`` is
        copied.
        """
        if not ANY_QUEUE <= queue_id < self._topics.get(topic, ANY_QUEUE):
            self._check_target(topic, queue_id)
        fields = _packed(flag, sys_flag, reconsume_times, prepared_offset=prepared_offset, born_host=born_host)
        if not _MIN_MS <= born_ms <= _MAX_MS:
            raise InvalidRequestError(f"born time {born_ms} is not a number of 64 bits")
        if not 0 < len(body) <= self._max_body_bytes:
            check_body_bytes(len(body), self._max_body_bytes)
        text = text_as_stored(properties)
        if len(text) >= len(LOST_SECTOR) or _LOOKS_LIKE_CHECKSUM in text:
            _check_text(text, 0)
        self._rows.append((topic, queue_id, born_ms, body if type(body) is bytes else bytes(body), text, fields))
        self._count += 1
        return self._count - 1

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
        fields = _packed(0, sys_flag, reconsume_times, prepared_offset=0, born_host=born_host)
        if not _MIN_MS <= born_ms <= _MAX_MS:
            raise InvalidRequestError(f"born time {born_ms} is not a number of 64 bits")
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
        if count < 0:
            return self._add_entries(batch, (topic, queue_id, born_ms), fields)
        client = np.frombuffer(bytearray(fields) * count, CLIENT_FIELDS)
        bodies, texts = (BytesColumn(np.empty(size or 1, np.uint8), np.empty(count + 1, np.int64)) for size in done)
        take_client_batch(
            batch=address_of(batch), count=count, client=address_of(client),
            body=address_of(bodies.data), body_starts=address_of(bodies.starts),
            text=address_of(texts.data), text_starts=address_of(texts.starts),
        )  # fmt: skip
        self._close_run()
        self._parts.append(
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
        self._count += count
        return range(self._count - count, self._count)

    def _add_entries(self, batch: bytes, target: tuple[str, int, int], fields: bytes) -> range:
        """The plain way of a batch: the rules for its messages, and the errors that say which one breaks them."""
        rows: list[_Row] = []
        for place, (flag, body, text) in enumerate(decode_client_batch(batch)):
            text = without_store_fields(text)
            if text.endswith(b"\0"):  # recovery would take it for the text of a record that was not written in full
                text += b"\x02"
            try:
                check_body_bytes(len(body), self._max_body_bytes)
            except InvalidRequestError as error:
                raise type(error)(f"message {place}: {error.message}", position=place, hint=error.hint) from None
            _check_text(text, place)
            rows.append((*target, body, text, _FLAG.pack(flag) + fields[_FLAG.size :]))
        self._rows += rows
        self._count += len(rows)
        return range(self._count - len(rows), self._count)

    def lone(self) -> LoneMessage | None:
        """Returns the only message, if it came alone; what is in the list stays."""
        if len(self._rows) != 1 or self._parts:
            return None
        ((topic, queue_id, born_ms, body, text, fields),) = self._rows
        flag, sys_flag, reconsume_times, host_bytes, prepared_offset, host = unpack_client_fields(fields)
        sent = ClientFields(flag, sys_flag, host[:host_bytes], reconsume_times, prepared_offset)
        return LoneMessage(topic, queue_id, born_ms, body, text, client=sent)

    def to_batch(self, *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        """Returns all of them as a batch, in the order in which they came; what is in the list stays."""
        if self._parts:
            self._close_run()
            found = self._parts[0] if len(self._parts) == 1 else _joined(self._parts)
        else:
            found = _batch_of(self._rows)
        if max_body_bytes < self._max_body_bytes:
            check_body_bytes(int(found.body.lengths.max(initial=1)), max_body_bytes)
        return found

    def _close_run(self) -> None:
        """Makes the single messages that came last a part."""
        if self._rows:
            self._parts.append(_batch_of(self._rows))
            self._rows = []

    def _check_target(self, topic: str, queue_id: int) -> None:
        validate_topic(topic)
        validate_queue_id(queue_id)
        queues = self._queues_of(topic)
        if queue_id >= queues:
            raise no_such_queue(topic, queue_id, queues, 0)
        self._topics[topic] = queues


def _packed(flag: int, sys_flag: int, reconsume_times: int, *, prepared_offset: int, born_host: bytes) -> bytes:
    """Returns a row of :data:`CLIENT_FIELDS`, or raises :class:`InvalidRequestError`."""
    host_bytes = len(born_host)
    if host_bytes not in (8, 20):
        raise InvalidRequestError(f"a born host of {host_bytes} bytes is no address with a port")
    if sys_flag & _INNER_BATCH:
        raise InvalidRequestError("a record cannot hold many messages", hint="send them as a batch")
    try:
        return pack_client_fields(flag, sys_flag & ~_V6, reconsume_times, host_bytes, prepared_offset, born_host)
    except StructError as error:
        raise InvalidRequestError("a flag, a count or an offset has too many bits") from error


def _check_text(text: bytes, place: int) -> None:
    check_property_bytes(len(text), place)
    if LOST_SECTOR in text:
        raise InvalidRequestError(
            f"message {place}: the property text has {len(LOST_SECTOR)} zero bytes in a row", position=place
        )
    if has_checksum(text, len(text)):  # its last bytes would be taken for the record's own
        raise InvalidRequestError(
            f"message {place}: the last property has a name or value that ends in {RECORD_CHECKSUM!r}", position=place
        )


def _batch_of(rows: Sequence[_Row]) -> MessageBatch:
    topic, queue_id, born_ms, body, text, fields = zip(*rows, strict=True) if rows else ((),) * 6
    numbers = {name: number for number, name in enumerate(dict.fromkeys(topic))}
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
    """Returns batches of client messages, at least one, as one."""
    names = dict.fromkeys(name for batch in batches for name in batch.topics)
    numbers = {name: number for number, name in enumerate(names)}
    count = sum(map(len, batches))
    indexes = [np.array([numbers[name] for name in one.topics], np.int32)[one.topic_index] for one in batches]
    return MessageBatch(
        topics=tuple(numbers),
        topic_index=np.concatenate(indexes),
        queue_id=np.concatenate([one.queue_id for one in batches]),
        born_ms=np.concatenate([one.born_ms for one in batches]),
        body=BytesColumn.joined([one.body for one in batches]),
        keys=BytesColumn.empty(count),
        tags=BytesColumn.empty(count),
        properties=BytesColumn.joined([one.properties for one in batches]),
        client=np.concatenate([one.client for one in batches if one.client is not None]),
    )
