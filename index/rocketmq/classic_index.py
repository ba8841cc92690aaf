"""RocketMQ's own key index, written beside ours so that a RocketMQ broker can open the store and find its keys.

:class:`ClassicIndexFile` is one mapped file, :func:`query_files` asks several in RocketMQ's order and with its limits,
and :class:`ClassicIndex` owns the files of a store. The format is ``index.rocketmq.classic_format``.

**Crashes.** The files are derived data. ``classic_index.json`` (``index.rocketmq.classic_format``) says what of
them is durable; it is replaced after that was flushed: a whole file when it is full, the items of the unfinished one at
each checkpoint. Everything else is forgotten at the next open and derived again from the log, whose records go only
after the files that speak of them.

* Killed while a file is written: its flushed items stand, header and slots are made of them again, and the log is read
  from there, to the item. Nothing is flushed but items, because a flush of the slots would write all of them each time.
* Killed between a flush and its note: the note before stands.
* The note speaks of records that were not flushed yet, as readers may see them: the log is flushed first.
* Killed while files below the border are removed: their names went first.
* The log lost records that files speak of, another program removed or changed a file, or the settings changed: what
  does not fit goes, and is derived again, at worst from the whole hot log. So it is when the index is switched on for
  a log that exists.

Thus nothing that is in the hot log is ever missing, unlike in RocketMQ, which drops the current file after a crash and
reads only the end of the log again. ``durable_ms`` tells RocketMQ, by the checkpoint file, which files it may keep.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import Items
from tierlog.index.kernels.classic import ItemRows, hash_classic_items, put_classic, relink_classic, walk_classic
from tierlog.index.rocketmq.classic_format import (
    FILE_NAME,
    HEADER_BYTES,
    ITEM_BYTES,
    ITEM_DTYPE,
    SLOT_BYTES,
    ClassicCheckpoint,
    ClassicHeader,
    Position,
    WrittenFile,
    check_capacity,
    file_bytes,
)
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, StoreError
from tierlog.tiering.base.fs import ByteArray, FileSystem, flush_file, replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.write_guard import FlushGuard
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.kernels.scan import ScanRows

#: RocketMQ's ``maxMsgsNumBatch``.
MOST_OFFSETS = 64
_PIECE_BYTES = 1 << 20
#: Items get their blocks so many bytes at a time.
BLOCKS_BYTES = 4 << 20


class ClassicIndexFile:
    """A classic file. One thread puts; any number of threads query beside it without locks."""

    def __init__(self, fs: FileSystem, path: Path, data: ByteArray, slots: int, items: int) -> None:
        self._fs = fs
        self._data = data
        self.path = path
        self.slots = slots
        self.items = items
        #: Up to here nothing is a hole that could be written through the map.
        self._blocks_to = self._item_at(1)

    @classmethod
    def create(
        cls, fs: FileSystem, path: Path, slots: int, items: int, *, after: ClassicHeader | None
    ) -> ClassicIndexFile:
        """Makes an empty file, its name durable, behind the one whose header is ``after``.

        Header and slots have their disk blocks, items get them as they come. A file that could not be made leaves
        nothing behind. Raises :class:`DiskFullError` without room.
        """
        check_capacity(slots, items)
        try:
            fs.create(
                path, file_bytes(slots, items), prewrite=False,
                first_bytes=HEADER_BYTES + SLOT_BYTES * slots + ITEM_BYTES,
            )  # fmt: skip
            fs.flush_dir(path.parent)
            data = fs.map_write(path)
        except BaseException:
            with contextlib.suppress(StoreError):
                fs.unlink(path)
            raise
        if after is not None:
            header = ClassicHeader.after(after.end_ms, after.end_offset)
            data[:HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)
        return cls(fs, path, data, slots, items)

    @classmethod
    def open(
        cls, fs: FileSystem, path: Path, slots: int, items: int, *, writable: bool = False, check: bool = True
    ) -> ClassicIndexFile:
        """Opens a file of this capacity; :class:`CorruptIndexError` for any other length or a counter outside it.

        Without ``check`` nothing is asked of its contents: :meth:`truncate` it.
        """
        check_capacity(slots, items)
        data = fs.map_write(path) if writable else fs.map_read(path)
        if len(data) != file_bytes(slots, items):
            raise CorruptIndexError(
                f"a classic index file of {slots} slots and {items} items has {file_bytes(slots, items)} bytes, "
                f"not {len(data)}",
                path=str(path),
            )
        file = cls(fs, path, data, slots, items)
        if check and file.header.next_item > items:
            raise CorruptIndexError(
                "item counter of a classic index file is out of bounds", path=str(path), position=36
            )
        return file

    @property
    def header(self) -> ClassicHeader:
        """The header as it lies in the file."""
        return ClassicHeader.decode(self._data)

    @property
    def is_full(self) -> bool:
        """Whether no further item fits."""
        return self.header.next_item >= self.items

    @property
    def item_count(self) -> int:
        """Items put."""
        return self.header.next_item - 1

    def all_items(self) -> Items:
        """Returns every item put, by number, as a view of the map."""
        return self._data[self._item_at(1) : self._item_at(self.header.next_item)].view(ITEM_DTYPE)

    def put(self, rows: ScanRows, keys: ItemRows, start: int, end: int) -> int:
        """Puts items ``[start, end)`` of scanned rows until the file is full; returns how many went in.

        Raises :class:`DiskFullError`, before any is put, where there is no room for them.
        """
        if not 0 <= start <= end <= len(keys):
            raise InvalidRequestError(f"items {start} to {end} of {len(keys)}")
        reached = self._item_at(min(self.header.next_item + end - start, self.items))
        if reached > self._blocks_to:  # a page of a map without a block, on a full disk, ends the process
            upto = min(reached + BLOCKS_BYTES, len(self._data))
            self._fs.allocate(self.path, self._blocks_to, upto)
            self._blocks_to = upto
        done = put_classic(
            file=self._data.ctypes.data, file_bytes=len(self._data), slots=self.slots, items=self.items,
            rows=rows.ctypes.data, row_count=len(rows), keys=keys.ctypes.data, start=start, end=end,
        )  # fmt: skip
        if done < 0:
            raise CorruptIndexError("classic index file and items do not fit each other", path=str(self.path))
        return int(done)

    def query(self, hash: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of at most ``limit`` items with a hash and a time in the closed range, newest first.

        Times are those RocketMQ reads: whole seconds, never rounded up, and too late for the first item of a second
        file. A damaged chain ends early; what it leads to has to be checked on the record anyway.
        """
        if limit <= 0:
            return []
        found = np.empty(min(limit, self.items), np.int64)
        count = walk_classic(
            file=self._data.ctypes.data, file_bytes=len(self._data), slots=self.slots, items=self.items, hash=hash,
            begin_ms=begin_ms, end_ms=end_ms, out=found.ctypes.data, capacity=len(found),
        )  # fmt: skip
        offsets: list[int] = found[: max(count, 0)].tolist()
        return offsets

    def truncate(self, count: int, begin_ms: int, end_ms: int) -> None:
        """Forgets all but the first ``count`` items, at least one, whatever header, slots and what follows hold.

        Times are those of the first and the last of them. Items never change, so after a crash the file is as good as
        the items that were flushed. Raises :class:`CorruptIndexError` if these are not what they were.
        """
        if not 1 <= count < self.items:
            raise CorruptIndexError(f"a classic index file of {self.items} items has no {count}", path=str(self.path))
        data = self._data
        self._fs.allocate(self.path, 0, self._item_at(count + 1))  # a copy of the file may have lost blocks of zeros
        data[HEADER_BYTES : self._item_at(0)] = 0
        used = relink_classic(data.ctypes.data, len(data), self.slots, self.items, count)
        if used < 0:
            raise CorruptIndexError("items of a classic index file contradict their chains", path=str(self.path))
        for at in range(self._item_at(count + 1), len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            if piece.any():  # a page that is only read stays clean
                piece[:] = 0
        first, last = self._offset_of(1), self._offset_of(count)
        header = ClassicHeader(
            begin_ms=begin_ms,
            end_ms=end_ms,
            begin_offset=first,
            end_offset=last,
            used_slots=int(used),
            counter=count + 1,
        )
        data[:HEADER_BYTES] = np.frombuffer(header.encode(), np.uint8)

    def _item_at(self, number: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots + ITEM_BYTES * number

    def _offset_of(self, number: int) -> int:
        at = self._item_at(number) + 4
        return int.from_bytes(bytes(self._data[at : at + 8]), "big", signed=True)

    def flush_items(self, start: int, end: int) -> None:
        """Makes items ``[start, end)`` durable and nothing else: header and slots can be made of them."""
        self._fs.flush_mapped(self.path, self._data, self._item_at(start), self._item_at(end))

    def flush(self) -> None:
        """Makes everything put so far durable."""
        flush_file(self._fs, self.path)


@dataclass
class QueryOffsets:
    """The places where messages with a key may lie, and how far the index reaches."""

    offsets: list[int] = field(default_factory=list)
    """Physical offsets as they were found: newest file first, newest item first. Other keys of equal hash included."""
    last_update_ms: int = 0
    last_update_offset: int = 0


def query_files(
    files: Sequence[ClassicIndexFile], topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int
) -> QueryOffsets:
    """Looks into ``files``, which are in the order of their names, for a closed range of store times.

    At most 64 offsets, over all files together. ``key`` is ``T#tags`` for a search by tags. Times are whole seconds
    (``ClassicIndexFile.query``): a caller who needs them exact asks one second wider and reads the records.
    """
    answer = QueryOffsets()
    limit = min(limit, MOST_OFFSETS)
    hash = key_hash(topic, key)
    for file in reversed(files):
        header = file.header
        if file is files[-1]:
            answer.last_update_ms, answer.last_update_offset = header.end_ms, header.end_offset
        if header.may_hold(begin_ms, end_ms):
            answer.offsets += file.query(hash, limit - len(answer.offsets), begin_ms, end_ms)
        if header.begin_ms < begin_ms or len(answer.offsets) >= limit:
            break
    return answer


def file_name(now_ms: int, last: str | None) -> str:
    """Name of a new file: local time to the millisecond, but always above ``last``, because order is by name."""
    wanted = int(f"{datetime.fromtimestamp(now_ms // 1000):%Y%m%d%H%M%S}{now_ms % 1000:03d}")
    return f"{wanted if last is None else max(wanted, int(last) + 1):017d}"


class ClassicIndex:
    """The classic index files of one store. One thread dispatches; readers take no lock."""

    def __init__(self, fs: FileSystem, paths: StorePaths, clock: Clock, *, slots: int, items: int) -> None:
        """Use :meth:`open`."""
        check_capacity(slots, items)
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._lock = threading.RLock()
        self._flush_guard = FlushGuard()
        self._progress = ClassicCheckpoint(slots, items, (), Position(0))
        self._position = Position(0)
        self._flush_log: Callable[[int], object] = lambda upto: None
        #: Below it lies every record that an item may speak of.
        self._taken_to = 0
        self._full: tuple[ClassicIndexFile, ...] = ()
        self._current: ClassicIndexFile | None = None
        #: Both of them for readers; replaced as a whole at every change.
        self._view: tuple[ClassicIndexFile, ...] = ()
        #: Least store time in the current file; None while it is empty.
        self._least_ms: int | None = None
        #: Items of the current file that are durable.
        self._flushed = 0
        #: Whether all of the current file is flushed, slots included.
        self._is_whole = False

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        paths: StorePaths,
        clock: Clock,
        *,
        slots: int,
        items: int,
        log_begin: int,
        before_change: Callable[[int], object] = lambda durable_ms: None,
        flush_log: Callable[[int], object] = lambda upto: None,
    ) -> ClassicIndex:
        """Opens after any stop, before the store recovers; drops every file that is not known to be whole.

        ``before_change`` is told :meth:`durable_ms` before the file that was being written is touched, or any dropped.
        ``flush_log`` makes the log durable up to an offset before a note speaks of it. The dispatcher goes on from
        :meth:`next_offset`; if that lies above the recovered end of the log, call :meth:`restart` before the first
        dispatch.
        """
        index = cls(fs, paths, clock, slots=slots, items=items)
        index._flush_log = flush_log
        fs.make_dirs(paths.index)
        path = paths.classic_index_json
        progress = ClassicCheckpoint.decode(fs.read(path)) if fs.exists(path) else None
        if (
            progress is None
            or (progress.slots, progress.items) != (slots, items)
            or not index._load(progress, before_change)
        ):
            before_change(0)
            index.restart(log_begin)
            return index
        if index._position.next < log_begin:
            index._position = Position(log_begin)
        index._drop_others()
        return index

    def _load(self, progress: ClassicCheckpoint, before_change: Callable[[int], object]) -> bool:
        """Takes up the named files; False if one is not as it was left."""
        try:
            full = tuple(self._opened(name) for name in progress.files)
        except (CorruptIndexError, NotFoundError):
            return False
        if not all(file.is_full for file in full):
            return False
        self._show(full, None)
        before_change(self.durable_ms())
        written = progress.written
        if written is not None and self._take_up(written):
            self._progress, self._position = progress, written.position
        else:
            self._progress, self._position = progress, progress.position
            if written is not None:  # before its name can be given to another file
                self._save(progress.with_written(None))
        return True

    def _take_up(self, written: WrittenFile) -> bool:
        """Goes on with the file of the last checkpoint; False if it is not what it was."""
        if written.name is None:
            return True
        try:
            file = self._opened(written.name, is_whole=False)
            file.truncate(written.count, written.begin_ms, written.end_ms)
        except (CorruptIndexError, NotFoundError):
            return False
        self._show(self._full, file)
        self._least_ms = min(written.begin_ms, written.end_ms)
        self._flushed = written.count
        return True

    def _opened(self, name: str, *, is_whole: bool = True) -> ClassicIndexFile:
        return ClassicIndexFile.open(
            self._fs, self._paths.index / name, self._progress.slots, self._progress.items,
            writable=not is_whole, check=is_whole,
        )  # fmt: skip

    def _drop_others(self) -> None:
        """Unlinks every classic file that is not open here; folders and other names are left alone."""
        folder = self._paths.index
        known = {file.path.name for file in self.files()}
        others = [name for name in self._fs.list_dir(folder) if FILE_NAME.fullmatch(name) and name not in known]
        others = [name for name in others if not self._fs.is_dir(folder / name)]
        for name in others:
            self._fs.unlink(folder / name)
        if others:
            self._fs.flush_dir(folder)

    def _show(self, full: tuple[ClassicIndexFile, ...], current: ClassicIndexFile | None) -> None:
        if current is not self._current:
            self._least_ms, self._flushed, self._is_whole = None, 0, False
        self._full, self._current = full, current
        self._view = full if current is None else (*full, current)

    def restart(self, log_begin: int) -> None:
        """Drops all files and derives them again from ``log_begin``."""
        with self._lock:
            self._show((), None)
            self._position = Position(log_begin)
            self._save(ClassicCheckpoint(self._progress.slots, self._progress.items, (), self._position))
            self._drop_others()

    # following the log

    def next_offset(self) -> int:
        """First physical offset not wholly indexed."""
        return self._position.next

    def on_records(self, records: LogRange) -> None:
        """Puts the items of all records not yet seen.

        Raises :class:`DiskFullError` or :class:`DiskFailedError` when a new file cannot be made: no item is lost, the
        call can be repeated. After a flush that failed nothing is known, and :class:`DiskFailedError` is all there is.
        """
        with self._lock:
            if records.end <= self._position.next:
                return
            if records.start > self._position.next:
                raise InvalidRequestError(f"range starts at {records.start}, {self._position.next} was not seen yet")
            self._flush_guard.check()
            self._take(records)

    def _take(self, records: LogRange) -> None:
        physical = np.ascontiguousarray(records.rows["physical_offset"])
        rows = np.ascontiguousarray(records.rows[np.searchsorted(physical, self._position.next) :])
        keys = hash_classic_items(records.data, rows)
        self._taken_to = records.end
        at = 0
        if len(rows) and rows["physical_offset"][0] == self._position.next:
            at = self._position.keys
        while at < len(keys):
            file = self._current or self._begin_file()
            done = file.put(rows, keys, at, len(keys))
            if done:
                self._is_whole = False
                chosen = keys["row"][at : at + done]
                least_ms = int(rows["store_ms"][chosen[0] : chosen[-1] + 1].min())
                self._least_ms = least_ms if self._least_ms is None else min(self._least_ms, least_ms)
            at += done
            if at < len(keys):
                row = keys["row"][at]
                first = int(np.searchsorted(keys["row"], row))
                self._position = Position(int(rows["physical_offset"][row]), at - first)
            else:
                self._position = Position(records.end)
            if file.is_full:
                self._finish_file(file)
        self._position = Position(records.end)

    def _begin_file(self) -> ClassicIndexFile:
        last = self._full[-1] if self._full else None
        name = file_name(self._clock.now_ms(), last.path.name if last else None)
        file = ClassicIndexFile.create(
            self._fs, self._paths.index / name, self._progress.slots, self._progress.items,
            after=last.header if last else None,
        )  # fmt: skip
        self._show(self._full, file)
        return file

    def _finish_file(self, file: ClassicIndexFile) -> None:
        self._flush_log(self._taken_to)
        with self._flush_guard.flushing():
            file.flush()
        names = (*self._progress.files, file.path.name)
        self._save(ClassicCheckpoint(self._progress.slots, self._progress.items, names, self._position))
        self._show((*self._full, file), None)

    def _save(self, progress: ClassicCheckpoint) -> None:
        replace_file(self._fs, self._paths.classic_index_json, progress.encode(), self._paths.tmp)
        self._progress = progress

    # durability and removal

    def checkpoint(self) -> None:
        """Makes durable how far the index is, so that the next open goes on from there; cheap when nothing changed."""
        with self._lock:
            self._flush_guard.check()
            self._flush_log(self._taken_to)
            file = self._current
            written = WrittenFile(None, 0, 0, 0, self._position)
            if file is not None and file.item_count:
                header, count = file.header, file.item_count
                written = WrittenFile(file.path.name, count, header.begin_ms, header.end_ms, self._position)
                if count > self._flushed:
                    with self._flush_guard.flushing():
                        file.flush_items(self._flushed + 1, count + 1)
                    self._flushed = count
            if written != self._progress.written:
                self._save(self._progress.with_written(written))

    def flush(self) -> None:
        """Makes every file whole on the disk, slots included, as RocketMQ needs it. Meant for a clean stop."""
        with self._lock:
            if self._current is not None and not self._is_whole:
                with self._flush_guard.flushing():
                    self._current.flush()
                self._is_whole = True

    def durable_ms(self) -> int:
        """Store time that ends a durable file and comes before every item of the next; 0 if no file ends so.

        After a kill RocketMQ drops the files that end later, and with ``messageIndexSafe`` it indexes the later records
        again: a time inside a file would lose that file's earlier items.
        """
        with self._lock:
            durable, later_ms = (self._view, None) if self._is_whole else (self._full, self._least_ms)
            for file in reversed(durable):
                header = file.header
                if later_ms is not None and header.end_ms < later_ms:
                    return header.end_ms
                later_ms = header.begin_ms
            return 0

    def remove_below(self, border: int) -> int:
        """Unlinks the oldest files that end below the border, never the last; returns how many."""
        with self._lock:
            count = 0
            while count < len(self.files()) - 1 and count < len(self._full):
                if self._full[count].header.end_offset >= border:
                    break
                count += 1
            if count:
                gone = self._full[:count]
                base = self._progress
                self._save(replace(base, files=base.files[count:]))
                self._show(self._full[count:], self._current)
                for file in gone:
                    self._fs.unlink(file.path)
                self._fs.flush_dir(self._paths.index)
            return count

    # reading

    def files(self) -> list[ClassicIndexFile]:
        """Returns every file in the order of names."""
        return list(self._view)

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> QueryOffsets:
        """See :func:`query_files`."""
        return query_files(self._view, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
