"""Writes an index object from items that come in its order, in bounded memory.

Everything is written in the object's order, except for the header of the pages section, which holds a length and is
written after the pages. In memory: what the page writer holds, and 20 bytes a page.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from index.cover import crc_of
from index.key_filter import KeyFilter
from index.layout import ItemLayout, Items
from index.object_pages import PageDirectory
from index.object_sections import (
    DIRECTORY,
    FILTER,
    META,
    PAGES,
    SECTION_HEAD_BYTES,
    TAIL,
    TAIL_MAGIC,
    Sections,
    encode_section,
)
from index.page_writer import PageWriter
from tiering.format.section import SectionRef
from tiering.kernels.checksum import joined_crc32
from tiering.types import TimeBounds

DEFAULT_PAGE_BYTES = 64 << 10
#: Headers, meta and tail, without lists that grow with the object.
_END_BYTES = 1024


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """What nobody can read off the items."""

    store_id: str
    segment_bytes: int
    topics: Mapping[int, str]
    """Topic names by id, of every topic that has items."""


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """What an object is about, and how it is cut into pages."""

    layout: ItemLayout
    slots: int
    begin_ms: int
    """``seconds`` of items count from here."""
    first: int
    """First physical offset covered."""
    next: int
    """First physical offset above those covered."""
    bounds: TimeBounds
    page_bytes: int = DEFAULT_PAGE_BYTES


class Target(Protocol):
    """Where an object is put together: a file, or memory."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Put bytes at a place, perhaps beyond the end so far."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and what the manifest says about it."""

    size_bytes: int
    crc32: int
    items: int
    slot_from: int
    slot_end: int
    sections: Sections
    meta: Mapping[str, Any]


class ObjectWriter:
    """Writes one object to its target: items, then the end."""

    def __init__(self, target: Target, shape: ObjectShape, meta: IndexMeta, slot_from: int) -> None:
        self._shape = shape
        self._meta = meta
        self._slot_from = slot_from
        self._sections = _SectionWriter(target)
        self._pages = PageWriter(
            self._sections.page, shape.layout, shape.slots, shape.page_bytes, shape.begin_ms, slot_from
        )
        self._items = 0

    @property
    def size_bytes(self) -> int:
        """About what the object would have without a filter if it ended now; not less, but for its segments' names."""
        return self._sections.position + self._pages.further_bytes + _END_BYTES

    def add(self, items: Items, slot_end: int) -> None:
        """The next items in the object's order, with cold offsets, of slots below ``slot_end``.

        The last slot's may go on.
        """
        self._items += len(items)
        self._pages.add(items, slot_end)

    def finish(self, slot_end: int, segments: Iterable[int], key_filter: KeyFilter | None) -> Written:
        """Write the rest. The object is about slots below ``slot_end`` and points into these segments."""
        directory = self._pages.finish(slot_end)
        sections = self._sections
        sections.end_of_pages()
        sections.section(DIRECTORY, directory.encode())
        if key_filter is not None:
            sections.pieces(FILTER, key_filter.pieces())
        else:
            sections.nothing(FILTER)
        described = self._described(directory, sorted(segments), slot_end)
        sections.section(META, json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode())
        ref = sections.sections[META]
        sections.page(TAIL.pack(ref.length, ref.crc32, TAIL_MAGIC))
        return Written(
            sections.position, sections.crc, self._items, self._slot_from, slot_end, sections.sections, described
        )

    def _described(self, directory: PageDirectory, segments: list[int], slot_end: int) -> dict[str, Any]:
        shape, bounds = self._shape, self._shape.bounds
        return {
            "store_id": self._meta.store_id,
            "layout": shape.layout.name,
            "slots": shape.slots,
            "slot_range": [self._slot_from, slot_end],
            "items": self._items,
            "pages": len(directory),
            "page_bytes": directory.page_bytes,
            "begin_ms": shape.begin_ms,
            "min_store_ms": bounds.min_store_ms,
            "max_store_ms": bounds.max_store_ms,
            "min_born_ms": bounds.min_born_ms,
            "max_born_ms": bounds.max_born_ms,
            "first": shape.first,
            "next": shape.next,
            "segment_bytes": self._meta.segment_bytes,
            "segments": segments,
            "topics": {str(number): name for number, name in sorted(self._meta.topics.items())},
            "sections": {
                name: {"position": ref.position, "length": ref.length, "crc": ref.crc32}
                for name, ref in self._sections.sections.items()
            },
        }


class _SectionWriter:
    """Sections at their places, and the checksum of all of them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.position = SECTION_HEAD_BYTES
        self.crc = 0
        """Of the pages, then of everything so far."""
        self.sections: dict[str, SectionRef] = {}

    def page(self, data: bytes | memoryview) -> None:
        self._target.write_at(self.position, data)
        self.crc = crc_of(np.frombuffer(data, np.uint8), self.crc)
        self.position += len(data)

    def end_of_pages(self) -> None:
        length = self.position
        head = encode_section(PAGES, b"", length - SECTION_HEAD_BYTES)
        self._target.write_at(0, head)
        self.crc = int(joined_crc32(zlib.crc32(head), self.crc, length - SECTION_HEAD_BYTES))
        self.sections[PAGES] = SectionRef(0, length, length, self.crc)

    def section(self, name: str, table: bytes) -> None:
        self.pieces(name, [encode_section(name, table)])

    def pieces(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        start, crc = self.position, 0
        for piece in pieces:
            crc = crc_of(np.frombuffer(piece, np.uint8), crc)
            self.page(piece)
        self.sections[name] = SectionRef(start, self.position - start, self.position - start, crc)

    def nothing(self, name: str) -> None:
        self.sections[name] = SectionRef(self.position, 0, 0, 0)
