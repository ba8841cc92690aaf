"""The bytes of covered index files taken apart, and put together again with checksums that fit."""

from __future__ import annotations

import struct
import zlib

from tierlog.index.format.header import HEADER_BYTES, SLOT_BYTES, FileHeader, compacted_bytes
from tierlog.index.format.layout import ItemLayout
from tierlog.index.format.trailer import COVER_BYTES, PAGED_TRAILER_MAGIC, TRAILER_BYTES, TRAILER_MAGIC

_PAGE_BYTES, _TIED_BYTES = 4096, 68


def compacted_body(data: bytes, layout: ItemLayout) -> bytes:
    """Header, slots and items of a compacted file."""
    slots = (int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 4]) - HEADER_BYTES) // SLOT_BYTES
    return data[: compacted_bytes(layout, slots, FileHeader.decode(data).item_count)]


def trailer_over(body: bytes, trailer: bytes, *, is_paged: bool) -> bytes:
    """A trailer with other checksums: those of ``body``, and its own."""
    cover = trailer[: COVER_BYTES - 4]
    text = cover + struct.pack(">I", zlib.crc32(cover)) + trailer[COVER_BYTES:64] + struct.pack(">I", zlib.crc32(body))
    return text + struct.pack(">I", zlib.crc32(text)) + (PAGED_TRAILER_MAGIC if is_paged else TRAILER_MAGIC)


def page_checksums(body: bytes, trailer: bytes) -> bytes:
    """What lies between items and trailer."""
    pages = (body[at : at + _PAGE_BYTES] for at in range(0, len(body), _PAGE_BYTES))
    sums = b"".join(struct.pack(">I", zlib.crc32(page)) for page in pages)
    return sums + struct.pack(">I", zlib.crc32(sums + trailer[:_TIED_BYTES]))


def paged(body: bytes, trailer: bytes) -> bytes:
    """A compacted file as it is written now."""
    trailer = trailer_over(body, trailer, is_paged=True)
    return body + page_checksums(body, trailer) + trailer


def unpaged(body: bytes, trailer: bytes) -> bytes:
    """A chained file, or a compacted one as it was written before there were page checksums."""
    return body + trailer_over(body, trailer, is_paged=False)


def mended(data: bytes) -> bytes:
    """A file of either kind with checksums that fit what was changed, lengths apart."""
    at = len(data) - TRAILER_BYTES
    if at < 0:
        return data
    trailer = data[at:]
    if trailer[-8:] != PAGED_TRAILER_MAGIC:
        return unpaged(data[:at], trailer)
    pages = -(-(at - 4) // (_PAGE_BYTES + 4))  # each page has a checksum, and all of them one
    body = data[: max(0, at - 4 * pages - 4)]
    return paged(body, trailer)
