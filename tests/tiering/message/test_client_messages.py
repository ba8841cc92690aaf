"""What a RocketMQ client sent is stored as it was sent; what is wrong with it is refused, and nothing of it kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.stores.hot_stores import NOW_MS, array
from tests.support.world import World
from tests.tiering.format.test_record import A1, A2, A3, A4, A5, A7, BORN_V4, BORN_V6, STORE_V4, STORE_V6, P
from tierlog.index.search.query import Query
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.client_batch import BatchEntry, decode_client_batch, encode_client_batch
from tierlog.tiering.format.record import MAX_PROPERTIES_BYTES, SysFlag
from tierlog.tiering.message.batch import ANY_QUEUE, Message, MessageBatch, encode_batch
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.stored_message import StoredMessage

HOST, HOST_V6, TEXT = BORN_V4, BORN_V6, P
#: formats.md A.7, as a client sends it.
TWO = bytes.fromhex(
    "000000230000000000000000000000010000000548656c6c6f00084b455953016b31020000001c00"
    "000000000000000000000200000006576f726c64210000"
)


def pulled(world: World, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    return list(world.engine.pull(topic, queue_id, 0, 100).messages)


def add(messages: ClientMessages, **changes: Any) -> int:
    given: dict[str, Any] = {
        "topic": "orders", "queue_id": 0, "body": b"Hello", "properties": TEXT, "born_ms": NOW_MS, "born_host": HOST,
    } | changes  # fmt: skip
    place = [given.pop(name) for name in ("topic", "queue_id", "body", "properties")]
    return messages.add(*place, **given)


def add_batch(messages: ClientMessages, batch: bytes = TWO, **changes: Any) -> range:
    given: dict[str, Any] = {"born_ms": NOW_MS, "born_host": HOST} | changes
    return messages.add_batch(given.pop("topic", "orders"), given.pop("queue_id", 0), batch, **given)


def refused(
    error: type[InvalidRequestError] = InvalidRequestError, *, match: str, **changes: Any
) -> InvalidRequestError:
    messages = ClientMessages(100)
    adding = add_batch if "batch" in changes else add
    with pytest.raises(error, match=match) as caught:
        adding(messages, **changes)
    assert len(messages) == 0
    assert len(messages.to_batch(now_ms=0, max_body_bytes=100)) == 0
    return caught.value


def encoded(batch: MessageBatch, *, host: bytes, checksum: bool, **place: int) -> bytes:
    """What the log gets of a batch in queue 3, all with the same queue offset."""
    sizes = batch.record_sizes(8 + len(host), checksum=checksum)
    out = np.zeros(int(sizes.sum()), np.uint8)
    encode_batch(
        batch, 0, len(batch), sizes, out, physical=place["physical"], store_ms=place["store_ms"],
        store_host=array(host), queue_id=batch.queue_id, queue_offset=np.full(len(batch), place["queue_offset"]),
        checksum=checksum,
    )  # fmt: skip
    return out.tobytes()


@pytest.mark.parametrize(
    ("vector", "text", "checksum", "is_v6", "place"),
    [
        (A1, P, False, False, (0, 0, 123)),
        (A2, P, False, True, (1, 168, 456)),
        (A3, P, True, False, (7, 4096, 789)),
        (A4, b"", True, False, (0, 0, 789)),
        (A5, b"TAGS\x01TagA", True, False, (0, 0, 789)),
    ],
    ids=["A.1", "A.2", "A.3", "A.4", "A.5"],
)
def test_the_record_is_the_one_that_rocketmq_makes_of_the_message(
    vector: str, text: bytes, checksum: bool, is_v6: bool, place: tuple[int, int, int]
) -> None:
    queue_offset, physical, after_ms = place
    host, where = STORE_V6 if is_v6 else STORE_V4, {"physical": physical, "store_ms": NOW_MS + after_ms}
    single, batched = ClientMessages(100), ClientMessages(100)
    add(single, topic="TopicTest", queue_id=3, properties=text, born_host=HOST_V6 if is_v6 else HOST)
    batch = encode_client_batch([BatchEntry(0, b"Hello", text)])
    add_batch(batched, batch, topic="TopicTest", queue_id=3, born_host=HOST_V6 if is_v6 else HOST)
    lone = single.lone()
    assert lone is not None
    alone = lone.encode(store_host=host, queue_id=3, queue_offset=queue_offset, checksum=checksum, **where)
    assert alone.hex() == "".join(vector.split())
    for messages in (single, batched):
        made = messages.to_batch(now_ms=0, max_body_bytes=100)
        assert encoded(made, host=host, checksum=checksum, queue_offset=queue_offset, **where) == alone


def test_the_records_of_a_batch_are_those_that_rocketmq_makes_of_it() -> None:
    messages = ClientMessages(100)
    add_batch(messages, topic="TopicTest", queue_id=3)
    made = messages.to_batch(now_ms=0, max_body_bytes=100)
    found = bytearray(encoded(made, host=STORE_V4, checksum=False, queue_offset=0, physical=0, store_ms=NOW_MS + 123))
    found[113 + 28 : 113 + 36] = bytes(8)  # the second one's place in the log, which the vector does not have yet
    assert found.hex() == "".join(A7.split())


@pytest.mark.parametrize("born_host", [HOST, HOST_V6])
@pytest.mark.parametrize("others", [0, 1])
def test_a_message_is_read_back_as_it_was_sent_and_found_by_its_keys(born_host: bytes, others: int) -> None:
    world = World()
    with world.open() as engine:
        messages = engine.client_messages()
        add(
            messages, queue_id=1, flag=-7, sys_flag=0x301, born_ms=-5, born_host=born_host, reconsume_times=3,
            prepared_offset=1 << 40,
        )  # fmt: skip
        for _ in range(others):
            add(messages)
        engine.append(messages)
        engine.flush()
        record = pulled(world, "orders", 1)[0].record
        assert (record.body, record.properties_text, record.flag, record.born_ms) == (b"Hello", TEXT, -7, -5)
        assert (record.born_host, record.reconsume_times, record.prepared_offset) == (born_host, 3, 1 << 40)
        assert record.sys_flag == 0x301 | (SysFlag.BORN_HOST_V6 if born_host is HOST_V6 else 0)
        for key in ("k1", "k2", "7F0000010000000000000000000A0001"):
            found = engine.query(Query("orders", key))
            assert len(found.messages) == 1 + others
        assert pulled(world, "orders", 1)[0].tag == "TagA"
        world.archive()
        cold = pulled(world, "orders", 1)[0]
        assert cold.tier == "cold"
        assert cold.record == record
        assert len(engine.query(Query("orders", "k2")).messages) == 1 + others


def test_a_batch_becomes_the_records_that_a_broker_makes_of_it() -> None:
    world = World()
    with world.open() as engine:
        messages = engine.client_messages()
        assert add_batch(messages, sys_flag=0, reconsume_times=2) == range(2)
        engine.append(messages)
        engine.flush()
        first, second = (each.record for each in pulled(world, "orders"))
        assert (first.body, first.flag, first.properties_text, first.body_crc) == (
            b"Hello",
            1,
            b"KEYS\x01k1\x02",
            2010220930,
        )
        assert (second.body, second.flag, second.properties_text) == (b"World!", 2, b"")
        for offset, record in enumerate((first, second)):
            assert (record.queue_offset, record.born_ms, record.born_host) == (offset, NOW_MS, HOST)
            assert (record.prepared_offset, record.reconsume_times) == (0, 2)


def test_a_prepared_or_rolled_back_transaction_is_in_no_queue_and_takes_no_offset() -> None:
    world = World()
    with world.open() as engine:
        kinds = (0, 0x4, 0x8, 0xC, 0)
        for alone in (True, False):
            messages = engine.client_messages()
            for number, kind in enumerate(kinds):
                add(messages, body=b"%d" % number, sys_flag=kind)
                if alone:
                    engine.append(messages)
                    messages = engine.client_messages()
            if not alone:
                engine.append(messages)
        engine.flush()

        def check() -> None:
            found = pulled(world, "orders")
            assert [(each.record.body, each.record.queue_offset) for each in found] == [
                (b"0", 0), (b"2", 1), (b"4", 2), (b"0", 3), (b"2", 4), (b"4", 5),
            ]  # fmt: skip

        check()
        assert check_store(world.engine._hot) == []
        world.reopen()
        check()
        world.archive()
        check()
    world.engine.close()


@pytest.mark.parametrize("batched", [False, True])
def test_what_a_client_says_in_the_name_of_the_store_is_not_stored(batched: bool) -> None:
    world = World()
    forged = b"TL_PID\x01p\x02a\x01b\x02TL_SEQ\x010\x02__CRC32#\x010123456789\x02"
    key = IdempotencyKey("p")
    with world.open() as engine:
        engine.append([Message("orders", b"ours", queue_id=1)], Durability.FLUSHED, IdempotencyKey("p", 5))
        messages = engine.client_messages()
        if batched:
            add_batch(messages, encode_client_batch([BatchEntry(0, b"theirs", forged)]))
        else:
            add(messages, body=b"theirs", properties=forged)
        engine.append(messages)
        engine = world.reopen()
        # number 0 of that producer has never been sent
        (place,) = engine.append([Message("orders", b"ours", queue_id=0)], Durability.FLUSHED, key)
        assert place.queue_offset == 1
        engine.flush()
        assert pulled(world, "orders")[0].record.properties_text == b"a\x01b\x02"
        engine.close()


def test_what_is_for_the_broker_alone_is_not_stored_of_a_single_message_and_is_of_a_batch() -> None:
    text = b"a\x01b\x02WAIT\x01false\x02__RMQ.TRANSIENT.x\x01y\x02AWAIT\x01c"
    world = World()
    with world.open() as engine:
        messages = engine.client_messages()
        add(messages, properties=text)
        add_batch(messages, encode_client_batch([BatchEntry(0, b"x", text)]))
        engine.append(messages)
        engine.flush()
        single, batched = (each.record.properties_text for each in pulled(world, "orders"))
        assert single == b"a\x01b\x02AWAIT\x01c\x02"
        assert batched == text


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    world = World()
    text = b"KEYS\x01k\xff\x02n\x01\xc3\x28\x02"
    with world.open() as engine:
        messages = engine.client_messages()
        add(messages, properties=text)
        add(messages, body=memoryview(b"buffer"), properties=text)
        engine.append(messages)
        engine.flush()
        found = pulled(world, "orders")
        assert [each.record.properties_text for each in found] == [text, text]
        assert found[1].record.body == b"buffer"


def test_a_text_that_ends_in_zeros_is_not_taken_for_a_torn_record_after_a_kill() -> None:
    world = World()
    engine = world.open()
    zeros = b"n\x01v" + bytes(300)
    # wherever a sector of the disk begins in the text, and at the end of the log
    sent = [BatchEntry(0, b"x" * (1 + number % 97), zeros) for number in range(300)]
    messages = engine.client_messages()
    add_batch(messages, encode_client_batch(sent))
    add(messages, properties=zeros)
    places = engine.append(messages)
    world.cut_power()
    engine = world.open()
    assert engine.offsets("orders", 0)[1] == len(places) == 301
    assert {each.record.properties_text for each in pulled(world, "orders")} == {zeros + b"\x02"}
    engine.close()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", [b"x__CRC32#\x01", b"n\x01v__CRC32#\x01"])
def test_a_property_that_ends_the_record_like_a_checksum_is_refused(name: bytes, batched: bool) -> None:
    text = name + b"0123456789\x02"
    if batched:
        refused(match="message 0: the last property", batch=encode_client_batch([BatchEntry(0, b"x", text)]))
    else:
        refused(match="the last property", properties=text[:-1])


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("topic", {"topic": "no topic"}),
        ("queue", {"queue_id": -2}),
        ("queue", {"queue_id": 1024}),
        ("empty body", {"body": b""}),
        ("zero bytes", {"properties": b"n\x01" + bytes(512)}),
        ("too many bits", {"flag": 1 << 31}),
        ("too many bits", {"sys_flag": -(1 << 32)}),
        ("too many bits", {"reconsume_times": 1 << 31}),
        ("64 bits", {"born_ms": 1 << 63}),
        ("too many bits", {"prepared_offset": -(1 << 63) - 1}),
        ("many messages", {"sys_flag": 0x80}),
        ("born host", {"born_host": b""}),
        ("born host", {"born_host": bytes(16)}),
    ],
)
def test_what_is_wrong_is_refused(match: str, changes: dict[str, Any]) -> None:
    refused(match=match, **changes)


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("empty batch", {"batch": b""}),
        ("topic", {"batch": TWO, "topic": ""}),
        ("queue", {"batch": TWO, "queue_id": 1024}),
        ("transaction", {"batch": TWO, "sys_flag": 0x4}),
        ("born host", {"batch": TWO, "born_host": bytes(9)}),
        ("message 0: .* lengths", {"batch": TWO[:10]}),
        ("message 1: .* lengths", {"batch": TWO[:-1]}),
        ("message 2: .* lengths", {"batch": TWO + b"\0"}),
        ("message 0: .* lengths", {"batch": bytes(4) + TWO}),
        ("message 0: .* lengths", {"batch": b"\xff" * 4 + TWO[4:]}),
        ("message 0: .* lengths", {"batch": b"\x7f\xff\xff\xff" + TWO[4:]}),
        ("message 0: .* lengths", {"batch": TWO[:16] + b"\xff" * 4 + TWO[20:]}),
        ("message 0: .* lengths", {"batch": TWO[:16] + b"\x7f\xff\xff\xff" + TWO[20:]}),
        ("message 0: .* lengths", {"batch": TWO[:25] + b"\xff\xf8" + TWO[27:]}),
        ("message 1: empty body", {"batch": TWO[:35] + encode_client_batch([BatchEntry(0, b"", b"")])}),
        ("message 0: .* zero bytes", {"batch": encode_client_batch([BatchEntry(0, b"x", b"n\x01" + bytes(512))])}),
    ],
)
def test_a_wrong_batch_is_refused_as_a_whole(match: str, changes: dict[str, Any]) -> None:
    refused(match=match, **changes)


def test_what_is_too_large_is_refused() -> None:
    refused(MessageTooLargeError, match="101 bytes", body=bytes(101))
    two = [BatchEntry(0, b"x" * 100, b""), BatchEntry(0, b"x" * 101, b"")]
    found = refused(MessageTooLargeError, match="message 1: body of 101 bytes", batch=encode_client_batch(two))
    assert found.position == 1
    most = b"n\x01" + b"v" * (MAX_PROPERTIES_BYTES - 3)
    assert add(ClientMessages(100), properties=most) == 0
    refused(MessageTooLargeError, match="32768 bytes", properties=most + b"v")
    # what is taken out does not count
    assert add(ClientMessages(100), properties=most + b"\x02WAIT\x01true") == 0
    messages = ClientMessages(100)
    add(messages)
    add(messages, body=bytes(60))
    with pytest.raises(MessageTooLargeError, match="body of 60 bytes"):
        messages.to_batch(now_ms=0, max_body_bytes=59)


def test_a_record_checksum_that_no_longer_fits_is_refused_alone_and_together() -> None:
    text = b"n\x01" + b"v" * (MAX_PROPERTIES_BYTES - 20 - 2)
    for count in (1, 2):
        messages = ClientMessages(100)
        for _ in range(count):
            add_batch(messages, encode_client_batch([BatchEntry(0, b"x", text)]))
        batch = messages.to_batch(now_ms=0, max_body_bytes=100)
        with pytest.raises(MessageTooLargeError, match="32768 bytes"):
            batch.record_sizes(16, checksum=True)


def test_a_queue_that_the_topic_does_not_have_is_refused_as_the_message_is_added() -> None:
    world = World()
    with world.open() as engine:
        engine.create_topic("orders", 2)
        messages = engine.client_messages()
        assert add(messages, queue_id=1) == 0
        with pytest.raises(InvalidRequestError, match="no queue 2"):
            add(messages, queue_id=2)
        with pytest.raises(InvalidRequestError, match="no queue 2"):
            add_batch(messages, queue_id=2)
        engine.create_topic("orders", 3)
        assert add(messages, queue_id=2) == 1
        assert add(messages, queue_id=ANY_QUEUE) == 2
        assert [each.queue_id for each in engine.append(messages)][:2] == [1, 2]


def test_nothing_is_appended_of_no_messages() -> None:
    with World().open() as engine:
        assert list(engine.append(engine.client_messages())) == []


def test_the_vector_is_what_our_writer_makes() -> None:
    assert encode_client_batch(decode_client_batch(TWO)) == TWO
