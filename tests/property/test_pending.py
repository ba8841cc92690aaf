"""Messages that come one by one make the batch, and meet the refusals, that they make and meet together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.stores.hot_stores import NOW_MS
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.properties import KEYS, TAGS
from tierlog.tiering.format.record import MAX_PROPERTIES_BYTES
from tierlog.tiering.message.batch import ANY_QUEUE, MAX_QUEUES, BytesColumn, Message, MessageBatch
from tierlog.tiering.message.pending import PendingMessages

MAX_BODY_BYTES = 60
#: What the two ways to check a message might see differently: separators, spaces, zeros, half a pair, other scripts.
LETTERS = st.sampled_from(
    ["a", "Z", "7", "-", " ", "\x00", "\x01", "\x02", "\n", "\x7f", "\xa0", "ü", "€", "😀", "\ud800"]
)
TEXTS = st.one_of(
    st.text("abc123", max_size=8),
    st.text(LETTERS, max_size=6),
    st.sampled_from(["\0" * 512, "\0" * 511, "k" * 7_999, "k" * 8_000, "€" * 12_000, "w" * (MAX_PROPERTIES_BYTES - 6)]),
)
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["orders", "a", "%DLQ%" + "w" * 200, "a b", "", "ü"]),
    body=st.binary(max_size=MAX_BODY_BYTES + 1),
    keys=st.one_of(st.just(()), st.lists(TEXTS, max_size=3)),
    tag=TEXTS,
    properties=st.one_of(
        st.just({}), st.dictionaries(st.one_of(TEXTS, st.sampled_from([KEYS, TAGS])), TEXTS, max_size=2)
    ),
    born_ms=st.one_of(st.none(), st.sampled_from([-1, 0, 5, (1 << 62) - 1, 1 << 62])),
    queue_id=st.sampled_from([-2, ANY_QUEUE, 0, 3, MAX_QUEUES - 1, MAX_QUEUES]),
)


def columns(batch: MessageBatch) -> tuple[object, ...]:
    def values(column: BytesColumn) -> list[bytes]:
        starts = column.starts.tolist()
        return [column.data[start:end].tobytes() for start, end in pairwise(starts)]

    numbers = (batch.topic_index, batch.queue_id, batch.born_ms)
    texts = (batch.body, batch.keys, batch.tags, batch.properties)
    return batch.topics, *((each.dtype, each.tolist()) for each in numbers), *map(values, texts)


def add(pending: PendingMessages, message: Message) -> None:
    pending.add(
        message.topic,
        message.body,
        keys=message.keys,
        tag=message.tag,
        properties=message.properties,
        born_ms=message.born_ms,
        queue_id=message.queue_id,
    )


def refusal(step: Callable[[], object]) -> tuple[type, str, object, str | None] | None:
    try:
        step()
    except InvalidRequestError as error:
        return type(error), error.message, error.position, error.hint
    return None


def together(messages: list[Message]) -> MessageBatch:
    return MessageBatch.of(messages, now_ms=NOW_MS, max_body_bytes=MAX_BODY_BYTES)


@given(st.lists(MESSAGES, max_size=12))
@example([Message("a", b"x", ["k"], "t"), Message("orders", b"y", ["k", "", "l"]), Message("a", b"z")])
@example([Message("a", b"x"), Message("orders", b"", ["k"]), Message("a", b"y"), Message("a", b"z", ["\ud800"])])
@example([Message("a", b"x"), Message("a", b"x", ["€" * 8_000]), Message("a", b"x", ["€" * 7_999], "€" * 3_000)])
def test_one_by_one_is_as_together(messages: list[Message]) -> None:
    pending, good = PendingMessages(MAX_BODY_BYTES), list[Message]()
    for message in messages:
        refused = refusal(partial(together, [message]))
        assert refusal(partial(add, pending, message)) == refused
        good += [message] if refused is None else []
        assert len(pending) == len(good)
    taken = pending.take(now_ms=NOW_MS)
    assert columns(taken) == columns(together(good))
    assert len(pending) == pending.text_bytes == 0


def test_nothing_of_one_batch_is_in_the_next() -> None:
    pending = PendingMessages(MAX_BODY_BYTES)
    for topic in ("a", "b", "a"):
        messages = [Message(topic, b"%d" % number, [f"k{number}"]) for number in range(3)]
        for message in messages:
            add(pending, message)
        assert columns(pending.take(now_ms=NOW_MS)) == columns(together(messages))


def test_a_buffer_is_as_it_was_when_it_came() -> None:
    pending, buffer = PendingMessages(MAX_BODY_BYTES), bytearray(b"first")
    pending.add("a", buffer)  # type: ignore[arg-type]  # what callers do all the same
    pending.add("a", memoryview(buffer)[1:3])  # type: ignore[arg-type]
    pending.add("a", np.frombuffer(b"array", np.uint8))  # type: ignore[arg-type]
    buffer[:] = b"other"
    assert pending.take(now_ms=NOW_MS).body.data.tobytes() == b"firstirarray"


@pytest.mark.parametrize(
    "wrong", [{"body": "text"}, {"body": 3}, {"keys": [7]}, {"keys": 7}, {"tag": None}, {"queue_id": "0"}]
)
def test_what_is_of_another_type_is_found_at_the_call(wrong: dict[str, object]) -> None:
    """Found later it would take the messages of everybody else with it."""
    pending = PendingMessages(MAX_BODY_BYTES)
    pending.add("a", b"good")
    with pytest.raises((TypeError, AttributeError)):
        pending.add(**{"topic": "a", "body": b"x", **wrong})  # type: ignore[arg-type]
    assert len(pending.take(now_ms=NOW_MS)) == 1
