"""The file-system seam: everything a store does to its disk goes through :class:`FileSystem`.

A crash loses whatever was not flushed: bytes until :meth:`File.flush`, names until :meth:`FileSystem.flush_dir`
of the folder that holds them. Tests put another implementation here that loses exactly that.

Errors: a missing file is :class:`NotFoundError`, a full disk :class:`DiskFullError`; a call for which the system has no
descriptor or memory to spare is :class:`OutOfResourcesError`, has changed nothing and may be made again; anything else
the disk refuses is :class:`DiskFailedError`. A failed write or flush is never :class:`OutOfResourcesError`: bytes may
be lost then, whatever the error number. "Could not read" is never reported as "not there".

System calls that Python lacks, or offers in another form, are at the end; they raise :class:`OSError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import (
    DiskFailedError,
    DiskFullError,
    NotFoundError,
    OutOfResourcesError,
    StoreError,
    StoreLockedError,
)

#: struct flock: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_BYTE_0 = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
ByteArray = NDArray[np.uint8]
#: Of what is made, whatever the umask lets through: messages are in it, which only the store's owner may read. What was
#: made before keeps the mode that it has.
FILE_MODE, FOLDER_MODE = 0o600, 0o700
_ZEROS = bytes(1 << 20)
_PREWRITE_STEP = 16 << 20
_SCARCE_HINT = "raise the limit of open files (ulimit -n), or of memory; it is tried again"
#: What passes by itself: nothing was begun, and the disk was not even asked.
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN)

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FALLOCATE: Any = getattr(_LIBC, "fallocate64", None)
if _FALLOCATE is not None:
    _FALLOCATE.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_M_ARENA_MAX = -8
_MS_SYNC = 4
_MADV_WILLNEED, _MADV_DONTNEED, _MADV_POPULATE_WRITE = 3, 4, 23
_MAP_FAILED = ctypes.c_void_p(-1).value
_FALLOC_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02


class File(Protocol):
    """One open file with positional reads and writes."""

    def write_at(self, position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
        """Writes all of ``data`` at byte ``position``; not durable before :meth:`flush`."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Returns up to ``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def zero(self, start: int, end: int) -> None:
        """Makes ``[start, end)`` read as zeros and gives its disk blocks back where the system can."""
        ...

    def first_hole(self, position: int) -> int:
        """Returns the first byte from ``position`` on whose block was never written; the file's length if none."""
        ...

    def flush(self) -> None:
        """Makes everything written to this file durable (fdatasync)."""
        ...

    def close(self) -> None:
        """Closes without flushing; idempotent."""
        ...


class FileSystem(Protocol):
    """The calls by which a store reaches its directory. Paths are absolute."""

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
        """Creates a folder and its parents, each new name durable."""
        ...

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        """Creates a durable file of zeros; ``prewrite`` writes its blocks, otherwise they are reserved.

        With ``first_bytes`` so many get blocks, and the rest of the file is a hole.
        """
        ...

    def allocate(self, path: Path, start: int, end: int) -> None:
        """Gives a hole in a file its blocks, so that a later write there, through a map too, cannot meet a full disk.

        A write through a map that finds no block ends the process (SIGBUS). What was written there stays.
        """
        ...

    def open(self, path: Path) -> File:
        """Opens an existing file for reading and writing, or creates it empty."""
        ...

    def open_read(self, path: Path) -> File:
        """Opens an existing file, of somebody else maybe, for reading; it can be flushed, too."""
        ...

    def stamp(self, path: Path) -> tuple[int, int] | None:
        """Returns the file's number and when it was last written, in ns since the epoch; None if it is not there."""
        ...

    def read(self, path: Path) -> bytes:
        """Returns the whole file."""
        ...

    def map_read(self, path: Path) -> ByteArray:
        """Returns the file's bytes as a read-only array that follows later writes and outlives an unlink."""
        ...

    def map_write(self, path: Path) -> ByteArray:
        """Returns the file's bytes as a writable array; durable after :meth:`File.flush` of the same file."""
        ...

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """Makes bytes ``[start, end)`` of :meth:`map_write`'s array durable, and no others."""
        ...

    def map_private(self, path: Path) -> ByteArray:
        """Returns the file's bytes as a writable array whose changes nobody else sees."""
        ...

    def link(self, source: Path, target: Path) -> None:
        """Gives a file another name, unless that is taken, on the same volume. Durable after :meth:`flush_dir`."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replaces ``target``; durable after :meth:`flush_dir` of both folders."""
        ...

    def unlink(self, path: Path) -> None:
        """Removes a name; a name already gone is no error. Durable after :meth:`flush_dir`."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Removes an empty folder; one already gone is no error."""
        ...

    def flush_dir(self, path: Path) -> None:
        """Makes the names in this folder durable."""
        ...

    def lock(self, path: Path) -> contextlib.AbstractContextManager[None]:
        """Holds ``path`` exclusively, across processes, until the context ends; :class:`StoreLockedError` if held."""
        ...

    def is_locked(self, path: Path) -> bool:
        """Whether somebody holds ``path``; changes nothing, and a file that is not there is held by nobody."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Bytes an unprivileged writer may still allocate below ``path``."""
        ...

    def total_bytes(self, path: Path) -> int:
        """Returns what is allocated on the volume of ``path``, by whomever, and :meth:`free_bytes` together."""
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
    """Our error for a write or flush that may have been done in part."""
    if error.errno == errno.ENOENT:
        return NotFoundError("no such file", path=str(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError("no space left for the write", path=str(path), hint="free space")
    return DiskFailedError(f"the disk refused: {error.strerror}", path=str(path))


def lock_first_byte(fd: int) -> str | None:
    """Locks byte 0 of an open file until it is closed, and writes into the file who holds it.

    Returns None, or what the holder has written if the file is locked already. RocketMQ takes the same lock, so the
    two exclude each other. The lock belongs to the open file, not to the process: a second opener in this process meets
    it too, and somebody who merely reads the file cannot drop it.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _BYTE_0)
    except (BlockingIOError, PermissionError):
        return os.pread(fd, 200, 0).decode("utf-8", "replace").partition("\n")[2].strip() or "unknown holder"
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"lock\npid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return None


def is_first_byte_locked(fd: int) -> bool:
    """Whether another open file holds the lock of :func:`lock_first_byte`."""
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _BYTE_0))[0]
    return kind != fcntl.F_UNLCK


def _fsync(fd: int, path: Path) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise _loss(error, path) from error


class _LocalFile:
    """An open file. It has no context manager around writes and flushes: every append has one of each."""

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

    def first_hole(self, position: int) -> int:
        with _DiskErrors(self._path):
            size = os.fstat(self._fd).st_size
            return os.lseek(self._fd, position, os.SEEK_HOLE) if position < size else size

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
        with _DiskErrors(path):
            try:
                os.stat(path)
            except FileNotFoundError:
                return False
            return True

    def list_dir(self, path: Path) -> list[str]:
        with _DiskErrors(path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int:
        with _DiskErrors(path):
            return os.stat(path).st_size

    def make_dirs(self, path: Path) -> None:
        """Creates the folder and its parents, flushing each parent that got a new name."""
        with _DiskErrors(path):
            missing = []
            while not path.is_dir():
                missing.append(path)
                path = path.parent
            for folder in reversed(missing):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(FOLDER_MODE)
                self.flush_dir(folder.parent)

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        """Creates a file of zeros whose blocks exist, so that a later write cannot meet a full disk."""
        with_blocks = size_bytes if first_bytes is None else min(first_bytes, size_bytes)
        with _DiskErrors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            try:
                if prewrite:
                    file = _LocalFile(path, fd)
                    for position in range(0, with_blocks, len(_ZEROS)):
                        file.write_at(position, memoryview(_ZEROS)[: with_blocks - position])
                        if position % _PREWRITE_STEP == 0:
                            file.flush()  # a gigabyte of dirty pages at once would hold up everybody's flush
                elif with_blocks:
                    os.posix_fallocate(fd, 0, with_blocks)
                if with_blocks < size_bytes:
                    os.ftruncate(fd, size_bytes)
                if os.fstat(fd).st_size != size_bytes:
                    raise DiskFullError("the file could not be made at its full size", path=str(path))
                _fsync(fd, path)
            finally:
                os.close(fd)

    def allocate(self, path: Path, start: int, end: int) -> None:
        if end <= start:
            return
        with _DiskErrors(path):
            fd = os.open(path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, start, end - start)
            finally:
                os.close(fd)

    def open(self, path: Path) -> File:
        with _DiskErrors(path):
            return _LocalFile(path, os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE))

    def open_read(self, path: Path) -> File:
        with _DiskErrors(path):
            return _LocalFile(path, os.open(path, os.O_RDONLY))

    def stamp(self, path: Path) -> tuple[int, int] | None:
        with _DiskErrors(path):
            try:
                stat = os.stat(path)
            except FileNotFoundError:
                return None
            return stat.st_ino, stat.st_mtime_ns

    def read(self, path: Path) -> bytes:
        with _DiskErrors(path):
            return path.read_bytes()

    def map_read(self, path: Path) -> ByteArray:
        return self._map(path, os.O_RDONLY, mmap.PROT_READ, mmap.MAP_SHARED)

    def map_write(self, path: Path) -> ByteArray:
        return self._map(path, os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED)

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """Flushes the pages that hold ``[start, end)`` by msync; ``path`` is for the error only."""
        if start < end:
            try:
                sync_mapped(mapped, start, end)
            except OSError as error:
                raise _loss(error, path) from error

    def map_private(self, path: Path) -> ByteArray:
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

    def link(self, source: Path, target: Path) -> None:
        with _DiskErrors(source), contextlib.suppress(FileExistsError):
            os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        with _DiskErrors(source):
            os.rename(source, target)

    def unlink(self, path: Path) -> None:
        with _DiskErrors(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: Path) -> None:
        with _DiskErrors(path), contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def flush_dir(self, path: Path) -> None:
        with _DiskErrors(path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _fsync(fd, path)
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            with _DiskErrors(path):  # not around the yield: what fails there is not this file
                fd = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
                held.callback(os.close, fd)
                holder = lock_first_byte(fd)
                if holder is not None:
                    said, hint = f"another process holds the store: {holder}", "stop it, or use --url to talk to it"
                    raise StoreLockedError(said, path=str(path), hint=hint)
            yield

    def is_locked(self, path: Path) -> bool:
        with _DiskErrors(path):
            try:
                fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return False
            try:
                return is_first_byte_locked(fd)
            finally:
                os.close(fd)

    def free_bytes(self, path: Path) -> int:
        with _DiskErrors(path):
            stat = os.statvfs(path)
            return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: Path) -> int:
        """Used and free space; what is kept back for the superuser counts as neither."""
        with _DiskErrors(path):
            stat = os.statvfs(path)
            return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize


def replace_file(fs: FileSystem, path: Path, data: bytes | ByteArray, tmp_dir: Path) -> None:
    """Durably replaces a file: readers after a crash see the old bytes or the new ones, never a mixture.

    Written to ``tmp_dir`` and flushed, renamed over ``path``, then the folder flushed. Killed before the rename:
    the old file stands and the temporary one is garbage. In the file's own folder it has ``.new`` behind its name.
    """
    temporary = tmp_dir / (path.name if tmp_dir != path.parent else f"{path.name}.new")
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
    """Makes everything written to a file durable, by whatever handle or map; its name is the folder's matter."""
    file = fs.open(path)
    try:
        file.flush()
    finally:
        file.close()


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def share_arenas(count: int) -> bool:
    """Makes all threads share so many arenas of malloc, before they are started; False where libc is not glibc.

    By itself each thread gets one, up to eight a processor, and each keeps the most that its thread ever used.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, count))


class Mapping:
    """The mapped bytes of one file: every array over them keeps this alive, and they are unmapped after the last.

    Not ``mmap.mmap``, which holds a descriptor as long as it lives: a store maps more files than a process may open.
    """

    def __init__(self, fd: int, size: int, protection: int, flags: int) -> None:
        address = _LIBC.mmap(None, size, protection, flags, fd, 0)
        if address == _MAP_FAILED:
            raise _failed()
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, not protection & mmap.PROT_WRITE),
        }
        # not at exit, while a thread may still read: the process takes its maps along
        weakref.finalize(self, _LIBC.munmap, address, size).atexit = False


def sync_mapped(mapped: NDArray[np.uint8], start: int, end: int) -> None:
    """Makes the pages that hold bytes ``[start, end)`` of a mapping durable."""
    first = mapped.ctypes.data + start
    page = first - first % mmap.PAGESIZE
    if _LIBC.msync(page, mapped.ctypes.data + end - page, _MS_SYNC):
        raise _failed()


def populate(mapped: NDArray[np.uint8], start: int, end: int) -> None:
    """Makes the pages of ``[start, end)`` of a writable mapping exist before they are written, all at once.

    A page that is not there yet stops its first writer for about as long as putting 30 index items takes. Best effort:
    kernels before Linux 5.14 cannot.
    """
    first = mapped.ctypes.data + start
    page = first - first % mmap.PAGESIZE
    _LIBC.madvise(page, mapped.ctypes.data + end - page, _MADV_POPULATE_WRITE)


def is_in_memory(mapped: ByteArray, position: int) -> bool:
    """Whether the page of one byte of a mapping is in memory; True where the system does not tell."""
    if not 0 <= position < len(mapped):
        return True
    at = mapped.ctypes.data + position
    found = ctypes.create_string_buffer(1)
    return bool(_LIBC.mincore(at - at % mmap.PAGESIZE, 1, found) != 0 or found.raw[0] & 1)


def will_need(mapped: ByteArray, stretches: Iterable[tuple[int, int]]) -> None:
    """Has pages of a mapping brought into memory, all at once and without waiting. Best effort.

    ``stretches`` are (start, end) each; what lies outside of the mapping is left out.
    """
    begin = mapped.ctypes.data
    for start, end in stretches:
        first, stop = begin + max(start, 0), begin + min(end, len(mapped))
        if first < stop:
            page = first - first % mmap.PAGESIZE
            _LIBC.madvise(page, stop - page, _MADV_WILLNEED)


def forget_code(library: str) -> None:
    """Lets go of the pages of a library's code in this process; each comes back from the page cache when it is run.

    For one that has done its work, such as a compiler: what was run once would count as memory of the process for good.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:  # not every system has it
        for line in maps:
            addresses, rights, *_, path = line.split(maxsplit=5)
            if rights == "r-xp" and os.path.basename(path.strip()).startswith(
                library
            ):  # code alone: data may be private
                start, end = (int(each, 16) for each in addresses.split("-"))
                _LIBC.madvise(start, end - start, _MADV_DONTNEED)


def punch_hole(fd: int, start: int, end: int) -> bool:
    """Makes ``[start, end)`` read as zeros without blocks; False where the file system cannot."""
    return _FALLOCATE is not None and _FALLOCATE(fd, _FALLOC_KEEP_SIZE_PUNCH_HOLE, start, end - start) == 0
