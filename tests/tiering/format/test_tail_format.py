"""Tails as bytes: they come back, and each kind of damage is an error."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
import zstandard

from tests.support.stores.tails import data_head
from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError, StoreError, TornRecordError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.format.section import encode_section
from tierlog.tiering.format.tail import PAGE_BYTES, TailHead, TailKind, decode_tail, encode_tail, payload_crc32


def test_layout_by_hand() -> None:
    data = encode_tail(data_head(8192, b"records"), b"records")
    magic, version, table_length, length, crc = struct.unpack_from(">8sIIQI", data)
    assert (magic, version, length) == (b"TLTAIL01", 1, len(data))
    assert crc == zlib.crc32(data[:24] + data[28 : 28 + table_length])
    assert zstandard.ZstdDecompressor().decompress(data[28 + table_length :]) == b"records"


@pytest.mark.parametrize("length", [1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES - 7])
def test_payload_comes_back_over_any_number_of_pages(length: int) -> None:
    payload = bytes(range(251)) * (length // 251) + b"x" * (length % 251)
    head = data_head(0, payload, segment_bytes=1 << 22)
    tail = decode_tail(encode_tail(head, payload), path="p")
    assert (tail.head, tail.payload) == (head, payload)


def test_head_is_known_from_the_first_bytes() -> None:
    head = replace(data_head(0, b"x" * 400), topics={"orders": 8, "größe": 1})
    data = encode_tail(head, b"x" * 400)
    table_length = struct.unpack_from(">I", data, 12)[0]
    assert TailHead.decode(data[: 28 + table_length], path="p") == head


def test_fence_has_no_bytes() -> None:
    fence = replace(data_head(500, b""), kind=TailKind.FENCE, end=500)
    assert decode_tail(encode_tail(fence), path="p").head == fence


def test_roll_leaves_out_the_zeros_at_the_end_of_its_segment() -> None:
    roll = replace(data_head(4096, b"blank"), kind=TailKind.ROLL, end=8192)
    assert decode_tail(encode_tail(roll, b"blank"), path="p").payload == b"blank"


@pytest.mark.parametrize(
    "changes",
    [
        {"end": 4096},
        {"end": 8193},
        {"payload_bytes": 6},
        {"kind": TailKind.FENCE},
        {"kind": TailKind.ROLL, "end": 8000},
        {"kind": TailKind.ROLL, "end": 8192, "payload_bytes": 4097},
    ],
)
def test_range_that_contradicts_itself_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(TornRecordError):
        decode_tail(encode_tail(replace(data_head(4096, b"bytes"), **changes), b"bytes"), path="p")  # type: ignore[arg-type]


def test_bytes_of_another_tail_are_noticed() -> None:
    head = data_head(0, b"these")
    table = {"store_id": "s", "volume_id": "v", "epoch": 1, "nonce": "n", "kind": "data", "first": 0, "end": 5,
             "segment_bytes": 4096, "bytes": 5, "crc32": payload_crc32(b"these"), "topics": {}}  # fmt: skip
    page = zstandard.ZstdCompressor().compress(b"those")
    data, _ = encode_section(b"TLTAIL01", 1, table, [(page, {"raw_bytes": 5})])
    with pytest.raises(ChecksumMismatchError, match="not those"):
        decode_tail(data, path="p")
    assert decode_tail(encode_tail(head, b"these"), path="p").payload == b"these"


def test_every_flipped_byte_is_noticed() -> None:
    data = encode_tail(data_head(0, b"record " * 20), b"record " * 20)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises(StoreError):
            decode_tail(bytes(damaged), path="p")


def test_cut_short_anywhere_is_noticed() -> None:
    data = encode_tail(data_head(0, b"record"), b"record")
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_tail(data[:length], path="p")


def test_names() -> None:
    keys = ColdKeys("s1")
    assert keys.tail(4096) == "s1/tail/00000000000000004096"
    assert keys.first_of_tail(keys.tail(4096)) == 4096
    assert [keys.first_of_tail(key) for key in ("s1/tail/x", "s1/log/00000000000000004096", "s2/tail/1")] == [None] * 3
