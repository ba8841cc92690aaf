"""Sections of an index object and its tail. Big-endian. A section starts with

====== ==== ====== ============== ==========================================
offset size type   field          meaning
====== ==== ====== ============== ==========================================
0      8    bytes  magic          ``TLIDXPAG``, ``TLIDXDIR`` or ``TLIDXMET``
8      4    uint32 version        1
12     4    uint32 table_length   bytes of the table after this header
16     8    uint64 section_length header, table and what follows it
24     4    uint32 crc            CRC-32 of bytes 0 to 23 and the table
====== ==== ====== ============== ==========================================

Then the table, then what the table describes. Torn write: objects are stored whole or not at all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from index.errors import CorruptIndexError
from tiering.errors import BadMagicError, ChecksumMismatchError, UnsupportedFormatError

VERSION = 1
PAGES, DIRECTORY, FILTER, META = "pages", "directory", "filter", "meta"

_MAGICS = {PAGES: b"TLIDXPAG", DIRECTORY: b"TLIDXDIR", META: b"TLIDXMET"}
_HEAD = struct.Struct(">8sIIQ")
_CRC = struct.Struct(">I")
SECTION_HEAD_BYTES = _HEAD.size + _CRC.size
TAIL = struct.Struct(">iI8s")
TAIL_BYTES = TAIL.size
TAIL_MAGIC = b"TLIDXTAI"


@dataclass(frozen=True, slots=True)
class SectionRef:
    """Where a section lies in its object; ``crc`` is the CRC-32 of all its bytes."""

    position: int
    length: int
    crc: int


Sections = Mapping[str, SectionRef]


def encode_section(name: str, table: bytes, rest: list[bytes]) -> list[bytes]:
    """The parts of a section: header, table and the rest."""
    length = SECTION_HEAD_BYTES + len(table) + sum(len(part) for part in rest)
    head = _HEAD.pack(_MAGICS[name], VERSION, len(table), length)
    return [head, _CRC.pack(zlib.crc32(table, zlib.crc32(head))), table, *rest]


def open_section(name: str, data: bytes) -> bytes:
    """The table of a section of which at least header and table were fetched."""
    if len(data) < SECTION_HEAD_BYTES:
        raise CorruptIndexError(f"{name} section is cut short")
    magic, version, table_length, length = _HEAD.unpack_from(data)
    if magic != _MAGICS[name]:
        raise BadMagicError(f"not a {name} section")
    table = data[SECTION_HEAD_BYTES : SECTION_HEAD_BYTES + table_length]
    if zlib.crc32(table, zlib.crc32(data[: _HEAD.size])) != _CRC.unpack_from(data, _HEAD.size)[0]:
        raise ChecksumMismatchError(f"checksum of a {name} section differs")
    if version != VERSION:
        raise UnsupportedFormatError(f"{name} section of version {version}", hint="upgrade tierlog")
    if len(table) != table_length or length < SECTION_HEAD_BYTES + table_length:
        raise CorruptIndexError(f"{name} section contradicts its own lengths")
    return table
