"""Builds an index object of a compacted file, or of a slot range of one, in bounded memory.

The source is read four times, some 100,000 items at a time: to count keys and segments, to collect the offsets, and,
slot by slot, to sort, translate and pack. In memory: 8 bytes a distinct record (12 while they are collected), the key
filter, and a few pieces. Everything is written in the object's order, except for the header of the pages section, which
holds a length and is written after the pages.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from index.cold_offsets import ColdOffsets, ToCold, count_segments
from index.cover import joined_crc
from index.errors import CorruptIndexError
from index.key_filter import DEFAULT_BITS_PER_KEY, KeyFilter
from index.layout import ItemLayout, Items
from index.object_order import PIECE_ITEMS, SlotOrder, highs, keys_of
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
from tiering.errors import InvalidRequestError
from tiering.format.section import SectionRef
from tiering.types import TimeBounds

DEFAULT_PAGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """What the builder cannot read off the compacted file."""

    store_id: str
    segment_bytes: int
    topics: Mapping[int, str]
    """Topic names by id, of every topic that has items."""


class CompactedSource(Protocol):
    """What the builder reads: ``CompactedIndexFile``, or a merge that looks like one."""

    @property
    def layout(self) -> ItemLayout:
        """Fields of the items."""
        ...

    @property
    def slots(self) -> int:
        """Hash slots."""
        ...

    @property
    def begin_ms(self) -> int:
        """``seconds`` of items count from here."""
        ...

    @property
    def first(self) -> int:
        """First physical offset covered."""
        ...

    @property
    def next(self) -> int:
        """First physical offset above those covered."""
        ...

    @property
    def bounds(self) -> TimeBounds | None:
        """Least and greatest times over the items."""
        ...

    def verify(self) -> None:
        """Check all bytes."""
        ...

    def all_items(self) -> Items:
        """All items, in compacted form, slot by slot; better a view of a map than an array in memory."""
        ...


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


@dataclass(frozen=True, slots=True)
class IndexObject:
    """One object in memory, and what the manifest says about it."""

    data: bytes
    sections: Sections
    meta: Mapping[str, Any]


def build_index_object(
    source: CompactedSource,
    to_cold: ToCold,
    meta: IndexMeta,
    page_bytes: int = DEFAULT_PAGE_BYTES,
    *,
    filter_bits: int = DEFAULT_BITS_PER_KEY,
    slot_range: tuple[int, int] | None = None,
    piece_items: int = PIECE_ITEMS,
) -> IndexObject:
    """An object in memory; as :func:`write_index_object`."""
    target = _Memory()
    written = write_index_object(
        target, source, to_cold, meta, page_bytes, filter_bits=filter_bits, slot_range=slot_range,
        piece_items=piece_items,
    )  # fmt: skip
    return IndexObject(bytes(target.data), written.sections, written.meta)


def write_index_object(
    target: Target,
    source: CompactedSource,
    to_cold: ToCold,
    meta: IndexMeta,
    page_bytes: int = DEFAULT_PAGE_BYTES,
    *,
    filter_bits: int = DEFAULT_BITS_PER_KEY,
    slot_range: tuple[int, int] | None = None,
    piece_items: int = PIECE_ITEMS,
) -> Written:
    """Sort a source's items, rewrite their offsets with ``to_cold``, pack them into pages and write the object.

    ``filter_bits`` a distinct key go into the key filter, 0 leaves it out, as does a layout without a second hash.
    ``slot_range`` takes the items of those slots only, half-open. Raises :class:`CorruptIndexError` if the source's
    checksum differs, its items do not lie slot by slot, or the map is not one to one or leaves a segment.
    """
    source.verify()
    slot_from, slot_end = slot_range or (0, source.slots)
    if not 0 <= slot_from < slot_end <= source.slots:
        raise InvalidRequestError(f"slots {slot_from} to {slot_end} of {source.slots}")
    # the map of a file is taken as it is
    order = SlotOrder(
        np.ascontiguousarray(source.all_items(), source.layout.compacted),
        source.slots,
        slot_from,
        slot_end,
        piece_items,
    )
    if source.bounds is None or not len(order):
        raise InvalidRequestError("an index object is built from a file with items and a trailer")
    keys, segments = _count(order, meta.segment_bytes)
    offsets = ColdOffsets.collect(
        segments, (items["offset"].astype(np.int64) for items in order.whole_slots()), to_cold, meta.segment_bytes
    )
    writer = _Writer(target)
    key_filter = KeyFilter.sized(keys, filter_bits) if filter_bits and source.layout.has_hash_high else None
    pages = PageWriter(
        writer.page, source.layout, source.slots, page_bytes, source.begin_ms, slot_from, slot_end
    )  # fmt: skip
    for piece in order.sorted():
        items = piece.items
        items["offset"] = offsets.of(items["offset"].astype(np.int64))
        if key_filter is not None:
            key_filter.add(items["hash"].astype(np.int64), highs(items))
        pages.add(items, piece.slot_end)
    del offsets
    directory = pages.finish()
    writer.end_of_pages()
    writer.section(DIRECTORY, directory.encode())
    if key_filter is not None:
        writer.pieces(FILTER, key_filter.pieces())
    else:
        writer.nothing(FILTER)
    described = _described(source, meta, directory, writer.sections, len(order), sorted(segments), slot_from, slot_end)
    return writer.finish(described, len(order), slot_from, slot_end)


def _count(order: SlotOrder, segment_bytes: int) -> tuple[int, dict[int, int]]:
    """Distinct keys, and the items that point into each segment."""
    keys, segments = 0, dict[int, int]()
    for items in order.whole_slots():
        physical = items["offset"].astype(np.int64)
        if physical.min() < 0:
            raise CorruptIndexError("an index item has a negative offset")
        count_segments(segments, physical, segment_bytes)
        found = keys_of(items)
        found.sort()
        keys += 1 + int(np.count_nonzero(np.diff(found)))
    return keys, segments


def _described(
    source: CompactedSource, meta: IndexMeta, directory: PageDirectory, sections: Sections, items: int,
    segments: list[int], slot_from: int, slot_end: int,
) -> dict[str, Any]:  # fmt: skip
    bounds = source.bounds
    assert bounds is not None
    return {
        "store_id": meta.store_id,
        "layout": source.layout.name,
        "slots": source.slots,
        "slot_range": [slot_from, slot_end],
        "items": items,
        "pages": len(directory),
        "page_bytes": directory.page_bytes,
        "begin_ms": source.begin_ms,
        "min_store_ms": bounds.min_store_ms,
        "max_store_ms": bounds.max_store_ms,
        "min_born_ms": bounds.min_born_ms,
        "max_born_ms": bounds.max_born_ms,
        "first": source.first,
        "next": source.next,
        "segment_bytes": meta.segment_bytes,
        "segments": segments,
        "topics": {str(number): name for number, name in sorted(meta.topics.items())},
        "sections": {
            name: {"position": ref.position, "length": ref.length, "crc": ref.crc32} for name, ref in sections.items()
        },
    }


class _Writer:
    """Sections at their places, and the checksum of all of them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._position = SECTION_HEAD_BYTES
        self._crc = 0
        """Of the pages, then of everything so far."""
        self.sections: dict[str, SectionRef] = {}

    def page(self, data: bytes | memoryview) -> None:
        self._target.write_at(self._position, data)
        self._crc = zlib.crc32(data, self._crc)
        self._position += len(data)

    def end_of_pages(self) -> None:
        length = self._position
        head = encode_section(PAGES, b"", length - SECTION_HEAD_BYTES)
        self._target.write_at(0, head)
        self._crc = joined_crc(zlib.crc32(head), self._crc, length - SECTION_HEAD_BYTES)
        self.sections[PAGES] = SectionRef(0, length, length, self._crc)

    def section(self, name: str, table: bytes) -> None:
        self.pieces(name, [encode_section(name, table)])

    def pieces(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        start, crc = self._position, 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
            self.page(piece)
        self.sections[name] = SectionRef(start, self._position - start, self._position - start, crc)

    def nothing(self, name: str) -> None:
        self.sections[name] = SectionRef(self._position, 0, 0, 0)

    def finish(self, described: dict[str, Any], items: int, slot_from: int, slot_end: int) -> Written:
        self.section(META, json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode())
        self.page(TAIL.pack(self.sections[META].length, self.sections[META].crc32, TAIL_MAGIC))
        return Written(self._position, self._crc, items, slot_from, slot_end, self.sections, described)


class _Memory:
    def __init__(self) -> None:
        self.data = bytearray()

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
