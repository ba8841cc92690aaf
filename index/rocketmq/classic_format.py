"""RocketMQ's classic index file (``index/<17 digits>``), and the checkpoint that tierlog keeps beside these files.

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

Checksum: none. Torn write: not to be told from a good file, so a file of its own says what counts.

``tierlog/classic_index.json`` is how far the classic index is durable, and where to go on. A classic file cannot say so
itself: it has no checksum, and its header reaches the disk whenever the system likes.

========= ========================================================================================
field     meaning
========= ========================================================================================
version   1
slots     capacity of every file; another setting means that all are made again
items     the same, the unused item 0 included
files     names of full files, flushed before they were named here, never written again
next      record from which to go on behind those files, and how many of its items they hold already
keys
written   null, or the state of the last checkpoint: ``name`` of the file then being written (null if
          none), its ``count`` of flushed items, the ``begin_ms`` and ``end_ms`` of its header, and
          ``next`` and ``keys`` behind them
========= ========================================================================================

JSON, UTF-8, replaced atomically after what it speaks of was flushed. Absent or unreadable: no file counts, and all are
derived again. A file that is written is as good as its first ``count`` items, which never change: the rest of it is
made of them again. Written and read by: ``index.rocketmq.classic_index``.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, replace

import numpy as np

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.format.properties import KEYS, TAGS, UNIQ_KEY
from tierlog.tiering.format.record import TRANSACTION_MASK, Record, SysFlag

HEADER_BYTES = 40
SLOT_BYTES = 4
#: An item: hash, offset, seconds, previous.
ITEM = struct.Struct(">iqii")
ITEM_BYTES = ITEM.size
MAX_FILE_BYTES = (1 << 31) - 1
CHECKPOINT_VERSION = 1
#: An item as a packed numpy dtype.
ITEM_DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
#: A classic file's name: local time of its creation to the millisecond, ``yyyyMMddHHmmssSSS``.
FILE_NAME = re.compile(r"[0-9]{17}")
#: What stands between topic and tags in the key string of a tag item.
TAG_TYPE = "T#"

_HEADER = struct.Struct(">qqqqii")


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
        """Returns the header's bytes."""
        return _HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.counter
        )

    @classmethod
    def decode(cls, data: bytes | bytearray | ByteArray) -> ClassicHeader:
        """Reads a header; the caller has checked the length."""
        return cls(*_HEADER.unpack(bytes(data[:HEADER_BYTES])))

    @classmethod
    def after(cls, end_ms: int, end_offset: int) -> ClassicHeader:
        """Returns the header of a new file behind one that ends like this; 0 and 0 for the first file."""
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
    """Raises :class:`InvalidRequestError` for a capacity that a file cannot have."""
    if slots < 1 or items < 2:
        raise InvalidRequestError(f"a classic index file has at least 1 slot and 2 items, not {slots} and {items}")
    if file_bytes(slots, items) > MAX_FILE_BYTES:
        raise InvalidRequestError(
            f"{slots} slots and {items} items do not fit a classic index file, which stays below 2 GiB",
            hint="use fewer items",
        )


def classic_hashes(record: Record) -> list[int]:
    """Hashes of every item of a record in the order of its items; a key given twice has two."""
    if record.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
        return []
    properties = record.properties
    keys = [properties.get(UNIQ_KEY, ""), *properties.get(KEYS, "").split(" ")]
    hashes = [key_hash(record.topic, key) for key in keys if key]
    if tags := properties.get(TAGS, ""):
        hashes.append(key_hash(record.topic, TAG_TYPE + tags))
    return hashes


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two items: the first record not wholly indexed, and how many of its items are."""

    next: int
    keys: int = 0


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """The state of the file behind the full ones, as far as it is durable."""

    name: str | None
    count: int
    begin_ms: int
    end_ms: int
    position: Position


@dataclass(frozen=True, slots=True)
class ClassicCheckpoint:
    """The state of one classic index."""

    slots: int
    items: int
    files: tuple[str, ...]
    position: Position
    written: WrittenFile | None = None

    def with_written(self, written: WrittenFile | None) -> ClassicCheckpoint:
        """Returns the same checkpoint with another state behind the full files."""
        return replace(self, written=written)

    def encode(self) -> bytes:
        """Returns the file's bytes."""
        written = self.written
        document = {
            "version": CHECKPOINT_VERSION, "slots": self.slots, "items": self.items, "files": list(self.files),
            "next": self.position.next, "keys": self.position.keys,
            "written": written and {
                "name": written.name, "count": written.count, "begin_ms": written.begin_ms, "end_ms": written.end_ms,
                "next": written.position.next, "keys": written.position.keys,
            },
        }  # fmt: skip
        return (json.dumps(document) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> ClassicCheckpoint | None:
        """Reads the file; None for anything this program did not write."""
        try:
            document = json.loads(data)
            if document["version"] != CHECKPOINT_VERSION:
                return None
            files, written = tuple(document["files"]), document["written"]
            names = [*files, *([written["name"]] if written and written["name"] is not None else [])]
            if not all(FILE_NAME.fullmatch(name) for name in names):
                return None
            return cls(
                int(document["slots"]),
                int(document["items"]),
                files,
                _position(document),
                written
                and WrittenFile(
                    written["name"],
                    int(written["count"]),
                    int(written["begin_ms"]),
                    int(written["end_ms"]),
                    _position(written),
                ),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def _position(document: dict[str, int]) -> Position:
    return Position(int(document["next"]), int(document["keys"]))
