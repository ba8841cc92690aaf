"""One classic index file, mapped. The format is ``index.classic.format``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from index.classic.format import HEADER_BYTES, ClassicHeader, check_capacity, file_bytes
from index.errors import CorruptIndexError
from index.kernels.classic import ItemRows, put_classic, walk_classic
from tiering.errors import InvalidRequestError
from tiering.fs import ByteArray, FileSystem
from tiering.kernels.scan import ScanRows


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
        """Make an empty file with all its disk blocks, behind the one whose header is ``after``.

        A file that could not be made leaves nothing behind. Raises :class:`DiskFullError` without room.
        """
        check_capacity(slots, items)
        try:
            fs.create(path, file_bytes(slots, items), prewrite=False)
            data = fs.map_write(path)
        except BaseException:
            with contextlib.suppress(OSError):
                fs.unlink(path)
            raise
        if after is not None:
            header = ClassicHeader.after(after.end_ms, after.end_offset)
            data[:HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)
        return cls(fs, path, data, slots, items)

    @classmethod
    def open(cls, fs: FileSystem, path: Path, slots: int, items: int, *, writable: bool = False) -> ClassicIndexFile:
        """Open a file of this capacity; :class:`CorruptIndexError` for any other length or a counter outside it."""
        check_capacity(slots, items)
        data = fs.map_write(path) if writable else fs.map_read(path)
        if len(data) != file_bytes(slots, items):
            raise CorruptIndexError(
                f"a classic index file of {slots} slots and {items} items has {file_bytes(slots, items)} bytes, "
                f"not {len(data)}",
                path=str(path),
            )
        file = cls(fs, path, data, slots, items)
        if file.header.next_item > items:
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

    def put(self, rows: ScanRows, keys: ItemRows, start: int, end: int) -> int:
        """Put items ``[start, end)`` of scanned rows until the file is full; returns how many went in."""
        if not 0 <= start <= end <= len(keys):
            raise InvalidRequestError(f"items {start} to {end} of {len(keys)}")
        done = put_classic(
            self._data.ctypes.data, len(self._data), self.slots, self.items, rows.ctypes.data, len(rows),
            keys.ctypes.data, start, end,
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
            self._data.ctypes.data, len(self._data), self.slots, self.items, hash, begin_ms, end_ms,
            found.ctypes.data, len(found),
        )  # fmt: skip
        offsets: list[int] = found[: max(count, 0)].tolist()
        return offsets

    def flush(self) -> None:
        """Make everything put so far durable, and the file's name."""
        file = self._fs.open(self.path)
        try:
            file.flush()
        finally:
            file.close()
        self._fs.flush_dir(self.path.parent)
