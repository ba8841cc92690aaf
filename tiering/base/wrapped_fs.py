"""File systems around another: one whose changes stay in memory, and one that asks before each change.

:class:`OverlayFileSystem` is how a store is opened read-only, even one that is in use. Recovery, derivation and
everything else run unchanged on top; nothing reaches the disk. Existing files are mapped privately, copy on write, so a
change costs the pages it touches.

:class:`GatedFileSystem` is for work beside requests that may outlast its store: every change asks first whether it may
be made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from tierlog.tiering.base.errors import NotFoundError
from tierlog.tiering.base.fs import ByteArray, File, FileSystem

_PIECE_BYTES = 1 << 20
Gate = Callable[[], AbstractContextManager[None]]


class _OverlayFile:
    def __init__(self, owner: OverlayFileSystem, path: Path) -> None:
        self._owner = owner
        self._path = path

    def write_at(self, position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
        source = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        self._owner.writable(self._path, position + len(source))[position : position + len(source)] = source

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._owner.map_read(self._path)[position : position + length])

    def zero(self, start: int, end: int) -> None:
        content = self._owner.writable(self._path, end)
        for at in range(start, end, _PIECE_BYTES):
            piece = content[at : min(at + _PIECE_BYTES, end)]
            if piece.any():  # a page that is only read stays shared with the file
                piece[:] = 0

    def first_hole(self, position: int) -> int:
        return len(self._owner.map_read(self._path))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class OverlayFileSystem:
    """Reads from ``base``, keeps every change to itself."""

    def __init__(self, base: FileSystem) -> None:
        self._base = base
        self._files: dict[Path, ByteArray] = {}
        self._folders: set[Path] = set()
        self._removed: set[Path] = set()

    def writable(self, path: Path, size_bytes: int) -> ByteArray:
        """Returns the file's private bytes, at least ``size_bytes`` long."""
        content = self._files.get(path)
        if content is None:
            self._removed.discard(path)
            content = self._base.map_private(path) if self._base.exists(path) else np.empty(0, np.uint8)
        if len(content) < size_bytes:
            content = np.concatenate((content, np.zeros(size_bytes - len(content), np.uint8)))
        self._files[path] = content
        return content

    def exists(self, path: Path) -> bool:
        if path in self._files or path in self._folders:
            return True
        return path not in self._removed and self._base.exists(path)

    def list_dir(self, path: Path) -> list[str]:
        names = {name for name in self._base.list_dir(path) if path / name not in self._removed}
        names |= {file.name for file in (*self._files, *self._folders) if file.parent == path}
        return sorted(names)

    def is_dir(self, path: Path) -> bool:
        return path in self._folders or self._base.is_dir(path)

    def size(self, path: Path) -> int:
        return len(self._files[path]) if path in self._files else self._base.size(self._present(path))

    def make_dirs(self, path: Path) -> None:
        while not self._base.exists(path):
            self._folders.add(path)
            path = path.parent

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        """A file of zeros in memory, whose pages cost nothing until written."""
        self._removed.discard(path)
        self._files[path] = np.zeros(size_bytes, np.uint8)

    def allocate(self, path: Path, start: int, end: int) -> None:
        """Nothing to give: what is here is in memory."""

    def open(self, path: Path) -> File:
        if path in self._removed or not self.exists(path):
            self._removed.discard(path)
            self._files[path] = np.empty(0, np.uint8)
        return _OverlayFile(self, path)

    def open_read(self, path: Path) -> File:
        return _OverlayFile(self, path) if path in self._files else self._base.open_read(self._present(path))

    def stamp(self, path: Path) -> tuple[int, int] | None:
        """Returns the stamp of the file below, also of one that was changed here."""
        return None if path in self._removed else self._base.stamp(path)

    def read(self, path: Path) -> bytes:
        return bytes(self._files[path]) if path in self._files else self._base.read(self._present(path))

    def map_read(self, path: Path) -> ByteArray:
        """Returns the file's bytes as they are here; mapped privately, so that they follow later private writes."""
        return self.writable(self._present(path), 0)

    def map_write(self, path: Path) -> ByteArray:
        return self.writable(path, 0)

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """Nothing to make durable."""

    def map_private(self, path: Path) -> ByteArray:
        return self.writable(path, 0)

    def link(self, source: Path, target: Path) -> None:
        """Gives the file's private bytes another name."""
        self._files.setdefault(target, self.writable(self._present(source), 0))
        self._removed.discard(target)

    def rename(self, source: Path, target: Path) -> None:
        content = self.writable(source, 0)
        self.unlink(source)
        self._removed.discard(target)
        self._files[target] = content

    def unlink(self, path: Path) -> None:
        self._files.pop(path, None)
        self._removed.add(path)

    def remove_dir(self, path: Path) -> None:
        self._folders.discard(path)
        self._removed.add(path)

    def flush_dir(self, path: Path) -> None:
        """Nothing to make durable."""

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """No lock: nothing is written."""
        yield

    def is_locked(self, path: Path) -> bool:
        return self._base.is_locked(path)

    def free_bytes(self, path: Path) -> int:
        return self._base.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self._base.total_bytes(path)

    def _present(self, path: Path) -> Path:
        if path in self._removed:
            raise NotFoundError("no such file", path=str(path))
        return path


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

    def first_hole(self, position: int) -> int:
        return self._inner.first_hole(position)

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
        self.open_read = inner.open_read
        self.stamp = inner.stamp
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
        with self._gate():
            self._inner.make_dirs(path)

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        with self._gate():
            self._inner.create(path, size_bytes, prewrite=prewrite, first_bytes=first_bytes)

    def allocate(self, path: Path, start: int, end: int) -> None:
        with self._gate():
            self._inner.allocate(path, start, end)

    def open(self, path: Path) -> File:
        """Opens a file whose changes are gated too."""
        with self._gate():  # it may come to be here
            return _GatedFile(self._inner.open(path), self._gate)

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        with self._gate():
            self._inner.flush_mapped(path, mapped, start, end)

    def link(self, source: Path, target: Path) -> None:
        with self._gate():
            self._inner.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        with self._gate():
            self._inner.rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._gate():
            self._inner.unlink(path)

    def remove_dir(self, path: Path) -> None:
        with self._gate():
            self._inner.remove_dir(path)

    def flush_dir(self, path: Path) -> None:
        with self._gate():
            self._inner.flush_dir(path)
