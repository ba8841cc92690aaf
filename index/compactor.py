"""Makes a compacted file of a sealed chained one and trusts it only after an independent comparison.

Chains are walked side by side in slot order into small buffers (``index.slot_pieces``). What was written is read back
from the file, piece by piece, and compared with the items themselves: the walk says which item each one is, and that is
what the comparison tests rather than trusts. Beside the two maps that takes the buffers, however many items there are.

Crash argument: until the rename there is a file in ``tmp/``, which the next compaction begins anew; after it the
compacted file is whole, and the next open removes the sealed one of the same name.
"""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path

import numpy as np

from index.chained_file import ChainedIndexFile
from index.cover import TRAILER_BYTES, Trailer, crc_of
from index.errors import CorruptIndexError
from index.header import END_MAGIC, MAX_FILE_BYTES, SLOT_BYTES, FileHeader, compacted_bytes, items_position
from index.kernels.slots import compare_slots
from index.page_checksums import PageChecksums, page_checksums_bytes
from index.slot_pieces import PIECE_BYTES, PIECES_HELD, SlotPiece, slot_pieces
from tiering.cold.caching.fetch_pool import FetchPool, done_here
from tiering.errors import InvalidRequestError, StoreError
from tiering.fs import ByteArray, FileSystem, flush_file
from tiering.kernels.checksum import joined_crc32

#: A thread that waits this long for its next piece ends with the compaction; to start one for each takes longer.
_LINGER_S = 0.05


def compact(
    fs: FileSystem, source: ChainedIndexFile, target: Path, tmp_dir: Path, *, piece_bytes: int = PIECE_BYTES
) -> None:
    """Write the compacted form of a sealed file to ``target``, durable with its name when this returns.

    It is accepted only if each slot holds the items of the source that belong there, newest first. Raises
    :class:`CorruptIndexError` if the source is damaged or the two differ: the source is never touched, and
    ``target`` does not come to be.
    """
    if not source.is_sealed:
        raise InvalidRequestError("only a sealed index file is compacted", path=str(source.path))
    source.verify()
    fs.make_dirs(tmp_dir)
    temporary = tmp_dir / f"compact-{target.name}"
    try:
        _write(fs, source, temporary, piece_bytes)
        flush_file(fs, temporary)
        fs.rename(temporary, target)
    except StoreError:
        with contextlib.suppress(StoreError):
            fs.unlink(temporary)  # at once: it may hold what is left of the disk
        raise
    fs.flush_dir(target.parent)
    fs.flush_dir(tmp_dir)


def _write(fs: FileSystem, source: ChainedIndexFile, path: Path, piece_bytes: int) -> None:
    """Lay a source out in a file: while a piece is gathered, the one before is written and that before it compared."""
    total = compacted_bytes(source.layout, source.slots, source.item_count)
    if total > MAX_FILE_BYTES:
        raise CorruptIndexError("compacted index file would not fit 32-bit positions", path=str(source.path))
    appended = page_checksums_bytes(total) + TRAILER_BYTES if source.trailer else 0
    fs.create(path, total + appended, prewrite=False)
    old = source.header
    header = FileHeader(END_MAGIC, old.begin_ms, old.end_ms, old.used_slots, source.item_count).encode()
    comparison = Comparison(source, fs.map_read(path))
    slots_crc, items_crc, items_bytes = crc_of(np.frombuffer(header, np.uint8)), 0, 0
    pages = PageChecksums(items_position(source.slots), total)
    pages.add(0, np.frombuffer(header, np.uint8))

    def write(piece: SlotPiece) -> None:
        nonlocal slots_crc, items_crc, items_bytes
        slots_crc, items_crc = crc_of(piece.slots, slots_crc), crc_of(piece.items, items_crc)
        items_bytes += len(piece.items)
        pages.add(piece.slots_position, piece.slots)
        pages.add(piece.items_position, piece.items)
        if len(piece.items):
            file.write_at(piece.items_position, piece.items)
        if len(piece.slots):
            file.write_at(piece.slots_position, piece.slots)

    def compare(piece: SlotPiece, written: Future[None]) -> None:
        written.result()
        comparison.go_on(piece)

    file = fs.open(path)
    # nobody waits for these threads at the interpreter's end
    writing, comparing = (FetchPool(1, "tierlog-compaction", linger_s=_LINGER_S) for _ in range(2))
    under_way: deque[Future[None]] = deque()
    written = done_here(partial(file.write_at, 0, header))
    try:
        written.result()
        for piece in slot_pieces(source, piece_bytes):
            written = writing.submit(partial(write, piece))
            under_way.append(comparing.submit(partial(compare, piece, written)))
            if len(under_way) == PIECES_HELD:
                under_way.popleft().result()
        for taken in under_way:
            taken.result()
        comparison.finish()
        if source.trailer is not None:
            crc = int(joined_crc32(slots_crc, items_crc, items_bytes))
            trailer = Trailer(source.trailer.cover, source.trailer.bounds, crc, is_paged=True).encode()
            file.write_at(total, pages.encode(trailer) + trailer)
    finally:
        wait([written, *under_way])  # also where no thread was to be had for the comparison
        file.close()


class Comparison:
    """Compares a compacted file, as it is read back, with the chained one that it was made of."""

    def __init__(self, source: ChainedIndexFile, compacted: ByteArray) -> None:
        self._source = source
        self._compacted = compacted
        self._state = np.array([0, 0, source.item_count + 1, 0, 0], np.int64)

    def go_on(self, piece: SlotPiece) -> None:
        """Compare the slots and items of the next piece, of which only the numbers and the count of slots are used."""
        source, compacted = self._source, self._compacted
        slot_end = int(self._state[0]) + len(piece.slots) // SLOT_BYTES
        found = compare_slots(
            source.data.ctypes.data, len(source.data), source.slots, source.item_count,
            source.layout.kernel_offsets.ctypes.data, compacted.ctypes.data, len(compacted), piece.numbers.ctypes.data,
            len(piece.numbers), slot_end, self._state.ctypes.data,
        )  # fmt: skip
        if found < 0:
            raise CorruptIndexError(f"compaction and its source differ in slot {-1 - found}", path=str(source.path))

    def finish(self) -> None:
        """All slots and items must have come by now."""
        source = self._source
        slots, _, _, items, used = self._state.tolist()
        if slots != source.slots or items != source.item_count:
            raise CorruptIndexError("compaction and its source differ in length", path=str(source.path))
        if used != source.header.used_slots:
            raise CorruptIndexError(f"header of an index file does not say {used} slots in use", path=str(source.path))
