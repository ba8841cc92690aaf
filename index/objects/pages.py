"""Pages and page directory of an index object. Big-endian. Plain codec; see ``docs/formats/index_object.md``.

Page, before compression: int32 first slot, int32 slots, then 8 bytes a slot (int32 position in the page as
laid out here, int32 bytes of its items in this page), then items by slot, hash, hash_high, newest first. Slot
entries and items are each transposed (first bytes of all, then second bytes of all) and the page is
compressed as one zstd frame. A run of one key is cut only if it alone is longer than a page; it then starts a
page.

Directory table: preamble, one row a page, uint32 end of the last page.

====== ==== ====== =============== ====================================================
offset size type   field           meaning
====== ==== ====== =============== ====================================================
0      4    int32  slots           hash slots of the object
4      4    int32  page_bytes      greatest size of a page before compression
8      8    int64  begin_ms        seconds of items count from here
16     2    int16  layout          number of the item layout
18     2    int16  reserved        0
20     4    int32  pages           rows that follow
24     20   row    pages[0]        int32 first slot, int32 hash, uint32 hash_high of the
                                   first item (0, 0 if that slot is empty), uint32 CRC-32
                                   of the compressed page, uint32 position in the section
====== ==== ====== =============== ====================================================

Torn write: an object is stored whole or not at all; every page is checked against its CRC on each read.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import SLOT_BYTES
from tierlog.index.format.layout import LAYOUTS, ItemLayout, Items
from tierlog.index.local.compacted_file import SLOT_ENTRY
from tierlog.index.objects.item_order import highs
from tierlog.tiering.base.errors import ChecksumMismatchError

PAGE_HEAD_BYTES = 8
PAGE_HEAD = struct.Struct(">ii")
_PREAMBLE = struct.Struct(">iiqhhi")
_END = struct.Struct(">I")
PAGE_ROW = np.dtype([("slot", ">i4"), ("hash", ">i4"), ("hash_high", ">u4"), ("crc", ">u4"), ("position", ">u4")])


def _untranspose(data: bytes, width: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(width, -1).T)


@dataclass(frozen=True, slots=True)
class IndexPage:
    """One decoded page: a small compacted file."""

    first_slot: int
    entries: NDArray[np.void]
    items: Items

    @classmethod
    def decode(cls, compressed: bytes, layout: ItemLayout, page_bytes: int) -> IndexPage:
        """Decompresses and checks a page; :class:`CorruptIndexError` if it contradicts itself."""
        try:
            size = zstandard.frame_content_size(compressed)
            if not PAGE_HEAD_BYTES <= size <= page_bytes:
                raise CorruptIndexError(f"index page says it has {size} bytes")
            raw = zstandard.ZstdDecompressor().decompress(compressed)
        except zstandard.ZstdError as error:
            raise CorruptIndexError("index page cannot be decompressed") from error
        first_slot, slots = PAGE_HEAD.unpack_from(raw)
        items_at = PAGE_HEAD_BYTES + SLOT_BYTES * slots
        if first_slot < 0 or slots < 1 or items_at > len(raw) or (len(raw) - items_at) % layout.compacted_bytes:
            raise CorruptIndexError("index page contradicts its own lengths")
        entries = _untranspose(raw[PAGE_HEAD_BYTES:items_at], SLOT_BYTES).view(SLOT_ENTRY)
        items = _untranspose(raw[items_at:], layout.compacted_bytes).view(layout.compacted)
        return cls(first_slot, entries.reshape(-1), items.reshape(-1))

    def slot_items(self, slot: int) -> Items:
        """Returns the slot's items in this page; none if the page does not hold the slot."""
        place = slot - self.first_slot
        if not 0 <= place < len(self.entries):
            return self.items[:0]
        width = self.items.dtype.itemsize
        items_at = PAGE_HEAD_BYTES + SLOT_BYTES * len(self.entries)
        start, odd = divmod(int(self.entries["position"][place]) - items_at, width)
        count, rest = divmod(int(self.entries["length"][place]), width)
        if odd or rest or start < 0 or count < 0 or start + count > len(self.items):
            raise CorruptIndexError("slot of an index page is damaged")
        return self.items[start : start + count]

    def lookup(self, slot: int, hash_low: int, hash_high: int) -> Items:
        """Returns the slot's items with these hashes, newest first."""
        items = self.slot_items(slot)
        found: Items = items[(items["hash"] == hash_low) & (highs(items) == hash_high)]
        return found


@dataclass(frozen=True, slots=True)
class PageDirectory:
    """A table of where each page lies and which key it starts with; all a look-up needs besides the page."""

    slots: int
    page_bytes: int
    begin_ms: int
    layout: ItemLayout
    rows: NDArray[np.void]
    end: int

    def __len__(self) -> int:
        return len(self.rows)

    def encode(self) -> bytes:
        """Returns the table's bytes."""
        preamble = _PREAMBLE.pack(self.slots, self.page_bytes, self.begin_ms, self.layout.number, 0, len(self.rows))
        return preamble + self.rows.tobytes() + _END.pack(self.end)

    @classmethod
    def decode(cls, data: bytes, layouts: Mapping[int, ItemLayout] = LAYOUTS) -> PageDirectory:
        """Reads a table whose checksum was checked; :class:`CorruptIndexError` if it contradicts itself."""
        if len(data) < _PREAMBLE.size + _END.size:
            raise CorruptIndexError("page directory is cut short")
        slots, page_bytes, begin_ms, number, _, pages = _PREAMBLE.unpack_from(data)
        layout = layouts.get(number)
        if layout is None or slots < 1 or pages < 1 or page_bytes < 1:
            raise CorruptIndexError("page directory contradicts itself")
        if len(data) != _PREAMBLE.size + PAGE_ROW.itemsize * pages + _END.size:
            raise CorruptIndexError("page directory has another length than its rows")
        rows = np.frombuffer(data, PAGE_ROW, pages, _PREAMBLE.size)
        end = _END.unpack_from(data, len(data) - _END.size)[0]
        positions = np.append(rows["position"].astype(np.int64), end)
        if (np.diff(positions) <= 0).any() or (np.diff(rows["slot"].astype(np.int64)) < 0).any():
            raise CorruptIndexError("rows of a page directory do not rise")
        return cls(slots=slots, page_bytes=page_bytes, begin_ms=begin_ms, layout=layout, rows=rows, end=end)

    def span(self, page: int) -> tuple[int, int]:
        """Half-open byte range of a page in its section."""
        start = int(self.rows["position"][page])
        return start, int(self.rows["position"][page + 1]) if page + 1 < len(self.rows) else self.end

    def pages_of(self, hash_low: int, hash_high: int) -> range:
        """Returns the pages that may hold a key, in item order: one, or all those of a run longer than a page.

        None for a slot below those of the object.
        """
        target = (hash_low % self.slots, hash_low, hash_high)
        if target[0] < int(self.rows["slot"][0]):
            return range(0)
        first = bisect_left(range(len(self.rows)), target, key=self._key)
        if first < len(self.rows) and self._key(first) == target:
            end = first + 1
            while end < len(self.rows) and self._key(end) == target:
                end += 1
            return range(first, end)
        return range(max(0, first - 1), max(1, first))

    def _key(self, page: int) -> tuple[int, int, int]:
        row = self.rows[page]
        return int(row["slot"]), int(row["hash"]), int(row["hash_high"])

    def check(self, page: int, compressed: bytes) -> None:
        """Compares a fetched page with the directory; :class:`ChecksumMismatchError` if it differs."""
        start, end = self.span(page)
        if len(compressed) != end - start or zlib.crc32(compressed) != int(self.rows["crc"][page]):
            raise ChecksumMismatchError("checksum of an index page differs", position=start)
