"""Appends that may be sent again: what is in the log already is answered from there, the rest is appended.

A producer numbers its messages of a topic. A request names the producer and the number of its first message, and the
others follow on. Of its messages those are appended whose numbers the store does not know; for those that it knows, the
record is read back, compared, and answered as it was the first time. So a request whose answer was lost, or that a kill
cut in the middle, is sent again as it was or cut in other pieces, and each message is in the log once.

Killed before the append: nothing happened. In the middle of it: a first part of the messages is in the log, each with
its number, and the next try appends the rest. After it: the next try appends nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tiering.batch import ANY_QUEUE, Message
from tiering.errors import ConflictError, InvalidRequestError, KeyReusedError
from tiering.format.properties import KEYS, OWN_FIELDS, SHARDING_KEY
from tiering.hot.producers import Origin, ProducerWindow, Run
from tiering.message import StoredMessage

_KEY = re.compile(r'("?)([A-Za-z0-9_.~-]{1,64})(?::([0-9]{1,18}))?\1')


@dataclass(frozen=True, slots=True)
class Appended:
    """Where one message went."""

    message_id: str
    queue_id: int
    queue_offset: int
    store_ms: int


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Who sends a request, and the number of its first message among all that it sends to the topic."""

    producer: str
    first: int = 0

    @classmethod
    def parse(cls, text: str) -> IdempotencyKey:
        """``producer`` or ``producer:number``, in double quotes or not; :class:`InvalidRequestError` for others."""
        found = _KEY.fullmatch(text)
        if found is None:
            raise InvalidRequestError(
                f"bad Idempotency-Key {text[:100]!r}",
                hint="1 to 64 ASCII letters, digits and _ . ~ -, then : and the number of the first message, if not 0",
            )
        return cls(found[2], int(found[3] or 0))


def append_once(
    window: ProducerWindow,
    key: IdempotencyKey,
    messages: Sequence[Message],
    append: Callable[[Sequence[Message], Origin], list[Appended]],
    read_back: Callable[[Run], Callable[[int], StoredMessage | None]],
) -> list[Appended]:
    """Where each message went, now or when it was sent before.

    ``read_back`` makes a run readable and reads its records by physical offset. Raises :class:`RequestUnderWayError`
    while another request has some of these numbers, :class:`KeyReusedError` if one of them belongs to another message,
    :class:`ConflictError` if a message was appended before and cannot be read any more; nothing was appended then.
    """
    topics = {messages[0].topic} if hasattr(messages, "to_batch") else {message.topic for message in messages}
    if len(topics) != 1:
        raise InvalidRequestError("messages with one idempotency key are of one topic")
    (topic,) = topics
    end = key.first + len(messages)
    with window.claim(topic, key.producer, key.first, end):
        results: list[Appended | None] = [None] * len(messages)
        for run in window.known(topic, key.producer, key.first, end):
            _answer_again(run, key, messages, results, read_back(run))
        missing = [place for place, result in enumerate(results) if result is None]
        if missing:
            piece = messages if len(missing) == len(messages) else [messages[place] for place in missing]
            numbers = key.first + np.array(missing, np.int64)
            for place, result in zip(missing, append(piece, Origin(topic, key.producer, numbers)), strict=True):
                results[place] = result
    return [result for result in results if result is not None]


def _answer_again(
    run: Run,
    key: IdempotencyKey,
    messages: Sequence[Message],
    results: list[Appended | None],
    read: Callable[[int], StoredMessage | None],
) -> None:
    physical = run.physical
    for number in range(run.first, min(run.end, key.first + len(messages))):
        stored = read(physical)
        place = number - key.first
        if stored is None:
            raise ConflictError(
                f"message {max(place, 0)} was appended before, and is erased or expired since", position=max(place, 0)
            )
        physical += stored.record.size
        if place >= 0:
            if not _is_same(messages[place], stored):
                raise KeyReusedError(
                    f"message {place} is not the one that number {number} of producer {key.producer!r} belongs to",
                    position=place,
                    hint="each request has a key of its own; one sent again has the same messages",
                )
            record = stored.record
            results[place] = Appended(record.message_id, record.queue_id, record.queue_offset, record.store_ms)


def _is_same(message: Message, stored: StoredMessage) -> bool:
    """What the client chose is compared; queue and born time only if it chose them."""
    record = stored.record
    body, _ = stored.readable_body()
    return (
        body == message.body
        and record.properties.get(KEYS, "") == " ".join(message.keys)
        and stored.tag == message.tag
        and stored.properties == {name: value for name, value in message.properties.items() if name not in OWN_FIELDS}
        and (message.queue_id in (ANY_QUEUE, record.queue_id) or SHARDING_KEY in message.properties)
        and message.born_ms in (None, record.born_ms)
    )
