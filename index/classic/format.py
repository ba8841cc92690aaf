"""RocketMQ's classic index file (``index/<17 digits>``) in plain Python: the oracle of ``index.kernels.classic``.

Big-endian. A header of 40 bytes, slots of int32 (number of the newest item, 0 = none), items of 20 bytes:

====== ==== ===== ============ ============================================================
offset size type  field        meaning
====== ==== ===== ============ ============================================================
0      8    int64 begin_ms     store time of the first item
8      8    int64 end_ms       store time of the last item
16     8    int64 begin_offset physical offset of the first item
24     8    int64 end_offset   physical offset of the last item
32     4    int32 used_slots   slots in use; files of old brokers count every item here
36     4    int32 counter      number of the next item; 0 or less reads as 1
40     4    int32 hash         first field of an item: ``key_hash`` of its key string
44     8    int64 offset       physical offset of the record
52     4    int32 seconds      whole seconds after ``begin_ms``, never negative
56     4    int32 previous     older item of the same slot, 0 = none
====== ==== ===== ============ ============================================================

Total 60. Item 0 is never used, so a file takes one key less than it has items. Neither capacity is in the file: both
are settings. A key string is ``topic#key``, or ``topic#T#tags`` for the tags of a message.

Two properties are RocketMQ's and kept for the sake of equal bytes. A file opened after another starts with the
end time and offset of that one, and its first item takes its seconds from that time, after which ``begin_ms`` becomes
the item's own: the first item reads back too late. And ``end_ms`` is the last time put, not the greatest.

Checksum: none. Torn write: not to be told from a good file, see ``index.classic.index``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiering.errors import InvalidRequestError
from tiering.format.hashing import key_hash
from tiering.format.properties import KEYS, TAGS, UNIQ_KEY
from tiering.format.record import TRANSACTION_MASK, Record, SysFlag
from tiering.fs import ByteArray

HEADER_BYTES = 40
SLOT_BYTES = 4
ITEM_BYTES = 20
MAX_FILE_BYTES = (1 << 31) - 1
#: An item as a packed numpy dtype.
ITEM_DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
#: A classic file's name: local time of its creation to the millisecond, ``yyyyMMddHHmmssSSS``.
FILE_NAME = re.compile(r"[0-9]{17}")
#: What stands between topic and tags in the key string of a tag item.
TAG_TYPE = "T#"

_HEADER = struct.Struct(">qqqqii")
_ITEM = struct.Struct(">iqii")
_MAX_SECONDS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ClassicHeader:
    """The first 40 bytes of a classic index file."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """The header's bytes."""
        return _HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.counter
        )

    @classmethod
    def decode(cls, data: bytes | bytearray | ByteArray) -> ClassicHeader:
        """Read a header; the caller has checked the length."""
        return cls(*_HEADER.unpack(bytes(data[:HEADER_BYTES])))

    @classmethod
    def after(cls, end_ms: int, end_offset: int) -> ClassicHeader:
        """The header of a new file behind one that ends like this; 0 and 0 for the first file."""
        time, offset = max(end_ms, 0), max(end_offset, 0)
        return cls(time, time, offset, offset)

    @property
    def next_item(self) -> int:
        """Number of the next item; 1 in an empty file."""
        return max(self.counter, 1)

    def may_hold(self, begin_ms: int, end_ms: int) -> bool:
        """Whether RocketMQ looks into the file for times from ``begin_ms`` to ``end_ms``, both included."""
        return (
            (begin_ms < self.begin_ms and end_ms > self.end_ms)
            or self.begin_ms <= begin_ms <= self.end_ms
            or self.begin_ms <= end_ms <= self.end_ms
        )


def file_bytes(slots: int, items: int) -> int:
    """Length of a file; ``items`` counts the unused item 0."""
    return HEADER_BYTES + SLOT_BYTES * slots + ITEM_BYTES * items


def check_capacity(slots: int, items: int) -> None:
    """Raise :class:`InvalidRequestError` for a capacity that a file cannot have."""
    if slots < 1 or items < 2:
        raise InvalidRequestError(f"a classic index file has at least 1 slot and 2 items, not {slots} and {items}")
    if file_bytes(slots, items) > MAX_FILE_BYTES:
        raise InvalidRequestError(
            f"{slots} slots and {items} items do not fit a classic index file, which stays below 2 GiB",
            hint="use fewer items",
        )


def classic_hashes(record: Record) -> list[int]:
    """Hash of every item of a record in the order of its items; a key given twice has two."""
    if record.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
        return []
    properties = record.properties
    keys = [properties.get(UNIQ_KEY, ""), *properties.get(KEYS, "").split(" ")]
    hashes = [key_hash(record.topic, key) for key in keys if key]
    if tags := properties.get(TAGS, ""):
        hashes.append(key_hash(record.topic, TAG_TYPE + tags))
    return hashes


class PlainClassicFile:
    """A classic index file as a bytearray."""

    def __init__(self, slots: int, items: int, *, after: ClassicHeader | None = None) -> None:
        """An empty file; ``after`` is the header of the file before it."""
        self.slots = slots
        self.items = items
        self.data = bytearray(file_bytes(slots, items))
        if after is not None:
            self.data[:HEADER_BYTES] = ClassicHeader.after(after.end_ms, after.end_offset).encode()

    @property
    def header(self) -> ClassicHeader:
        """The header as it lies in the bytes."""
        return ClassicHeader.decode(self.data)

    def _slot_at(self, hash: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * (hash % self.slots)

    def _item_at(self, number: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots + ITEM_BYTES * number

    def _newest(self, hash: int) -> int:
        at = self._slot_at(hash)
        number = int.from_bytes(self.data[at : at + SLOT_BYTES], "big", signed=True)
        return number if 0 < number <= min(self.header.next_item, self.items - 1) else 0

    def put(self, hash: int, offset: int, store_ms: int) -> bool:
        """Put one item; False if the file is full."""
        header = self.header
        number = header.next_item
        if number >= self.items:
            return False
        previous = self._newest(hash)
        difference = store_ms - header.begin_ms
        seconds = min(difference // 1000, _MAX_SECONDS) if header.begin_ms > 0 and difference > 0 else 0
        _ITEM.pack_into(self.data, self._item_at(number), hash, offset, seconds, previous)
        self.data[self._slot_at(hash) : self._slot_at(hash) + SLOT_BYTES] = number.to_bytes(4, "big")
        begin = (store_ms, offset) if number == 1 else (header.begin_ms, header.begin_offset)
        self.data[:HEADER_BYTES] = ClassicHeader(
            begin[0], store_ms, begin[1], offset, header.used_slots + (previous == 0), number + 1
        ).encode()
        return True

    def query(self, hash: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of items with this hash and a time in the closed range, newest first."""
        header = self.header
        found: list[int] = []
        number = self._newest(hash) if header.next_item > 1 else 0
        while number and len(found) < limit:
            item_hash, offset, seconds, previous = _ITEM.unpack_from(self.data, self._item_at(number))
            time = header.begin_ms + seconds * 1000
            if seconds < 0:
                break
            if item_hash == hash and begin_ms <= time <= end_ms:
                found.append(offset)
            if time < begin_ms or not 0 < previous < number:
                break
            number = previous
        return found


def plain_items(records: Sequence[Record]) -> list[tuple[int, int]]:
    """(row, hash) of every item of consecutive records, as ``hash_classic_items`` emits them."""
    return [(row, hash) for row, record in enumerate(records) for hash in classic_hashes(record)]
