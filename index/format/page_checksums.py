"""Checksums of the pages of a compacted index file, so that a look-up need not trust the few bytes that it reads.

They lie between items and trailer: of each 4096 bytes of header, slots and items, of which the last may be fewer, the
CRC-32 (uint32), then the CRC-32 of all of these and the trailer's first 68 bytes, so that neither fits another file.
Big-endian. A trailer says by its magic that they are there (``index.format.trailer``); of a file without them, which an
older version wrote, only all bytes together can be checked. Written by: ``index.local.compaction``. Read by:
``index.local.compacted_file``; pages are checked in ``index.kernels.point_lookup``.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.trailer import crc_of
from tierlog.index.kernels.slots import add_to_pages
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.kernels.checksum import CRC_TABLES, joined_crc32

PAGE_BYTES = 4096
#: Bytes of the trailer that have a share in the checksum of the checksums: all but its own checksum and magic.
TIED_BYTES = 68
_CRC_BYTES = 4


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


def are_sound(checksums: ByteArray, trailer: ByteArray) -> bool:
    """Whether the checksums of a file are those that were written, and with this trailer."""
    found = crc_of(trailer[:TIED_BYTES], crc_of(checksums[:-_CRC_BYTES]))
    return found == int.from_bytes(checksums[-_CRC_BYTES:].tobytes())


class PageChecksums:
    """Takes the bytes of two parts of a file, each in its order, and knows the checksums of all pages then."""

    def __init__(self, second_at: int, body_bytes: int) -> None:
        """The first part begins at 0 and ends where the second begins."""
        self._second_at, self._body_bytes = second_at, body_bytes
        pages = pages_of(body_bytes)
        self._first = np.zeros(pages_of(second_at), np.uint32)
        # from the page in which the first part ends, which both may have a share of
        self._second_from = second_at // PAGE_BYTES
        self._second = np.zeros(pages - self._second_from, np.uint32)

    def add(self, position: int, data: ByteArray) -> None:
        """The bytes at ``position``, which follow those of the same part that were added before."""
        if position < self._second_at:
            self._add(self._first, position, data)
        else:
            self._add(self._second, position - self._second_from * PAGE_BYTES, data)

    @staticmethod
    def _add(sums: NDArray[np.uint32], position: int, data: ByteArray) -> None:
        if len(data):
            add_to_pages(CRC_TABLES, sums.ctypes.data, position, data.ctypes.data, len(data))

    def encode(self, trailer: bytes) -> bytes:
        """All checksums, once all bytes were added, for a file that ends in ``trailer``."""
        sums = np.concatenate((self._first[: self._second_from], self._second))
        if self._second_at % PAGE_BYTES and len(self._second):
            shared_end = min((self._second_from + 1) * PAGE_BYTES, self._body_bytes)
            mine = joined_crc32(int(self._first[-1]), int(self._second[0]), shared_end - self._second_at)
            sums[self._second_from] = mine
        data = sums.astype(">u4").tobytes()
        return data + zlib.crc32(trailer[:TIED_BYTES], zlib.crc32(data)).to_bytes(_CRC_BYTES)
