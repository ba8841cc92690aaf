"""Hashes that lie in files, against Java's own values and against their kernels."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tierlog.tiering.format.hashing import java_hash, key_hash, key_hash_high, tag_hash
from tierlog.tiering.kernels import primitives, text


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
    assert key_hash("TopicTest", "tbaekxa") == 0, "its Java hash is -2^31, docs/formats/index_files.md"
    assert kernel(_key_hash, b"TopicTest#tbaekxa") == 0


@numba.njit
def _without_sign(value):  # type: ignore[no-untyped-def]
    return text.key_hash(value)


@pytest.mark.parametrize(
    ("java", "stored"),
    [
        (0, 0), (1, 1), ((1 << 31) - 1, (1 << 31) - 1), (-1, 1), (-(1 << 31) + 1, (1 << 31) - 1), (-(1 << 31), 0),
    ],
)  # fmt: skip
def test_sign_of_a_java_hash_is_dropped_and_the_least_one_becomes_0(java: int, stored: int) -> None:
    assert int(_without_sign(java & 0xFFFFFFFF)) == stored


@pytest.mark.parametrize(
    ("string", "units"),
    [
        ("\uffff", [0xFFFF]), ("\U00010000", [0xD800, 0xDC00]), ("\U0010ffff", [0xDBFF, 0xDFFF]),
        ("a\U0001f600b", [97, 0xD83D, 0xDE00, 98]), ("\ud7ff\ue000", [0xD7FF, 0xE000]),
    ],
)  # fmt: skip
def test_hash_counts_utf16_units_not_code_points(string: str, units: list[int]) -> None:
    value = 0
    for unit in units:
        value = (31 * value + unit) % (1 << 32)
    assert java_hash(string) % (1 << 32) == value
    assert kernel(_java_hash, string.encode()) % (1 << 32) == value


@pytest.mark.parametrize("data", [b"\xed\xa0\x80", b"x\xed\xbf\xbfy", b"\xed\xa0\xbd\xed\xb8\x80"])
def test_surrogate_that_stands_alone_in_bytes_counts_as_its_unit(data: bytes) -> None:
    """No valid UTF-8 holds one, but some encoders write each half of a pair by itself."""
    assert kernel(_java_hash, data) == java_hash(data.decode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("data", "replaced"),
    [(b"\xff", 1), (b"\x80\x80", 2), (b"\xf0\x9f\x98", 3), (b"\xe4\xb8", 2), (b"\xc0\x80", 2), (b"\xc3", 1)],
)
def test_each_undecodable_byte_counts_as_one_replacement_character(data: bytes, replaced: int) -> None:
    assert kernel(_java_hash, b"a" + data + b"b") == java_hash("a" + "\ufffd" * replaced + "b")


#: As published with XXH32, seed 0.
XXH32 = {
    b"": 0x02CC5D05,
    b"a": 0x550D7456,
    b"ab": 0x4999FC53,
    b"abc": 0x32D153FF,
    b"Nobody inspects the spammish repetition": 0xE2293B2F,
}


@pytest.mark.parametrize("data", XXH32)
def test_xxh32_is_the_published_one(data: bytes) -> None:
    assert kernel(_xxh32, data) == XXH32[data]


def test_high_bits_are_of_the_utf8_of_topic_and_key() -> None:
    assert key_hash_high("TopicA", "订单") == xxhash.xxh32_intdigest("TopicA#订单".encode())
    assert key_hash_high("a#b", "c") == key_hash_high("a", "b#c"), (
        "which is why topic and key are compared on the record"
    )
    assert key_hash("Aa", "BB") == key_hash("BB", "Aa")
    assert key_hash_high("Aa", "BB") != key_hash_high("BB", "Aa")


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


@given(st.text(st.characters(max_codepoint=0x250), max_size=60))
def test_java_hash_of_eight_ascii_bytes_at_a_time_is_that_of_each_for_itself(string: str) -> None:
    assert kernel(_java_hash, string.encode()) == java_hash(string)


@numba.njit
def _same(left, right, length):  # type: ignore[no-untyped-def]
    return primitives.same_bytes(left, right, length)


@pytest.mark.parametrize("length", range(1, 27))
def test_bytes_that_differ_anywhere_are_not_the_same(length: int) -> None:
    left = np.arange(length, dtype=np.uint8)
    assert _same(left.ctypes.data, left.copy().ctypes.data, length)
    for place in range(length):
        right = left.copy()
        right[place] ^= 128
        assert not _same(left.ctypes.data, right.ctypes.data, length), place
