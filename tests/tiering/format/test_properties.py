"""Property text as RocketMQ reads it."""

from __future__ import annotations

import pytest

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.properties import decode_properties, encode_properties, indexed_keys, split_keys


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a=b;c=d;", {"a": "b", "c": "d"}),
        ("a=b;c=d", {"a": "b", "c": "d"}),
        ("a=;c=d;", {"c": "d"}),
        ("=b;c=d;", {"c": "d"}),
        ("ab;c=d;", {"c": "d"}),
        ("a=b=c;", {"a": "b=c"}),
        ("a=b;a=c;", {"a": "c"}),
        (";;a=b;", {"a": "b"}),
        ("", {}),
    ],
)
def test_decoding_vector(text: str, wanted: dict[str, str]) -> None:
    raw = text.replace("=", "\x01").replace(";", "\x02").encode()
    assert decode_properties(raw) == {name: value.replace("=", "\x01") for name, value in wanted.items()}


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert decode_properties(b"a\x01b\xff\x02") == {"a": "b\ufffd"}


def test_encoding_keeps_order_and_ends_in_a_separator() -> None:
    properties = {"z": "1", "a": "zwei", "ключ": "值"}
    text = encode_properties(properties)
    assert text == "z\x011\x02a\x01zwei\x02ключ\x01值\x02".encode()
    assert decode_properties(text) == properties
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    "properties",
    [
        {"": "v"},
        {"n": ""},
        {"n\x01": "v"},
        {"n\x02": "v"},
        {"n": "\x01v"},
        {"n": "v\x02"},
        {"n": "\ud800"},
        {"\udfff": "v"},
    ],
)
def test_what_would_not_read_back_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        encode_properties(properties)


def test_keys_are_split_at_each_space_and_kept_once() -> None:
    assert split_keys("k1  k2 k1 ") == ["k1", "k2"]
    assert split_keys("") == []


def test_unique_key_is_indexed_first_and_equal_keys_once() -> None:
    assert indexed_keys({"KEYS": "b a u", "UNIQ_KEY": "u"}) == ["u", "b", "a"]
    assert indexed_keys({"UNIQ_KEY": "u 1"}) == ["u 1"]
    assert indexed_keys({"UNIQ_KEY": "", "KEYS": "a"}) == ["a"]
    assert indexed_keys({}) == []
