"""Messages on their way in: one :class:`Message`, or many as the Arrow-shaped columns of a :class:`MessageBatch`.

Everything a user can get wrong about a message is found here, before anything is written. Errors name the message
by its place in the batch (``position``), so that a loader can name the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError, StoreError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.format.properties import (
    KEYS,
    NAME_END,
    OWN_FIELDS,
    PRODUCER,
    RECORD_CHECKSUM,
    SEQUENCE,
    TAGS,
    VALUE_END,
    encode_properties,
)
from tierlog.tiering.format.record import (
    CHECKSUM_BYTES,
    FIXED_BYTES_V1,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES_V1,
    parse_host,
)
from tierlog.tiering.kernels.batch_layout import measure_records, measure_texts
from tierlog.tiering.kernels.checksum import CRC_TABLES
from tierlog.tiering.kernels.encode import CLIENT_FIELDS, PROPERTY_NAMES, encode_records, pack_client_fields
from tierlog.tiering.kernels.primitives import address_of

#: Leave the choice of a queue to the store.
ANY_QUEUE = -1
#: A topic has all queues below its greatest one, so a single stray queue id must not make it have billions.
MAX_QUEUES = 1024

_LONG_TOPIC_PREFIXES = ("%RETRY%", "%DLQ%")
_MAX_LONG_TOPIC_BYTES = 255
_NAME = "[A-Za-z0-9_%|-]"
#: Every legal topic name, whole: RocketMQ's rule.
TOPIC_PATTERN = "|".join(
    [
        f"{_NAME}{{1,{MAX_TOPIC_BYTES_V1}}}",
        *(f"{prefix}{_NAME}{{0,{_MAX_LONG_TOPIC_BYTES - len(prefix)}}}" for prefix in _LONG_TOPIC_PREFIXES),
    ]
)
_TOPIC = re.compile(TOPIC_PATTERN)
#: Every key that can be indexed, whole.
KEY_PATTERN = "[^ \x01\x02]+"
_KEY = re.compile(KEY_PATTERN)
#: Every born time that is taken, in ms, is below: what a calendar of four digits can say.
BORN_END_MS = END_OF_TIME_MS
#: Units that clients send instead, and how many of them are a ms.
_FINER = (("microseconds", 1_000), ("nanoseconds", 1_000_000))
#: Recovery takes a disk sector of zeros in a text for one that a power cut has lost.
LOST_SECTOR = bytes(512)
#: No client address: four zero bytes and port 0.
NO_HOST = np.zeros(8, np.uint8)
#: What names and separators of keys and tag add to a property text.
NAMES_BYTES = len(KEYS) + len(TAGS) + 4
_NO_HOST, _PROPERTY_NAMES = address_of(NO_HOST), address_of(PROPERTY_NAMES)


def validate_topic(topic: str) -> str:
    """Returns a legal topic name (RocketMQ's rule) or raises :class:`InvalidRequestError`."""
    if not _TOPIC.fullmatch(topic):
        limit = _MAX_LONG_TOPIC_BYTES if topic.startswith(_LONG_TOPIC_PREFIXES) else MAX_TOPIC_BYTES_V1
        raise InvalidRequestError(
            f"bad topic name {topic[:300]!r}",
            hint=f"use 1 to {limit} ASCII letters, digits and _ - % |",
        )
    return topic


def validate_topic_or_generation(topic: str) -> str:
    """Returns a legal topic name, to which ``@`` and the number of a generation may be added."""
    validate_topic(record_topic(topic))
    return topic


def validate_key(key: str) -> str:
    """Returns a key that can be indexed or raises :class:`InvalidRequestError`."""
    if not _KEY.fullmatch(key):
        raise InvalidRequestError(f"bad key {key[:100]!r}", hint="a key is not empty and has no space, 0x01 or 0x02")
    _encode(key)
    return key


def validate_born_ms(born_ms: int) -> int:
    """Returns a born time from 1970 to 9999, in ms, or raises :class:`InvalidRequestError`."""
    if not 0 <= born_ms < BORN_END_MS:
        looks_like = next(
            (f"; this looks like {unit}" for unit, of_ms in _FINER if 0 < born_ms // of_ms < BORN_END_MS), ""
        )
        raise InvalidRequestError(
            f"bad born time {born_ms}", hint=f"born_ms is milliseconds since the epoch, from 1970 to 9999{looks_like}"
        )
    return born_ms


@lru_cache(maxsize=1024)
def born_host_field(born_host: str) -> bytes:
    """Returns a producer's address as the record has it, or raises :class:`InvalidRequestError`; zeros for none."""
    if not born_host:
        return NO_HOST.tobytes()
    try:
        return parse_host(born_host)
    except ValueError:
        raise InvalidRequestError(
            f"bad born host {born_host[:100]!r}", hint="an IP address with its port: 10.0.0.7:51334 or [fd00::7]:51334"
        ) from None


def born_host_rows(born_hosts: Sequence[str]) -> NDArray[np.void] | None:
    """Returns rows of :data:`CLIENT_FIELDS` with producers' addresses, or None where no message has one.

    Raises :class:`InvalidRequestError`.
    """
    if not any(born_hosts):
        return None
    rows = {host: _born_host_row(born_host_field(host)) for host in set(born_hosts)}
    return np.frombuffer(b"".join(map(rows.__getitem__, born_hosts)), CLIENT_FIELDS)


def _born_host_row(field: bytes) -> bytes:
    return pack_client_fields(0, 0, 0, len(field), 0, field)


def validate_queue_id(queue_id: int) -> int:
    """Returns a queue id that a topic can have, or :data:`ANY_QUEUE`; or raises :class:`InvalidRequestError`."""
    if not ANY_QUEUE <= queue_id < MAX_QUEUES:
        raise InvalidRequestError(f"bad queue id {queue_id}", hint=f"a topic has at most {MAX_QUEUES} queues")
    return queue_id


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a client sends it."""

    topic: str
    body: bytes
    keys: Sequence[str] = ()
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    born_ms: int | None = None
    queue_id: int = ANY_QUEUE
    born_host: str = ""
    """Address of its producer: ``ip:port``, or ``[ip]:port`` with IPv6; empty: the record has none."""


class ColumnarMessages(Protocol):
    """Messages that came in columns, and are turned into a batch as a whole."""

    def to_batch(self, *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        """Returns the same batch, or error, as :meth:`MessageBatch.of` makes of the messages one by one."""
        ...


def is_in_columns(messages: object) -> TypeGuard[ColumnarMessages]:
    """Whether messages are :class:`ColumnarMessages`; ``isinstance`` of a protocol takes as long as 100 messages."""
    return hasattr(messages, "to_batch")


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """Values laid end to end: value ``i`` is ``data[starts[i]:starts[i + 1]]``."""

    data: ByteArray
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, values: Sequence[bytes]) -> BytesColumn:
        """Gathers values into a column."""
        return cls(np.frombuffer(b"".join(values) or b"\0", np.uint8), _starts(values))

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> BytesColumn:
        """Gathers texts as UTF-8; ASCII, which most are, at once."""
        whole = "".join(texts)
        if whole.isascii():
            return cls(np.frombuffer(whole.encode() or b"\0", np.uint8), _starts(texts))
        return cls.of([text.encode() for text in texts])

    @classmethod
    def empty(cls, count: int) -> BytesColumn:
        """So many values without any bytes."""
        return cls(np.zeros(1, np.uint8), np.zeros(count + 1, np.int64))

    @classmethod
    def joined(cls, columns: Sequence[BytesColumn]) -> BytesColumn:
        """The values of all columns, one after the other."""
        starts, end = [np.zeros(1, np.int64)], 0
        for column in columns:
            starts.append(column.starts[1:] + end)
            end += int(column.starts[-1])
        data = [column.data[: column.starts[-1]] for column in columns]
        return cls(np.concatenate([*data, np.zeros(1, np.uint8)]), np.concatenate(starts))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each value."""
        return np.diff(self.starts)

    def lacks_end(self, end: bytes) -> NDArray[np.bool_]:
        """Whether each value has bytes, and the last is not this one."""
        lacks: NDArray[np.bool_] = (self.data[self.starts[1:] - 1] != end[0]) & (self.lengths > 0)
        return lacks


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Validated messages as columns; what the encode kernel reads."""

    topics: tuple[str, ...]
    topic_index: NDArray[np.int32]
    queue_id: NDArray[np.int32]
    born_ms: NDArray[np.int64]
    body: BytesColumn
    keys: BytesColumn
    tags: BytesColumn
    properties: BytesColumn
    #: Rows of :data:`CLIENT_FIELDS`: for messages of RocketMQ's clients, whose property text has keys and tag in it,
    #: and where a producer's address is kept.
    client: NDArray[np.void] | None = None

    def __len__(self) -> int:
        return len(self.topic_index)

    def record_sizes(self, host_bytes: int, *, checksum: bool = False) -> NDArray[np.int64]:
        """Bytes of each message's record; ``host_bytes`` is the length of both host fields together.

        Raises :class:`MessageTooLargeError` if a ``checksum`` does not fit the property text of a message.
        """
        topic_bytes = np.array([len(topic) for topic in self.topics], np.int64)
        sizes, longest = self._text_sizes(CHECKSUM_BYTES if checksum else 0)
        if self.client is not None and checksum:
            sizes += self.properties.lacks_end(VALUE_END.encode())
            longest = int(sizes.argmax()) if len(sizes) else -1
        self._check_text(sizes, longest)
        measure_records(
            count=len(self), topic_index=address_of(self.topic_index), topic_bytes=address_of(topic_bytes),
            body_starts=address_of(self.body.starts), fixed=FIXED_BYTES_V1 - 16 + host_bytes, sizes=address_of(sizes),
        )  # fmt: skip
        if self.client is not None:
            sizes += self.client["born_host_bytes"] - len(NO_HOST)
        return sizes

    def with_marks(self, marks: Sequence[bytes]) -> MessageBatch:
        """Returns the batch with a further piece of property text, made by the store, for each message.

        Raises :class:`MessageTooLargeError` if one does not fit.
        """
        starts = self.properties.starts.tolist()
        data = self.properties.data
        texts = [data[start:end].tobytes() + mark for start, end, mark in zip(starts, starts[1:], marks, strict=False)]
        marked = replace(self, properties=BytesColumn.of(texts))
        marked._check_text(*marked._text_sizes(0))
        return marked

    def longest_text_bytes(self) -> int:
        """Bytes of the longest property text; 0 of no messages."""
        sizes, longest = self._text_sizes(0)
        return int(sizes[longest]) if len(self) else 0

    def _text_sizes(self, added: int) -> tuple[NDArray[np.int64], int]:
        """Bytes of each property text with so many ``added``, and which is the longest."""
        sizes = np.empty(len(self), np.int64)
        longest = measure_texts(
            count=len(self), keys_starts=address_of(self.keys.starts), tags_starts=address_of(self.tags.starts),
            properties_starts=address_of(self.properties.starts), added=added, sizes=address_of(sizes),
        )  # fmt: skip
        return sizes, longest

    @staticmethod
    def _check_text(sizes: NDArray[np.int64], longest: int) -> None:
        if len(sizes):
            check_property_bytes(int(sizes[longest]), longest)

    @classmethod
    def of(cls, messages: Iterable[Message], *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        """Checks every message and lays them out as columns; nothing is kept of a batch with one bad message.

        What comes in columns is not taken apart into messages.
        """
        if is_in_columns(messages):
            return messages.to_batch(now_ms=now_ms, max_body_bytes=max_body_bytes)
        items = list(messages)
        return cls._at_a_glance(items, now_ms, max_body_bytes) or cls.one_by_one(
            items, now_ms=now_ms, max_body_bytes=max_body_bytes
        )

    @classmethod
    def one_by_one(cls, items: Sequence[Message], *, now_ms: int, max_body_bytes: int) -> MessageBatch:
        """The rules for a message, and the errors that say which one breaks them: what :meth:`of` falls back to."""
        topics: dict[str, int] = {}
        keys, tags, properties = [], [], []
        for place, message in enumerate(items):
            try:
                if message.topic not in topics:
                    topics[validate_topic(message.topic)] = len(topics)
                keys.append(_encode(" ".join(validate_key(key) for key in message.keys)))
                tags.append(_encode(_validate_tag(message.tag)))
                properties.append(encode_properties(_without_own_fields(message.properties)))
                born_host_field(message.born_host)
                _check_sizes(message, max_body_bytes, keys[-1], tags[-1], properties[-1])
            except InvalidRequestError as error:
                raise type(error)(f"message {place}: {error.message}", position=place, hint=error.hint) from error
        return cls._laid_out(
            items, topics, now_ms=now_ms, keys=BytesColumn.of(keys), tags=BytesColumn.of(tags),
            properties=BytesColumn.of(properties),
        )  # fmt: skip

    @classmethod
    def _at_a_glance(cls, items: Sequence[Message], now_ms: int, max_body_bytes: int) -> MessageBatch | None:
        """None if something is wrong or out of the ordinary. What is asked, is asked of all messages at once."""
        topics = {topic: number for number, topic in enumerate(dict.fromkeys([item.topic for item in items]))}
        lengths = [len(item.body) for item in items]
        keys = [" ".join(item.keys) for item in items]
        tags = [item.tag for item in items]
        queues = [item.queue_id for item in items]
        born = [item.born_ms for item in items if item.born_ms is not None]
        if (
            not items
            or not all(map(_TOPIC.fullmatch, topics))
            or min(lengths) < 1
            or max(lengths) > max_body_bytes
            # printable text has no separator, no zero byte and no half of a surrogate pair
            or not "".join(keys).isprintable()
            or not "".join(tags).isprintable()
            # no space but those that join keys, and no key without a character
            or sum(text.count(" ") for text in keys) != sum(max(len(item.keys) - 1, 0) for item in items)
            or not all(all(item.keys) for item in items)
            or min(queues) < ANY_QUEUE
            or max(queues) >= MAX_QUEUES
            or (born and not 0 <= min(born) <= max(born) < BORN_END_MS)
        ):
            return None
        try:
            properties = BytesColumn.of(
                [encode_properties(_without_own_fields(item.properties)) if item.properties else b"" for item in items]
            )
            found = cls._laid_out(
                items, topics, now_ms=now_ms, keys=BytesColumn.of_texts(keys), tags=BytesColumn.of_texts(tags),
                properties=properties,
            )  # fmt: skip
        except InvalidRequestError:
            return None
        is_right = found.longest_text_bytes() <= MAX_PROPERTIES_BYTES and LOST_SECTOR not in properties.data.tobytes()
        return found if is_right else None

    @classmethod
    def _laid_out(
        cls,
        items: Sequence[Message],
        topics: Mapping[str, int],
        *,
        now_ms: int,
        keys: BytesColumn,
        tags: BytesColumn,
        properties: BytesColumn,
    ) -> MessageBatch:
        return cls(
            topics=tuple(topics),
            topic_index=np.array([topics[item.topic] for item in items], np.int32),
            queue_id=np.array([item.queue_id for item in items], np.int32),
            born_ms=np.array([now_ms if item.born_ms is None else item.born_ms for item in items], np.int64),
            body=BytesColumn.of([item.body for item in items]),
            keys=keys,
            tags=tags,
            properties=properties,
            client=born_host_rows([item.born_host for item in items]),
        )


def no_such_queue(name: str, queue_id: int, queues: int, place: int) -> InvalidRequestError:
    """The refusal of a message that names a queue which its topic does not have; ``place`` is its own in the batch."""
    return InvalidRequestError(
        f"message {place}: topic {name!r} has {queues} queues, and no queue {queue_id}",
        position=place,
        hint=f"messages make no queues: PUT /v1/topics/{name} gives a topic more",
    )


def check_property_bytes(count: int, place: int) -> None:
    """Raises :class:`MessageTooLargeError` if the text is too long with what the store adds to what was checked."""
    if count > MAX_PROPERTIES_BYTES:
        raise MessageTooLargeError(
            f"message {place}: property text of {count} bytes is over the limit of {MAX_PROPERTIES_BYTES}",
            position=place,
            hint="a record checksum and the mark of an Idempotency-Key are part of it",
        )


def check_body_bytes(count: int, limit: int) -> None:
    """Raises :class:`InvalidRequestError` for an empty body, :class:`MessageTooLargeError` for one over the limit."""
    if not count:
        raise InvalidRequestError("empty body", hint="a message has at least one byte")
    if count > limit:
        raise MessageTooLargeError(f"body of {count} bytes is over the limit of {limit}")


def _starts(values: Sequence[bytes] | Sequence[str]) -> NDArray[np.int64]:
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):  # as tags often are
        return np.arange(len(values) + 1, dtype=np.int64) * len(values[0])
    return np.fromiter(accumulate(map(len, values), initial=0), np.int64, len(values) + 1)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("a key or tag is not valid Unicode text") from error


def _validate_tag(tag: str) -> str:
    if NAME_END in tag or VALUE_END in tag:
        raise InvalidRequestError("a tag contains a separator (0x01 or 0x02)")
    return tag


def _without_own_fields(properties: Mapping[str, str]) -> Mapping[str, str]:
    for name in OWN_FIELDS & properties.keys():
        if name in (PRODUCER, SEQUENCE):
            raise InvalidRequestError(f"property {name!r} is written by the store", hint="send an Idempotency-Key")
        if name == RECORD_CHECKSUM:
            raise InvalidRequestError(f"property {name!r} is written by the store", hint="hot.record_checksum adds it")
        raise InvalidRequestError(f"property {name!r} has a field of its own: use keys or tag")
    for name in properties:
        if name.endswith(RECORD_CHECKSUM):  # as the last property it would be taken for the record's checksum
            raise InvalidRequestError(f"property {name!r} ends in {RECORD_CHECKSUM!r}", hint="use another name")
    return properties


def _check_sizes(message: Message, max_body_bytes: int, *texts: bytes) -> None:
    check_body_bytes(len(message.body), max_body_bytes)
    keys, tags, properties = (len(text) for text in texts)
    total = (keys + len(KEYS) + 2 if keys else 0) + (tags + len(TAGS) + 2 if tags else 0) + properties
    if total > MAX_PROPERTIES_BYTES:
        raise MessageTooLargeError(
            f"property text of {total} bytes is over the limit of {MAX_PROPERTIES_BYTES}",
            hint="keys and tag are part of it",
        )
    if any(LOST_SECTOR in text for text in texts):
        raise InvalidRequestError(f"a key, tag or property has {len(LOST_SECTOR)} zero bytes in a row")
    validate_queue_id(message.queue_id)
    if message.born_ms is not None:
        validate_born_ms(message.born_ms)


@lru_cache(maxsize=64)
def _names_of(topics: tuple[str, ...]) -> BytesColumn:
    """Topics as the encoder reads them: most batches are of the same few."""
    return BytesColumn.of([topic.encode() for topic in topics])


def encode_batch(
    batch: MessageBatch,
    first: int,
    last: int,
    sizes: NDArray[np.int64],
    out: ByteArray,
    *,
    physical: int,
    store_ms: int,
    store_host: ByteArray,
    queue_id: NDArray[np.int32],
    queue_offset: NDArray[np.int64],
    checksum: bool = False,
) -> None:
    """Fills ``out`` with the records of messages ``[first, last)``, back to back; ``physical`` is where it begins.

    Their places and times are the caller's choice. ``sizes`` are those of :meth:`MessageBatch.record_sizes`, and
    ``out`` has room for exactly those of the messages.
    """
    names = _names_of(batch.topics)
    written = encode_records(
        tables=CRC_TABLES, out=address_of(out), physical=physical, store_ms=store_ms,
        born_host=_NO_HOST, born_host_length=len(NO_HOST),
        store_host=address_of(store_host), store_host_length=len(store_host),
        names=_PROPERTY_NAMES, first=first, last=last, size=address_of(sizes),
        topic_index=address_of(batch.topic_index), topics=address_of(names.data), topic_starts=address_of(names.starts),
        queue_id=address_of(queue_id), queue_offset=address_of(queue_offset), born_ms=address_of(batch.born_ms),
        body=address_of(batch.body.data), body_starts=address_of(batch.body.starts),
        keys=address_of(batch.keys.data), keys_starts=address_of(batch.keys.starts),
        tags=address_of(batch.tags.data), tags_starts=address_of(batch.tags.starts),
        properties=address_of(batch.properties.data), properties_starts=address_of(batch.properties.starts),
        checksum=checksum, client=0 if batch.client is None else address_of(batch.client),
    )  # fmt: skip
    if written != len(out):
        raise StoreError("the encoder disagrees with the computed record sizes")
