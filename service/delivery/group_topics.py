"""The topics of a consumer group, ``%RETRY%group`` and ``%DLQ%group``, and how a message is written into them.

Both are RocketMQ's: a message keeps its body, flags, born time and host and its properties, and gets ``RETRY_TOPIC``,
where it came from, and ``ORIGIN_MESSAGE_ID``, the id of the first of its copies. A dead letter says the same again as
``DLQ_ORIGIN_TOPIC`` and ``DLQ_ORIGIN_MESSAGE_ID``, which clients show.
"""

from __future__ import annotations

import threading

from tierlog.service.delivery.copies import changed_text, messages_from
from tierlog.service.delivery.timers import DELAY_LEVEL, LEVELS_MS
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import END_OF_TIME_MS, Boundary
from tierlog.tiering.format.properties import NAME_END, PRODUCER, SEQUENCE, STORE_FIELDS, VALUE_END
from tierlog.tiering.format.record import CHECKSUM_BYTES, MAX_PROPERTIES_BYTES, Record

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
#: Queues of each of them, where remoting clients have them made.
QUEUES_OF_GROUP = 1
RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
#: Ours: what a consumer said when it gave the message back last.
DEAD_LETTER_REASON = "DLQ_REASON"
#: Topics' names have at most 255 bytes.
_MOST_GROUP_CHARACTERS = 255 - len(RETRY_PREFIX)
#: The level of the first retry; each further one waits a level longer.
FIRST_RETRY_LEVEL = 3
#: What a property text may have besides the checksum and the number that the copy gets.
_MOST_BYTES = MAX_PROPERTIES_BYTES - CHECKSUM_BYTES - 400


def retry_topic(group: str) -> str:
    """Returns the topic of messages that consumers of a group sent back."""
    return RETRY_PREFIX + _checked(group)


def dead_letter_topic(group: str) -> str:
    """Returns the topic of messages that a group has given up."""
    return DEAD_LETTER_PREFIX + _checked(group)


def is_group_topic(topic: str) -> bool:
    """Whether a topic is one of a group's own: of retries or of dead letters."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


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
    return LEVELS_MS[min(level, len(LEVELS_MS)) - 1]


def origin_topic(record: Record) -> str:
    """Returns the topic that a message was sent to, of a retry too."""
    if not is_group_topic(record.topic):
        return record.topic
    return record.properties.get(RETRY_TOPIC, record.topic)


def properties_of_retry(record: Record, delay_level: int) -> bytes:
    """Returns the property text of a message that a consumer sent back, with its delay if that is above 0."""
    added = {DELAY_LEVEL: str(delay_level)} if delay_level > 0 else {}
    return _extended(record, {**_origin(record), **added}, dropped={DELAY_LEVEL})


def properties_of_dead_letter(record: Record, reason: str = "") -> bytes:
    """Returns the property text of a dead letter."""
    origin = _origin(record)
    added = {DLQ_ORIGIN_TOPIC: origin[RETRY_TOPIC], DLQ_ORIGIN_MESSAGE_ID: origin[ORIGIN_MESSAGE_ID]}
    told = "".join(c for c in reason if c not in (NAME_END, VALUE_END))
    return _extended(record, {**origin, **added, **({DEAD_LETTER_REASON: told} if told else {})}, dropped={DELAY_LEVEL})


def _origin(record: Record) -> dict[str, str]:
    properties = record.properties
    return {
        RETRY_TOPIC: properties.get(RETRY_TOPIC) or record.topic,
        ORIGIN_MESSAGE_ID: properties.get(ORIGIN_MESSAGE_ID) or record.message_id,
    }


def _extended(record: Record, added: dict[str, str], dropped: frozenset[str] | set[str]) -> bytes:
    """Returns a record's property text, as it is but for what is replaced or dropped, and as far as there is room."""
    text = changed_text(record.properties_text, {*added, *dropped, *STORE_FIELDS})
    for name, value in added.items():
        piece = f"{name}{NAME_END}{value}{VALUE_END}".encode()
        if len(text) + len(piece) <= _MOST_BYTES:  # a text that was full stays as it was rather than be refused
            text += piece
    return text


class OldDeadLetters:
    """The dead letters that earlier volumes of a store wrote for a group, which the archive has. Thread safe.

    A volume that was restored begins with no numbers known, so it looks there before it writes one of a message that is
    older than itself. Empty in any other volume, and nothing is read.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._numbers: set[int] = set()
        self._from_ms = END_OF_TIME_MS
        """They are known of messages that were stored then or later."""

    def have(self, store: Store, record: Record, producer: str) -> bool:
        """Whether there is one of this record, numbered by its physical offset; raises what a pull raises."""
        if record.queue_offset >= store.start_of(record.topic, record.queue_id):
            return False
        topic = dead_letter_topic(self._group)
        end = store.start_of(topic, 0)
        with self._lock:
            if record.store_ms < self._from_ms:
                start = store.offset_by_time(topic, 0, record.store_ms, Boundary.LOWER)
                for message in messages_from(store, topic, 0, start):
                    if message.record.queue_offset >= end:
                        break
                    properties = message.record.properties
                    if properties.get(PRODUCER) == producer:
                        self._numbers.add(int(properties[SEQUENCE]))
                self._from_ms = record.store_ms
            return record.physical_offset in self._numbers
