"""Writes an index file or object of ours as RocketMQ's tiered store uploads it: compacted, layout ``rocketmq``.

The bytes are those of ``index.local.compacted_file`` with 28-byte items and no trailer. Slots, order inside a slot,
begin time and counts stay; ``hash_high``, which RocketMQ does not know, is dropped. RocketMQ keeps neither the slot
count nor the limits in a file: its ``tieredStoreIndexFileMaxHashSlotNum`` must equal the slot count of the source. It
reads at most the 1024 newest items of a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

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
from tierlog.index.format.layout import ROCKETMQ, Items
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import SLOT_ENTRY, CompactedIndexFile
from tierlog.index.local.compaction import slot_pieces
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import FileSystem

_FIELDS = ROCKETMQ.compacted_fields
#: Items of a compacted source for one write.
_PIECE_ITEMS = 1 << 17


def export_rocketmq(fs: FileSystem, source: ChainedIndexFile | CompactedIndexFile, target: Path, tmp_dir: Path) -> None:
    """Writes the RocketMQ form of a sealed or compacted file to ``target``, durable with its name when this returns.

    Offsets are written as the source has them. ``tmp_dir`` is on the file system of ``target``. Raises
    :class:`CorruptIndexError` for a damaged source, then ``target`` does not come to be, and
    :class:`InvalidRequestError` for a file that is still being written.
    """
    if isinstance(source, ChainedIndexFile) and not source.is_sealed:
        raise InvalidRequestError("only a sealed index file is exported", path=str(source.path))
    source.verify()
    counts, pieces = _from_chains(source) if isinstance(source, ChainedIndexFile) else _from_slots(source)
    _write(fs, target, tmp_dir=tmp_dir, old=source.header, counts=counts, pieces=pieces)


def export_object(
    fs: FileSystem, reader: IndexObjectReader, *, end_ms: int, item_count: int, target: Path, tmp_dir: Path,
    slot_range: tuple[int, int] | None = None,
) -> None:  # fmt: skip
    """Writes the RocketMQ form of an index object; promises and errors as :func:`export_rocketmq`.

    ``end_ms``, ``item_count`` and ``slot_range`` are what the object's meta states: greatest store time, items, and the
    slots of a part, all others being empty. Inside a slot
    items lie by falling seconds; those of one key in equal seconds stay newest first. Offsets are the object's, cold
    ones. Items of one slot are in memory at a time.
    """
    directory = reader.page_directory()
    size = compacted_bytes(ROCKETMQ, directory.slots, item_count)
    if item_count < 1 or not 0 < size <= MAX_FILE_BYTES:
        raise CorruptIndexError(f"{directory.slots} slots and {item_count} items do not make an index file")
    slot_from, slot_end = slot_range or (0, directory.slots)
    if slot_end - slot_from > len(directory) * directory.page_bytes // SLOT_BYTES:
        raise CorruptIndexError(f"{len(directory)} pages do not hold {slot_end - slot_from} slots")
    counts = np.zeros(directory.slots, np.int64)
    old = FileHeader(END_MAGIC, directory.begin_ms, end_ms)
    _write(fs, target, tmp_dir=tmp_dir, old=old, counts=counts, pieces=_from_pages(reader, counts, item_count))


def _write(
    fs: FileSystem,
    target: Path,
    *,
    tmp_dir: Path,
    old: FileHeader,
    counts: NDArray[np.int64],
    pieces: Iterable[Items],
) -> None:
    """Writes the file, items first: ``counts``, those of each slot, are complete only after the last piece."""
    slots = len(counts)
    fs.make_dirs(tmp_dir)
    temporary = tmp_dir / f"export-{target.name}"
    fs.unlink(temporary)
    file = fs.open(temporary)
    try:
        position = items_position(slots)
        for items in pieces:
            piece = np.zeros(len(items), ROCKETMQ.compacted)  # what the source's layout lacks is 0
            for name in set(_FIELDS).intersection(items.dtype.names or ()):
                piece[name] = items[name]
            file.write_at(position, piece.view(np.uint8))
            position += piece.nbytes
        lengths = counts * ROCKETMQ.compacted_bytes
        table = np.empty(slots, SLOT_ENTRY)
        table["position"] = items_position(slots) + np.cumsum(lengths) - lengths
        table["length"] = lengths
        header = FileHeader(END_MAGIC, old.begin_ms, old.end_ms, int(np.count_nonzero(counts)), int(counts.sum()))
        file.write_at(0, header.encode() + table.tobytes())
        file.flush()
    finally:
        file.close()
    fs.rename(temporary, target)
    fs.flush_dir(target.parent)
    fs.flush_dir(tmp_dir)


def _from_chains(source: ChainedIndexFile) -> tuple[NDArray[np.int64], Iterator[Items]]:
    """Items of each slot, counted while they are taken, and in pieces in slot order."""
    counts = np.zeros(source.slots, np.int64)

    def pieces() -> Iterator[Items]:
        for piece in slot_pieces(source):
            at = (piece.slots_position - HEADER_BYTES) // SLOT_BYTES
            lengths = piece.slots.view(SLOT_ENTRY)["length"]
            counts[at : at + len(lengths)] = lengths // source.layout.compacted_bytes
            if len(piece.items):
                yield piece.items.view(source.layout.compacted)

    return counts, pieces()


def _from_slots(source: CompactedIndexFile) -> tuple[NDArray[np.int64], Iterator[Items]]:
    """Counts and yields the items of a compacted file, whose slots have to abut."""
    width = source.layout.compacted_bytes
    table = source.slot_table()
    lengths = table["length"].astype(np.int64)
    starts = items_position(source.slots) + np.cumsum(lengths) - lengths
    is_whole = lengths.sum() == width * source.item_count and not (lengths % width).any() and not (lengths < 0).any()
    if not is_whole or (table["position"] != starts).any():
        raise CorruptIndexError("slots of a compacted index file do not abut", path=str(source.path))
    items = source.all_items()
    return lengths // width, (items[at : at + _PIECE_ITEMS] for at in range(0, len(items), _PIECE_ITEMS))


def _from_pages(reader: IndexObjectReader, counts: NDArray[np.int64], item_count: int) -> Iterator[Items]:
    """Items of an object in slot order, newest seconds first in each; fills ``counts`` on the way."""
    directory = reader.page_directory()
    kept: list[Items] = []  # of a slot that may go on in the next page
    for number in range(len(directory)):
        items = reader.page(number).items
        slot_of = _slots_in_order(items, counts)
        kept.append(items)
        last = number + 1 == len(directory)
        open_slot = None if last else int(directory.rows["slot"][number + 1])
        done = len(items) if open_slot is None else int(np.searchsorted(slot_of, open_slot))
        if done or last:
            piece = np.concatenate([*kept[:-1], items[:done]])
            kept = [items[done:]]
            # slots rise already: a stable sort keeps what is newest first in equal seconds
            yield piece[np.lexsort((-piece["seconds"].astype(np.int64), piece["hash"].astype(np.int64) % len(counts)))]
    if counts.sum() != item_count:
        raise CorruptIndexError(f"index object holds {int(counts.sum())} items, its meta says {item_count}")


def _slots_in_order(items: Items, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the slot of each item of a page, added to ``counts``; no slot may come after a higher one."""
    hashes = items["hash"].astype(np.int64)
    slot_of: NDArray[np.int64] = hashes % len(counts)
    if not len(items):
        return slot_of
    if hashes.min() < 0 or (np.diff(slot_of) < 0).any() or counts[int(slot_of[0]) + 1 :].any():
        raise CorruptIndexError("items of an index object do not lie slot by slot")
    np.add.at(counts, slot_of, 1)
    return slot_of
