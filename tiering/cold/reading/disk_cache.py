"""Ranges of archive objects on the local disk: what is there survives a restart, and none of it is ever needed.

A range is kept as one record, big-endian:

====== ==== ====== ========== ========================================================
offset size type   field      meaning
====== ==== ====== ========== ========================================================
0      8    bytes  magic      ``TLCACHE2``
8      4    uint32 crc        CRC-32 of the range's start and end, 8 bytes each, and everything behind this field
12     2    uint16 key_length of the object's key in UTF-8, which follows, then the range
====== ==== ====== ========== ========================================================

Total 14. Its whole blocks of 4 KiB are a file of their own, ``ranges/<hash>-<start>-<end>-<position>-<length>``, the
hash being BLAKE2b-128 of the object's key in hex. What is left over lies in ``shared``, ``length`` bytes at
``position``, within one block that it shares with the left-overs of others. So the name is the index: one list of a
folder tells what is there, which parts of ``shared`` are free, and renaming is what makes a range exist. A record of
less than a block has an empty file. Magic, checksum, place, key and length are compared on every read; what differs is
removed and counts as not there.

Nothing here is durable state, so nothing is flushed. A file is written as ``writing/<position>-<length>``, then its
left-over, then it is renamed. Killed before the rename: the next open finds what was begun, makes the left-over zeros
and removes it. What goes has its left-over made zeros before its name goes, so a range without a name has no bytes
anywhere. Power lost at any point: a name may lead to old, partial or another's bytes, which the checksum finds when
they are read; of two names for the same place one is removed at open. Bytes may then lie where no name leads, or under
the name of another: so the first :meth:`DiskCache.forget` of a process reads all that an earlier one left. Uses are
counted anew from each open, so the largest of what an earlier process left goes first until something is used.

Room is counted in blocks, as the disk does, and taken from the limit before a byte is written; what was given up
counts until it is gone, so the blocks never pass the limit. A full or failing disk costs the cache, never a read:
writing happens on a thread of its own behind a bounded queue, what finds the queue full is not kept, and after a
failure writing pauses. ``shared`` is the one file that stays open.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import File, FileSystem
from tierlog.tiering.cold.reading.memory_cache import ByteUses, ForgottenKeys, LayerCounters, Range

MAGIC = b"TLCACHE2"
HEAD = struct.Struct(">8sIH")
PLACE = struct.Struct(">QQ")
CRC_FROM = 12
BLOCK_BYTES = 4096
NAME = re.compile(r"([0-9a-f]{32})-(\d{1,19})-(\d{1,19})(?:-(\d{1,19})-(\d{1,4}))?")
"""Without its last two numbers it is a file of a version that shared nothing."""
_BEGUN = re.compile(r"(\d{1,19})(?:-(\d{1,4}))?")
_UNIT_BYTES = 32
"""What left-overs are rounded to: half of it a range, on average, is the price of finding places fast."""
_UNITS = BLOCK_BYTES // _UNIT_BYTES
_FREE = re.compile("0+")
_STRETCHES, _STRETCHES_INSIDE = 240, 4
"""Stretches of a file that a block of ext4 or XFS lists, less than its 340 or 250; ext4 lists four beside the name."""
_QUEUE_BYTES = 8 << 20
_PAUSE = 64
"""Ranges that are not kept after a write failed: a disk that stays full is asked now and then."""
_CLOSE_PATIENCE_S = 1.0


class Pieces(NamedTuple):
    """Where a record lies: so many bytes of whole blocks in its own file, the rest in the shared one."""

    own: int
    position: int
    length: int


class SharedBlocks:
    """Which parts of blocks of one file are taken. Not thread safe.

    A block counts from the first left-over in it until the last is gone and the disk has it back.
    """

    def __init__(self) -> None:
        self._taken: dict[int, tuple[int, int]] = {}  # by block: a bit for each unit, and its longest free run
        self._found: dict[int, int] = {}  # while an earlier process' places are adopted, the bits alone
        self._by_run: list[set[int]] = [set() for _ in range(_UNITS + 1)]
        self._unused: list[int] = []
        self._end = 0

    @property
    def room_bytes(self) -> int:
        """What the file takes: its blocks, and those in which a file system lists the stretches of one with holes."""
        return _room_bytes(len(self._taken))

    def more_bytes(self, length: int) -> int:
        """What a left-over would add to that: nothing if it fits beside others."""
        if length == 0 or any(self._by_run[_units(length) :]):
            return 0
        return _room_bytes(len(self._taken) + 1) - self.room_bytes

    def take(self, length: int) -> int:
        """Takes room for a left-over where it fits best; its position in the file."""
        if length == 0:
            return 0
        units = _units(length)
        block = next((next(iter(blocks)) for blocks in self._by_run[units:] if blocks), None)
        if block is None:
            block = heapq.heappop(self._unused) if self._unused else self._end
            self._end = max(self._end, block + 1)
            self._set(block, 0)
        taken = self._taken[block][0]
        _, start = min((end - start, start) for start, end in _free_runs(taken) if end - start >= units)
        self._set(block, taken | _bits(start, units))
        return block * BLOCK_BYTES + start * _UNIT_BYTES

    def adopt(self, position: int, length: int) -> bool:
        """Takes the place that a left-over of an earlier process has; False if it cannot be or another has it."""
        if length == 0:
            return position == 0
        block, within = divmod(position, BLOCK_BYTES)
        taken = self._found.get(block, 0)
        bits = _bits(within // _UNIT_BYTES, _units(length))
        if within % _UNIT_BYTES or within + length > BLOCK_BYTES or taken & bits:
            return False
        self._found[block] = taken | bits
        return True

    def adopted(self, file: File, size_bytes: int) -> None:
        """Gives back the blocks of a file in which nothing is, once all is adopted."""
        for block, taken in self._found.items():
            self._set(block, taken)
        self._found = {}
        self._end = max(self._taken, default=-1) + 1
        begin = 0
        for block in (*sorted(self._taken), max(self._end, -(-size_bytes // BLOCK_BYTES))):
            if begin < block:
                self._give_back(file, begin, block)
            begin = block + 1

    def free(self, file: File, position: int, length: int) -> None:
        """Makes a place free, and gives its block back if it was the last; it stays taken if the disk refuses."""
        if length == 0:
            return
        block, within = divmod(position, BLOCK_BYTES)
        left = self._taken[block][0] & ~_bits(within // _UNIT_BYTES, _units(length))
        if left:
            self._set(block, left)
        else:
            self._give_back(file, block, block + 1)

    def clear_free(self, file: File) -> None:
        """Makes zeros of all that is free in blocks that others use."""
        for block, (taken, _) in self._taken.items():
            for start, end in _free_runs(taken):
                file.zero(block * BLOCK_BYTES + start * _UNIT_BYTES, block * BLOCK_BYTES + end * _UNIT_BYTES)

    def _give_back(self, file: File, begin: int, end: int) -> None:
        file.zero(begin * BLOCK_BYTES, end * BLOCK_BYTES)
        is_hole = file.first_hole(begin * BLOCK_BYTES) <= begin * BLOCK_BYTES
        for block in range(begin, end):
            if not is_hole:
                self._set(block, 0)  # a file system without holes: the block is still there, for others
                self._end = max(self._end, block + 1)
                continue
            if (known := self._taken.pop(block, None)) is not None:
                self._by_run[known[1]].discard(block)
            if block < self._end:
                heapq.heappush(self._unused, block)

    def _set(self, block: int, taken: int) -> None:
        if (known := self._taken.get(block)) is not None:
            self._by_run[known[1]].discard(block)
        longest = len(max(f"{taken:0{_UNITS}b}".split("1")))
        self._taken[block] = taken, longest
        self._by_run[longest].add(block)


def _room_bytes(blocks: int) -> int:
    return (blocks + (-(-blocks // _STRETCHES) if blocks > _STRETCHES_INSIDE else 0)) * BLOCK_BYTES


def _units(length: int) -> int:
    return -(-length // _UNIT_BYTES)


def _bits(start: int, units: int) -> int:
    return ((1 << units) - 1) << start


def _free_runs(taken: int) -> list[tuple[int, int]]:
    return [match.span() for match in _FREE.finditer(f"{taken:0{_UNITS}b}"[::-1])]


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
        self._kept: ByteUses[str, Pieces] = ByteUses(limit_bytes)
        self._blocks = SharedBlocks()
        self._own_bytes = 0
        self._doubtful: list[str] = []  # what was adopted, until all of it was looked at
        self._queue: deque[tuple[Range, bytes]] = deque()
        self._queued_bytes = 0
        self._thread: threading.Thread | None = None
        self._pause = 0
        self._hits = self._misses = self._evictions = 0
        self._closed = False
        self._forgotten = ForgottenKeys()
        with contextlib.ExitStack() as held:
            for each in (folder, self._ranges, self._tmp):
                fs.make_dirs(each)
            held.enter_context(fs.lock(folder / "lock"))
            self._shared = fs.open(folder / "shared")
            held.callback(self._shared.close)
            self._adopt()
            self._held = held.pop_all()

    def _adopt(self) -> None:
        """Lists what an earlier process left."""
        size = self._fs.size(self._folder / "shared")
        for name in self._fs.list_dir(self._tmp):
            if match := _BEGUN.fullmatch(name):
                begin = int(match[1])
                self._shared.zero(begin, min(begin + int(match[2] or 0), size))
                self._fs.unlink(self._tmp / name)
        for name in self._fs.list_dir(self._ranges):
            if (match := NAME.fullmatch(name)) is None:
                continue
            pieces = pieces_of(match)
            if (
                pieces is None
                or pieces.position + pieces.length > size
                or not self._blocks.adopt(pieces.position, pieces.length)
            ):
                self._fs.unlink(self._ranges / name)
            else:
                self._kept.put(_range_name(match), pieces, pieces.own + pieces.length)
                self._own_bytes += pieces.own
        self._blocks.adopted(self._shared, size)
        self._evict_down_to(self._kept.limit_bytes)
        self._doubtful = list(self._kept)

    # reading

    def __contains__(self, place: Range) -> bool:
        with self._lock:
            return not self._closed and _name(*place) in self._kept

    def get(self, key: str, start: int, end: int) -> bytes | None:
        """Returns the bytes of a range, or None; whatever is wrong with a file, it is as if it were not there."""
        name = _name(key, start, end)
        with self._lock:
            pieces = None if self._closed else self._kept.get(name)
        found = None if pieces is None else self._open(name, pieces)
        if found is not None and pieces is not None and found[0] != key.encode():
            self._remove_unless_busy(name, pieces)
            found = None
        with self._lock:
            if found is None:
                self._misses += 1
            else:
                self._hits += 1
        return None if found is None else found[1]

    def kept(self) -> Iterator[tuple[Range, bytes]]:
        """Yields every range that is there now, read one after the other; what is wrong is left out."""
        with self._lock:
            names = [] if self._closed else [(name, self._kept.get(name, touch=False)) for name in self._kept]
        for name, pieces in names:
            found = None if pieces is None else self._open(name, pieces)
            if found is not None:
                yield (found[0].decode(), *_bounds(name)), found[1]

    def _open(self, name: str, pieces: Pieces) -> tuple[bytes, bytes] | None:
        """Key and content of a range, None for one that is not as it was written, which goes."""
        found = self._read(name, pieces)
        if found is None:
            self._remove_unless_busy(name, pieces)
        return found

    def _read(self, name: str, pieces: Pieces) -> tuple[bytes, bytes] | None:
        try:
            record = self._fs.read(self._ranges / _file_name(name, pieces)) if pieces.own else b""
            if len(record) == pieces.own:
                record += self._shared.read_at(pieces.position, pieces.length)
        except StoreError:
            record = b""
        start, end = _bounds(name)
        if len(record) == pieces.own + pieces.length:
            magic, crc, length = HEAD.unpack_from(record)
            is_whole = magic == MAGIC and len(record) == HEAD.size + length + end - start
            if is_whole and zlib.crc32(memoryview(record)[CRC_FROM:], zlib.crc32(PLACE.pack(start, end))) == crc:
                return record[HEAD.size : HEAD.size + length], record[HEAD.size + length :]
        return None

    def _remove_unless_busy(self, name: str, pieces: Pieces) -> None:
        """Removes what is wrong, unless it was replaced meanwhile: then what was read was another's."""
        if self._writing.acquire(blocking=False):  # else the next writer or reader meets it again
            with contextlib.ExitStack() as held:
                held.callback(self._writing.release)
                if not self._closed and self._kept.get(name, touch=False) == pieces:
                    held.enter_context(contextlib.suppress(StoreError))
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
        name, record = _name(key, start, end), _record(key.encode(), start, end, data)
        with self._writing:
            with self._lock:
                self._pause = max(0, self._pause - 1)
                if self._closed or self._pause or name in self._kept or key in self._forgotten:
                    return False
            if not replace and self._lacking_bytes(len(record)) > 0:
                return False
            try:
                if not self._is_roomy(len(record)) or not self._make_room(len(record)):
                    return False
                pieces = self._write(name, record)
            except StoreError:
                self._pause = _PAUSE
                return False
            with self._lock:
                self._kept.put(name, pieces, len(record))
            return True

    def _write(self, name: str, record: bytes) -> Pieces:
        length = len(record) % BLOCK_BYTES
        pieces = Pieces(len(record) - length, self._blocks.take(length), length)
        self._own_bytes += pieces.own  # taken before a byte is written
        begun, target = self._tmp / f"{pieces.position}-{length}", self._ranges / _file_name(name, pieces)
        try:
            file = self._fs.open(begun)
            try:
                if pieces.own:
                    file.write_at(0, memoryview(record)[: pieces.own])
            finally:
                file.close()
            if length:
                self._shared.write_at(pieces.position, memoryview(record)[pieces.own :])
            self._fs.rename(begun, target)
        except StoreError:
            self._erase(pieces, begun, target)
            raise
        return pieces

    def _room_bytes(self) -> int:
        """What the files take."""
        return self._own_bytes + self._blocks.room_bytes

    def _lacking_bytes(self, size: int) -> int:
        """What is lacking for a record of this size."""
        length = size % BLOCK_BYTES
        return self._room_bytes() + size - length + self._blocks.more_bytes(length) - self._kept.limit_bytes

    def _is_roomy(self, size: int) -> bool:
        """Whether the volume has room to grow into; if not, as much as was wanted is given back."""
        total = self._fs.total_bytes(self._folder)
        if (total - self._fs.free_bytes(self._folder)) * 100 <= total * self._max_used_percent:
            return True
        self._evict_down_to(self._room_bytes() - -(-size // BLOCK_BYTES) * BLOCK_BYTES)
        return False

    def _make_room(self, size: int) -> bool:
        """Removes what has the fewest uses a byte until a record fits; False if it never will."""
        if -(-size // BLOCK_BYTES) * BLOCK_BYTES > self._kept.limit_bytes:
            return False
        while self._lacking_bytes(size) > 0:
            if not self._evict():
                return False
        return True

    def _evict_down_to(self, room_bytes: int) -> None:
        while self._room_bytes() > room_bytes and self._evict():
            pass

    def _evict(self) -> bool:
        with self._lock:
            if not len(self._kept):
                return False
            name, pieces, _ = self._kept.evict()
            self._evictions += 1
        self._erase(pieces, self._ranges / _file_name(name, pieces))
        return True

    def _remove(self, name: str) -> None:
        with self._lock:
            entry = self._kept.pop(name)
        if entry is not None:
            self._erase(entry[0], self._ranges / _file_name(name, entry[0]))

    def _erase(self, pieces: Pieces, *files: Path) -> None:
        """Makes zeros of a left-over, then removes the file; what could not be removed still counts."""
        if pieces.length:
            self._shared.zero(pieces.position, pieces.position + pieces.length)
        for file in files:
            self._fs.unlink(file)
        self._own_bytes -= pieces.own
        self._blocks.free(self._shared, pieces.position, pieces.length)

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
        if self._doubtful:
            self._clear()

    def _clear(self) -> None:
        """Removes what a power cut may have left where no name leads, or under the name of another; once is enough."""
        for name in self._doubtful:
            pieces = self._kept.get(name, touch=False)
            if self._closed:
                return
            if pieces is not None and self._read(name, pieces) is None:
                with self._writing:
                    if self._kept.get(name, touch=False) == pieces:
                        self._remove(name)
        with self._writing:
            self._blocks.clear_free(self._shared)
        self._doubtful = []

    def drop(self, key: str, start: int, end: int) -> None:
        """Removes one range that proved to be wrong."""
        with self._writing, contextlib.suppress(StoreError):
            if not self._closed:
                self._remove(_name(key, start, end))

    def counters(self) -> LayerCounters:
        with self._lock:
            return LayerCounters(
                hits=self._hits, misses=self._misses, evictions=self._evictions,
                bytes=self._room_bytes(), entries=len(self._kept),
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


def _name(key: str, start: int, end: int) -> str:
    return f"{_object_hash(key)}-{start}-{end}"


def _range_name(match: re.Match[str]) -> str:
    return f"{match[1]}-{match[2]}-{match[3]}"


def _bounds(name: str) -> tuple[int, int]:
    _, start, end = name.split("-")
    return int(start), int(end)


def _file_name(name: str, pieces: Pieces) -> str:
    return f"{name}-{pieces.position}-{pieces.length}"


def pieces_of(match: re.Match[str]) -> Pieces | None:
    """Returns where the record of a file of this name lies; None for a name that no record can have.

    The key's length, which is below a block, is what the left-over's tells of it.
    """
    size = int(match[3]) - int(match[2])
    if match[4] is None or size < 0 or int(match[5]) >= BLOCK_BYTES:
        return None
    length = int(match[5])
    key_length = (length - HEAD.size - size) % BLOCK_BYTES
    return Pieces(HEAD.size + key_length + size - length, int(match[4]), length)


def _record(key: bytes, start: int, end: int, data: bytes) -> bytes:
    behind = b"".join((len(key).to_bytes(2), key, data))
    return MAGIC + zlib.crc32(behind, zlib.crc32(PLACE.pack(start, end))).to_bytes(4) + behind
