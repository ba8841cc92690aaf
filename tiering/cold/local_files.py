"""What a local store asks of the file system: durable names, a lock, and one object as an open file.

It does not go through the file seam of the hot tier: a local store stands for a server, and its crash is
tested as the loss of a server's answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tiering.cold.object_store import Content, ObjectInfo
from tiering.errors import ObjectStoreUnavailableError

_ATTRIBUTE = "user.tierlog.object"
_READ_BYTES = 1 << 20
_LOCK_TRIES = 3000
_LOCK_WAIT_S = 0.01


def sync(fd: int) -> None:
    """Make a file or folder durable."""
    os.fsync(fd)  # noqa: TID251 - a server of its own, see above


def publish(source: Path, target: Path) -> None:
    """Give a synced file its name, replacing another; durable after :func:`sync_folders`."""
    os.rename(source, target)  # noqa: TID251 - as above


def sync_folders(lowest: Path, highest: Path) -> None:
    """Make names durable from ``lowest`` up to ``highest``: one may be new, or its maker may have crashed."""
    folder = lowest
    while True:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync(fd)
        finally:
            os.close(fd)
        if folder == highest:
            return
        folder = folder.parent


def names_in_key_order(folder: Path) -> list[str]:
    """The names in a folder, folders with a slash: so they sort as keys do, ``a-b`` before ``a/b``."""
    with os.scandir(folder) as entries:
        return sorted(entry.name + "/" * entry.is_dir() for entry in entries)


class DirectoryLock:
    """Excludes threads and processes from each other; a process that dies lets go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; ObjectStoreUnavailableError when another process keeps it for about 30 s."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with self._threads:
                self._acquire(fd)
                try:
                    yield
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def _acquire(self, fd: int) -> None:
        pause = threading.Event()
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pause.wait(_LOCK_WAIT_S)  # real time whatever the clock says: the holder is another process
            else:
                return
        raise ObjectStoreUnavailableError("another process keeps the object store locked", path=str(self._path))


def remember(fd: int, info: ObjectInfo) -> None:
    """Set the time of a complete file and attach its etag and CRC-32, where the file system can hold them."""
    # The store's clock, not the kernel's. Whole milliseconds, so that a later change of the bytes, which the
    # kernel stamps with nanoseconds, is seen.
    modified_ns = info.modified_ms * 1_000_000
    os.utime(fd, ns=(modified_ns, modified_ns))
    with contextlib.suppress(OSError):  # not every file system has attributes; describe() then reads
        os.setxattr(fd, _ATTRIBUTE, f"{info.size_bytes} {modified_ns} {info.etag} {info.crc32}".encode())


def describe(fd: int, key: str) -> ObjectInfo:
    """What was attached to the file if it is still the same file, otherwise what reading it tells."""
    status = os.fstat(fd)
    with contextlib.suppress(OSError, ValueError):
        size, modified_ns, etag, crc32 = os.getxattr(fd, _ATTRIBUTE).decode().split(" ")
        if (int(size), int(modified_ns)) == (status.st_size, status.st_mtime_ns):
            return ObjectInfo(key, status.st_size, etag, int(crc32), status.st_mtime_ns // 1_000_000)
    content = Content()
    while content.size_bytes < status.st_size:
        piece = os.pread(fd, _READ_BYTES, content.size_bytes)
        if not piece:
            break
        content.add(piece)
    return content.info(key, status.st_mtime_ns // 1_000_000)


def read_range(fd: int, start: int, end: int) -> bytes:
    """The bytes of the half-open range; fewer only where the file ends."""
    pieces = []
    while start < end:
        piece = os.pread(fd, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
