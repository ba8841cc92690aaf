"""Messages that come one by one, checked as each comes: many that go to the log at a time, or one that goes alone.

To check a message and keep it takes about half a microsecond, because what is ordinary is seen to be so without a
regular expression or a copy. Whatever is not is left to :class:`MessageBatch`, whose rules are the only ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.format.properties import KEYS, NAME_END, TAGS, VALUE_END
from tierlog.tiering.format.record import (
    FIXED_BYTES_V1,
    HEAD_V4,
    MAGIC_V1,
    MAX_TOPIC_BYTES_V1,
    NO_QUEUE_UNIT,
    Record,
    RecordVersion,
    body_crc,
    encode_record,
    reserve_checksum,
)
from tierlog.tiering.message.batch import (
    ANY_QUEUE,
    BORN_END_MS,
    MAX_QUEUES,
    BytesColumn,
    Message,
    MessageBatch,
    born_host_field,
    born_host_rows,
    check_property_bytes,
    no_such_queue,
)

_NO_HOST = bytes(8)
#: Text of so many characters fits a record's property text whatever they are: four bytes each at most, and names.
_SURELY_FITS = 8_000
#: How many legal names are remembered.
_MOST_TOPICS = 10_000


class ClientFields(NamedTuple):
    """What a record has of a message that a client of RocketMQ sent, besides what every message has.

    Of other messages it may have the born host.
    """

    flag: int = 0
    #: Without the bits that say how long the hosts are.
    sys_flag: int = 0
    born_host: bytes = _NO_HOST
    reconsume_times: int = 0
    prepared_offset: int = 0


_NO_CLIENT = ClientFields()


class LoneMessage(NamedTuple):
    """One validated message that goes to the log alone, through the plain codec.

    As a :class:`MessageBatch` of one it would take ten times as long.
    """

    topic: str
    queue_id: int
    born_ms: int
    body: bytes
    #: Keys, tag and properties, without what the store adds.
    property_text: bytes
    client: ClientFields = _NO_CLIENT

    @property
    def topics(self) -> tuple[str]:
        return (self.topic,)

    @property
    def has_queue_unit(self) -> bool:
        """As :attr:`Record.has_queue_unit`."""
        return not self.client.sys_flag & NO_QUEUE_UNIT

    def record_size(self, host_bytes: int, *, checksum: bool = False) -> int:
        """Size of the record, as :meth:`MessageBatch.record_sizes` has it."""
        text_bytes = len(reserve_checksum(self.property_text) if checksum else self.property_text)
        check_property_bytes(text_bytes, 0)
        topic_bytes = len(self.topic) + (len(self.topic) > MAX_TOPIC_BYTES_V1)
        return FIXED_BYTES_V1 - 24 + host_bytes + len(self.client.born_host) + topic_bytes + len(self.body) + text_bytes

    def encode(
        self,
        *,
        physical: int,
        store_ms: int,
        store_host: bytes,
        queue_id: int,
        queue_offset: int,
        checksum: bool = False,
    ) -> bytes:
        """Returns the record that :func:`encode_batch` writes of a batch of this message."""
        topic, body, text = self.topic, self.body, self.property_text
        flag, sys_flag, born_host, reconsume_times, prepared_offset = self.client
        is_v4 = len(store_host) == len(born_host) == len(_NO_HOST)
        if len(topic) <= MAX_TOPIC_BYTES_V1 and is_v4 and not checksum:  # as most are
            size = FIXED_BYTES_V1 + len(body) + len(topic) + len(text)
            head = HEAD_V4.pack(
                size, MAGIC_V1, body_crc(body), queue_id, flag, queue_offset, physical, sys_flag, self.born_ms,
                born_host, store_ms, store_host, reconsume_times, prepared_offset, len(body),
            )  # fmt: skip
            return b"%b%b%c%b%b%b" % (head, body, len(topic), topic.encode(), len(text).to_bytes(2), text)
        version = RecordVersion.V2 if len(topic) > MAX_TOPIC_BYTES_V1 else RecordVersion.V1
        record = Record(
            size=0, version=version, body_crc=0, queue_id=queue_id, flag=flag, queue_offset=queue_offset,
            physical_offset=physical, sys_flag=sys_flag, born_ms=self.born_ms, born_host=born_host,
            store_ms=store_ms, store_host=store_host, reconsume_times=reconsume_times,
            prepared_offset=prepared_offset, body=body, topic=topic, properties_text=text,
        )  # fmt: skip
        return encode_record(record, checksum=checksum)


class PendingMessages:
    """A list of messages that :meth:`take` makes a batch of. Not thread safe."""

    __slots__ = ("_max_body_bytes", "_queues_of", "_rows", "_topics", "text_bytes")

    def __init__(
        self,
        max_body_bytes: int,
        topics: dict[str, int] | None = None,
        queues_of: Callable[[str], int] = lambda topic: MAX_QUEUES,
    ) -> None:
        """``queues_of`` tells how many queues a topic has for messages that name one.

        ``topics`` are names known to be legal with the queues that they had at least, and it gets those that were found
        to be; others may share it.
        """
        self._max_body_bytes = max_body_bytes
        self._topics = {} if topics is None else topics
        self._queues_of = queues_of
        # topic, queue, born time or None, body, keys, tag, property text, born host
        self._rows: list[tuple[str, int, int | None, bytes, str, str, str, str]] = []
        #: Bytes of bodies, and about those of keys.
        self.text_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        topic: str,
        body: bytes,
        *,
        keys: Sequence[str] = (),
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        born_ms: int | None = None,
        queue_id: int = ANY_QUEUE,
        born_host: str = "",
    ) -> int:
        """Keeps a message and says how many are kept, or raises what :meth:`MessageBatch.of` raises for it alone.

        One that names a queue which its topic does not have is refused too. The body may be any buffer; what is not
        ``bytes`` is copied.
        """
        # the text of the keys
        if len(keys) == 1:
            (text,) = keys
            are_keys = text and " " not in text
        else:
            text = " ".join(keys)
            are_keys = not keys or (text.count(" ") == len(keys) - 1 and all(keys))
        # what is ordinary is kept as it is, the rest looked at by the rules
        rows = self._rows
        if (
            are_keys
            and type(body) is bytes
            and 0 < len(body) <= self._max_body_bytes
            # no control character, so no separator and no zeros, and no half of a surrogate pair
            and text.isprintable()
            and tag.isprintable()
            and not properties
            and not born_host
            and len(text) + len(tag) < _SURELY_FITS
            and ANY_QUEUE <= queue_id < self._topics.get(topic, ANY_QUEUE)
            and (born_ms is None or 0 <= born_ms < BORN_END_MS)
        ):
            rows.append((topic, queue_id, born_ms, body, text, tag, "", ""))
            self.text_bytes += len(body) + len(text)
        else:
            self._add_checked(
                Message(
                    topic=topic,
                    body=_bytes(body),
                    keys=keys,
                    tag=tag,
                    properties=properties or {},
                    born_ms=born_ms,
                    queue_id=queue_id,
                    born_host=born_host,
                )
            )
        return len(rows)

    def add_message(self, message: Message) -> int:
        """Keeps a message that is made already, as :meth:`add` does."""
        return self.add(
            message.topic, message.body, keys=message.keys, tag=message.tag, properties=message.properties,
            born_ms=message.born_ms, queue_id=message.queue_id, born_host=message.born_host,
        )  # fmt: skip

    def _add_checked(self, message: Message) -> None:
        alone = MessageBatch.of([message], now_ms=0, max_body_bytes=self._max_body_bytes)
        queues = self._queues_of(message.topic)
        if message.queue_id >= queues:
            raise no_such_queue(message.topic, message.queue_id, queues, 0)
        keys, tag, properties = (_text(column) for column in (alone.keys, alone.tags, alone.properties))
        if len(self._topics) >= _MOST_TOPICS:
            self._topics.clear()
        self._topics[message.topic] = queues
        self._rows.append(
            (message.topic, message.queue_id, message.born_ms, message.body, keys, tag, properties, message.born_host)
        )
        self.text_bytes += len(message.body) + len(keys) + len(properties)

    def take_lone(self, *, now_ms: int) -> LoneMessage:
        """Takes the only message that is pending."""
        ((topic, queue_id, born_ms, body, keys, tag, properties, born_host),) = self._rows
        self._rows, self.text_bytes = [], 0
        text = properties
        if tag:
            text = f"{TAGS}{NAME_END}{tag}{VALUE_END}{text}"
        if keys:
            text = f"{KEYS}{NAME_END}{keys}{VALUE_END}{text}"
        client = ClientFields(born_host=born_host_field(born_host)) if born_host else _NO_CLIENT
        return LoneMessage(topic, queue_id, now_ms if born_ms is None else born_ms, body, text.encode(), client)

    def take(self, *, now_ms: int) -> MessageBatch:
        """Returns all of them as a batch, in the order in which they came; nothing is pending then.

        What :meth:`MessageBatch.of` makes of the same messages. Those without a born time are born ``now_ms``.
        """
        rows = self._rows
        self._rows, self.text_bytes = [], 0
        topic, queue_id, born_ms, bodies, keys, tags, properties, born_hosts = (
            zip(*rows, strict=True) if rows else ((),) * 8
        )
        numbers = {name: number for number, name in enumerate(dict.fromkeys(topic))}
        return MessageBatch(
            topics=tuple(numbers),
            topic_index=numbers_column(topic, np.int32, lambda name: numbers[name]),
            queue_id=numbers_column(queue_id, np.int32),
            born_ms=numbers_column(born_ms, np.int64, lambda born: now_ms if born is None else born),
            body=BytesColumn.of(bodies),
            keys=BytesColumn.of_texts(keys),
            tags=BytesColumn.of_texts(tags),
            properties=BytesColumn.of_texts(properties),
            client=born_host_rows(born_hosts),
        )


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else bytes(memoryview(body))


def _text(column: BytesColumn) -> str:
    return column.data[: column.starts[-1]].tobytes().decode()


def numbers_column(values: Sequence[Any], kind: type[Any], number: Callable[[Any], int] = int) -> NDArray[Any]:
    """Returns the number of each value as an array of a kind."""
    if values and values.count(values[0]) == len(values):  # mostly so, and twenty times as fast
        return np.full(len(values), number(values[0]), kind)
    return np.fromiter(map(number, values), kind, len(values))
