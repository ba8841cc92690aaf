"""A section: what every part of an archive object and every manifest object starts with. Big-endian.

====== ==== ====== ============= =====================================================================
offset size type   field         meaning
====== ==== ====== ============= =====================================================================
0      8    bytes  magic         which section this is
8      4    uint32 version       of the section's format
12     4    uint32 table_length  bytes of the JSON table that follows the header
16     8    uint64 length        bytes of the whole section, header included
24     4    uint32 crc           CRC-32 of the 24 bytes before it and of the table
====== ==== ====== ============= =====================================================================

Total 28. After the table come pages; the table names each with position (from the start of the section), length and
CRC-32, so that one page can be fetched and checked alone and the header's CRC covers all of it in the end. Unknown
keys of a table are ignored. Torn write: objects appear whole or not at all; anything else is corruption.
Written by / read by: the modules of ``tiering.format`` and ``index`` that name their magic.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

from tierlog.tiering.base.errors import BadMagicError, ChecksumMismatchError, TornRecordError, UnsupportedFormatError
from tierlog.tiering.format.compression import decompress

HEADER = struct.Struct(">8sIIQI")
_COVERED = HEADER.size - 4
#: No document comes near this; a frame that says it is larger is damaged.
_MAX_DOCUMENT_BYTES = 64 << 20
JsonObject = dict[str, Any]
#: A page's bytes, and what the table shall say about it besides place and checksum.
Page = tuple[bytes, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SectionRef:
    """The place of a section in its object, and how much of it must be read to learn its pages."""

    position: int
    length: int
    head_length: int
    crc32: int
    """CRC-32 of the first ``head_length`` bytes."""

    def to_json(self) -> list[int]:
        """Compact form for manifest entries."""
        return [self.position, self.length, self.head_length, self.crc32]

    @classmethod
    def from_json(cls, values: Sequence[int]) -> SectionRef:
        return cls(*values)

    def check(self, data: bytes, *, path: str) -> bytes:
        """The first ``head_length`` bytes, or :class:`ChecksumMismatchError`: a sound section may be another one."""
        if len(data) != self.head_length or zlib.crc32(data) != self.crc32:
            raise ChecksumMismatchError("section differs from the manifest", path=path, position=self.position)
        return data

    def at(self, position: int) -> SectionRef:
        """Returns the same section at another place."""
        return SectionRef(position, self.length, self.head_length, self.crc32)


@dataclass(frozen=True, slots=True)
class PageRef:
    """One page of a section."""

    position: int
    length: int
    crc32: int
    info: JsonObject


def encode_head(magic: bytes, version: int, table: bytes, rest_length: int) -> bytes:
    """Header and table of a section of which ``rest_length`` bytes follow; the table need not be JSON."""
    covered = HEADER.pack(magic, version, len(table), HEADER.size + len(table) + rest_length, 0)[:_COVERED]
    return covered + struct.pack(">I", zlib.crc32(table, zlib.crc32(covered))) + table


def section_head(
    magic: bytes, version: int, table: Mapping[str, Any], pages: Sequence[Page] = ()
) -> tuple[bytes, SectionRef]:
    """Header and table of a section whose pages follow in their order, and its reference at position 0."""
    # page positions depend on the table's length, so the table counts them from its own end
    entries, position = [], 0
    for data, info in pages:
        entries.append({**info, "position": position, "length": len(data), "crc32": zlib.crc32(data)})
        position += len(data)
    head = encode_head(
        magic, version, json.dumps({**table, "pages": entries}, separators=(",", ":")).encode(), position
    )
    return head, SectionRef(0, len(head) + position, len(head), zlib.crc32(head))


def encode_section(
    magic: bytes, version: int, table: Mapping[str, Any], pages: Sequence[Page] = ()
) -> tuple[bytes, SectionRef]:
    """Returns the section's bytes and its reference at position 0."""
    head, ref = section_head(magic, version, table, pages)
    return head + b"".join(data for data, _ in pages), ref


@dataclass(frozen=True, slots=True)
class SectionHead:
    """A decoded header and table; ``head_length`` is where the pages begin."""

    table: JsonObject
    head_length: int
    length: int

    @property
    def pages(self) -> list[PageRef]:
        """The pages in their order, positions counted from the start of the section."""
        return [
            PageRef(self.head_length + page["position"], page["length"], page["crc32"], page)
            for page in self.table["pages"]
        ]


def decode_head(data: bytes, magic: bytes, version: int, *, path: str) -> SectionHead:
    """Checks and decodes a section's header and JSON table from its first bytes."""
    table, length = decode_table(data, magic, version, path=path)
    return SectionHead(json.loads(table), HEADER.size + len(table), length)


def decode_table(data: bytes, magic: bytes, version: int, *, path: str | None = None) -> tuple[bytes, int]:
    """Checks a section's first bytes; its table and the length of the whole section."""
    if len(data) < HEADER.size:
        raise TornRecordError("section cut short", path=path)
    found, found_version, table_length, length, crc = HEADER.unpack_from(data)
    if found != magic:
        raise BadMagicError(f"expected section {magic!r}, found {found!r}", path=path)
    head_length = HEADER.size + table_length
    if len(data) < head_length or length < head_length:
        raise TornRecordError(f"section {magic!r} cut short", path=path)
    table = data[HEADER.size : head_length]
    if zlib.crc32(table, zlib.crc32(data[:_COVERED])) != crc:
        raise ChecksumMismatchError(f"checksum of section {magic!r} differs", path=path)
    if found_version > version:  # after the checksum, which every version has: a flipped bit is no newer format
        raise UnsupportedFormatError(
            f"section {magic!r} has version {found_version}", path=path, hint="upgrade tierlog"
        )
    return table, length


def check_page(data: bytes, page: PageRef, *, path: str) -> bytes:
    """Returns the page's bytes, or :class:`ChecksumMismatchError`."""
    if len(data) != page.length or zlib.crc32(data) != page.crc32:
        raise ChecksumMismatchError("page checksum differs", path=path, position=page.position)
    return data


def read_page(fetch: Callable[[int, int], bytes], page: PageRef, *, path: str, offset: int = 0) -> bytes:
    """Fetches one page of a section that begins at ``offset`` of its object, and checks it."""
    start = offset + page.position
    return check_page(fetch(start, start + page.length), page, path=path)


def whole_section(data: bytes, magic: bytes, version: int, *, path: str) -> tuple[JsonObject, list[bytes]]:
    """Table and checked pages of an object that is one section."""
    head = decode_head(data, magic, version, path=path)
    if head.length != len(data):
        raise TornRecordError("object is not as long as its section says", path=path)
    return head.table, [
        check_page(data[page.position : page.position + page.length], page, path=path) for page in head.pages
    ]


def compress_json(document: Any) -> bytes:
    """Returns a JSON document as a zstd frame."""
    return zstandard.ZstdCompressor(level=3).compress(json.dumps(document, separators=(",", ":")).encode())


def decompress_json(data: bytes) -> Any:
    """Inverse of :func:`compress_json`; :class:`CorruptionError` for anything else."""
    text = decompress(data, _MAX_DOCUMENT_BYTES, "document")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TornRecordError("document is not JSON") from error
