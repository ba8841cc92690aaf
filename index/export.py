"""Writes an index file of ours as RocketMQ's tiered store uploads it: a compacted file of layout ``rocketmq``.

The bytes are those of ``index.compacted_file`` with 28-byte items and no trailer. Slots, order inside a slot, begin
time and counts stay; ``hash_high``, which RocketMQ does not know, is dropped. RocketMQ keeps neither the slot count
nor the limits in a file: its ``tieredStoreIndexFileMaxHashSlotNum`` must equal the slot count of the source. It reads
at most the 1024 newest items of a slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.chained_file import ChainedIndexFile
from index.compacted_file import SLOT_ENTRY, CompactedIndexFile
from index.compactor import PIECE_ITEMS, slots_of, sorted_by_slot
from index.errors import CorruptIndexError
from index.header import END_MAGIC, FileHeader, items_position
from index.layout import ROCKETMQ, Items
from tiering.errors import InvalidRequestError
from tiering.fs import FileSystem

_FIELDS = ROCKETMQ.compacted_fields


def export_rocketmq(fs: FileSystem, source: ChainedIndexFile | CompactedIndexFile, target: Path, tmp_dir: Path) -> None:
    """Write the RocketMQ form of a sealed or compacted file to ``target``, durable with its name when this returns.

    Offsets are written as the source has them. ``tmp_dir`` is on the file system of ``target``. Raises
    :class:`CorruptIndexError` for a damaged source, then ``target`` does not come to be, and
    :class:`InvalidRequestError` for a file that is still being written.
    """
    if isinstance(source, ChainedIndexFile) and not source.is_sealed:
        raise InvalidRequestError("only a sealed index file is exported", path=str(source.path))
    source.verify()
    counts, pieces = _from_chains(source) if isinstance(source, ChainedIndexFile) else _from_slots(source)
    lengths = counts * ROCKETMQ.compacted_bytes
    table = np.empty(source.slots, SLOT_ENTRY)
    table["position"] = items_position(source.slots) + np.cumsum(lengths) - lengths
    table["length"] = lengths
    old = source.header
    header = FileHeader(END_MAGIC, old.begin_ms, old.end_ms, int(np.count_nonzero(counts)), source.item_count)
    fs.make_dirs(tmp_dir)
    temporary = tmp_dir / f"export-{target.name}"
    fs.unlink(temporary)
    file = fs.open(temporary)
    try:
        file.write_at(0, header.encode() + table.tobytes())
        position = items_position(source.slots)
        for items in pieces:
            piece = np.empty(len(items), ROCKETMQ.compacted)
            for name in _FIELDS:
                piece[name] = items[name]
            file.write_at(position, piece.view(np.uint8))
            position += piece.nbytes
        file.flush()
    finally:
        file.close()
    fs.rename(temporary, target)
    fs.flush_dir(target.parent)
    fs.flush_dir(tmp_dir)


def _from_chains(source: ChainedIndexFile) -> tuple[NDArray[np.int64], Iterator[Items]]:
    """Items of each slot, counted and in pieces in slot order."""
    items = source.all_items()[1 : source.item_count + 1]
    slot_of = slots_of(source, items)
    order = sorted_by_slot(slot_of)
    counts = np.bincount(slot_of, minlength=source.slots)
    return counts, (items[order[at : at + PIECE_ITEMS]] for at in range(0, len(order), PIECE_ITEMS))


def _from_slots(source: CompactedIndexFile) -> tuple[NDArray[np.int64], Iterator[Items]]:
    """The same for a compacted file, whose slots have to abut."""
    width = source.layout.compacted_bytes
    table = source.slot_table()
    lengths = table["length"].astype(np.int64)
    starts = items_position(source.slots) + np.cumsum(lengths) - lengths
    is_whole = lengths.sum() == width * source.item_count and not (lengths % width).any() and not (lengths < 0).any()
    if not is_whole or (table["position"] != starts).any():
        raise CorruptIndexError("slots of a compacted index file do not abut", path=str(source.path))
    items = source.all_items()
    return lengths // width, (items[at : at + PIECE_ITEMS] for at in range(0, len(items), PIECE_ITEMS))
