"""Ranges of archive objects on the local disk: what is there survives a restart, and none of it is ever needed.

One file a range, ``ranges/<hash>-<start>-<end>``, the hash being BLAKE2b-128 of the object's key in hex. Big-endian:

====== ==== ====== ========== ========================================================
offset size type   field      meaning
====== ==== ====== ========== ========================================================
0      8    bytes  magic      ``TLCACHE1``
8      4    uint32 crc        CRC-32 of everything behind it
12     2    uint16 key_length of the object's key in UTF-8, which follows, then the range
====== ==== ====== ========== ========================================================

Total 14. Magic, checksum, key and length are compared on every read; what differs is removed and counts as not there.

Nothing here is durable state, so nothing is flushed. A file is written under a number in ``writing/`` and renamed.
Killed before the rename: the next open removes it. Power lost at any point: a name may lead to old, partial or no
bytes, which the checksum finds when they are read. The list of what is there is made from the names alone; uses are
counted anew from each open, so the largest of what an earlier process left goes first until something is used.

Room is taken from the limit before a byte is written, and room that was given up counts only when its file is gone,
so the files never pass the limit. A full or failing disk costs the cache, never a read: writing happens on a thread
of its own behind a bounded queue, what finds the queue full is not kept, and after a failure writing pauses.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.cold.reading.memory_cache import ByteUses, ForgottenKeys, LayerCounters, Range

MAGIC = b"TLCACHE1"
HEAD = struct.Struct(">8sIH")
CRC_FROM = 12
_NAME = re.compile(r"([0-9a-f]{32})-(\d{1,19})-(\d{1,19})")
_BLOCK_BYTES = 4096
_QUEUE_BYTES = 8 << 20
_PAUSE = 64
"""Ranges that are not kept after a write failed: a disk that stays full is asked now and then."""
_CLOSE_PATIENCE_S = 1.0


class DiskCache:
    """Ranges in files below ``folder``, ``limit_bytes`` at most. Thread safe; :meth:`close` ends all writing."""

    def __init__(self, fs: FileSystem, folder: Path, limit_bytes: int, *, max_used_percent: int = 95) -> None:
        """Takes the folder for this process; :class:`StoreLockedError` if another one has it.

        While the volume is fuller than ``max_used_percent``, the cache grows no more and gives room back.
        """
        self._fs = fs
        self._folder = folder
        self._max_used_percent = max_used_percent
        self._ranges, self._tmp = folder / "ranges", folder / "writing"
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._kept: ByteUses[str, int] = ByteUses(limit_bytes)
        self._lost_bytes = 0
        self._queue: deque[tuple[Range, bytes]] = deque()
        self._queued_bytes = 0
        self._thread: threading.Thread | None = None
        self._pause = self._numbers = 0
        self._hits = self._misses = self._evictions = 0
        self._closed = False
        self._forgotten = ForgottenKeys()
        with contextlib.ExitStack() as held:
            for each in (folder, self._ranges, self._tmp):
                fs.make_dirs(each)
            held.enter_context(fs.lock(folder / "lock"))
            self._adopt()
            self._held = held.pop_all()

    def _adopt(self) -> None:
        """Lists what an earlier process left."""
        for name in self._fs.list_dir(self._tmp):
            if name.isdecimal():
                self._fs.unlink(self._tmp / name)
        for name in self._fs.list_dir(self._ranges):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            size = int(match[3]) - int(match[2])
            if size < 0 or not self._make_room(_blocks(size)):
                self._fs.unlink(self._ranges / name)
            else:
                self._kept.put(name, size, _blocks(size))

    # reading

    def __contains__(self, place: Range) -> bool:
        with self._lock:
            return not self._closed and _file_name(*place) in self._kept

    def get(self, key: str, start: int, end: int) -> bytes | None:
        """Returns the bytes of a range, or None; whatever is wrong with a file, it is as if it were not there."""
        name = _file_name(key, start, end)
        with self._lock:
            is_listed = not self._closed and self._kept.get(name) is not None
        data = self._read(name, key.encode(), end - start) if is_listed else None
        with self._lock:
            if data is None:
                self._misses += 1
            else:
                self._hits += 1
        return data

    def kept(self) -> Iterator[tuple[Range, bytes]]:
        """Yields every range that is there now, read one after the other; what is wrong is left out."""
        with self._lock:
            names = [] if self._closed else [(name, self._kept.get(name, touch=False)) for name in self._kept]
        for name, size in names:
            match = _NAME.fullmatch(name)
            assert match is not None
            found = self._open(name, size or 0)
            if found is not None:
                yield (found[0].decode(), int(match[2]), int(match[3])), found[1]

    def _read(self, name: str, key: bytes, size: int) -> bytes | None:
        found = self._open(name, size)
        if found is not None and found[0] == key:
            return found[1]
        if found is not None:
            self._remove_unless_busy(name)
        return None

    def _open(self, name: str, size: int) -> tuple[bytes, bytes] | None:
        """Key and content of a file, None for one that is not as it was written."""
        try:
            file = self._fs.read(self._ranges / name)
        except StoreError:
            file = b""
        if len(file) >= HEAD.size:
            magic, crc, length = HEAD.unpack_from(file)
            is_whole = magic == MAGIC and len(file) == HEAD.size + length + size
            if is_whole and zlib.crc32(memoryview(file)[CRC_FROM:]) == crc:
                return file[HEAD.size : HEAD.size + length], file[HEAD.size + length :]
        self._remove_unless_busy(name)
        return None

    def _remove_unless_busy(self, name: str) -> None:
        if self._writing.acquire(blocking=False):  # else the next writer or reader meets it again
            with contextlib.ExitStack() as held:
                held.callback(self._writing.release)
                self._remove(name)

    # writing

    def offer(self, key: str, start: int, end: int, data: bytes) -> None:
        """Lets a range be written soon, beside the caller; forgotten where that cannot keep up."""
        with self._lock:
            if self._closed or self._queued_bytes + len(data) > _QUEUE_BYTES:
                return
            self._queue.append(((key, start, end), data))
            self._queued_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._drain, name="tierlog-disk-cache", daemon=True)
                self._thread.start()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                (key, start, end), data = self._queue.popleft()
                self._queued_bytes -= len(data)
            self.put(key, start, end, data)

    def put(self, key: str, start: int, end: int, data: bytes, *, replace: bool = True) -> bool:
        """Writes a range now; False if it was not kept. Never raises for what the disk does.

        Without ``replace`` nothing else goes for it.
        """
        name, key_bytes = _file_name(key, start, end), key.encode()
        cost = _blocks(len(data))
        with self._writing:
            with self._lock:
                self._pause = max(0, self._pause - 1)
                if self._closed or self._pause or name in self._kept or key in self._forgotten:
                    return False
                if not replace and cost > self._kept.limit_bytes - self._kept.used_bytes - self._lost_bytes:
                    return False
            try:
                if not self._is_roomy(cost) or not self._make_room(cost):
                    return False
                with self._lock:
                    self._kept.put(name, len(data), cost)  # reserved before a byte is written
                self._write(name, HEAD.pack(MAGIC, _checksum(key_bytes, data), len(key_bytes)) + key_bytes + data)
            except StoreError:
                self._pause = _PAUSE
                with contextlib.suppress(StoreError):
                    self._remove(name)
                return False
            return True

    def _write(self, name: str, content: bytes) -> None:
        self._numbers += 1
        temporary = self._tmp / str(self._numbers)
        try:
            file = self._fs.open(temporary)
            try:
                file.write_at(0, content)
            finally:
                file.close()
            self._fs.rename(temporary, self._ranges / name)
        except StoreError:
            with self._lock:
                self._lost_bytes += len(content)  # it still counts if it cannot be removed
            self._fs.unlink(temporary)
            with self._lock:
                self._lost_bytes -= len(content)
            raise

    def _is_roomy(self, cost: int) -> bool:
        """Whether the volume has room to grow into; if not, as much as was wanted is given back."""
        total = self._fs.total_bytes(self._folder)
        if (total - self._fs.free_bytes(self._folder)) * 100 <= total * self._max_used_percent:
            return True
        self._make_room(self._kept.limit_bytes - self._kept.used_bytes - self._lost_bytes + cost)
        return False

    def _make_room(self, cost: int) -> bool:
        """Removes what has the fewest uses a byte until ``cost`` fits; False if it never will."""
        limit = self._kept.limit_bytes
        while cost > limit - self._kept.used_bytes - self._lost_bytes:
            with self._lock:
                if not len(self._kept):
                    return False
                name, _, freed = self._kept.evict()
                self._evictions += 1
                self._lost_bytes += freed
            self._fs.unlink(self._ranges / name)
            with self._lock:
                self._lost_bytes -= freed  # a file that could not be removed still counts
        return True

    def _remove(self, name: str) -> None:
        with self._lock:
            entry = self._kept.pop(name)
            freed = entry[1] if entry else 0
            self._lost_bytes += freed
        self._fs.unlink(self._ranges / name)
        with self._lock:
            self._lost_bytes -= freed

    def forget(self, key: str) -> None:
        """Removes everything of an object, queued writes included; raises if a file of it cannot be removed."""
        self._forgotten.add(key)
        with self._lock:
            kept = [each for each in self._queue if each[0][0] != key]
            self._queue = deque(kept)
            self._queued_bytes = sum(len(data) for _, data in kept)
        with self._writing:
            with self._lock:
                names = [name for name in self._kept if name.startswith(_object_hash(key))]
            for name in names:
                self._remove(name)

    def drop(self, key: str, start: int, end: int) -> None:
        """Removes one range that proved to be wrong."""
        with self._writing, contextlib.suppress(StoreError):
            self._remove(_file_name(key, start, end))

    def counters(self) -> LayerCounters:
        with self._lock:
            return LayerCounters(
                hits=self._hits, misses=self._misses, evictions=self._evictions,
                bytes=self._kept.used_bytes + self._lost_bytes, entries=len(self._kept),
                limit_bytes=self._kept.limit_bytes,
            )  # fmt: skip

    def close(self) -> None:
        """Keeps nothing more. A write that hangs in the disk is not waited for long, and then keeps the folder."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._queued_bytes = 0
        if self._writing.acquire(timeout=_CLOSE_PATIENCE_S):
            try:
                self._held.close()
            finally:
                self._writing.release()


def _object_hash(key: str) -> str:
    return blake2b(key.encode(), digest_size=16).hexdigest()


def _file_name(key: str, start: int, end: int) -> str:
    return f"{_object_hash(key)}-{start}-{end}"


def _blocks(size: int) -> int:
    """Returns what a range of this size takes on a disk; a head and the longest key fit one block."""
    return -(-(size + HEAD.size + 1024) // _BLOCK_BYTES) * _BLOCK_BYTES


def _checksum(key: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(key, zlib.crc32(len(key).to_bytes(2))))
