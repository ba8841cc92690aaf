"""Reads sections of archive objects in bounds: nothing is fetched or made by a length that was not checked."""

from __future__ import annotations

from service.dump.result import decoding
from service.dump.source import Source
from tiering.errors import CorruptionError
from tiering.format.section import HEADER, PageRef, SectionHead, check_page, decode_head

#: More than any table or page has.
MOST_BYTES = 256 << 20


def read_head(source: Source, position: int, end: int, magic: bytes, version: int) -> SectionHead:
    """Header and table of the section that begins at ``position`` and ends at or before ``end``."""
    header = source.read(position, min(end, position + HEADER.size))
    if len(header) < HEADER.size:
        raise CorruptionError(f"section {magic!r} is cut short", position=position)
    table_length = HEADER.unpack(header)[2]
    if table_length > min(MOST_BYTES, end - position - HEADER.size):
        raise CorruptionError(f"section {magic!r} has a table of {table_length} bytes", position=position)
    with decoding():
        head = decode_head(
            source.read(position, position + HEADER.size + table_length), magic, version, path=source.name
        )
        if not isinstance(head.table, dict):
            raise CorruptionError(f"table of section {magic!r} is no object", position=position)
    if position + head.length > end:
        raise CorruptionError(f"section {magic!r} says it has {head.length} bytes", position=position)
    return head


def pages_of(head: SectionHead) -> list[PageRef]:
    """The pages of a section, none of them outside of it."""
    with decoding():
        pages = head.pages
        for page in pages:
            if not head.head_length <= page.position <= page.position + page.length <= head.length:
                raise CorruptionError("a page lies outside of its section")
            if page.length > MOST_BYTES:
                raise CorruptionError(f"a page of {page.length} bytes")
    return pages


def read_page(source: Source, section_at: int, page: PageRef) -> bytes:
    """A checked page of the section at ``section_at``."""
    start = section_at + page.position
    return check_page(source.read(start, start + page.length), page, path=source.name)
