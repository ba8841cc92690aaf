"""One object of a local store as an open file: what is remembered with it, and reading it."""

from __future__ import annotations

import contextlib
import os

from tiering.cold.object_store import Content, ObjectInfo

_ATTRIBUTE = "user.tierlog.object"
_READ_BYTES = 1 << 20


def remember(fd: int, info: ObjectInfo) -> None:
    """Set the time of a complete file and attach its etag and CRC-32, where the file system can hold them."""
    # The store's clock, not the kernel's. Whole milliseconds, so that a later change of the bytes, which the kernel
    # stamps with nanoseconds, is seen.
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
