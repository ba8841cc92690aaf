"""Names of an index object's sections, and its tail. Big-endian.

Sections start as ``tiering.format.section`` says. Their tables: none (pages), the page directory, the filter table, the
JSON text (meta). Tail, 16 bytes: int32 length of the meta section, uint32 CRC-32 of it, magic ``TLIDXTAI``.
Torn write: objects are stored whole or not at all.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tierlog.tiering.format.section import HEADER, SectionRef, decode_table, encode_head

VERSION = 1
PAGES, DIRECTORY, FILTER, META = "pages", "directory", "filter", "meta"

#: Of the first section, and so of the object.
PAGES_MAGIC = b"TLIDXPAG"
_MAGICS = {PAGES: PAGES_MAGIC, DIRECTORY: b"TLIDXDIR", FILTER: b"TLIDXFLT", META: b"TLIDXMET"}
SECTION_HEAD_BYTES = HEADER.size
TAIL = struct.Struct(">iI8s")
TAIL_BYTES = TAIL.size
TAIL_MAGIC = b"TLIDXTAI"


#: Sections by name; each reference covers the whole section.
Sections = Mapping[str, SectionRef]


def encode_section(name: str, table: bytes, rest_bytes: int = 0) -> bytes:
    """Header and table of a section that ``rest_bytes`` more follow: all of it if none do."""
    return encode_head(_MAGICS[name], VERSION, table, rest_bytes)


def name_of(magic: bytes) -> str | None:
    """Returns the section that a magic begins, if any."""
    return next((name for name, known in _MAGICS.items() if known == magic), None)


def open_section(name: str, data: bytes) -> bytes:
    """Returns the table of a section of which at least header and table were fetched; raises as ``decode_table``."""
    return decode_table(data, _MAGICS[name], VERSION)[0]
