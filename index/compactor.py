"""Makes a compacted file of a sealed chained one and trusts it only after an independent comparison.

Chains are walked side by side in slot order into a small buffer (``index.slot_pieces``); then the items are taken by
number, without a look at the chains, and looked for in the result. Beside the two maps that takes the buffers and
4 bytes a slot, however many items there are.

Crash argument: until the rename there is a file in ``tmp/``, which the next compaction begins anew; after it the
compacted file is whole, and the next open removes the sealed one of the same name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from index.chained_file import ChainedIndexFile
from index.cover import TRAILER_BYTES, Trailer, crc_of, joined_crc
from index.errors import CorruptIndexError
from index.header import END_MAGIC, MAX_FILE_BYTES, FileHeader, compacted_bytes
from index.kernels.slots import COMPARE_SCRATCH_BYTES, compare_slots
from index.slot_pieces import PIECE_BYTES, slot_pieces
from tiering.errors import InvalidRequestError, StoreError
from tiering.fs import ByteArray, FileSystem, flush_file


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
        _compare(source, fs.map_read(temporary))
        flush_file(fs, temporary)
        fs.rename(temporary, target)
    except StoreError:
        with contextlib.suppress(StoreError):
            fs.unlink(temporary)  # at once: it may hold what is left of the disk
        raise
    fs.flush_dir(target.parent)
    fs.flush_dir(tmp_dir)


def _write(fs: FileSystem, source: ChainedIndexFile, path: Path, piece_bytes: int) -> None:
    total = compacted_bytes(source.layout, source.slots, source.item_count)
    if total > MAX_FILE_BYTES:
        raise CorruptIndexError("compacted index file would not fit 32-bit positions", path=str(source.path))
    fs.create(path, total + (TRAILER_BYTES if source.trailer else 0), prewrite=False)
    old = source.header
    header = FileHeader(END_MAGIC, old.begin_ms, old.end_ms, old.used_slots, source.item_count).encode()
    file = fs.open(path)
    try:
        file.write_at(0, header)
        slots_crc, items_crc, items_bytes = crc_of(np.frombuffer(header, np.uint8)), 0, 0
        for piece in slot_pieces(source, piece_bytes):
            if len(piece.items):
                file.write_at(piece.items_position, piece.items)
            if len(piece.slots):
                file.write_at(piece.slots_position, piece.slots)
            slots_crc, items_crc = crc_of(piece.slots, slots_crc), crc_of(piece.items, items_crc)
            items_bytes += len(piece.items)
        if source.trailer is not None:
            crc = joined_crc(slots_crc, items_crc, items_bytes)
            file.write_at(total, Trailer(source.trailer.cover, source.trailer.bounds, crc).encode())
    finally:
        file.close()


def _compare(source: ChainedIndexFile, compacted: ByteArray) -> None:
    cursors = np.empty(source.slots, np.int32)
    scratch = np.empty(COMPARE_SCRATCH_BYTES, np.uint8)
    used = compare_slots(
        source.data.ctypes.data, len(source.data), source.slots, source.item_count,
        source.layout.kernel_offsets.ctypes.data, compacted.ctypes.data, len(compacted), cursors.ctypes.data,
        scratch.ctypes.data,
    )  # fmt: skip
    if used < 0:
        raise CorruptIndexError(f"compaction and its source differ in slot {-1 - used}", path=str(source.path))
    if used != source.header.used_slots:
        raise CorruptIndexError(f"header of an index file does not say {used} slots in use", path=str(source.path))
