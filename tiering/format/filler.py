"""Filler: what a removed record (erased, or its topic is not archived) leaves in a sorted segment. Big-endian, signed.

====== ==== ===== =============== ==================================================
offset size type  field           meaning
====== ==== ===== =============== ==================================================
0      4    int32 size            of the record that was here, so no position moves
4      4    int32 magic           ``TLGF``
8      4    bytes -               zero
12     4    int32 queue_id        the record's
16     4    bytes -               zero
20     8    int64 queue_offset    the record's
28     8    int64 physical_offset the record's
36     n    bytes -               zero, to the end
====== ==== ===== =============== ==================================================

Checksum: none of its own, the frame has one; every byte that must be zero is compared.
Torn write: objects appear whole or not at all. A filler is no message: a commit log never holds one, and readers of
the archive pass over it. Anything else that is no record is damage.
Written by: ``tiering.cold.segment.writer`` and ``.rewriting``. Read by: ``tiering.cold.segment.reader``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tierlog.tiering.base.errors import BadMagicError, TornRecordError
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_FILLER

HEAD = struct.Struct(">ii4xi4xqq")
_MAGIC = MAGIC_FILLER.to_bytes(4, "big")
_ZEROS = (slice(8, 12), slice(16, 20))


@dataclass(frozen=True, slots=True)
class Filler:
    """The facts that are still known of a removed record."""

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int


def make_filler(record: bytes | memoryview) -> bytes:
    """Returns the filler that takes the place of a whole record; of a filler, the same again."""
    size, _, queue_id, queue_offset, physical_offset = HEAD.unpack_from(record)
    if size != len(record) or size < FIXED_BYTES_V1:
        raise TornRecordError(f"record of {len(record)} bytes says that it has {size}")
    return HEAD.pack(size, MAGIC_FILLER, queue_id, queue_offset, physical_offset).ljust(size, b"\0")


def is_filler(data: bytes | memoryview, position: int = 0) -> bool:
    """Whether a filler begins at ``position``; whether it is whole, :func:`decode_filler` says."""
    return bytes(data[position + 4 : position + 8]) == _MAGIC


def decode_filler(data: bytes | memoryview, position: int = 0) -> Filler:
    """Decodes and checks the filler at ``position``.

    Raises :class:`BadMagicError` for anything else, :class:`TornRecordError` for one that does not fit the data or
    holds a byte that must be zero.
    """
    view = memoryview(data)
    if not is_filler(view, position):
        raise BadMagicError("not a filler", position=position)
    if len(view) - position < FIXED_BYTES_V1:
        raise TornRecordError("filler cut short", position=position)
    size, _, queue_id, queue_offset, physical_offset = HEAD.unpack_from(view, position)
    if size < FIXED_BYTES_V1 or position + size > len(view):
        raise TornRecordError(f"filler size {size} does not fit", position=position)
    filler = view[position : position + size]
    if any(any(filler[zeros]) for zeros in _ZEROS) or any(bytes(filler[HEAD.size :]).strip(b"\0")):
        raise TornRecordError("filler holds bytes that are not zero", position=position)
    return Filler(size, queue_id, queue_offset, physical_offset)
