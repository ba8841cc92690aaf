"""Queue rows: which queue offsets of which queue lie in which archived segment. Section ``TLQROWS1``, big-endian.

====== ==== ===== ================== ==============================================
offset size type  field              meaning
====== ==== ===== ================== ==============================================
0      4    int32 topic_id
4      4    int32 queue_id
8      8    int64 segment            base offset
16     8    int64 first_queue_offset of a run of consecutive queue offsets
24     8    int64 count              records in the run
32     8    int64 min_store_ms
40     8    int64 max_store_ms
48     8    int64 min_born_ms
56     8    int64 max_born_ms
====== ==== ===== ================== ==============================================

Total 64. Rows are sorted by topic id, queue id, segment, first queue offset and packed into zstd pages of at most
1,024 rows; the table gives each page's first and last (topic id, queue id, segment) and its rows, and the object's
``key``: a part of the object is read without the rest, and only its own name tells it from another rows object.
Derived data: rebuildable from the sorted segments. Written by ``tiering.lifecycle.archiver`` and
``tiering.cold.manifest.store``, read by ``tiering.cold.manifest.store``.
"""

from __future__ import annotations

import numpy as np
import zstandard
from numpy.typing import NDArray

from tierlog.tiering.base.errors import ChecksumMismatchError, TornRecordError
from tierlog.tiering.format.compression import decompress
from tierlog.tiering.format.section import PageRef, SectionHead, SectionRef, check_page, decode_head, encode_section

MAGIC = b"TLQROWS1"
VERSION = 1
PAGE_ROWS = 1_024
QUEUE_ROW = np.dtype(
    [
        ("topic_id", ">i4"),
        ("queue_id", ">i4"),
        ("segment", ">i8"),
        ("first_queue_offset", ">i8"),
        ("count", ">i8"),
        ("min_store_ms", ">i8"),
        ("max_store_ms", ">i8"),
        ("min_born_ms", ">i8"),
        ("max_born_ms", ">i8"),
    ]
)
_ORDER = ["topic_id", "queue_id", "segment", "first_queue_offset"]

QueueRows = NDArray[np.void]


def encode_queue_rows(rows: QueueRows, key: str) -> tuple[bytes, SectionRef]:
    """Returns the object ``key`` that holds these rows, sorted, and its reference."""
    # numpy's concatenate gives native byte order, so the order of the format is stated here
    rows = np.sort(rows, order=_ORDER).astype(QUEUE_ROW)
    pages = []
    for start in range(0, len(rows), PAGE_ROWS):
        piece = rows[start : start + PAGE_ROWS]
        info = {"rows": len(piece), "first": _place(piece[0]), "last": _place(piece[-1])}
        pages.append((zstandard.ZstdCompressor(level=3).compress(piece.tobytes()), info))
    return encode_section(MAGIC, VERSION, {"key": key}, pages)


def _place(row: np.void) -> list[int]:
    return [int(row["topic_id"]), int(row["queue_id"]), int(row["segment"])]


def decode_queue_rows_head(data: bytes, *, path: str) -> SectionHead:
    """Returns the table of a rows object; one of another object is :class:`ChecksumMismatchError`."""
    head = decode_head(data, MAGIC, VERSION, path=path)
    if head.table.get("key", path) != path:
        raise ChecksumMismatchError(f"these are the queue rows of {head.table['key']}", path=path)
    return head


def pages_of(head: SectionHead, topic_id: int, queue_id: int | None) -> list[PageRef]:
    """Returns the pages that may hold rows of a topic, or of one of its queues."""
    low = [topic_id, -1 if queue_id is None else queue_id]
    high = [topic_id, 1 << 31 if queue_id is None else queue_id]
    return [page for page in head.pages if page.info["last"][:2] >= low and page.info["first"][:2] <= high]


def decode_rows_page(data: bytes, page: PageRef, *, path: str) -> QueueRows:
    """Checks and decodes one page."""
    raw = decompress(check_page(data, page, path=path), PAGE_ROWS * QUEUE_ROW.itemsize, "queue rows", path=path)
    if len(raw) != page.info["rows"] * QUEUE_ROW.itemsize:
        raise TornRecordError("page has another number of rows than its table says", path=path)
    return np.frombuffer(raw, QUEUE_ROW)
