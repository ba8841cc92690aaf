"""A file system for work beside requests that may outlast its store: every change asks first whether it may be made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tiering.fs import ByteArray, File, FileSystem

Gate = Callable[[], AbstractContextManager[None]]


class _GatedFile:
    def __init__(self, inner: File, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def write_at(self, position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
        with self._gate():
            self._inner.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        return self._inner.read_at(position, length)

    def zero(self, start: int, end: int) -> None:
        with self._gate():
            self._inner.zero(start, end)

    def flush(self) -> None:
        with self._gate():
            self._inner.flush()

    def close(self) -> None:
        self._inner.close()


class GatedFileSystem:
    """Every changing call is made inside ``gate()``, which raises once nothing is to change any more.

    Writes through :meth:`map_write` are not seen here.
    """

    def __init__(self, inner: FileSystem, gate: Gate) -> None:
        self._gate = gate
        self.exists = inner.exists
        self.list_dir = inner.list_dir
        self.is_dir = inner.is_dir
        self.size = inner.size
        self.read = inner.read
        self.map_read = inner.map_read
        self.map_write = inner.map_write
        self.map_private = inner.map_private
        self.lock = inner.lock
        self.is_locked = inner.is_locked
        self.free_bytes = inner.free_bytes
        self.total_bytes = inner.total_bytes
        self._inner = inner

    def make_dirs(self, path: Path) -> None:
        """Create a folder and its parents."""
        with self._gate():
            self._inner.make_dirs(path)

    def create(self, path: Path, size_bytes: int, *, prewrite: bool) -> None:
        """Create a file of zeros."""
        with self._gate():
            self._inner.create(path, size_bytes, prewrite=prewrite)

    def open(self, path: Path) -> File:
        """Open a file whose changes are gated too."""
        with self._gate():  # it may come to be here
            return _GatedFile(self._inner.open(path), self._gate)

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """Flush a part of a map."""
        with self._gate():
            self._inner.flush_mapped(path, mapped, start, end)

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target``."""
        with self._gate():
            self._inner.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        with self._gate():
            self._inner.unlink(path)

    def remove_dir(self, path: Path) -> None:
        """Remove an empty folder."""
        with self._gate():
            self._inner.remove_dir(path)

    def flush_dir(self, path: Path) -> None:
        """Make names durable."""
        with self._gate():
            self._inner.flush_dir(path)
