"""Sections: header, table, pages; each kind of damage has its own error."""

from __future__ import annotations

import struct
import zlib

import pytest
import zstandard

from tierlog.tiering.base.errors import (
    BadMagicError,
    ChecksumMismatchError,
    StoreError,
    TornRecordError,
    UnsupportedFormatError,
)
from tierlog.tiering.format.section import (
    HEADER,
    SectionRef,
    compress_json,
    decode_head,
    decompress_json,
    encode_section,
    read_page,
    whole_section,
)

MAGIC = b"TESTTEST"
PAGES = [(b"first page", {"rows": 1}), (b"", {}), (b"third", {"rows": 3})]


def test_layout_by_hand() -> None:
    data, ref = encode_section(MAGIC, 7, {"a": 1}, PAGES)
    magic, version, table_length, length, crc = struct.unpack_from(">8sIIQI", data)
    assert (magic, version, length) == (MAGIC, 7, len(data))
    assert crc == zlib.crc32(data[:24] + data[28 : 28 + table_length])
    assert data[28 + table_length :] == b"first pagethird"
    assert ref == SectionRef(0, len(data), 28 + table_length, zlib.crc32(data[: 28 + table_length]))
    assert HEADER.size == 28


def test_pages_come_back() -> None:
    data, ref = encode_section(MAGIC, 1, {"a": 1}, PAGES)
    table, pages = whole_section(data, MAGIC, 1, path="p")
    assert table["a"] == 1
    assert pages == [b"first page", b"", b"third"]
    head = decode_head(data[: ref.head_length], MAGIC, 1, path="p")
    assert [page.info.get("rows") for page in head.pages] == [1, None, 3]
    moved = b"other bytes" + data
    fetched = [read_page(lambda a, b: moved[a:b], page, path="p", offset=11) for page in head.pages]
    assert fetched == pages


def test_older_version_is_read_newer_is_not() -> None:
    data, _ = encode_section(MAGIC, 2, {})
    assert decode_head(data, MAGIC, 3, path="p").table == {"pages": []}
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        decode_head(data, MAGIC, 1, path="p")


def test_unknown_keys_are_ignored_by_readers_of_known_ones() -> None:
    data, _ = encode_section(MAGIC, 1, {"a": 1, "new": {"x": []}})
    assert whole_section(data, MAGIC, 1, path="p")[0]["a"] == 1


@pytest.mark.parametrize("cut", [0, 27, 28, 40, -1])
def test_cut_short(cut: int) -> None:
    data, _ = encode_section(MAGIC, 1, {"a": 1}, PAGES)
    with pytest.raises(TornRecordError):
        whole_section(data[:cut], MAGIC, 1, path="p")


def test_longer_than_it_says() -> None:
    data, _ = encode_section(MAGIC, 1, {"a": 1}, PAGES)
    with pytest.raises(TornRecordError):
        whole_section(data + b"x", MAGIC, 1, path="p")


def test_other_magic() -> None:
    data, _ = encode_section(MAGIC, 1, {})
    with pytest.raises(BadMagicError, match="TESTTEST"):
        decode_head(data, b"OTHEROTH", 1, path="p")


def test_every_flipped_byte_is_noticed() -> None:
    data, _ = encode_section(MAGIC, 1, {"a": 1}, PAGES)
    for place in range(len(data)):
        for bit in (1, 0x80):
            damaged = bytearray(data)
            damaged[place] ^= bit
            with pytest.raises(StoreError):
                whole_section(bytes(damaged), MAGIC, 1, path="p")


def test_short_answer_for_a_page_is_noticed() -> None:
    data, _ = encode_section(MAGIC, 1, {}, PAGES)
    page = decode_head(data, MAGIC, 1, path="p").pages[0]
    with pytest.raises(ChecksumMismatchError):
        read_page(lambda a, b: data[a : b - 1], page, path="p")


def test_references_round_trip() -> None:
    ref = SectionRef(10, 20, 5, 0xFFFFFFFF)
    assert SectionRef.from_json(ref.to_json()) == ref
    assert ref.at(99) == SectionRef(99, 20, 5, 0xFFFFFFFF)


def test_json_pages() -> None:
    document = {"text": "ключ 😀", "list": [1, None, -2]}
    assert decompress_json(compress_json(document)) == document


def test_document_whose_frame_says_no_length_is_refused_before_anything_is_allocated() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b'{"a":1}')
    with pytest.raises(TornRecordError):
        decompress_json(frame)
