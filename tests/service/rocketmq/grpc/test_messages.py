"""Messages between the protocol and the record: nothing is lost on either way, and what is wrong has its code."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq.grpc_client import Code, message, resource
from tierlog.service.rocketmq.grpc.codes import RefusedError
from tierlog.service.rocketmq.grpc.messages import (
    SYSTEM_NAMES,
    SentMessage,
    milliseconds,
    sent_message,
    shown_message,
)
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.properties import decode_properties
from tierlog.tiering.format.record import Record, RecordVersion
from tierlog.tiering.message.stored_message import StoredMessage

NOW_MS = 1_700_000_000_000
LIMIT = 4 << 20
#: Text without the control characters that are refused, and without surrogates, which protobuf refuses.
TEXT = st.text(
    st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20
).filter(str.strip)  # fmt: skip


def taken(sent: Any) -> SentMessage:
    return sent_message(sent, "orders", now_ms=NOW_MS, max_body_bytes=LIMIT)


def stored(sent: SentMessage, **changes: Any) -> StoredMessage:
    record = Record(
        size=0, version=RecordVersion.V1, body_crc=0, queue_id=3, flag=0, queue_offset=17, physical_offset=4_711,
        sys_flag=0, born_ms=sent.born_ms, born_host=bytes((10, 1, 2, 3, 0, 0, 0x12, 0x67)), store_ms=NOW_MS + 5,
        store_host=bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F)), reconsume_times=0, prepared_offset=0, body=sent.body,
        topic=sent.topic, properties_text=sent.properties,
    )  # fmt: skip
    return StoredMessage(replace(record, **changes), "broker-a", Tier.HOT)


@given(
    body=st.binary(min_size=1, max_size=200),
    keys=st.lists(TEXT.filter(lambda key: " " not in key), max_size=3, unique=True),
    tag=TEXT.filter(lambda tag: "|" not in tag),
    group=TEXT.filter(lambda group: len(group.encode()) <= 64),
    user=st.dictionaries(TEXT.filter(lambda name: name not in SYSTEM_NAMES), TEXT, max_size=5),
    born_ms=st.integers(0, 253_402_300_799_999),
)
def test_what_was_sent_is_what_is_received(
    body: bytes, keys: list[str], tag: str, group: str, user: dict[str, str], born_ms: int
) -> None:
    sent = message(
        body, keys=keys, tag=tag, message_group=group, born_ms=born_ms, user=user, message_id="0A", born_host="web-1",
        trace_context="00-11-22", priority=3, deliver_ms=NOW_MS + 60_000,
    )  # fmt: skip
    shown = shown_message(stored(taken(sent)), resource("orders"))
    of = shown.system_properties
    assert (shown.body, dict(shown.user_properties), shown.topic.name) == (body, user, "orders")
    assert (of.message_id, list(of.keys), of.tag, of.message_group) == ("0A", keys, tag, group)
    assert (milliseconds(of.born_timestamp), of.born_host) == (born_ms, "web-1")
    assert (of.trace_context, of.priority) == ("00-11-22", 3)
    assert milliseconds(of.delivery_timestamp) == NOW_MS + 60_000


def test_the_names_in_the_record_are_those_of_other_clients_and_doors() -> None:
    sent = message(
        keys=["k1", "k2"], tag="a", message_id="0A0B", message_group="g", born_host="web-1", user={"x": "y"},
        deliver_ms=NOW_MS,
    )  # fmt: skip
    assert decode_properties(taken(sent).properties) == {
        "x": "y", "KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": "0A0B", "__SHARDINGKEY": "g", "__BORNHOST": "web-1",
        "TIMER_DELIVER_MS": str(NOW_MS),
    }  # fmt: skip


def test_a_message_of_remoting_is_shown_with_its_host_its_attempt_and_its_offset_id() -> None:
    sent = SentMessage("orders", b"x", b"a\x01b\x02KEYS\x01k1 k2\x02PGROUP\x01p\x02", NOW_MS, "", "", False)
    of = shown_message(stored(sent, reconsume_times=2), resource("orders")).system_properties
    assert (of.born_host, of.store_host, of.delivery_attempt) == ("10.1.2.3", "127.0.0.1:10911", 3)
    assert (of.queue_id, of.queue_offset, list(of.keys), of.HasField("tag")) == (3, 17, ["k1", "k2"], False)
    assert of.message_id == "7F00000100002A9F0000000000001267"


def test_a_body_that_a_client_compressed_is_shown_as_the_application_sent_it() -> None:
    sent = SentMessage("orders", zlib.compress(b"body" * 100), b"", NOW_MS, "", "", False)
    shown = shown_message(stored(sent, sys_flag=1), resource("orders"))
    assert shown.body == b"body" * 100
    assert shown.system_properties.body_encoding == enums.Encoding.IDENTITY


def test_the_digest_is_an_md5_which_all_clients_write_alike() -> None:
    digest = shown_message(stored(taken(message(b"abc"))), resource("orders")).system_properties.body_digest
    assert digest.type == enums.DigestType.MD5
    assert digest.checksum == hashlib.md5(b"abc").hexdigest().upper()


def test_a_dead_letter_says_where_it_comes_from() -> None:
    text = b"DLQ_ORIGIN_TOPIC\x01orders\x02DLQ_ORIGIN_MESSAGE_ID\x010A\x02"
    shown = shown_message(stored(SentMessage("%DLQ%g", b"x", text, NOW_MS, "", "", False)), resource("%DLQ%g"))
    origin = shown.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("orders", "0A")
    assert not shown.user_properties


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_packed_body_is_stored_unpacked_so_that_every_client_can_read_it(pack: Any) -> None:
    body = b"body" * 1_000
    sent = message(pack(body), body_encoding=enums.Encoding.GZIP)
    assert taken(sent).body == body


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        ("CRC32", "352441C2"), ("CRC32", "352441c2"), ("CRC32", str(0x352441C2)), ("CRC32", "00352441C2"),
        ("MD5", hashlib.md5(b"abc").hexdigest()), ("SHA1", hashlib.sha1(b"abc").hexdigest().upper()),
        ("DIGEST_TYPE_UNSPECIFIED", ""),
    ],
)  # fmt: skip
def test_a_digest_is_understood_in_every_form_that_clients_write(kind: str, checksum: str) -> None:
    digest = messages.Digest(type=enums.DigestType[kind], checksum=checksum)
    assert taken(message(b"abc", body_digest=digest)).body == b"abc"


BOMB = gzip.compress(bytes(LIMIT + 1))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": " "}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\x01b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["k", "\t"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"keys": ["k\x02"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"message_group": "  "}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "ü" * 33}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"user": {"a\x7f": "b"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a": "b\x02c\x01d"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a": ""}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"KEYS": "k"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"TL_PID": "p"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"message_id": " "}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "a\nb"}, Code.ILLEGAL_MESSAGE_ID),
        ({"user": {str(n): "x" for n in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"a": "x" * 32_767}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ({"body": bytes(LIMIT + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"body": BOMB, "body_encoding": enums.Encoding.GZIP}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"body": gzip.compress(b"x" * 99)[:-1], "body_encoding": enums.Encoding.GZIP}, Code.MESSAGE_CORRUPTED),
        ({"body": b"plain", "body_encoding": enums.Encoding.GZIP}, Code.MESSAGE_CORRUPTED),
        ({"body_digest": messages.Digest(type=enums.DigestType.CRC32, checksum="1")}, Code.MESSAGE_CORRUPTED),
        ({"body_digest": messages.Digest(type=enums.DigestType.MD5, checksum="")}, Code.MESSAGE_CORRUPTED),
        ({"born_host": "a\x01"}, Code.BAD_REQUEST),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_message_has_its_code(wrong: dict[str, Any], code: int) -> None:
    with pytest.raises(RefusedError) as caught:
        taken(message(**wrong))
    assert caught.value.code == code


def test_128_properties_are_taken() -> None:
    assert len(decode_properties(taken(message(user={str(n): "x" for n in range(128)})).properties)) == 129
