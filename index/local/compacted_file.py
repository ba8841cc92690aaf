"""Index file whose items lie together slot by slot: sealed once and for all, read with one step per look-up.

After the header (``index.format.header``) each slot is int32 position of its first item, int32 bytes of its items;
an empty slot holds the position where the next items start, and 0. Then the items, newest first inside a
slot, then page checksums (``index.format.trailer``) and the trailer of a covered layout
(``index.format.trailer``). Big-endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import END_MAGIC, HEADER_BYTES, SLOT_BYTES, FileHeader, compacted_bytes, items_position
from tierlog.index.format.layout import LAYOUTS, ItemLayout, Items
from tierlog.index.format.trailer import (
    TRAILER_BYTES,
    Trailer,
    are_page_checksums_sound,
    crc_of,
    page_checksums_bytes,
    pages_of,
)
from tierlog.index.kernels.point_lookup import FILE, find_items, find_items_of_one
from tierlog.tiering.base.fs import ByteArray, FileSystem
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.kernels.checksum import CRC_TABLES

#: An index file as ``index.kernels.point_lookup`` takes it.
FileRow = NDArray[np.void]
#: A compacted slot.
SLOT_ENTRY = np.dtype([("position", ">i4"), ("length", ">i4")])
_FIRST_CAPACITY = 16


@dataclass(frozen=True, slots=True)
class PageMarks:
    """The pages of a mapped file that were compared with their checksums since it was opened."""

    checksums: ByteArray
    """As they lie in the file (``index.format.trailer``), proved to be sound."""
    checked: ByteArray
    """A byte a page; kernels write it."""


def file_row(
    data: ByteArray, layout: ItemLayout, slots: int, count: int, *, is_chained: bool, marks: PageMarks | None = None
) -> FileRow:
    """Returns a file's row, for items numbered up to ``count``; the caller keeps the arrays, which it points into.

    Without ``marks`` nothing that is read is compared with a checksum.
    """
    kind = layout.chained if is_chained else layout.compacted
    at, width = items_position(slots), kind.itemsize
    if slots < 1 or count < 0 or at + width * (count + is_chained) > len(data):
        raise CorruptIndexError("index file is shorter than its slots and items")
    fields = kind.fields
    assert fields is not None
    names = ("hash", "hash_high", "offset", "size", "previous")
    positions = [int(fields[name][1]) if name in fields else -1 for name in names]
    address = data.ctypes.data
    item_0 = address + at - (0 if is_chained else width)
    paged = (0, 0, 0, 0, 0)
    if marks is not None:
        paged = (
            marks.checked.ctypes.data, address, at + width * count, marks.checksums.ctypes.data, CRC_TABLES
        )  # fmt: skip
    return np.array([(is_chained, address + HEADER_BYTES, slots, item_0, width, count, at, *positions, *paged)], FILE)


class CompactedIndexFile:
    """A compacted file, mapped read-only; usable by any number of threads and after the file was unlinked.

    A look-up compares the pages that it reads with their checksums, each once since the file was opened: what the disk
    gives back differently later, of a page that left memory meanwhile, is not seen. A file without page checksums is
    read whole before its first look-up.
    """

    def __init__(self, path: Path, data: ByteArray, layout: ItemLayout, slots: int, trailer: Trailer | None) -> None:
        header = FileHeader.decode(data, str(path))
        body_bytes = compacted_bytes(layout, slots, header.item_count)
        is_paged = trailer is not None and trailer.is_paged
        expected = body_bytes + is_paged * page_checksums_bytes(body_bytes) + (TRAILER_BYTES if trailer else 0)
        if header.magic != END_MAGIC or header.item_count < 1 or len(data) != expected:
            raise CorruptIndexError("length or header of a compacted index file is wrong", path=str(path))
        self._data = data
        self._body_bytes = body_bytes
        self._trailer = trailer
        self._marks: PageMarks | None = None
        if is_paged:
            checksums = data[body_bytes:-TRAILER_BYTES]
            self._marks = PageMarks(checksums, np.zeros(pages_of(body_bytes), np.uint8))
        self._is_ready = trailer is None
        self._items_at = items_position(slots)
        self.path = path
        self.layout = layout
        self.slots = slots
        self.header = header
        self.begin_ms = header.begin_ms
        self.item_count = header.item_count
        self._row = file_row(data, layout, slots, header.item_count, is_chained=False, marks=self._marks)
        self._row_address = self._row.ctypes.data

    @classmethod
    def open(
        cls, fs: FileSystem, path: Path, *, layouts: Mapping[int, ItemLayout] = LAYOUTS, verify: bool = True
    ) -> CompactedIndexFile:
        """Opens a file of a covered layout; ``verify`` reads all of it and compares its CRC.

        Raises :class:`CorruptIndexError` unless trailer, header and length agree.
        """
        data = fs.map_read(path)
        name = str(path)
        trailer = Trailer.decode(data[-TRAILER_BYTES:] if len(data) >= TRAILER_BYTES else data, name)
        layout = layouts.get(trailer.cover.layout_number)
        if layout is None or not layout.covered:
            raise CorruptIndexError(f"index file of an unknown layout {trailer.cover.layout_number}", path=name)
        file = cls(path, data, layout, trailer.cover.slots, trailer)
        if file.item_count >= trailer.cover.items:
            raise CorruptIndexError("compacted index file holds more items than its source could", path=name)
        if verify:
            file.verify()
        return file

    @classmethod
    def open_bare(cls, fs: FileSystem, path: Path, layout: ItemLayout, slots: int) -> CompactedIndexFile:
        """Opens a file without trailer, as RocketMQ writes it; its slot count is not in the file."""
        return cls(path, fs.map_read(path), layout, slots, None)

    @property
    def first(self) -> int:
        """First physical offset covered; 0 without a trailer."""
        return self._trailer.cover.first if self._trailer else 0

    @property
    def next(self) -> int:
        """First physical offset above the covered range; 0 without a trailer."""
        return self._trailer.cover.next if self._trailer else 0

    @property
    def bounds(self) -> TimeBounds | None:
        """Least and greatest times over the items; None without a trailer."""
        return self._trailer.bounds if self._trailer else None

    @property
    def data(self) -> ByteArray:
        """The file's bytes, trailer included."""
        return self._data

    def verify(self) -> None:
        """Compares all bytes with the trailer's CRC; :class:`CorruptIndexError` if they differ."""
        if self._trailer is None:
            return
        if self._marks is not None:
            self._check_checksums(self._marks)
        if crc_of(self._data[: self._body_bytes]) != self._trailer.body_crc:
            raise CorruptIndexError("checksum of an index file differs", path=str(self.path))

    def look_up_row(self) -> FileRow:
        """Returns the file's row for kernels, which from here on find damage by themselves.

        The first call reads the page checksums, or the whole of a file that has none; :class:`CorruptIndexError` if
        that is damaged.
        """
        self.get_ready()
        return self._row

    def get_ready(self) -> None:
        """Compares, once, what look-ups cannot: see :meth:`look_up_row`."""
        if not self._is_ready:
            if self._marks is None:
                self.verify()
            else:
                self._check_checksums(self._marks)
            self._is_ready = True

    def _check_checksums(self, marks: PageMarks) -> None:
        if not are_page_checksums_sound(marks.checksums, self._data[-TRAILER_BYTES:]):
            raise CorruptIndexError("page checksums of an index file are damaged", path=str(self.path))

    def slot_table(self) -> NDArray[np.void]:
        """Returns the slots as a view of the map (``SLOT_ENTRY``); not checked."""
        return self._data[HEADER_BYTES : self._items_at].view(SLOT_ENTRY)

    def all_items(self) -> Items:
        """Returns all items in slot order as a view of the map."""
        end = self._items_at + self.layout.compacted_bytes * self.item_count
        return self._data[self._items_at : end].view(self.layout.compacted)

    def slot_items(self, slot: int) -> Items:
        """Returns the items of one slot, newest first, as a view; :class:`CorruptIndexError` for a bad entry."""
        at = HEADER_BYTES + SLOT_BYTES * slot
        entry = self._data[at : at + SLOT_BYTES].view(SLOT_ENTRY)[0]
        position, length = int(entry["position"]), int(entry["length"])
        width = self.layout.compacted_bytes
        start, odd = divmod(position - self._items_at, width)
        count, rest = divmod(length, width)
        if odd or rest or start < 0 or count < 0 or start + count > self.item_count:
            raise CorruptIndexError("slot of a compacted index file is damaged", path=str(self.path), position=at)
        return self.all_items()[start : start + count]

    def lookup(self, hash_low: int, hash_high: int | None = None) -> Items:
        """Items with these hashes, newest first; without ``hash_high`` any second hash matches."""
        high = -1 if hash_high is None else hash_high
        if not self._is_ready:
            self.get_ready()
        capacity = _FIRST_CAPACITY
        while True:
            items = np.empty(capacity, self.layout.compacted)
            found = find_items_of_one(self._row_address, hash_low, high, items.ctypes.data, capacity)
            if 0 <= found <= capacity:
                return items[:found]
            capacity = self._more(found)

    def look_up_many(self, hashes: NDArray[np.int64]) -> tuple[Items, NDArray[np.int64]]:
        """Items with each pair of hashes, newest first, and where those of each pair end.

        A row of ``hashes`` is both hashes of a key (:class:`index.search.hot_lookup.KeyHasher`), a second one below 0
        matches any. Each costs a small part of what a call of :meth:`lookup` does.
        """
        pairs = np.ascontiguousarray(hashes, np.int64).reshape(-1, 2)
        ends = np.empty(len(pairs), np.int64)
        self.get_ready()
        capacity = len(pairs) + _FIRST_CAPACITY
        while True:
            items = np.empty(capacity, self.layout.compacted)
            found = find_items(
                self._row_address, hashes=pairs.ctypes.data, count=len(pairs), ends=ends.ctypes.data,
                out=items.ctypes.data, capacity=capacity,
            )  # fmt: skip
            if 0 <= found <= capacity:
                return items[:found], ends
            capacity = self._more(found)

    def _more(self, found: int) -> int:
        """Returns how many items to make room for, from a kernel's answer; raises if the answer is damage."""
        if found < 0:
            raise CorruptIndexError("slot or page of a compacted index file is damaged", path=str(self.path))
        return found
