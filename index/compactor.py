"""Makes a compacted file of a sealed chained one and trusts it only after an independent comparison."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.chained_file import ChainedIndexFile
from index.compacted_file import SLOT_ENTRY
from index.cover import TRAILER_BYTES, Trailer, crc_of
from index.errors import CorruptIndexError
from index.header import END_MAGIC, HEADER_BYTES, FileHeader, compacted_bytes, items_position
from index.kernels.chains import compare_compacted
from index.layout import Items
from tiering.errors import InvalidRequestError, StoreError
from tiering.fs import ByteArray, FileSystem, flush_file

#: Items gathered for one write.
PIECE_ITEMS = 1 << 17


def compact(fs: FileSystem, source: ChainedIndexFile, target: Path, tmp_dir: Path) -> None:
    """Write the compacted form of a sealed file to ``target``, durable with its name when this returns.

    Items are sorted by number; the result is then compared with the chains, slot by slot. Raises
    :class:`CorruptIndexError` if the source is damaged or the two differ: the source is never touched, and
    ``target`` does not come to be.
    """
    if not source.is_sealed:
        raise InvalidRequestError("only a sealed index file is compacted", path=str(source.path))
    source.verify()
    fs.make_dirs(tmp_dir)
    temporary = tmp_dir / f"compact-{target.name}"
    try:
        _write(fs, source, temporary)
        _compare(source, fs.map_read(temporary))
    except CorruptIndexError:
        with contextlib.suppress(StoreError):
            fs.unlink(temporary)
        raise
    flush_file(fs, temporary)
    fs.rename(temporary, target)
    fs.flush_dir(target.parent)
    fs.flush_dir(tmp_dir)


def slots_of(source: ChainedIndexFile, items: Items) -> NDArray[np.int32]:
    """The slot of each item; :class:`CorruptIndexError` for a hash that has none."""
    hashes = items["hash"].astype(np.int64)
    if len(hashes) and hashes.min() < 0:
        raise CorruptIndexError("an index item has a negative hash", path=str(source.path))
    slot_of: NDArray[np.int32] = (hashes % source.slots).astype(np.int32)
    return slot_of


def sorted_by_slot(slot_of: NDArray[np.int32]) -> NDArray[np.int64]:
    """Order of items 1.. (as indexes from 0) by slot, and by falling number inside a slot."""
    order = np.argsort(slot_of[::-1], kind="stable")
    np.subtract(len(slot_of) - 1, order, out=order)
    return order


def _write(fs: FileSystem, source: ChainedIndexFile, path: Path) -> None:
    layout, slots, count = source.layout, source.slots, source.item_count
    items = source.all_items()[1 : count + 1]
    slot_of = slots_of(source, items)
    order = sorted_by_slot(slot_of)
    lengths = np.bincount(slot_of, minlength=slots) * layout.compacted_bytes
    table = np.empty(slots, SLOT_ENTRY)
    table["position"] = items_position(slots) + np.cumsum(lengths) - lengths
    table["length"] = lengths
    total = compacted_bytes(layout, slots, count)
    fs.create(path, total + (TRAILER_BYTES if source.trailer else 0), prewrite=False)
    old = source.header
    header = FileHeader(END_MAGIC, old.begin_ms, old.end_ms, old.used_slots, count)
    file = fs.open(path)
    try:
        position, crc = 0, 0

        def append(data: ByteArray) -> None:
            nonlocal position, crc
            file.write_at(position, data)
            position += len(data)
            crc = crc_of(data, crc)

        append(np.frombuffer(header.encode(), np.uint8))
        append(table.view(np.uint8))
        for start in range(0, count, PIECE_ITEMS):
            piece = source.compacted_form(items[order[start : start + PIECE_ITEMS]])
            append(piece.view(np.uint8))
        if source.trailer is not None:
            trailer = Trailer(source.trailer.cover, source.trailer.bounds, crc)
            append(np.frombuffer(trailer.encode(), np.uint8))
    finally:
        file.close()


def _compare(source: ChainedIndexFile, compacted: ByteArray) -> None:
    layout, slots = source.layout, source.slots
    pairs = layout.kernel_pairs
    bad = compare_compacted(
        source.data.ctypes.data, len(source.data), slots, source.item_count,
        layout.kernel_offsets.ctypes.data, pairs.ctypes.data, len(pairs), compacted.ctypes.data,
        len(compacted), layout.compacted_bytes,
    )  # fmt: skip
    used = int(np.count_nonzero(compacted[HEADER_BYTES : items_position(slots)].view(SLOT_ENTRY)["length"]))
    if bad >= 0 or used != source.header.used_slots:
        raise CorruptIndexError(
            f"compaction and chains differ from slot {bad if bad >= 0 else 'count'} on", path=str(source.path)
        )
