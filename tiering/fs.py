"""The file-system seam: everything a store does to its disk goes through :class:`FileSystem`.

A crash loses whatever was not flushed: bytes until :meth:`File.flush`, names until :meth:`FileSystem.flush_dir`
of the folder that holds them. Tests put another implementation here that loses exactly that.

Errors: a missing file is :class:`NotFoundError`, a full disk :class:`DiskFullError`; a call for which the system has no
descriptor or memory to spare is :class:`OutOfResourcesError`, has changed nothing and may be made again; anything else
the disk refuses is :class:`DiskFailedError`. A write or a flush that fails never is the second: bytes may be lost then,
whatever the number of the error. "Could not read" is never reported as "not there".
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tiering import byte_lock
from tiering.errors import (
    DiskFailedError,
    DiskFullError,
    NotFoundError,
    OutOfResourcesError,
    StoreError,
    StoreLockedError,
)
from tiering.libc import Mapping, punch_hole, sync_mapped

ByteArray = NDArray[np.uint8]

#: Of what is made, whatever the umask lets through: messages are in it, which only the store's owner may read. What was
#: made before keeps the mode that it has.
FILE_MODE, FOLDER_MODE = 0o600, 0o700
_ZEROS = bytes(1 << 20)
_PREWRITE_STEP = 16 << 20
_SCARCE_HINT = "raise the limit of open files (ulimit -n), or of memory; it is tried again"
#: What passes by itself: nothing was begun, and the disk was not even asked.
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN)


class File(Protocol):
    """One open file with positional reads and writes."""

    def write_at(self, position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
        """Write all of ``data`` at byte ``position``; not durable before :meth:`flush`."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def zero(self, start: int, end: int) -> None:
        """Make ``[start, end)`` read as zeros and give its disk blocks back where the system can."""
        ...

    def flush(self) -> None:
        """Make everything written to this file durable (fdatasync)."""
        ...

    def close(self) -> None:
        """Close without flushing; idempotent."""
        ...


class FileSystem(Protocol):
    """What a store may do to its directory. Paths are absolute."""

    def exists(self, path: Path) -> bool:
        """Whether something has this name; an unreadable folder raises instead of answering no."""
        ...

    def list_dir(self, path: Path) -> list[str]:
        """Names in a folder, sorted; a folder that does not exist is empty."""
        ...

    def is_dir(self, path: Path) -> bool:
        """Whether ``path`` names a folder."""
        ...

    def size(self, path: Path) -> int:
        """Length in bytes."""
        ...

    def make_dirs(self, path: Path) -> None:
        """Create a folder and its parents, each new name durable."""
        ...

    def create(self, path: Path, size_bytes: int, *, prewrite: bool) -> None:
        """Create a durable file of zeros; ``prewrite`` writes its blocks, otherwise they are reserved."""
        ...

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing, or create it empty."""
        ...

    def read(self, path: Path) -> bytes:
        """The whole file."""
        ...

    def map_read(self, path: Path) -> ByteArray:
        """The file's bytes as a read-only array that follows later writes and outlives an unlink."""
        ...

    def map_write(self, path: Path) -> ByteArray:
        """The file's bytes as a writable array; durable after :meth:`File.flush` of the same file."""
        ...

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """Make bytes ``[start, end)`` of :meth:`map_write`'s array durable, and no others."""
        ...

    def map_private(self, path: Path) -> ByteArray:
        """The file's bytes as a writable array whose changes nobody else sees."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replace ``target``; durable after :meth:`flush_dir` of both folders."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a name; a name already gone is no error. Durable after :meth:`flush_dir`."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Remove an empty folder; one already gone is no error."""
        ...

    def flush_dir(self, path: Path) -> None:
        """Make the names in this folder durable."""
        ...

    def lock(self, path: Path) -> contextlib.AbstractContextManager[None]:
        """Hold ``path`` exclusively, across processes, until the context ends; :class:`StoreLockedError` if held."""
        ...

    def is_locked(self, path: Path) -> bool:
        """Whether somebody holds ``path``; changes nothing, and a file that is not there is held by nobody."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Bytes an unprivileged writer may still allocate below ``path``."""
        ...

    def total_bytes(self, path: Path) -> int:
        """What is allocated on the volume of ``path``, by whomever, and :meth:`free_bytes` together."""
        ...


class _DiskErrors:
    """Turns what the system says about ``path`` into our errors."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise _refusal(error, self._path) from error


def _refusal(error: OSError, path: Path) -> StoreError:
    """Our error for what the system says about ``path``, of a call that does all or nothing."""
    if is_scarcity(error):
        return OutOfResourcesError(f"the system refused for now: {error.strerror}", path=str(path), hint=_SCARCE_HINT)
    return _loss(error, path)


def is_scarcity(error: BaseException | None) -> bool:
    """Whether a call found no descriptor or memory to spare, which says nothing about what it asked for."""
    return isinstance(error, OSError) and error.errno in _SCARCE


def _loss(error: OSError, path: Path) -> StoreError:
    """Our error for a write or flush of which nobody knows how far it came."""
    if error.errno == errno.ENOENT:
        return NotFoundError("no such file", path=str(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError("no space left for the write", path=str(path), hint="free space")
    return DiskFailedError(f"the disk refused: {error.strerror}", path=str(path))


def _fsync(fd: int, path: Path) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise _loss(error, path) from error


class _LocalFile:
    """Without a context manager around writes and flushes: every append has one of each."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def write_at(self, position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
        left: bytes | bytearray | memoryview = data.data if isinstance(data, np.ndarray) else data
        try:
            # pwrite may write less than asked, for example at a signal
            while (written := os.pwrite(self._fd, left, position)) < len(left):
                left = memoryview(left)[written:]
                position += written
        except OSError as error:
            raise _loss(error, self._path) from error

    def read_at(self, position: int, length: int) -> bytes:
        with _DiskErrors(self._path):
            return os.pread(self._fd, length, position)

    def zero(self, start: int, end: int) -> None:
        if end <= start:
            return
        if punch_hole(self._fd, start, end):
            return
        while start < end:  # a file system without holes: plain zeros do the same, only slower
            piece = min(end - start, len(_ZEROS))
            self.write_at(start, _ZEROS[:piece])
            start += piece

    def flush(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise _loss(error, self._path) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalFileSystem:
    """The machine's own file system. What it makes is its owner's alone (:data:`FILE_MODE`, :data:`FOLDER_MODE`)."""

    def exists(self, path: Path) -> bool:
        """Whether something has this name."""
        with _DiskErrors(path):
            try:
                os.stat(path)
            except FileNotFoundError:
                return False
            return True

    def list_dir(self, path: Path) -> list[str]:
        """Names in a folder, sorted; missing means empty."""
        with _DiskErrors(path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def is_dir(self, path: Path) -> bool:
        """Whether ``path`` names a folder."""
        return path.is_dir()

    def size(self, path: Path) -> int:
        """Length in bytes."""
        with _DiskErrors(path):
            return os.stat(path).st_size

    def make_dirs(self, path: Path) -> None:
        """Create the folder and its parents, flushing each parent that got a new name."""
        with _DiskErrors(path):
            missing = []
            while not path.is_dir():
                missing.append(path)
                path = path.parent
            for folder in reversed(missing):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(FOLDER_MODE)
                self.flush_dir(folder.parent)

    def create(self, path: Path, size_bytes: int, *, prewrite: bool) -> None:
        """Create a file of zeros whose blocks exist, so that a later write cannot meet a full disk."""
        with _DiskErrors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            try:
                if prewrite:
                    file = _LocalFile(path, fd)
                    for position in range(0, size_bytes, len(_ZEROS)):
                        file.write_at(position, memoryview(_ZEROS)[: size_bytes - position])
                        if position % _PREWRITE_STEP == 0:
                            file.flush()  # a gigabyte of dirty pages at once would hold up everybody's flush
                elif size_bytes:
                    os.posix_fallocate(fd, 0, size_bytes)
                if os.fstat(fd).st_size != size_bytes:
                    raise DiskFullError("the file could not be made at its full size", path=str(path))
                _fsync(fd, path)
            finally:
                os.close(fd)

    def open(self, path: Path) -> File:
        """Open for positional reading and writing; created empty if missing."""
        with _DiskErrors(path):
            return _LocalFile(path, os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE))

    def read(self, path: Path) -> bytes:
        """The whole file."""
        with _DiskErrors(path):
            return path.read_bytes()

    def map_read(self, path: Path) -> ByteArray:
        """Map the file read-only."""
        return self._map(path, os.O_RDONLY, mmap.PROT_READ, mmap.MAP_SHARED)

    def map_write(self, path: Path) -> ByteArray:
        """Map the file for reading and writing."""
        return self._map(path, os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED)

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """msync the pages that hold ``[start, end)``; ``path`` is for the error only."""
        if start < end:
            try:
                sync_mapped(mapped, start, end)
            except OSError as error:
                raise _loss(error, path) from error

    def map_private(self, path: Path) -> ByteArray:
        """Map the file copy on write."""
        return self._map(path, os.O_RDONLY, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE)

    @staticmethod
    def _map(path: Path, mode: int, protection: int, flags: int) -> ByteArray:
        with _DiskErrors(path):
            fd = os.open(path, mode)
            try:
                size = os.fstat(fd).st_size
                if size == 0:
                    return np.empty(0, np.uint8)
                return np.asarray(Mapping(fd, size, protection, flags))
            finally:
                os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replace ``target`` by ``source``."""
        with _DiskErrors(source):
            os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a name; already gone is fine."""
        with _DiskErrors(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: Path) -> None:
        """Remove an empty folder; already gone is fine."""
        with _DiskErrors(path), contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def flush_dir(self, path: Path) -> None:
        """fsync the folder."""
        with _DiskErrors(path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _fsync(fd, path)
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """Hold the lock of :mod:`tiering.byte_lock`."""
        with contextlib.ExitStack() as held:
            with _DiskErrors(path):  # not around the yield: what fails there is not this file
                fd = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
                held.callback(os.close, fd)
                holder = byte_lock.take(fd)
                if holder is not None:
                    said, hint = f"another process holds the store: {holder}", "stop it, or use --url to talk to it"
                    raise StoreLockedError(said, path=str(path), hint=hint)
            yield

    def is_locked(self, path: Path) -> bool:
        """Whether another open file holds the lock of :meth:`lock`."""
        with _DiskErrors(path):
            try:
                fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return False
            try:
                return byte_lock.is_taken(fd)
            finally:
                os.close(fd)

    def free_bytes(self, path: Path) -> int:
        """Space an unprivileged writer may still take."""
        with _DiskErrors(path):
            stat = os.statvfs(path)
            return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: Path) -> int:
        """Used and free space; what is kept back for the superuser counts as neither."""
        with _DiskErrors(path):
            stat = os.statvfs(path)
            return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize


def replace_file(fs: FileSystem, path: Path, data: bytes, tmp_dir: Path) -> None:
    """Durably replace a small file: readers after a crash see the old bytes or the new ones, never a mixture.

    Written to ``tmp_dir`` and flushed, renamed over ``path``, then the folder flushed. Killed before the rename:
    the old file stands and the temporary one is garbage.
    """
    temporary = tmp_dir / path.name
    fs.unlink(temporary)
    file = fs.open(temporary)
    try:
        file.write_at(0, data)
        file.flush()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.flush_dir(path.parent)


def flush_file(fs: FileSystem, path: Path) -> None:
    """Make everything written to a file durable, by whatever handle or map; its name is the folder's matter."""
    file = fs.open(path)
    try:
        file.flush()
    finally:
        file.close()
