"""A sealed file's items in the order of a compacted one, piece by piece: memory does not grow with the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.chained_file import ChainedIndexFile
from index.compacted_file import SLOT_ENTRY
from index.errors import CorruptIndexError
from index.header import HEADER_BYTES, SLOT_BYTES, items_position
from index.kernels.slots import GATHER_SCRATCH_BYTES, ROUNDS, gather_slots
from tiering.errors import InvalidRequestError
from tiering.fs import ByteArray

#: Bytes of items, and at most of slots too, that are laid out at a time.
PIECE_BYTES = 1 << 20
#: Pieces whose arrays are in memory: one is gathered while those before it are still read.
PIECES_HELD = 3


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
    """Walk the chains of a sealed file in slot order, each newest first.

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
            source.data.ctypes.data, len(source.data), source.slots, source.item_count, offsets.ctypes.data,
            state.ctypes.data, scratch.ctypes.data, table.ctypes.data, len(table), items.ctypes.data, len(items),
            numbers.ctypes.data,
        )  # fmt: skip
        if written < 0 or state[3] > end:
            raise CorruptIndexError("chains of an index file are damaged", path=str(source.path))
        slots = table[: state[0] - slot].view(np.uint8)
        taken = numbers[: written // source.layout.compacted_bytes]
        yield SlotPiece(HEADER_BYTES + SLOT_BYTES * slot, slots, position, items[:written], taken)
    if state[3] != end:
        raise CorruptIndexError("chains of an index file do not hold all of its items", path=str(source.path))
