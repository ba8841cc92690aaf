"""Makes a compacted file of a sealed chained one and trusts it only after an independent comparison.

:func:`slot_pieces` walks the chains side by side in slot order into small buffers. What was written is read back from
the file, piece by piece, and compared with the items themselves: the walk says which item each one is, and that is what
the comparison tests rather than trusts. Beside the two maps that takes the buffers, however many items there are.

Crash argument: until the rename there is a file in ``tmp/``, which the next compaction begins anew; after it the
compacted file is whole, and the next open removes the sealed one of the same name.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import (
    END_MAGIC,
    HEADER_BYTES,
    MAX_FILE_BYTES,
    SLOT_BYTES,
    FileHeader,
    compacted_bytes,
    items_position,
)
from tierlog.index.format.trailer import TRAILER_BYTES, PageChecksums, Trailer, crc_of, page_checksums_bytes
from tierlog.index.kernels.slots import GATHER_SCRATCH_BYTES, ROUNDS, compare_slots, gather_slots
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import SLOT_ENTRY
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.fs import ByteArray, FileSystem, flush_file
from tierlog.tiering.base.worker_pool import WorkerPool, done_here
from tierlog.tiering.kernels.checksum import joined_crc32

#: Bytes of items, and at most of slots too, that are laid out at a time.
PIECE_BYTES = 1 << 20
#: Pieces whose arrays are in memory: one is gathered while those before it are still read.
PIECES_HELD = 3
#: A thread that waits this long for its next piece ends with the compaction; to start one for each takes longer.
_LINGER_S = 0.05


def compact(
    fs: FileSystem, source: ChainedIndexFile, target: Path, tmp_dir: Path, *, piece_bytes: int = PIECE_BYTES
) -> None:
    """Writes the compacted form of a sealed file to ``target``, durable with its name when this returns.

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
    """Writes a source to a file as a pipeline: gather a piece, write the previous one, compare the one before it."""
    # an empty file of the final length, and what sums up its bytes as they are written
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
    writing, comparing = (WorkerPool(1, "tierlog-compaction", linger_s=_LINGER_S) for _ in range(2))
    under_way: deque[Future[None]] = deque()
    written = done_here(partial(file.write_at, 0, header))
    # each piece is gathered here, written by one thread, and compared by another
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
        # all is as it should be: checksums and trailer complete the file
        if source.trailer is not None:
            crc = int(joined_crc32(slots_crc, items_crc, items_bytes))
            trailer = Trailer(source.trailer.cover, source.trailer.bounds, crc, is_paged=True).encode()
            file.write_at(total, pages.encode(trailer) + trailer)
    finally:
        wait([written, *under_way])  # also where no thread was to be had for the comparison
        file.close()


class SlotPiece(NamedTuple):
    """Slots and items that follow those of the piece before; its arrays are used again ``PIECES_HELD`` pieces later."""

    slots_position: int
    """Where the slots lie in the compacted file."""
    slots: ByteArray
    items_position: int
    """Where the items lie in the compacted file."""
    items: ByteArray
    numbers: NDArray[np.int32]
    """Which of the chained items each of the items is."""


def slot_pieces(source: ChainedIndexFile, piece_bytes: int = PIECE_BYTES) -> Iterator[SlotPiece]:
    """Yields the items of a sealed file in slot order, newest first within a slot; memory does not grow with the file.

    The last slot of a piece may go on in the next one, which then holds its entry. Raises :class:`CorruptIndexError`
    for a damaged chain, or if the chains hold more or fewer than the file's items.
    """
    if piece_bytes < ROUNDS * source.layout.compacted_bytes:
        raise InvalidRequestError(f"a piece of {piece_bytes} bytes is too small")
    start = items_position(source.slots)
    state = np.array([0, 0, start, start], np.int64)
    scratch = np.empty(GATHER_SCRATCH_BYTES, np.uint8)
    buffers = deque(
        (
            np.empty(min(source.slots, piece_bytes // SLOT_BYTES), SLOT_ENTRY),
            np.empty(piece_bytes, np.uint8),
            np.empty(piece_bytes // source.layout.compacted_bytes, np.int32),
        )
        for _ in range(PIECES_HELD)
    )
    offsets = source.layout.kernel_offsets
    end = start + source.layout.compacted_bytes * source.item_count
    while state[0] < source.slots:
        slot, position = int(state[0]), int(state[3])
        buffers.rotate()
        table, items, numbers = buffers[0]
        written = gather_slots(
            file=source.data.ctypes.data, file_bytes=len(source.data), slots=source.slots, count=source.item_count,
            offsets=offsets.ctypes.data, state=state.ctypes.data, scratch=scratch.ctypes.data, table=table.ctypes.data,
            table_slots=len(table), out=items.ctypes.data, out_bytes=len(items), taken=numbers.ctypes.data,
        )  # fmt: skip
        if written < 0 or state[3] > end:
            raise CorruptIndexError("chains of an index file are damaged", path=str(source.path))
        slots = table[: state[0] - slot].view(np.uint8)
        taken = numbers[: written // source.layout.compacted_bytes]
        yield SlotPiece(HEADER_BYTES + SLOT_BYTES * slot, slots, position, items[:written], taken)
    if state[3] != end:
        raise CorruptIndexError("chains of an index file do not hold all of its items", path=str(source.path))


class Comparison:
    """Compares a compacted file, as it is read back, with the chained one that it was made of."""

    def __init__(self, source: ChainedIndexFile, compacted: ByteArray) -> None:
        self._source = source
        self._compacted = compacted
        self._state = np.array([0, 0, source.item_count + 1, 0, 0], np.int64)

    def go_on(self, piece: SlotPiece) -> None:
        """Compares the slots and items of the next piece, of which only the numbers and the count of slots are used."""
        source, compacted = self._source, self._compacted
        slot_end = int(self._state[0]) + len(piece.slots) // SLOT_BYTES
        found = compare_slots(
            chained=source.data.ctypes.data, chained_bytes=len(source.data), slots=source.slots,
            count=source.item_count, offsets=source.layout.kernel_offsets.ctypes.data, compacted=compacted.ctypes.data,
            compacted_bytes=len(compacted), numbers=piece.numbers.ctypes.data, number_count=len(piece.numbers),
            slot_end=slot_end, state=self._state.ctypes.data,
        )  # fmt: skip
        if found < 0:
            raise CorruptIndexError(f"compaction and its source differ in slot {-1 - found}", path=str(source.path))

    def finish(self) -> None:
        """Checks that all slots and items have come; raises :class:`CorruptIndexError` otherwise."""
        source = self._source
        slots, _, _, items, used = self._state.tolist()
        if slots != source.slots or items != source.item_count:
            raise CorruptIndexError("compaction and its source differ in length", path=str(source.path))
        if used != source.header.used_slots:
            raise CorruptIndexError(f"header of an index file does not say {used} slots in use", path=str(source.path))
