"""RocketMQ's own key index, written beside ours so that a RocketMQ broker can open the store and find its keys.

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

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import numpy as np

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.kernels.classic import hash_classic_items
from tierlog.index.rocketmq.classic_file import ClassicIndexFile, QueryOffsets, query_files
from tierlog.index.rocketmq.classic_format import FILE_NAME, ClassicCheckpoint, Position, WrittenFile, check_capacity
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError
from tierlog.tiering.base.fs import FileSystem, replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.write_guard import FlushGuard
from tierlog.tiering.hot.dispatch import LogRange


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
        """Every file in the order of names."""
        return list(self._view)

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> QueryOffsets:
        """See :func:`query_files`."""
        return query_files(self._view, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
