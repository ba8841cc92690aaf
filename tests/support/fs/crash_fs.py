"""A file system in memory that forgets, at a power cut, what nobody made durable.

Every file has volatile bytes and durable ones; every name has a volatile meaning and a durable one. ``flush``
copies the bytes of one file, ``flush_dir`` the names of one folder. :meth:`CrashFileSystem.crash` gives the disk as
the machine finds it afterwards: each 512-byte sector that was not flushed is the old one or the new one, each name
that was not flushed means the old file or the new one, as a seed decides. What the seed never does is what a
journalling file system never does: a renamed file does not vanish from both of its names.

Blocks are known by sector: a hole gets them by writing or allocating there, and what was allocated and not flushed is a
hole again after a power cut. A file that was written through a map where it had a hole fails the test: on a full disk
that is the end of the process.

Mutating calls are numbered from 1. A call that is cut has begun: its bytes and names are there, none of them
durable. After the cut every call raises :class:`PowerCut`, so that no cleanup of the code under test runs.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import DiskFailedError, NotFoundError, StoreLockedError
from tierlog.tiering.base.fs import ByteArray, File

SECTOR_BYTES = 512
#: What a sector of a file has: nothing, a block that is only reserved, or one that was written.
_HOLE, _RESERVED, _WRITTEN = 0, 1, 2
_EARLY_WRITE_BACK = 8  # one write in so many reaches the disk in part before anybody asks


class PowerCut(BaseException):
    """The machine is off. No Exception: the code under test must not handle it."""


class _Inode:
    """One file's bytes: ``data`` as programs see them, ``durable`` as the disk has them; which sectors have blocks."""

    def __init__(self, data: ByteArray) -> None:
        self.data = data
        self.durable = data.copy()
        self.blocks = _sectors(len(data), _WRITTEN)
        self.durable_blocks = self.blocks.copy()
        self.is_mapped = False

    def copy(self) -> _Inode:
        """The same file, of which nobody has a map."""
        copied = _Inode(self.durable)
        copied.data = self.data.copy()
        copied.blocks, copied.durable_blocks = self.blocks.copy(), self.durable_blocks.copy()
        return copied

    def lengthen(self, size_bytes: int) -> None:
        """Make the file longer, by a hole."""
        if size_bytes > len(self.data):
            self.data = np.concatenate((self.data, np.zeros(size_bytes - len(self.data), np.uint8)))
            self.blocks = _longer(self.blocks, size_bytes)

    def give_blocks(self, start: int, end: int, what: int) -> None:
        """Give sectors their blocks, reserved or written."""
        sectors = self.blocks[start // SECTOR_BYTES : -(-end // SECTOR_BYTES)]
        np.maximum(sectors, what, out=sectors)

    def take_blocks(self, start: int, end: int) -> None:
        """Make whole sectors a hole."""
        self.blocks[-(-start // SECTOR_BYTES) : -(-end // SECTOR_BYTES)] = _HOLE

    def check_map(self) -> None:
        """Fail where a map was written beyond the blocks."""
        if self.is_mapped:
            beyond = np.flatnonzero(self.blocks == _HOLE)
            written = _padded(self.data, len(self.data)).reshape(-1, SECTOR_BYTES)[beyond].any(axis=1)
            assert not written.any(), f"written through a map without a block: sectors {beyond[written].tolist()}"

    def dirty_sectors(self) -> list[int]:
        """Sectors whose durable bytes differ from the volatile ones, or are missing."""
        length = max(len(self.data), len(self.durable))
        different = _padded(self.data, length) != _padded(self.durable, length)
        missing = np.zeros(len(different), bool)
        missing[min(len(self.data), len(self.durable)) : length] = True
        return np.flatnonzero((different | missing).reshape(-1, SECTOR_BYTES).any(axis=1)).tolist()

    def write_back(self, sectors: list[int]) -> None:
        """Make some sectors durable; a file that grew grows as far as the last of them."""
        if not sectors:
            return
        reach = min(len(self.data), (max(sectors) + 1) * SECTOR_BYTES)
        self.durable_blocks = _longer(self.durable_blocks, reach)
        if reach > len(self.durable):
            self.durable = np.concatenate((self.durable, np.zeros(reach - len(self.durable), np.uint8)))
        for sector in sectors:
            piece = slice(sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(self.data)))
            self.durable[piece] = self.data[piece]
            self.durable_blocks[sector] = max(self.blocks[sector], _RESERVED)

    def flush(self) -> None:
        self.check_map()
        self.durable = self.data.copy()
        self.durable_blocks = self.blocks.copy()


def _sectors(size_bytes: int, what: int) -> NDArray[np.uint8]:
    return np.full(-(-size_bytes // SECTOR_BYTES), what, np.uint8)


def _longer(blocks: NDArray[np.uint8], size_bytes: int) -> NDArray[np.uint8]:
    missing = max(-(-size_bytes // SECTOR_BYTES) - len(blocks), 0)
    return np.concatenate((blocks, np.full(missing, _HOLE, np.uint8)))


def _is_in(path: Path, folder: str) -> bool:
    """Whether ``path`` lies in ``folder``; asked millions of times, and Path.parent takes ten times as long."""
    above, _, name = str(path).rpartition("/")
    return (above or "/") == folder and name != ""


def _padded(data: ByteArray, length: int) -> ByteArray:
    padded = np.zeros(-(-length // SECTOR_BYTES) * SECTOR_BYTES, np.uint8)
    padded[: len(data)] = data
    return padded


class _CrashFile:
    """An open file; it keeps its inode whatever happens to the name."""

    def __init__(self, owner: CrashFileSystem, path: Path, inode: _Inode) -> None:
        self._owner = owner
        self._path = path
        self._inode = inode
        self._is_open = True

    def write_at(self, position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
        source = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        self._change("write_at", position, source)

    def read_at(self, position: int, length: int) -> bytes:
        self._owner.check_power()
        return bytes(self._inode.data[position : position + length])

    def zero(self, start: int, end: int) -> None:
        end = min(end, len(self._inode.data))  # a hole never makes a file longer
        self._change("zero", start, np.zeros(max(end - start, 0), np.uint8))
        if start < end:
            self._inode.take_blocks(start, end)

    def first_hole(self, position: int) -> int:
        self._owner.check_power()
        holes = np.flatnonzero(self._inode.blocks[position // SECTOR_BYTES :] != _WRITTEN)
        if not len(holes):
            return len(self._inode.data)
        return max(position, (position // SECTOR_BYTES + int(holes[0])) * SECTOR_BYTES)

    def flush(self) -> None:
        assert self._is_open, f"flush of a closed file: {self._path}"
        self._owner.begin("flush", self._path)
        self._owner.cut()
        self._inode.flush()

    def close(self) -> None:
        self._is_open = False

    def _change(self, operation: str, position: int, source: ByteArray) -> None:
        assert self._is_open, f"{operation} on a closed file: {self._path}"
        self._owner.begin(operation, self._path)
        inode, end = self._inode, position + len(source)
        if len(source):
            inode.lengthen(end)
        inode.data[position:end] = source
        inode.give_blocks(position, end, _WRITTEN)
        self._owner.maybe_write_back(inode, position, end)
        self._owner.cut()


class CrashFileSystem:
    """Implements :class:`tiering.base.fs.FileSystem`; not thread safe, as a simulated machine runs one thread.

    ``cut_at`` is the number of the call at which the power goes. ``on_call``, if set, is told (number, operation,
    path) of each mutating call once it has begun and before anything of it is durable: from there
    :meth:`crash` can be taken as often as wanted while the workload goes on.
    """

    def __init__(self, *, seed: int = 0, cut_at: int | None = None) -> None:
        self.calls = 0
        self.cut_at = cut_at
        self.on_call: Callable[[int, str, Path], None] | None = None
        self._random = random.Random(seed)
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._renames: dict[Path, list[Path]] = {}
        self._folders: set[Path] = {Path("/")}
        self._locked: dict[Path, object] = {}
        self._current: tuple[str, Path] = ("", Path("/"))
        self._is_dead = False

    # ---- power

    @property
    def is_dead(self) -> bool:
        """Whether the power has gone."""
        return self._is_dead

    def check_power(self) -> None:
        """Raise :class:`PowerCut` once the power has gone."""
        if self._is_dead:
            raise PowerCut(f"power was cut at call {self.cut_at}")

    def begin(self, operation: str, path: Path) -> None:
        """Count a mutating call."""
        self.check_power()
        self.calls += 1
        self._current = (operation, path)

    def cut(self) -> None:
        """The point inside a call at which the power may go: begun, nothing durable yet."""
        if self.on_call is not None:
            self.on_call(self.calls, *self._current)
        if self.cut_at is not None and self.calls >= self.cut_at:
            self._is_dead = True
            self.check_power()

    def outside_call(self, operation: str, name: str) -> None:
        """Count a step of something else, such as a request to an object store, as a place where the power may go."""
        self.begin(operation, Path("/") / name)
        self.cut()

    def maybe_write_back(self, inode: _Inode, start: int, end: int) -> None:
        """Now and then the kernel writes some of a file's new sectors before anybody flushes."""
        if self._random.randrange(_EARLY_WRITE_BACK) == 0 and end > start:
            touched = range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))
            inode.write_back([sector for sector in touched if self._random.getrandbits(1)])

    def crash(self, seed: int, *, lose_everything: bool = False, cut_at: int | None = None) -> CrashFileSystem:
        """The disk after a power cut at this moment; this one stays as it is."""
        chance = random.Random(seed)
        after = CrashFileSystem(seed=seed, cut_at=cut_at)
        after._folders = set(self._folders)
        content: dict[int, _Inode] = {}
        for path, inode in self._surviving_names(chance, lose_everything=lose_everything).items():
            if id(inode) not in content:
                inode.check_map()
                content[id(inode)] = _surviving(inode, chance, lose_everything=lose_everything)
            after._names[path] = content[id(inode)].copy()
        after._durable_names = dict(after._names)
        return after

    def after_kill(self, *, cut_at: int | None = None) -> CrashFileSystem:
        """The disk after the process was killed: nothing that was written is gone, no more of it is durable."""
        after = CrashFileSystem(cut_at=cut_at)
        after._folders = set(self._folders)
        copies: dict[int, _Inode] = {}
        for inode in (*self._names.values(), *self._durable_names.values()):
            if id(inode) not in copies:
                copies[id(inode)] = inode.copy()
        after._names = {path: copies[id(inode)] for path, inode in self._names.items()}
        after._durable_names = {path: copies[id(inode)] for path, inode in self._durable_names.items()}
        after._renames = {folder: list(targets) for folder, targets in self._renames.items()}
        return after

    def _surviving_names(self, chance: random.Random, *, lose_everything: bool) -> dict[Path, _Inode]:
        names = dict(self._durable_names)
        for path in sorted({*self._names, *self._durable_names}):
            if self._names.get(path) is self._durable_names.get(path) or lose_everything or chance.getrandbits(1):
                continue
            if path in self._names:
                names[path] = self._names[path]
            else:
                names.pop(path, None)
        kept = {id(inode) for inode in names.values()}
        durable = {id(inode) for inode in self._durable_names.values()}
        # a rename is done or undone, never half
        half = {path: each for path, each in self._names.items() if id(each) in durable and id(each) not in kept}
        return names | half

    # ---- names

    def exists(self, path: Path) -> bool:
        """Whether something has this name."""
        self.check_power()
        return path in self._names or path in self._folders

    def is_dir(self, path: Path) -> bool:
        """Whether ``path`` names a folder."""
        self.check_power()
        return path in self._folders

    def list_dir(self, path: Path) -> list[str]:
        """Names in a folder, sorted; missing means empty."""
        self.check_power()
        return sorted(each.name for each in (*self._names, *self._folders) if _is_in(each, str(path)))

    def make_dirs(self, path: Path) -> None:
        """Create a folder and its parents, durably."""
        self.check_power()
        if path not in self._folders:
            self.begin("make_dirs", path)
            self.cut()
            self._folders.update((path, *path.parents))

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target`` by ``source``; either name stays doubtful until its folder is flushed."""
        self.begin("rename", target)
        inode = self._inode(source)
        self._check_folder(target)
        del self._names[source]
        self._names[target] = inode
        self._renames.setdefault(source.parent, []).append(target)
        self.cut()

    def link(self, source: Path, target: Path) -> None:
        """Another name, unless it is taken; doubtful until its folder is flushed."""
        inode = self._inode(source)
        self._check_folder(target)
        if target not in self._names:
            self.begin("link", target)
            self._names[target] = inode
            self.cut()

    def unlink(self, path: Path) -> None:
        """Remove a name; already gone is fine."""
        self.check_power()
        if path in self._names:
            self.begin("unlink", path)
            del self._names[path]
            self.cut()

    def remove_dir(self, path: Path) -> None:
        """Remove an empty folder; already gone is fine."""
        self.check_power()
        if path in self._folders:
            if self.list_dir(path):
                raise DiskFailedError("the disk refused: directory not empty", path=str(path))
            self.begin("remove_dir", path)
            self.cut()
            self._folders.discard(path)

    def flush_dir(self, path: Path) -> None:
        """Make the names in a folder durable, and the new names of files that were renamed out of it."""
        self._check_folder(path / "name")
        self.begin("flush_dir", path)
        self.cut()
        gone_to = set(self._renames.pop(path, ()))
        folder = str(path)
        for each in {*self._names, *self._durable_names}:
            if _is_in(each, folder) or each in gone_to:
                if each in self._names:
                    self._durable_names[each] = self._names[each]
                else:
                    self._durable_names.pop(each, None)

    # ---- files

    def size(self, path: Path) -> int:
        """Length in bytes."""
        return len(self._inode(path).data)

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        """A file of zeros, its bytes durable at return, its name not."""
        self._check_folder(path)
        self.begin("create", path)
        inode = self._names.setdefault(path, _Inode(np.empty(0, np.uint8)))
        inode.data = np.zeros(size_bytes, np.uint8)
        inode.blocks = _sectors(size_bytes, _HOLE)
        with_blocks = size_bytes if first_bytes is None else min(first_bytes, size_bytes)
        inode.give_blocks(0, with_blocks, _WRITTEN if prewrite else _RESERVED)
        self.cut()
        inode.flush()

    def allocate(self, path: Path, start: int, end: int) -> None:
        """Give a hole its blocks, which nobody has made durable yet."""
        inode = self._inode(path)
        if end <= start:
            return
        self.begin("allocate", path)
        inode.lengthen(end)
        inode.give_blocks(start, end, _RESERVED)
        self.cut()

    def open(self, path: Path) -> File:
        """Open a file, or create it empty."""
        self.check_power()
        if path not in self._names:
            self._check_folder(path)
            self.begin("open", path)
            self._names[path] = _Inode(np.empty(0, np.uint8))
            self.cut()
        return _CrashFile(self, path, self._names[path])

    def open_read(self, path: Path) -> File:
        """Open a file that is there."""
        return _CrashFile(self, path, self._inode(path))

    def stamp(self, path: Path) -> tuple[int, int] | None:
        """Which file it is; when it was written is not known here."""
        self.check_power()
        return (id(self._names[path]), 0) if path in self._names else None

    def read(self, path: Path) -> bytes:
        """The whole file."""
        return bytes(self._inode(path).data)

    def map_read(self, path: Path) -> ByteArray:
        """The bytes, read-only; follows later writes as long as the file keeps its length."""
        view = self._inode(path).data.view()
        view.flags.writeable = False
        return view

    def map_write(self, path: Path) -> ByteArray:
        """The bytes, writable; what is written here counts as not flushed."""
        inode = self._inode(path)
        inode.is_mapped = True
        return inode.data.view()

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """Make the sectors of ``[start, end)`` durable."""
        inode = self._inode(path)
        assert np.shares_memory(inode.data, mapped), f"not the map of {path}"
        self.begin("flush_mapped", path)
        self.cut()
        inode.check_map()
        inode.write_back(list(range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))))

    def map_private(self, path: Path) -> ByteArray:
        """A copy."""
        return self._inode(path).data.copy()

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """Held by one opener of this file system; a power cut lets go of it."""
        self.check_power()
        if path in self._locked:
            raise StoreLockedError("the store is already open in this process", path=str(path))
        self._locked[path] = mine = object()
        try:
            yield
        finally:
            if self._locked.get(path) is mine:
                del self._locked[path]

    def kill(self) -> None:
        """The process is gone, the machine is not: locks end, nothing that was written is lost."""
        self._locked.clear()

    def is_locked(self, path: Path) -> bool:
        """Whether an opener of this file system holds it."""
        return path in self._locked

    def free_bytes(self, path: Path) -> int:
        """Always plenty."""
        return 1 << 40

    def total_bytes(self, path: Path) -> int:
        """As if nothing were used."""
        return 1 << 40

    def _inode(self, path: Path) -> _Inode:
        self.check_power()
        if path not in self._names:
            raise NotFoundError("no such file", path=str(path))
        return self._names[path]

    def _check_folder(self, path: Path) -> None:
        if path.parent not in self._folders:
            raise NotFoundError("no such file", path=str(path))


def _surviving(inode: _Inode, chance: random.Random, *, lose_everything: bool) -> _Inode:
    after = inode.copy()
    if not lose_everything:
        dirty = after.dirty_sectors()
        # often nothing or all of a file, because that is where single bytes hide
        keep = chance.choice(("none", "all", "some", "some"))
        after.write_back([sector for sector in dirty if keep == "all" or (keep == "some" and chance.getrandbits(1))])
    after.data, after.blocks = after.durable.copy(), after.durable_blocks.copy()
    return after
