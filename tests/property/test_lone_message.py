"""A message that is appended alone leaves the bytes, the queues and the refusals of a batch of one."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.test_records import messages as good_messages
from tests.support.stores.hot_stores import NOW_MS, STORE_HOST, STORE_HOST_V6, HotWorld, snapshot_of
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.record import MAX_PROPERTIES_BYTES
from tierlog.tiering.message.batch import ANY_QUEUE, Message, MessageBatch
from tierlog.tiering.message.pending import LoneMessage, PendingMessages

MAX_BODY_BYTES = 10_000
SEGMENT_BYTES = 4096
#: The largest body without properties and keys that fits a segment, on topic "a" with IPv4.
LARGEST = SEGMENT_BYTES - 8 - 91 - 1
ODD_MESSAGES = st.one_of(
    good_messages,
    st.builds(
        Message,
        topic=st.sampled_from(["a", "orders"]),
        body=st.binary(min_size=1, max_size=5).map(lambda few: few * 300),
        born_ms=st.none(),
        queue_id=st.sampled_from([ANY_QUEUE, 0, 4]),
    ),
    st.just(Message("a", b"x" * (LARGEST + 1))),
)


def alone(message: Message) -> LoneMessage:
    pending = PendingMessages(MAX_BODY_BYTES)
    pending.add(
        message.topic,
        message.body,
        keys=message.keys,
        tag=message.tag,
        properties=message.properties,
        born_ms=message.born_ms,
        queue_id=message.queue_id,
    )
    return pending.take_lone(now_ms=NOW_MS)


def of_one(message: Message) -> MessageBatch:
    return MessageBatch.of([message], now_ms=NOW_MS, max_body_bytes=MAX_BODY_BYTES)


@settings(max_examples=60)
@given(st.lists(ODD_MESSAGES, max_size=12), st.booleans(), st.booleans())
@example(
    [Message("a", b"x" * LARGEST), Message("a", b"y"), Message("a", b"x" * (LARGEST + 1)), Message("a", b"y")],
    False,
    False,
)
@example([Message("a", b"x", tag="t" * (MAX_PROPERTIES_BYTES - 6))], True, False)
def test_alone_is_as_a_batch_of_one(messages: list[Message], checksum: bool, is_v6: bool) -> None:
    logs = []
    for form in (alone, of_one):
        world = HotWorld(segment_bytes=SEGMENT_BYTES, record_checksum=checksum)
        hot = world.open(store_host=STORE_HOST_V6 if is_v6 else STORE_HOST)
        answers: list[object] = []
        for message in messages:
            world.clock.advance(1)
            try:
                found = hot.append(form(message), Durability.ASYNC)
            except InvalidRequestError as refused:
                answers.append((type(refused), str(refused), refused.position))
            else:
                places = (found.physical_offset, found.queue_id, found.queue_offset)
                answers.append((*(each.tolist() for each in places), found.store_ms))
        answers.append(hot.appended)
        hot.dispatch()
        assert check_store(hot) == []
        hot.close()
        logs.append((answers, snapshot_of(world.fs, world.root)))
    assert logs[0] == logs[1]


def test_what_is_refused_leaves_no_topic() -> None:
    hot = HotWorld(segment_bytes=SEGMENT_BYTES).open()
    with pytest.raises(InvalidRequestError, match="does not fit a segment"):
        hot.append(alone(Message("a", b"x" * (LARGEST + 1))), Durability.FLUSHED)
    assert hot.topics.find("a") is None
    hot.close()
