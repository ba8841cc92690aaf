"""Objects as plain files below one directory: the cold tier of a machine with a big disk and no S3.

::

    DIRECTORY/log/0000/x     the object "log/0000/x"
    DIRECTORY/.tmp/lock      held while a name is changed, by any process
    DIRECTORY/.tmp/N.data    bytes of the write N in progress, or left behind by a crash
    DIRECTORY/.tmp/N.key     the key that N is for

It does not go through the file seam of the hot tier: a local store stands for a server, and its crash is tested as the
loss of a server's answer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ChecksumMismatchError,
    DiskFullError,
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreError,
    TornRecordError,
)
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.objects.object_store import (
    Content,
    ObjectInfo,
    PendingUpload,
    is_valid_key,
    validate_after,
    validate_conditions,
    validate_key,
    validate_prefix,
    validate_range,
)

_ATTRIBUTE = "user.tierlog.object"
_READ_BYTES = 1 << 20
#: As soon as so much was written, the disk is asked to begin with it, so that less is left to wait for at the end.
_BEGIN_BYTES = 8 << 20
_LOCK_TRIES = 3000
_LOCK_WAIT_S = 0.01
_TMP = ".tmp"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


def sync(fd: int) -> None:
    """Makes a file or folder durable."""
    os.fsync(fd)  # noqa: TID251 - a server of its own, see the top


def publish(source: Path, target: Path) -> None:
    """Gives a synced file its name, replacing another; durable after :func:`sync_folders`."""
    os.rename(source, target)  # noqa: TID251 - as above


def sync_folders(lowest: Path, highest: Path) -> None:
    """Makes names durable from ``lowest`` up to ``highest``: one may be new, or its maker may have crashed."""
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
    """Returns the names in a folder, folders with a slash: so they sort as keys do, ``a-b`` before ``a/b``."""
    with os.scandir(folder) as entries:
        return sorted(entry.name + "/" * entry.is_dir() for entry in entries)


class DirectoryLock:
    """Excludes threads and processes from each other; a process that dies lets go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock; ObjectStoreUnavailableError when another process keeps it for about 30 s."""
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
    """Sets the time of a complete file and attaches its etag and CRC-32, where the file system can hold them."""
    # The store's clock, not the kernel's. Whole milliseconds, so that a later change of the bytes, which the
    # kernel stamps with nanoseconds, is seen.
    modified_ns = info.modified_ms * 1_000_000
    os.utime(fd, ns=(modified_ns, modified_ns))
    with contextlib.suppress(OSError):  # not every file system has attributes; describe() then reads
        os.setxattr(fd, _ATTRIBUTE, f"{info.size_bytes} {modified_ns} {info.etag} {info.crc32}".encode())


def describe(fd: int, key: str) -> ObjectInfo:
    """Returns what was attached to the file if it is still the same file, otherwise what reading it tells."""
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
    """Returns the bytes of the half-open range; fewer only where the file ends."""
    pieces = []
    while start < end:
        piece = os.pread(fd, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


class LocalObjectStore:
    """Keeps the contract of ObjectStore with files; processes of one machine may share the directory.

    Every change of a name happens under a lock file, so that conditions are atomic between processes; the
    bytes are made durable before. A key that is a folder of another key is refused with InvalidRequestError,
    and keys below ``.tmp`` are reserved. Etag and CRC-32 come from the content and are remembered in an
    extended attribute that counts only while size and modification time still match; without extended
    attributes (or after a change by other hands) describing an object means reading it. A directory without
    its ``.tmp`` folder, such as the mount point of a disk that is not mounted, is a failed store, not an
    empty one. Waiting for another process that holds the lock ends after about 30 s; the disk itself is
    trusted to answer.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        clock: Clock,
        randomness: Randomness | None = None,
        *,
        make: bool = True,
    ) -> None:
        """``make`` makes the directory if it is missing; else it is a failed store until it is there."""
        self._root = Path(os.path.abspath(directory))  # and not Path.absolute, which keeps ".."
        self._tmp = self._root / _TMP
        self._clock = clock
        self._randomness = randomness or SystemRandomness()
        self._lock = DirectoryLock(self._tmp / "lock")
        if not make:
            return
        known = self._root
        while not known.exists():
            known = known.parent
        with self._translated(str(self._root)):
            try:
                self._tmp.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise InvalidRequestError("this is not a directory", path=str(self._root)) from error
            sync_folders(self._root, known)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """Stores ``data``; after it returns, the object survives a crash of the machine."""
        validate_conditions(if_absent, if_match)
        return self._write(key, (data,), if_absent=if_absent, if_match=if_match)

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Writes the pieces to a temporary file as they come, then gives it its name."""
        return self._write(key, pieces)

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Returns the object; ChecksumMismatchError if its bytes are no longer those that were written."""
        with self._opened(key) as (fd, status):
            data = read_range(fd, 0, status.st_size)
            info = describe(fd, key)
        if len(data) != info.size_bytes or zlib.crc32(data) != info.crc32:
            raise ChecksumMismatchError("the object does not match its checksum", path=key)
        return data, info

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        return None if self.head(key).etag == etag else self.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        validate_range(start, end)
        with self._opened(key) as (fd, status):
            data = read_range(fd, start, end) if end <= status.st_size else b""
        if end > status.st_size or len(data) != end - start:
            raise TornRecordError(
                f"[{start}, {end}) ends outside of {status.st_size} bytes", path=key, position=status.st_size
            )
        return data

    def head(self, key: str) -> ObjectInfo:
        with self._opened(key) as (fd, _):
            return describe(fd, key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Walks the folders in key order, one folder's names in memory for each level."""
        validate_prefix(prefix)
        validate_after(after)
        return self._walk("", prefix, after)

    def delete(self, key: str) -> None:
        """Removes the file and folders that it leaves empty."""
        path = self._path(key)
        with self._translated(key), self._lock.held():
            try:
                path.unlink()
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    raise
                return
            folder = path.parent
            with contextlib.suppress(OSError):  # the first folder that is not empty ends it
                while folder != self._root:
                    folder.rmdir()
                    folder = folder.parent
            sync_folders(folder, folder)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Writes in progress or left by a crash; one whose key was lost has key ``""`` for any prefix."""
        validate_prefix(prefix)
        found = []
        with self._translated(prefix):
            for upload_id in sorted({path.stem for path in self._tmp.iterdir() if path.suffix in (".key", ".data")}):
                with contextlib.suppress(FileNotFoundError):  # it has just ended
                    key_path = self._tmp / f"{upload_id}.key"
                    there = key_path if key_path.exists() else self._tmp / f"{upload_id}.data"
                    started_ms = there.stat().st_mtime_ns // 1_000_000
                    key = key_path.read_bytes().decode(errors="replace") if there is key_path else ""
                    key = key if is_valid_key(key) else ""
                    if not key or key.startswith(prefix):
                        found.append(PendingUpload(key, upload_id, started_ms))
        return iter(found)

    def abort_upload(self, pending: PendingUpload) -> None:
        if not pending.upload_id.isalnum():
            raise InvalidRequestError(f"{pending.upload_id!r} is not the id of an upload")
        with self._translated(pending.key):
            for suffix in ("data", "key"):
                (self._tmp / f"{pending.upload_id}.{suffix}").unlink(missing_ok=True)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _path(self, key: str) -> Path:
        if validate_key(key).split("/", 1)[0] == _TMP:
            raise InvalidRequestError(f"object keys below {_TMP}/ are reserved", path=key)
        return self._root / key

    def _missing_directory(self) -> ObjectStoreUnavailableError:
        return ObjectStoreUnavailableError(
            "no archive was ever made in this directory, or its disk is not mounted", path=str(self._root)
        )

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError("no room for the object", path=key) from error
            if error.errno in _NOT_THERE:
                if not self._tmp.is_dir():
                    raise self._missing_directory() from error
                raise ObjectNotFoundError("no such object", path=key) from error
            raise ObjectStoreUnavailableError(f"the object store failed: {error}", path=key) from error

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        """The open file of an object; a later replacement does not change what is read from it."""
        path = self._path(key)
        with self._translated(key):
            fd = os.open(path, os.O_RDONLY)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise IsADirectoryError(errno.EISDIR, "not an object")
                yield fd, status
            finally:
                os.close(fd)

    def _write(
        self, key: str, pieces: Iterable[bytes], *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        target = self._path(key)
        pending = PendingUpload(key, self._randomness.token_hex(16), self._clock.now_ms())
        temporary = self._tmp / f"{pending.upload_id}.data"
        try:
            with self._stored_errors(key):
                key_path = self._tmp / f"{pending.upload_id}.key"
                key_path.write_bytes(key.encode())
                os.utime(key_path, ns=(pending.started_ms * 1_000_000,) * 2)
                fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                info = self._fill(fd, key, pieces)
            finally:
                os.close(fd)
            with self._stored_errors(key), self._lock.held():
                self._check_conditions(key, target, if_absent, if_match)
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                except (FileExistsError, NotADirectoryError) as error:
                    raise InvalidRequestError("a folder of this key is an object", path=key) from error
                if if_absent:
                    os.link(temporary, target)
                else:
                    publish(temporary, target)
                sync_folders(target.parent, self._root)
            return info
        finally:
            with contextlib.suppress(StoreError):  # what is left behind is found by list_uploads
                self.abort_upload(pending)

    @contextlib.contextmanager
    def _stored_errors(self, key: str) -> Iterator[None]:
        """Translates errors for a writer, who never hears "no such object": then its temporary file was aborted."""
        try:
            with self._translated(key):
                yield
        except ObjectNotFoundError as error:
            raise ObjectStoreUnavailableError("the upload was aborted", path=key) from error

    def _fill(self, fd: int, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Writes and flushes the temporary file; errors of ``pieces`` itself pass as they are."""
        content = Content()
        begun = 0
        for piece in pieces:
            with self._stored_errors(key):
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                content.add(piece)
                if content.size_bytes - begun >= _BEGIN_BYTES:
                    # on its way to the disk while the next is made; pages that are there already may leave memory
                    os.posix_fadvise(fd, begun, content.size_bytes - begun, os.POSIX_FADV_DONTNEED)
                    begun = content.size_bytes
        info = content.info(key, self._clock.now_ms())
        with self._stored_errors(key):
            remember(fd, info)
            sync(fd)
        return info

    def _check_conditions(self, key: str, target: Path, if_absent: bool, if_match: str | None) -> None:
        if target.is_dir():
            raise InvalidRequestError("the key is a folder of other objects", path=key)
        if if_absent and target.exists():
            raise PreconditionFailedError("the object exists", path=key)
        if if_match is not None:
            try:
                current = self.head(key).etag
            except ObjectNotFoundError:
                raise PreconditionFailedError("the object is gone", path=key) from None
            if current != if_match:
                raise PreconditionFailedError("the object was replaced", path=key)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        try:
            with self._translated(folder or str(self._root)):
                names = names_in_key_order(self._root / folder)
        except ObjectNotFoundError:
            names = []  # the folder went away with its last object
        if not folder and f"{_TMP}/" not in names:
            raise self._missing_directory()
        for name in names:
            key = folder + name
            if key == f"{_TMP}/":
                continue
            if name.endswith("/"):
                wanted = key.startswith(prefix) or prefix.startswith(key)
                if wanted and (key > after or after.startswith(key)):
                    yield from self._walk(key, prefix, after)
            elif key.startswith(prefix) and key > after and is_valid_key(key):
                try:
                    info = self.head(key)
                except ObjectNotFoundError:
                    continue  # deleted since
                yield info
