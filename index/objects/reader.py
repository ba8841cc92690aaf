"""The index object of the archive: a compacted file in pages, found through a directory. Big-endian.

Sections follow each other: pages, page directory, key filter (may be missing), meta; then the tail.

The table is empty (pages), the directory (``index.objects.pages``), the filter (``index.format.key_filter``) or the
JSON text (meta). Pages are covered by the CRCs of the directory. Tail: int32 length of the meta section, uint32 CRC-32
of it, magic ``TLIDXTAI``. Written by: ``index.objects.builder``. Read by: ``IndexObjectReader``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from tierlog.index.format.errors import CorruptIndexError, DamagedFilterError
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.layout import LAYOUTS, ItemLayout, Items
from tierlog.index.format.object_sections import (
    DIRECTORY,
    FILTER,
    META,
    PAGES,
    SECTION_HEAD_BYTES,
    TAIL,
    TAIL_BYTES,
    TAIL_MAGIC,
    Sections,
    open_section,
)
from tierlog.index.objects.pages import IndexPage, PageDirectory
from tierlog.tiering.base.errors import BadMagicError, ChecksumMismatchError, InvalidRequestError
from tierlog.tiering.format.section import SectionRef

#: Bytes ``[start, end)`` of one object.
Fetch = Callable[[int, int], bytes]
_T = TypeVar("_T")


class CheckedRead(Protocol):
    """Reads ranges of one object, and perhaps keeps what became of them."""

    def __call__(self, start: int, end: int, decode: Callable[[bytes], _T]) -> _T:
        """Returns what ``decode`` makes of the bytes ``[start, end)``, which it checks."""
        ...


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
        """Returns a reader and the meta of an object of which only the size is known; two more reads."""
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
        """Returns the page directory, fetched once and kept."""
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

    def key_filter(self) -> KeyFilter | None:
        """Returns the key filter, fetched anew; None for an object without one.

        Raises :class:`DamagedFilterError`, then the object is to be read as one without it.
        """
        ref = self.sections.get(FILTER)
        if ref is None or not ref.length:
            return None
        return self._read(ref.position, ref.position + ref.length, lambda data: decode_filter(data, ref))

    def page(self, number: int) -> IndexPage:
        """One page by its number: one ranged read."""
        return self._read(*self.page_range(number), lambda compressed: self.decode_page(number, compressed))

    def page_range(self, number: int) -> tuple[int, int]:
        """Returns the byte range of a page in the object, half-open."""
        start, end = self.page_directory().span(number)
        base = self._section_ref(PAGES).position + SECTION_HEAD_BYTES
        return base + start, base + end

    def decode_page(self, number: int, compressed: bytes) -> IndexPage:
        """Returns a page checked and decoded."""
        directory = self.page_directory()
        _check_length(compressed, *self.page_range(number))
        directory.check(number, compressed)
        page = IndexPage.decode(compressed, directory.layout, directory.page_bytes)
        if page.first_slot != int(directory.rows["slot"][number]):
            raise CorruptIndexError("index page starts with another slot than its directory says")
        return page

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
        hits: Items = np.concatenate(found) if found else np.empty(0, self.page_directory().layout.compacted)
        return hits

    def _section_ref(self, name: str) -> SectionRef:
        ref = self.sections.get(name)
        if ref is None or ref.position < 0 or ref.length < SECTION_HEAD_BYTES:
            raise CorruptIndexError(f"index object has no {name} section")
        return ref


def decode_filter(data: bytes, ref: SectionRef) -> KeyFilter:
    """The key filter of a section's bytes; :class:`DamagedFilterError` unless they are those that ``ref`` is about."""
    if len(data) != ref.length or zlib.crc32(data) != ref.crc32:
        raise DamagedFilterError("checksum of a key filter differs", position=ref.position)
    return KeyFilter.decode(data)


def _exactly(fetch: Fetch, start: int, end: int) -> bytes:
    data = fetch(start, end)
    _check_length(data, start, end)
    return data


def _check_length(data: bytes, start: int, end: int) -> None:
    if len(data) != end - start:
        raise CorruptIndexError(f"got {len(data)} of {end - start} bytes", position=start)
