"""Header and sizes of an index file, chained or compacted. Big-endian.

====== ==== ===== ========== ===============================================================
offset size type  field      meaning
====== ==== ===== ========== ===============================================================
0      4    int32 magic      begin magic; end magic once the file takes no further key
4      8    int64 begin_ms   begin time; seconds of items count from here
12     8    int64 end_ms     greatest store time put; 0 in a new file
20     4    int32 used_slots slots that are not empty
24     4    int32 item_count items put; they are numbered from 1
====== ==== ===== ========== ===============================================================

28 bytes, then 8 bytes a slot, then items. Checksum: in the trailer (``index.format.trailer``) of a covered layout.
Torn write: a sealed file was flushed before it got its name; the header of the file being written is made again of its
flushed items (``index.format.checkpoint``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import ItemLayout
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray

BEGIN_MAGIC = 0xBCC50289 - (1 << 32)
END_MAGIC = 0xBCC50285 - (1 << 32)
HEADER_BYTES = 28
SLOT_BYTES = 8
#: Of a new file, unless somebody wants others. Objects of one slot count can be merged.
DEFAULT_SLOTS = 5_000_000
DEFAULT_ITEMS = 20_000_000
#: Compacted slots hold 32-bit positions.
MAX_FILE_BYTES = (1 << 31) - 1

_HEADER = struct.Struct(">iqqii")


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first 28 bytes of an index file."""

    magic: int
    begin_ms: int
    end_ms: int = 0
    used_slots: int = 0
    item_count: int = 0

    def encode(self) -> bytes:
        """Returns the header's bytes."""
        return _HEADER.pack(self.magic, self.begin_ms, self.end_ms, self.used_slots, self.item_count)

    @classmethod
    def decode(cls, data: bytes | ByteArray, path: str | None = None) -> FileHeader:
        """Reads a header; :class:`CorruptIndexError` if it is cut short or has no magic of an index file."""
        if len(data) < HEADER_BYTES:
            raise CorruptIndexError("index file without a header", path=path)
        header = cls(*_HEADER.unpack(bytes(data[:HEADER_BYTES])))
        if header.magic not in (BEGIN_MAGIC, END_MAGIC):
            raise CorruptIndexError("not an index file", path=path, position=0)
        return header


def items_position(slots: int) -> int:
    """Returns the position where items start: item 0 of a chained file, the first item of a compacted one."""
    return HEADER_BYTES + SLOT_BYTES * slots


def chained_bytes(layout: ItemLayout, slots: int, items: int) -> int:
    """Bytes of a chained file without trailer; ``items`` counts the unused item 0."""
    return items_position(slots) + layout.chained_bytes * items


def compacted_bytes(layout: ItemLayout, slots: int, item_count: int) -> int:
    """Bytes of a compacted file without trailer."""
    return items_position(slots) + layout.compacted_bytes * item_count


def check_capacity(layout: ItemLayout, slots: int, items: int) -> None:
    """Raises :class:`InvalidRequestError` for a capacity that a file cannot have."""
    if slots < 1 or items < 2:
        raise InvalidRequestError(f"an index file has at least 1 slot and 2 items, not {slots} and {items}")
    if compacted_bytes(layout, slots, items) > MAX_FILE_BYTES:
        raise InvalidRequestError(
            f"{slots} slots and {items} items do not fit a file with 32-bit positions", hint="use fewer items"
        )
