"""Cover record (item 0 of a sealed file), page checksums and trailer of sealed and compacted index files. Big-endian.

====== ==== ====== ============ =================================================================
offset size type   field        meaning
====== ==== ====== ============ =================================================================
0      8    int64  first        first physical offset that the file covers
8      8    int64  next         first physical offset above those that it covers
16     4    int32  slots        hash slots
20     4    int32  items        capacity of the chained file, item 0 included
24     2    int16  layout       number of the item layout
26     2    int16  version      1
28     4    uint32 cover_crc    CRC-32 of bytes 0 to 27; the cover record ends here
32     8    int64  min_store_ms least store time over the items
40     8    int64  max_store_ms greatest store time over the items
48     8    int64  min_born_ms  least born time over the items
56     8    int64  max_born_ms  greatest born time over the items
64     4    uint32 body_crc     CRC-32 of header, slots and items
68     4    uint32 trailer_crc  CRC-32 of bytes 0 to 67
72     8    bytes  magic        ``TLIDXEND``, or ``TLIDXEN2`` behind page checksums
====== ==== ====== ============ =================================================================

Total 80, at the very end of the file.

Page checksums lie between the items and a trailer with the second magic, so that a look-up need not trust the few bytes
that it reads: of each 4096 bytes of header, slots and items, of which the last may be fewer, the CRC-32 (uint32), then
the CRC-32 of all of these and the trailer's first 68 bytes, so that neither fits another file. Chained files have none,
nor have compacted ones of older versions: of these only all bytes together can be checked. Pages are checked in
``index.kernels.point_lookup``.

Torn write: the file has no valid trailer and is discarded; it is derived data.
Written by: ``index.local.chained_file``, ``index.local.compaction``. Read by: those and ``index.local.compacted_file``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.kernels.slots import add_to_pages
from tierlog.tiering.base.errors import UnsupportedFormatError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.kernels.checksum import CRC_TABLES, continued_crc32, joined_crc32
from tierlog.tiering.kernels.primitives import is_sooner_without

VERSION = 1
COVER_BYTES = 32
TRAILER_BYTES = 80
TRAILER_MAGIC = b"TLIDXEND"
PAGED_TRAILER_MAGIC = b"TLIDXEN2"

_COVER = struct.Struct(">qqiihh")
_BOUNDS = struct.Struct(">qqqq")
_U32 = struct.Struct(">I")
PAGE_BYTES = 4096
#: Bytes of the trailer that have a share in the checksum of the checksums: all but its own checksum and magic.
TIED_BYTES = 68
_CRC_BYTES = 4
_ZLIB_BYTES_US = 1_000
"""Bytes that zlib sums in a microsecond where it is slow."""


@dataclass(frozen=True, slots=True)
class CoverRecord:
    """Item 0 of a sealed file: the range that the file covers, and the capacity and layout it was made with."""

    first: int
    next: int
    slots: int
    items: int
    layout_number: int
    version: int = VERSION

    def encode(self) -> bytes:
        """Returns the 32 bytes, CRC included."""
        body = _COVER.pack(self.first, self.next, self.slots, self.items, self.layout_number, self.version)
        return body + _U32.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, data: bytes | ByteArray, path: str | None = None) -> CoverRecord:
        """Reads and checks 32 bytes.

        Raises :class:`CorruptIndexError`, or :class:`UnsupportedFormatError` for an intact newer one.
        """
        record = bytes(data[:COVER_BYTES])
        if len(record) < COVER_BYTES or zlib.crc32(record[: _COVER.size]) != _U32.unpack_from(record, _COVER.size)[0]:
            raise CorruptIndexError("cover record of an index file is damaged", path=path)
        cover = cls(*_COVER.unpack_from(record))
        if cover.version != VERSION:
            raise UnsupportedFormatError(f"index file version {cover.version}", path=path, hint="upgrade tierlog")
        if not 0 <= cover.first < cover.next or cover.slots < 1 or cover.items < 2:
            raise CorruptIndexError("cover record of an index file contradicts itself", path=path)
        return cover


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last 80 bytes of a sealed or compacted file."""

    cover: CoverRecord
    bounds: TimeBounds
    body_crc: int
    #: Whether page checksums lie before it.
    is_paged: bool = False

    def encode(self) -> bytes:
        """Returns the 80 bytes, checksums and magic included."""
        times = self.bounds
        body = (
            self.cover.encode()
            + _BOUNDS.pack(times.min_store_ms, times.max_store_ms, times.min_born_ms, times.max_born_ms)
            + _U32.pack(self.body_crc)
        )
        return body + _U32.pack(zlib.crc32(body)) + (PAGED_TRAILER_MAGIC if self.is_paged else TRAILER_MAGIC)

    @classmethod
    def decode(cls, data: bytes | ByteArray, path: str | None = None) -> Trailer:
        """Reads and checks 80 bytes; raises as :meth:`CoverRecord.decode`."""
        record = bytes(data[:TRAILER_BYTES])
        if len(record) < TRAILER_BYTES or record[72:] not in (TRAILER_MAGIC, PAGED_TRAILER_MAGIC):
            raise CorruptIndexError("index file without a trailer", path=path)
        if zlib.crc32(record[:68]) != _U32.unpack_from(record, 68)[0]:
            raise CorruptIndexError("trailer of an index file is damaged", path=path)
        bounds = TimeBounds(*_BOUNDS.unpack_from(record, COVER_BYTES))
        if bounds.min_store_ms > bounds.max_store_ms or bounds.min_born_ms > bounds.max_born_ms:
            raise CorruptIndexError("times in the trailer of an index file contradict each other", path=path)
        body_crc = _U32.unpack_from(record, 64)[0]
        return cls(CoverRecord.decode(record, path), bounds, body_crc, record[72:] == PAGED_TRAILER_MAGIC)


def crc_of(data: ByteArray, crc: int = 0) -> int:
    """CRC-32 of an array, continued from ``crc``."""
    if is_sooner_without(len(data) / _ZLIB_BYTES_US):
        return zlib.crc32(data.data, crc)
    return int(continued_crc32(CRC_TABLES, data.ctypes.data, len(data), crc)) if len(data) else crc


def pages_of(body_bytes: int) -> int:
    """Pages that so many bytes of header, slots and items make up."""
    return -(-body_bytes // PAGE_BYTES)


def page_checksums_bytes(body_bytes: int) -> int:
    """Length of the checksums of so many bytes, their own included."""
    return _CRC_BYTES * (pages_of(body_bytes) + 1)


def page_checksums_of(length: int) -> int:
    """Length of the checksums in a file of so many bytes, trailer apart."""
    return page_checksums_bytes(
        length - _CRC_BYTES - _CRC_BYTES * -(-(length - _CRC_BYTES) // (PAGE_BYTES + _CRC_BYTES))
    )


def are_page_checksums_sound(checksums: ByteArray, trailer: ByteArray) -> bool:
    """Whether the checksums of a file are those that were written, and with this trailer."""
    found = crc_of(trailer[:TIED_BYTES], crc_of(checksums[:-_CRC_BYTES]))
    return found == int.from_bytes(checksums[-_CRC_BYTES:].tobytes())


class StretchChecksums:
    """Takes the bytes of one stretch of a file in their order, and knows its checksum and those of its pages."""

    def __init__(self, start: int, end: int) -> None:
        """The stretch begins and ends anywhere in a page; its neighbours have the rest of that page."""
        self.start, self.end, self.crc = start, end, 0
        self._first_page = start // PAGE_BYTES
        self._pages = np.zeros(pages_of(end) - self._first_page, np.uint32)

    def add(self, position: int, data: ByteArray) -> None:
        """The bytes at ``position``, which follow those that were added before."""
        if len(data):
            self.crc = crc_of(data, self.crc)
            at = position - self._first_page * PAGE_BYTES
            add_to_pages(CRC_TABLES, self._pages.ctypes.data, at, data.ctypes.data, len(data))

    def join_pages(self, sums: NDArray[np.uint32]) -> None:
        """Adds the pages to those of the whole file, which know the stretches before this one."""
        if self.start < self.end:
            first, mine = self._first_page, min((self._first_page + 1) * PAGE_BYTES, self.end) - self.start
            sums[first] = joined_crc32(int(sums[first]), int(self._pages[0]), mine)
            sums[first + 1 : first + len(self._pages)] = self._pages[1:]


def joined_crc(stretches: Iterable[StretchChecksums]) -> int:
    """CRC-32 of stretches that abut, in their order."""
    crc = 0
    for stretch in stretches:
        crc = int(joined_crc32(crc, stretch.crc, stretch.end - stretch.start))
    return crc


def encode_page_checksums(stretches: Sequence[StretchChecksums], trailer: bytes) -> bytes:
    """Returns the checksums of all pages that stretches make up, for a file that ends in ``trailer``.

    The stretches abut, in their order, from the beginning of the file to the end of its items.
    """
    sums = np.zeros(pages_of(stretches[-1].end), np.uint32)
    for stretch in stretches:
        stretch.join_pages(sums)
    data = sums.astype(">u4").tobytes()
    return data + zlib.crc32(trailer[:TIED_BYTES], zlib.crc32(data)).to_bytes(_CRC_BYTES)
