"""What a user can get wrong about a message is refused before anything is written, and named by its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.stores.hot_stores import NOW_MS
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.format.record import MAX_PROPERTIES_BYTES
from tierlog.tiering.message.batch import Message, MessageBatch, validate_key, validate_topic

GOOD = Message("orders", b"body")


def refused(
    message: Message, error: type[InvalidRequestError] = InvalidRequestError, *, match: str = "message 2"
) -> InvalidRequestError:
    with pytest.raises(error, match=match) as caught:
        MessageBatch.of([GOOD, GOOD, message, GOOD], now_ms=NOW_MS, max_body_bytes=100)
    assert caught.value.position == 2
    assert caught.value.message.startswith("message 2: ")
    return caught.value


def changed(**changes: Any) -> Message:
    return replace(GOOD, **changes)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        " ",
        "a b",
        "a/b",
        "..",
        "a.b",
        "ü",
        "a\n",
        "\n",
        "a\x00",
        "t" * 128,
        "%RETRY%" + "t" * 249,
        "a#b",
        "a:b",
        "$x",
    ],
)
def test_bad_topic_name(topic: str) -> None:
    refused(changed(topic=topic), match="topic")


@pytest.mark.parametrize(
    "topic", ["a", "0", "%", "|", "_-", "t" * 127, "%RETRY%" + "t" * 248, "%DLQ%" + "t" * 250, "A|b%c-d_9"]
)
def test_good_topic_name(topic: str) -> None:
    assert validate_topic(topic) == topic


def test_empty_body() -> None:
    refused(changed(body=b""), match="empty body")


def test_body_over_the_limit() -> None:
    assert len(MessageBatch.of([changed(body=bytes(100))], now_ms=0, max_body_bytes=100)) == 1
    refused(changed(body=bytes(101)), MessageTooLargeError, match="body of 101 bytes is over the limit of 100")


@pytest.mark.parametrize("key", ["", " ", "a b", "a\x01", "\x02", " a", "a "])
def test_bad_key(key: str) -> None:
    refused(changed(keys=["good", key]), match="bad key")


@pytest.mark.parametrize("key", ["a", "ключ", "😀", "a\tb", "a#b", "x" * 1000])
def test_good_key(key: str) -> None:
    assert validate_key(key) == key


@pytest.mark.parametrize("tag", ["a\x01", "\x02b"])
def test_separator_in_a_tag(tag: str) -> None:
    refused(changed(tag=tag), match="tag")


@pytest.mark.parametrize(
    "properties",
    [
        {"": "v"},
        {"n": ""},
        {"n\x01": "v"},
        {"n": "\x02"},
        {"KEYS": "a"},
        {"ok": "v", "TAGS": "a"},
        {"x__CRC32#": "0123456789"},
    ],
)
def test_bad_property(properties: dict[str, str]) -> None:
    refused(changed(properties=properties), match="property")


@pytest.mark.parametrize(
    "changes",
    [{"keys": ["\ud800"]}, {"tag": "\udc00"}, {"properties": {"n": "\ud83d"}}, {"properties": {"\ud83d": "v"}}],
)
def test_lone_surrogate(changes: dict[str, Any]) -> None:
    refused(changed(**changes), match="Unicode")


def test_property_text_over_the_limit() -> None:
    # KEYS 01 k 02 TAGS 01 t 02 n 01 value 02
    value = "v" * (MAX_PROPERTIES_BYTES - 7 - 7 - 3)
    message = changed(keys=["k"], tag="t", properties={"n": value})
    batch = MessageBatch.of([message], now_ms=0, max_body_bytes=100)
    assert batch.record_sizes(16).tolist() == [91 + 4 + 6 + MAX_PROPERTIES_BYTES]
    over = refused(replace(message, tag="tt"), MessageTooLargeError, match="32768 bytes is over the limit of 32767")
    assert over.hint is not None
    refused(replace(message, keys=["k", "l"]), MessageTooLargeError)
    refused(replace(message, properties={"n": value + "v"}), MessageTooLargeError)


def test_text_that_looks_like_a_lost_sector() -> None:
    fine = changed(properties={"n": "\0" * 511})
    assert len(MessageBatch.of([fine], now_ms=0, max_body_bytes=100)) == 1
    refused(changed(properties={"n": "\0" * 512}), match="zero bytes")
    refused(changed(keys=["\0" * 600]), match="zero bytes")


@pytest.mark.parametrize("queue_id", [-2, 1024, (1 << 31) - 1, 1 << 31, -(1 << 31)])
def test_bad_queue_id(queue_id: int) -> None:
    refused(changed(queue_id=queue_id), match="queue id")


@pytest.mark.parametrize("born_ms", [-1, 1 << 62, 1 << 70])
def test_bad_born_time(born_ms: int) -> None:
    refused(changed(born_ms=born_ms), match="born time")


def test_columns() -> None:
    batch = MessageBatch.of(
        [
            changed(keys=["k1", "k2"], tag="t", properties={"n": "v"}, born_ms=5, queue_id=3),
            changed(topic="pays", body=b"other"),
            changed(),
        ],
        now_ms=NOW_MS,
        max_body_bytes=100,
    )  # fmt: skip
    assert batch.topics == ("orders", "pays")
    assert batch.topic_index.tolist() == [0, 1, 0]
    assert batch.queue_id.tolist() == [3, -1, -1]
    assert batch.born_ms.tolist() == [5, NOW_MS, NOW_MS]
    assert bytes(batch.body.data) == b"bodyotherbody"
    assert bytes(batch.keys.data) == b"k1 k2"
    assert batch.properties.lengths.tolist() == [4, 0, 0]
    assert len(batch) == 3


def test_no_messages() -> None:
    assert len(MessageBatch.of([], now_ms=0, max_body_bytes=100)) == 0
