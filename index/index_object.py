"""The index object of the archive: a compacted file in pages, found through a directory. Big-endian.

Sections follow each other: pages, page directory, filter (empty for now), meta; then the tail.

The table is empty (pages), the directory (``index.object_pages``) or the JSON text (meta). Pages are covered
by the CRCs of the directory. Tail: int32 length of the meta section, int32 CRC-32 of it, magic ``TLIDXTAI``.
Written by: the uploader and the merge. Read by: ``IndexObjectReader``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.layout import LAYOUTS, ItemLayout, Items
from index.object_pages import IndexPage, PageDirectory, encode_pages, highs
from index.object_sections import (
    DIRECTORY,
    FILTER,
    META,
    PAGES,
    SECTION_HEAD_BYTES,
    TAIL,
    TAIL_BYTES,
    TAIL_MAGIC,
    Sections,
    encode_section,
    open_section,
)
from tiering.errors import BadMagicError, ChecksumMismatchError, InvalidRequestError
from tiering.format.section import SectionRef
from tiering.types import TimeBounds

__all__ = [
    "DEFAULT_PAGE_BYTES",
    "DIRECTORY",
    "FILTER",
    "META",
    "PAGES",
    "Fetch",
    "IndexMeta",
    "IndexObject",
    "IndexObjectReader",
    "Sections",
    "build_index_object",
]

DEFAULT_PAGE_BYTES = 64 << 10

#: Bytes ``[start, end)`` of one object.
Fetch = Callable[[int, int], bytes]
_T = TypeVar("_T")


class CheckedRead(Protocol):
    """Reads a half-open range and returns what ``decode`` makes of its bytes; ``decode`` checks them."""

    def __call__(self, start: int, end: int, decode: Callable[[bytes], _T]) -> _T: ...


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """What the builder cannot read off the compacted file."""

    store_id: str
    segment_bytes: int
    topics: Mapping[int, str]
    """Topic names by id, of every topic that has items."""


@dataclass(frozen=True, slots=True)
class IndexObject:
    """One object ready to be stored, and what the manifest says about it."""

    data: bytes
    sections: Sections
    meta: Mapping[str, Any] = field(default_factory=dict)


class CompactedSource(Protocol):
    """What the builder reads: ``CompactedIndexFile``, or a merge that looks like one."""

    @property
    def layout(self) -> ItemLayout: ...
    @property
    def slots(self) -> int: ...
    @property
    def begin_ms(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def bounds(self) -> TimeBounds | None: ...

    def verify(self) -> None:
        """Check all bytes."""
        ...

    def all_items(self) -> Items:
        """All items, in compacted form."""
        ...


def _cold_offsets(
    physical: NDArray[np.int64], to_cold: Callable[[NDArray[np.int64]], NDArray[np.int64]], segment_bytes: int
) -> NDArray[np.int64]:
    distinct, place = np.unique(physical, return_inverse=True)
    cold = np.asarray(to_cold(distinct), np.int64)
    if cold.shape != distinct.shape or len(np.unique(cold)) != len(cold):
        raise CorruptIndexError("offset map is not one to one")
    if (cold // segment_bytes != distinct // segment_bytes).any():
        raise CorruptIndexError("offset map leaves the segment")
    return cold[place]


def build_index_object(
    reader: CompactedSource,
    to_cold: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    meta: IndexMeta,
    page_bytes: int = DEFAULT_PAGE_BYTES,
) -> IndexObject:
    """Sort a compacted file's items, rewrite their offsets with ``to_cold`` and pack them into pages.

    ``to_cold`` turns distinct physical offsets into cold ones. Raises :class:`CorruptIndexError` if the
    file's checksum differs, or if the map is not one to one or leaves a segment.
    """
    reader.verify()
    layout, slots, bounds = reader.layout, reader.slots, reader.bounds
    source = reader.all_items()
    if bounds is None or not len(source):
        raise InvalidRequestError("an index object is built from a file with items and a trailer")
    hashes = source["hash"].astype(np.int64)
    physical = source["offset"].astype(np.int64)
    if hashes.min() < 0 or physical.min() < 0:
        raise CorruptIndexError("an index item has a negative hash or offset")
    items = source[np.lexsort((-physical, highs(source), (hashes % slots) << 31 | hashes))]
    cold = _cold_offsets(items["offset"].astype(np.int64), to_cold, meta.segment_bytes)
    segments = np.unique(physical // meta.segment_bytes) * meta.segment_bytes
    items["offset"] = cold
    pages, directory = encode_pages(items, slots, page_bytes, reader.begin_ms, layout)

    parts: list[bytes] = []
    sections: dict[str, SectionRef] = {}
    position = 0

    def append(name: str, table: bytes, rest: list[bytes]) -> None:
        nonlocal position
        added = encode_section(name, table, rest)
        crc = 0
        for part in added:
            crc = zlib.crc32(part, crc)
        length = sum(len(part) for part in added)
        sections[name] = SectionRef(position, length, length, crc)
        parts.extend(added)
        position += length

    append(PAGES, b"", pages)
    append(DIRECTORY, directory.encode(), [])
    sections[FILTER] = SectionRef(position, 0, 0, 0)
    described = {
        "store_id": meta.store_id,
        "layout": layout.name,
        "slots": slots,
        "slot_range": [0, slots],
        "items": len(items),
        "pages": len(pages),
        "page_bytes": page_bytes,
        "begin_ms": reader.begin_ms,
        "min_store_ms": bounds.min_store_ms,
        "max_store_ms": bounds.max_store_ms,
        "min_born_ms": bounds.min_born_ms,
        "max_born_ms": bounds.max_born_ms,
        "first": reader.first,
        "next": reader.next,
        "segment_bytes": meta.segment_bytes,
        "segments": segments.tolist(),
        "topics": {str(number): name for number, name in sorted(meta.topics.items())},
        "sections": {
            name: {"position": ref.position, "length": ref.length, "crc": ref.crc32} for name, ref in sections.items()
        },
    }
    append(META, json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode(), [])
    parts.append(TAIL.pack(sections[META].length, sections[META].crc32, TAIL_MAGIC))
    return IndexObject(b"".join(parts), sections, described)


class IndexObjectReader:
    """Looks keys up in one stored object: the directory once, then one ranged read a look-up.

    Thread-safe if ``fetch`` is. Every fetched byte is checked: damage is :class:`BadMagicError`,
    :class:`ChecksumMismatchError` or :class:`CorruptIndexError`. ``read`` takes the place of ``fetch`` for those who
    keep what was found good.
    """

    def __init__(
        self,
        fetch: Fetch,
        sections: Sections,
        *,
        layouts: Mapping[int, ItemLayout] = LAYOUTS,
        read: CheckedRead | None = None,
    ) -> None:
        self._fetch = fetch
        self._read = read or (lambda start, end, decode: decode(fetch(start, end)))
        self._layouts = layouts
        self._directory: PageDirectory | None = None
        self.sections = sections

    @classmethod
    def from_tail(
        cls, fetch: Fetch, size: int, *, layouts: Mapping[int, ItemLayout] = LAYOUTS
    ) -> tuple[IndexObjectReader, dict[str, Any]]:
        """A reader and the meta of an object of which only the size is known; two more reads."""
        if size < TAIL_BYTES:
            raise CorruptIndexError("index object is cut short")
        tail = _exactly(fetch, size - TAIL_BYTES, size)
        length, crc, magic = TAIL.unpack(tail)
        if magic != TAIL_MAGIC:
            raise BadMagicError("not an index object", position=size - TAIL_BYTES)
        start = size - TAIL_BYTES - length
        if length < SECTION_HEAD_BYTES or start < 0:
            raise CorruptIndexError("tail of an index object contradicts its size")
        section = _exactly(fetch, start, size - TAIL_BYTES)
        if zlib.crc32(section) != crc:
            raise ChecksumMismatchError("checksum of an index object's meta differs", position=start)
        try:
            meta = json.loads(open_section(META, section))
            sections = {
                str(name): SectionRef(int(ref["position"]), int(ref["length"]), int(ref["length"]), int(ref["crc"]))
                for name, ref in meta["sections"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptIndexError("meta of an index object is unreadable", position=start) from error
        sections[META] = SectionRef(start, length, length, crc)
        return cls(fetch, sections, layouts=layouts), meta

    def page_directory(self) -> PageDirectory:
        """The page directory, fetched once and kept."""
        if self._directory is None:
            ref = self._section_ref(DIRECTORY)

            def decode(data: bytes) -> PageDirectory:
                _check_length(data, ref.position, ref.position + ref.length)
                if zlib.crc32(data) != ref.crc32:
                    raise ChecksumMismatchError("checksum of a page directory differs", position=ref.position)
                directory = PageDirectory.decode(open_section(DIRECTORY, data), self._layouts)
                if SECTION_HEAD_BYTES + directory.end != self._section_ref(PAGES).length:
                    raise CorruptIndexError("page directory and pages have different lengths")
                return directory

            self._directory = self._read(ref.position, ref.position + ref.length, decode)
        return self._directory

    def page(self, number: int) -> IndexPage:
        """One page by its number: one ranged read."""
        directory = self.page_directory()
        start, end = directory.span(number)
        base = self._section_ref(PAGES).position + SECTION_HEAD_BYTES

        def decode(compressed: bytes) -> IndexPage:
            _check_length(compressed, base + start, base + end)
            directory.check(number, compressed)
            page = IndexPage.decode(compressed, directory.layout, directory.page_bytes)
            if page.first_slot != int(directory.rows["slot"][number]):
                raise CorruptIndexError("index page starts with another slot than its directory says")
            return page

        return self._read(base + start, base + end, decode)

    def runs(self, hash_low: int, hash_high: int) -> Iterator[Items]:
        """Items of a key page by page, newest first; a page is read only when it is asked for."""
        directory = self.page_directory()
        if hash_low < 0:
            raise InvalidRequestError(f"hash {hash_low} is negative")
        if not directory.layout.has_hash_high:
            hash_high = 0
        for number in directory.pages_of(hash_low, hash_high):
            yield self.page(number).lookup(hash_low % directory.slots, hash_low, hash_high)

    def lookup(self, hash_low: int, hash_high: int, limit: int | None = None) -> Items:
        """Items of a key with cold offsets, newest physical offset first; stops after ``limit`` or a little more."""
        found: list[Items] = []
        count = 0
        for items in self.runs(hash_low, hash_high):
            found.append(items)
            count += len(items)
            if limit is not None and count >= limit:
                break
        hits: Items = np.concatenate(found)
        return hits

    def _section_ref(self, name: str) -> SectionRef:
        ref = self.sections.get(name)
        if ref is None or ref.position < 0 or ref.length < SECTION_HEAD_BYTES:
            raise CorruptIndexError(f"index object has no {name} section")
        return ref


def _exactly(fetch: Fetch, start: int, end: int) -> bytes:
    data = fetch(start, end)
    _check_length(data, start, end)
    return data


def _check_length(data: bytes, start: int, end: int) -> None:
    if len(data) != end - start:
        raise CorruptIndexError(f"got {len(data)} of {end - start} bytes", position=start)
