"""Checksums of the pages of a compacted index file, as its bytes come. Oracle: ``zlib``."""

from __future__ import annotations

from numba import int64

from tierlog.tiering.kernels.checksum import continued_crc32
from tierlog.tiering.kernels.primitives import kernel, load_u32, store_i32

#: ``index.format.page_checksums.PAGE_BYTES``.
_PAGE_BYTES = 4096


@kernel
def add_to_pages(tables, sums, position, data, length):
    """Continues the checksums (uint32, by page) of the bytes from ``position`` on; 0 is that of no bytes."""
    end = position + length
    while position < end:
        page = position // _PAGE_BYTES
        taken = min(end, (page + 1) * _PAGE_BYTES) - position
        store_i32(sums + 4 * page, continued_crc32(tables, data, taken, load_u32(sums + 4 * page)))
        position += taken
        data += taken
    return int64(0)
