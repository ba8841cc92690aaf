"""A mapped classic index file, and queries of several of them in RocketMQ's order and with RocketMQ's limits.

The format is ``index.rocketmq.classic_format``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import Items
from tierlog.index.kernels.classic import ItemRows, put_classic, relink_classic, walk_classic
from tierlog.index.rocketmq.classic_format import (
    HEADER_BYTES,
    ITEM_BYTES,
    ITEM_DTYPE,
    SLOT_BYTES,
    ClassicHeader,
    check_capacity,
    file_bytes,
)
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.fs import ByteArray, FileSystem, flush_file
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.kernels.scan import ScanRows

#: RocketMQ's ``maxMsgsNumBatch``.
MOST_OFFSETS = 64
_PIECE_BYTES = 1 << 20


class ClassicIndexFile:
    """A classic file. One thread puts; any number of threads query beside it without locks."""

    def __init__(self, fs: FileSystem, path: Path, data: ByteArray, slots: int, items: int) -> None:
        self._fs = fs
        self._data = data
        self.path = path
        self.slots = slots
        self.items = items

    @classmethod
    def create(
        cls, fs: FileSystem, path: Path, slots: int, items: int, *, after: ClassicHeader | None
    ) -> ClassicIndexFile:
        """Makes an empty file with all its disk blocks, its name durable, behind the one whose header is ``after``.

        A file that could not be made leaves nothing behind. Raises :class:`DiskFullError` without room.
        """
        check_capacity(slots, items)
        try:
            fs.create(path, file_bytes(slots, items), prewrite=False)
            fs.flush_dir(path.parent)
            data = fs.map_write(path)
        except BaseException:
            with contextlib.suppress(StoreError):
                fs.unlink(path)
            raise
        if after is not None:
            header = ClassicHeader.after(after.end_ms, after.end_offset)
            data[:HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)
        return cls(fs, path, data, slots, items)

    @classmethod
    def open(
        cls, fs: FileSystem, path: Path, slots: int, items: int, *, writable: bool = False, check: bool = True
    ) -> ClassicIndexFile:
        """Opens a file of this capacity; :class:`CorruptIndexError` for any other length or a counter outside it.

        Without ``check`` nothing is asked of its contents: :meth:`truncate` it.
        """
        check_capacity(slots, items)
        data = fs.map_write(path) if writable else fs.map_read(path)
        if len(data) != file_bytes(slots, items):
            raise CorruptIndexError(
                f"a classic index file of {slots} slots and {items} items has {file_bytes(slots, items)} bytes, "
                f"not {len(data)}",
                path=str(path),
            )
        file = cls(fs, path, data, slots, items)
        if check and file.header.next_item > items:
            raise CorruptIndexError(
                "item counter of a classic index file is out of bounds", path=str(path), position=36
            )
        return file

    @property
    def header(self) -> ClassicHeader:
        """The header as it lies in the file."""
        return ClassicHeader.decode(self._data)

    @property
    def is_full(self) -> bool:
        """Whether no further item fits."""
        return self.header.next_item >= self.items

    @property
    def item_count(self) -> int:
        """Items put."""
        return self.header.next_item - 1

    def all_items(self) -> Items:
        """Every item put, by number, as a view of the map."""
        return self._data[self._item_at(1) : self._item_at(self.header.next_item)].view(ITEM_DTYPE)

    def put(self, rows: ScanRows, keys: ItemRows, start: int, end: int) -> int:
        """Puts items ``[start, end)`` of scanned rows until the file is full; returns how many went in."""
        if not 0 <= start <= end <= len(keys):
            raise InvalidRequestError(f"items {start} to {end} of {len(keys)}")
        done = put_classic(
            file=self._data.ctypes.data, file_bytes=len(self._data), slots=self.slots, items=self.items,
            rows=rows.ctypes.data, row_count=len(rows), keys=keys.ctypes.data, start=start, end=end,
        )  # fmt: skip
        if done < 0:
            raise CorruptIndexError("classic index file and items do not fit each other", path=str(self.path))
        return int(done)

    def query(self, hash: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of at most ``limit`` items with a hash and a time in the closed range, newest first.

        Times are those RocketMQ reads: whole seconds, never rounded up, and too late for the first item of a second
        file. A damaged chain ends early; what it leads to has to be checked on the record anyway.
        """
        if limit <= 0:
            return []
        found = np.empty(min(limit, self.items), np.int64)
        count = walk_classic(
            file=self._data.ctypes.data, file_bytes=len(self._data), slots=self.slots, items=self.items, hash=hash,
            begin_ms=begin_ms, end_ms=end_ms, out=found.ctypes.data, capacity=len(found),
        )  # fmt: skip
        offsets: list[int] = found[: max(count, 0)].tolist()
        return offsets

    def truncate(self, count: int, begin_ms: int, end_ms: int) -> None:
        """Forgets all but the first ``count`` items, at least one, whatever header, slots and what follows hold.

        Times are those of the first and the last of them. Items never change, so after a crash the file is as good as
        the items that were flushed. Raises :class:`CorruptIndexError` if these are not what they were.
        """
        if not 1 <= count < self.items:
            raise CorruptIndexError(f"a classic index file of {self.items} items has no {count}", path=str(self.path))
        data = self._data
        data[HEADER_BYTES : self._item_at(0)] = 0
        used = relink_classic(data.ctypes.data, len(data), self.slots, self.items, count)
        if used < 0:
            raise CorruptIndexError("items of a classic index file contradict their chains", path=str(self.path))
        for at in range(self._item_at(count + 1), len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            if piece.any():  # a page that is only read stays clean
                piece[:] = 0
        first, last = self._offset_of(1), self._offset_of(count)
        header = ClassicHeader(
            begin_ms=begin_ms,
            end_ms=end_ms,
            begin_offset=first,
            end_offset=last,
            used_slots=int(used),
            counter=count + 1,
        )
        data[:HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)

    def _item_at(self, number: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots + ITEM_BYTES * number

    def _offset_of(self, number: int) -> int:
        at = self._item_at(number) + 4
        return int.from_bytes(bytes(self._data[at : at + 8]), "big", signed=True)

    def flush_items(self, start: int, end: int) -> None:
        """Makes items ``[start, end)`` durable and nothing else: header and slots can be made of them."""
        self._fs.flush_mapped(self.path, self._data, self._item_at(start), self._item_at(end))

    def flush(self) -> None:
        """Makes everything put so far durable."""
        flush_file(self._fs, self.path)


@dataclass
class QueryOffsets:
    """The places where messages with a key may lie, and how far the index reaches."""

    offsets: list[int] = field(default_factory=list)
    """Physical offsets as they were found: newest file first, newest item first. Other keys of equal hash included."""
    last_update_ms: int = 0
    last_update_offset: int = 0


def query_files(
    files: Sequence[ClassicIndexFile], topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int
) -> QueryOffsets:
    """Looks into ``files``, which are in the order of their names, for a closed range of store times.

    At most 64 offsets, over all files together. ``key`` is ``T#tags`` for a search by tags. Times are whole seconds
    (``ClassicIndexFile.query``): a caller who needs them exact asks one second wider and reads the records.
    """
    answer = QueryOffsets()
    limit = min(limit, MOST_OFFSETS)
    hash = key_hash(topic, key)
    for file in reversed(files):
        header = file.header
        if file is files[-1]:
            answer.last_update_ms, answer.last_update_offset = header.end_ms, header.end_offset
        if header.may_hold(begin_ms, end_ms):
            answer.offsets += file.query(hash, limit - len(answer.offsets), begin_ms, end_ms)
        if header.begin_ms < begin_ms or len(answer.offsets) >= limit:
            break
    return answer
