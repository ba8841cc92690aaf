"""Hashes that lie in files, against Java's own values and against their kernels."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tiering.format.hashing import java_hash, key_hash, key_hash_high, tag_hash
from tiering.kernels import text


@numba.njit
def _java_hash(address, length):  # type: ignore[no-untyped-def]
    return text.signed32(text.java_hash(0, address, length))


@numba.njit
def _key_hash(address, length):  # type: ignore[no-untyped-def]
    return text.key_hash(text.java_hash(0, address, length))


@numba.njit
def _xxh32(address, length):  # type: ignore[no-untyped-def]
    return text.xxh32(address, length)


def kernel(function: object, data: bytes) -> int:
    array = np.frombuffer(data or b"\0", np.uint8)
    return int(function(array.ctypes.data, len(data)))  # type: ignore[operator]


VALUES = {
    "abc": 96354,
    "": 0,
    "TagA": 2598919,
    "TAG1": 2567159,
    "TopicTest#MessageKey": 638347386,
    "TopicTest#uk": 2746392,
    "TopicTest1#MessageKey": 1160537419,
    "TopicTest#T#TagA": 1311325016,
    "polygenelubricants": -2147483648,
    "FooBar#Hello": -101609924,
    "Aa": 2112,
    "BB": 2112,
    "AaTopic#BB": -10606476,
    "BBTopic#Aa": -10606476,
    "中文": 646394,
    "😀": 1772899,
    "A#😀": 3742949,
    "TopicA#订单": -1902114556,
}


@pytest.mark.parametrize("string", VALUES)
def test_java_value(string: str) -> None:
    assert java_hash(string) == VALUES[string]
    assert kernel(_java_hash, string.encode()) == VALUES[string]


def test_key_hash_is_never_negative() -> None:
    assert key_hash("FooBar", "Hello") == 101609924
    assert key_hash("TopicA", "订单") == 1902114556
    assert kernel(_key_hash, b"polygenelubricants") == 0
    assert key_hash("TopicTest", "tbaekxa") == 0, "its Java hash is -2^31 (formats.md 10a.4)"
    assert kernel(_key_hash, b"TopicTest#tbaekxa") == 0


def test_untagged_is_zero() -> None:
    assert tag_hash("") == 0
    assert tag_hash("TagA") == 2598919


@settings(max_examples=150)
@given(st.text(max_size=40))
@example("\U0010ffff\U00010000\uffff\ue000\ud7ff\u0800\u07ff\u0080\x7f")
def test_kernels_agree_with_plain_python(string: str) -> None:
    data = string.encode()
    assert kernel(_java_hash, data) == java_hash(string)
    assert kernel(_key_hash, f"t#{string}".encode()) == key_hash("t", string)
    assert kernel(_xxh32, f"t#{string}".encode()) == key_hash_high("t", string)


@settings(max_examples=150)
@given(st.binary(max_size=12))
@example(b"\xf0\x9f\x98")
@example(b"\xe4\xb8")
@example(b"\xc0\x80\xff")
def test_arbitrary_bytes_hash_to_something_and_are_not_read_past(data: bytes) -> None:
    array = np.frombuffer(data + b"\x80" * 4, np.uint8)
    value = int(_java_hash(array.ctypes.data, len(data)))
    assert -(1 << 31) <= value < 1 << 31
    assert value == kernel(_java_hash, data), "bytes behind the text must not count"


@pytest.mark.parametrize("length", range(41))
def test_xxh32_of_every_tail_length(length: int) -> None:
    data = bytes((7 * number + 1) % 256 for number in range(length))
    assert kernel(_xxh32, data) == xxhash.xxh32_intdigest(data)
