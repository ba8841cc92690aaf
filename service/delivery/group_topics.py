"""The topics of a consumer group, ``%RETRY%group`` and ``%DLQ%group``, and how a message is written into them.

Both are RocketMQ's: a message keeps its body, flags, born time and host and its properties, and gets ``RETRY_TOPIC``,
where it came from, and ``ORIGIN_MESSAGE_ID``, the id of the first of its copies. A dead letter says the same again as
``DLQ_ORIGIN_TOPIC`` and ``DLQ_ORIGIN_MESSAGE_ID``, which clients show.
"""

from __future__ import annotations

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.body import inflated_body, is_compressed
from tierlog.tiering.format.properties import (
    KEYS,
    NAME_END,
    PRODUCER,
    RECORD_CHECKSUM,
    SEQUENCE,
    TAGS,
    VALUE_END,
    decode_properties,
    split_keys,
)
from tierlog.tiering.format.record import CHECKSUM_BYTES, MAX_PROPERTIES_BYTES, Record
from tierlog.tiering.message.batch import Message

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
#: Ours: what a consumer said when it gave the message back last.
DEAD_LETTER_REASON = "DLQ_REASON"
DELAY = "DELAY"
#: Topics' names have at most 255 bytes.
_MOST_GROUP_CHARACTERS = 255 - len(RETRY_PREFIX)
#: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h, which are levels 1 to 18.
DELAYS_MS: tuple[int, ...] = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))
#: The level of the first retry; each further one waits a level longer.
FIRST_RETRY_LEVEL = 3
_STORES_OWN = (RECORD_CHECKSUM, PRODUCER, SEQUENCE)
#: What a property text may have besides the checksum and the number that the copy gets.
_MOST_BYTES = MAX_PROPERTIES_BYTES - CHECKSUM_BYTES - 400


def retry_topic(group: str) -> str:
    """Returns the topic of messages that consumers of a group sent back."""
    return RETRY_PREFIX + _checked(group)


def dead_letter_topic(group: str) -> str:
    """Returns the topic of messages that a group has given up."""
    return DEAD_LETTER_PREFIX + _checked(group)


def _checked(group: str) -> str:
    if len(group) > _MOST_GROUP_CHARACTERS:
        raise InvalidRequestError(
            f"the name of group {group[:100]!r} is too long for topics of its own",
            hint=f"use at most {_MOST_GROUP_CHARACTERS} characters",
        )
    return group


def back_off_ms(attempt: int) -> int:
    """Returns how long a message waits after the delivery ``attempt``, counted from 1, was not done."""
    level = FIRST_RETRY_LEVEL + attempt - 1
    return DELAYS_MS[min(level, len(DELAYS_MS)) - 1]


def origin_topic(record: Record) -> str:
    """Returns the topic that a message was sent to, of a retry too."""
    if not record.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        return record.topic
    return record.properties.get(RETRY_TOPIC, record.topic)


def properties_of_retry(record: Record, delay_level: int) -> bytes:
    """Returns the property text of a message that a consumer sent back, with its delay if that is above 0."""
    added = {DELAY: str(delay_level)} if delay_level > 0 else {}
    return _extended(record, {**_origin(record), **added}, dropped={DELAY})


def properties_of_dead_letter(record: Record, reason: str = "") -> bytes:
    """Returns the property text of a dead letter."""
    origin = _origin(record)
    added = {DLQ_ORIGIN_TOPIC: origin[RETRY_TOPIC], DLQ_ORIGIN_MESSAGE_ID: origin[ORIGIN_MESSAGE_ID]}
    told = "".join(c for c in reason if c not in (NAME_END, VALUE_END))
    return _extended(record, {**origin, **added, **({DEAD_LETTER_REASON: told} if told else {})}, dropped={DELAY})


def _origin(record: Record) -> dict[str, str]:
    properties = record.properties
    return {
        RETRY_TOPIC: properties.get(RETRY_TOPIC) or record.topic,
        ORIGIN_MESSAGE_ID: properties.get(ORIGIN_MESSAGE_ID) or record.message_id,
    }


def _extended(record: Record, added: dict[str, str], dropped: frozenset[str] | set[str]) -> bytes:
    """Returns a record's property text, as it is but for what is replaced or dropped, and as far as there is room."""
    gone = {name.encode() for name in {*added, *dropped, *_STORES_OWN}}
    end = VALUE_END.encode()
    kept = [
        piece
        for piece in record.properties_text.split(end)
        if piece and piece.partition(NAME_END.encode())[0] not in gone
    ]
    text = b"".join(piece + end for piece in kept)
    for name, value in added.items():
        piece = f"{name}{NAME_END}{value}{VALUE_END}".encode()
        if len(text) + len(piece) <= _MOST_BYTES:  # a text that was full stays as it was rather than be refused
            text += piece
    return text


def copy_of(record: Record, topic: str, properties: bytes, reconsume_times: int) -> list[Message]:
    """Returns the message that a record is written again as, into queue 0 of a topic of the group."""
    named = decode_properties(properties)
    body = inflated_body(record) if is_compressed(record) else record.body
    keys, tag = split_keys(named.pop(KEYS, "")), named.pop(TAGS, "")
    return [Message(topic, record.body if body is None else body, keys, tag, named, born_ms=record.born_ms, queue_id=0)]
