"""Makes a compacted file of a sealed chained one and trusts it only after an independent comparison.

Two threads have half of the slots each. :func:`slot_pieces` walks the chains side by side in slot order into a small
buffer. That is written and, while it is still in the caches, read back from the file and compared with the items
themselves: the walk says which item each one is, and that is what the comparison tests rather than trusts. Beside the
two maps that takes the buffers, however many items there are.

Crash argument: until the rename there is a file in ``tmp/``, which the next compaction begins anew; after it the
compacted file is whole, and the next open removes the sealed one of the same name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import wait
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
from tierlog.index.format.trailer import (
    TRAILER_BYTES,
    StretchChecksums,
    Trailer,
    encode_page_checksums,
    joined_crc,
    page_checksums_bytes,
)
from tierlog.index.kernels.slots import GATHER_SCRATCH_BYTES, ROUNDS, compare_slots, count_below, gather_slots
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import SLOT_ENTRY
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.fs import ByteArray, File, FileSystem, flush_file
from tierlog.tiering.base.worker_pool import WorkerPool, done_here

#: Bytes of items, and at most of slots too, that are laid out at a time: with what they are compared with they stay in
#: a core's second cache.
PIECE_BYTES = 512 << 10


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
    """Writes a source that is sound to a file: one half of the slots here, the other on a second thread."""
    total = compacted_bytes(source.layout, source.slots, source.item_count)
    if total > MAX_FILE_BYTES:
        raise CorruptIndexError("compacted index file would not fit 32-bit positions", path=str(source.path))
    beside = WorkerPool(1, "tierlog-compaction")
    sound = beside.submit(source.verify)
    shares = done_here(partial(_halves, source))
    sound.result()
    appended = page_checksums_bytes(total) + TRAILER_BYTES if source.trailer else 0
    fs.create(path, total + appended, prewrite=False)  # of the final length
    file = fs.open(path)
    try:
        old = source.header
        header = FileHeader(END_MAGIC, old.begin_ms, old.end_ms, old.used_slots, source.item_count).encode()
        file.write_at(0, header)
        compacted = fs.map_read(path)
        halves = [_Half(source, file, compacted, share) for share in shares.result()]
        second = beside.submit(partial(halves[1].write, piece_bytes))
        first = done_here(partial(halves[0].write, piece_bytes))
        wait([second])  # the file is closed under nobody
        first.result()
        second.result()
        used = sum(half.used_slots for half in halves)
        if used != old.used_slots:
            raise CorruptIndexError(f"header of an index file does not say {used} slots in use", path=str(source.path))
        # all is as it should be: checksums and trailer complete the file
        if source.trailer is not None:
            begin = StretchChecksums(0, HEADER_BYTES)
            begin.add(0, np.frombuffer(header, np.uint8))
            stretches = [begin, *(half.slots for half in halves), *(half.items for half in halves)]
            trailer = Trailer(source.trailer.cover, source.trailer.bounds, joined_crc(stretches), is_paged=True)
            end = trailer.encode()
            file.write_at(total, encode_page_checksums(stretches, end) + end)
    finally:
        file.close()


class SlotShare(NamedTuple):
    """Some slots of a file, and the places of their items in the compacted one."""

    slots: range
    items: range


def _whole(source: ChainedIndexFile) -> SlotShare:
    return SlotShare(range(source.slots), range(source.item_count))


def _halves(source: ChainedIndexFile) -> tuple[SlotShare, SlotShare]:
    """Returns two shares with half of the slots each, by the hashes of the items."""
    middle = source.slots // 2
    below = count_below(
        file=source.data.ctypes.data, file_bytes=len(source.data), slots=source.slots, count=source.item_count,
        offsets=source.layout.kernel_offsets.ctypes.data, slot_end=middle,
    )  # fmt: skip
    if below < 0:
        raise CorruptIndexError("items of an index file do not fit into it", path=str(source.path))
    slots, items = _whole(source)
    return SlotShare(slots[:middle], items[:below]), SlotShare(slots[middle:], items[below:])


class _Half:
    """One share of a compacted file in the making."""

    def __init__(self, source: ChainedIndexFile, file: File, compacted: ByteArray, share: SlotShare) -> None:
        self._source, self._file, self._compacted, self._share = source, file, compacted, share
        first, width = items_position(source.slots), source.layout.compacted_bytes
        at, items = share.slots, share.items
        self.slots = StretchChecksums(HEADER_BYTES + SLOT_BYTES * at.start, HEADER_BYTES + SLOT_BYTES * at.stop)
        self.items = StretchChecksums(first + width * items.start, first + width * items.stop)
        self.used_slots = 0

    def write(self, piece_bytes: int) -> None:
        """Writes the share piece by piece, each compared before the next one."""
        comparison = Comparison(self._source, self._compacted, self._share)
        for piece in slot_pieces(self._source, piece_bytes, self._share):
            self.slots.add(piece.slots_position, piece.slots)
            self.items.add(piece.items_position, piece.items)
            if len(piece.items):
                self._file.write_at(piece.items_position, piece.items)
            if len(piece.slots):
                self._file.write_at(piece.slots_position, piece.slots)
            comparison.go_on(piece)
        comparison.finish()
        self.used_slots = comparison.used_slots


class SlotPiece(NamedTuple):
    """Slots and items that follow those of the piece before; its arrays are those of the next piece too."""

    slots_position: int
    """Where the slots lie in the compacted file."""
    slots: ByteArray
    items_position: int
    """Where the items lie in the compacted file."""
    items: ByteArray
    numbers: NDArray[np.int32]
    """Which of the chained items each of the items is."""


def slot_pieces(
    source: ChainedIndexFile, piece_bytes: int = PIECE_BYTES, share: SlotShare | None = None
) -> Iterator[SlotPiece]:
    """Yields the items of a sealed file in slot order, newest first within a slot; memory does not grow with the file.

    The last slot of a piece may go on in the next one, which then holds its entry. Of a ``share`` only its slots.
    Raises :class:`CorruptIndexError` for a damaged chain, or if the chains hold more or fewer items than there are.
    """
    if piece_bytes < ROUNDS * source.layout.compacted_bytes:
        raise InvalidRequestError(f"a piece of {piece_bytes} bytes is too small")
    slots, places = share or _whole(source)
    width = source.layout.compacted_bytes
    start, end = (items_position(source.slots) + width * place for place in (places.start, places.stop))
    state = np.array([slots.start, 0, start, start], np.int64)
    scratch = np.empty(GATHER_SCRATCH_BYTES, np.uint8)
    table = np.empty(min(len(slots), piece_bytes // SLOT_BYTES), SLOT_ENTRY)
    items = np.empty(piece_bytes, np.uint8)
    numbers = np.empty(piece_bytes // width, np.int32)
    offsets = source.layout.kernel_offsets
    while state[0] < slots.stop:
        slot, position = int(state[0]), int(state[3])
        written = gather_slots(
            file=source.data.ctypes.data, file_bytes=len(source.data), slots=source.slots, count=source.item_count,
            offsets=offsets.ctypes.data, state=state.ctypes.data, scratch=scratch.ctypes.data, table=table.ctypes.data,
            table_slots=min(len(table), slots.stop - slot), out=items.ctypes.data, out_bytes=len(items),
            taken=numbers.ctypes.data,
        )  # fmt: skip
        if written < 0 or state[3] > end:
            raise CorruptIndexError("chains of an index file are damaged", path=str(source.path))
        yield SlotPiece(
            HEADER_BYTES + SLOT_BYTES * slot, table[: state[0] - slot].view(np.uint8), position, items[:written],
            numbers[: written // width],
        )  # fmt: skip
    if state[3] != end:
        raise CorruptIndexError("chains of an index file do not hold all of its items", path=str(source.path))


class Comparison:
    """Compares a compacted file, as it is read back, with the chained one that it was made of."""

    def __init__(self, source: ChainedIndexFile, compacted: ByteArray, share: SlotShare | None = None) -> None:
        """Of a ``share``, only its slots; shares that abut compare the whole."""
        self._source = source
        self._compacted = compacted
        self._share = share or _whole(source)
        slot, place = self._share.slots.start, self._share.items.start
        self._state = np.array([slot, place, source.item_count + 1, place, 0], np.int64)

    @property
    def used_slots(self) -> int:
        """Of those compared, how many have items."""
        return int(self._state[4])

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
        slot, _, _, place, _ = self._state.tolist()
        if slot != self._share.slots.stop or place != self._share.items.stop:
            raise CorruptIndexError("compaction and its source differ in length", path=str(self._source.path))
