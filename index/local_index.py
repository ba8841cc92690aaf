"""The key index of one store: its files by state, the writer that follows the log, and what readers see of both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from index.chained_file import ChainedIndexFile
from index.compacted_file import CompactedIndexFile
from index.compactor import compact
from index.layout import LAYOUTS, ItemLayout
from index.opening import load_entries
from index.range_writer import LogRange, RangeWriter
from index.ranges import uncovered
from index.snapshot import Candidates, IndexFileEntry, IndexSnapshot, by_range
from index.states import IndexFolders, IndexState
from tiering.errors import InvalidRequestError
from tiering.fs import FileSystem
from tiering.paths import StorePaths
from tiering.types import TimeAxis, TimeRange


class LocalIndex:
    """Index files of one store. One thread dispatches, one compacts; readers take no lock.

    The index is derived data: what is not in a sealed file is derived again after every stop. Sealed, compacted and
    uploaded files are durable before their names are. Subscribes to the log's dispatcher.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: StorePaths,
        *,
        slots: int,
        items: int,
        layout: ItemLayout,
        indexed_to: int,
    ) -> None:
        if not layout.covered:
            raise InvalidRequestError(f"layout {layout.name!r} is for import and export only")
        self._fs = fs
        self._tmp = paths.tmp
        self._folders = IndexFolders(fs, paths.index)
        self._slots, self._items, self._layout = slots, items, layout
        self._layouts = {**LAYOUTS, layout.number: layout}
        self._indexed_to = indexed_to
        self._start = 0
        self._blank: list[tuple[int, int]] = []
        self._lock = threading.RLock()
        self._compacting = threading.Lock()
        self._view = IndexSnapshot()
        self._writer = RangeWriter(self, 0)

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        paths: StorePaths,
        *,
        slots: int,
        items: int,
        layout: ItemLayout,
        border: int,
        indexed_to: int,
        log_start: int,
    ) -> LocalIndex:
        """Open after any stop: drop what was being written, damaged, double or straddles ``indexed_to``.

        ``slots``, ``items`` and ``layout`` hold for new files. Follow with :meth:`discard_above`, then derive each
        of :meth:`gaps`; the dispatcher goes on from :meth:`next_offset`.
        """
        index = cls(fs, paths, slots=slots, items=items, layout=layout, indexed_to=indexed_to)
        index._start = max(border, log_start)
        index._view = IndexSnapshot(load_entries(fs, index._folders, index._layouts, indexed_to))
        index._settle()
        index._restart_writer()
        return index

    # ------------------------------------------------------------------------------------------ following the log

    def next_offset(self) -> int:
        """First physical offset not yet seen."""
        return self._writer.next

    def on_records(self, records: LogRange) -> None:
        """Index the records not yet seen; they can be found when this returns.

        Raises :class:`DiskFullError` when a new file finds no room; the call can then be repeated.
        """
        with self._lock:
            self._writer.write(records)

    def seal(self) -> bool:
        """Seal the current file, durable at return, or move on over a stretch without items; whether a file came."""
        with self._lock:
            sealed = self._writer.file is not None
            self._writer.finish_stretch()
            return sealed

    def set_indexed_to(self, indexed_to: int) -> None:
        """Take note of a risen watermark: files end there from now on, and those below count as uploaded.

        It should be at most :meth:`covered_to`. A file that straddles it is dropped and becomes a gap.
        """
        with self._lock:
            if indexed_to <= self._indexed_to:
                return
            self._indexed_to = indexed_to
            writer = self._writer
            if writer.first < indexed_to < writer.next:
                if writer.file is not None:
                    self._discard_writing(writer.file)
                    writer.file, writer.first = None, writer.next
                else:
                    writer.finish_stretch()
            elif indexed_to == writer.next:
                writer.finish_stretch()
            straddling = [entry for entry in self._view.files if self._straddles(entry)]
            self._remove(straddling)
            self._settle()

    def _straddles(self, entry: IndexFileEntry) -> bool:
        assert entry.next is not None
        return entry.state is not IndexState.UPLOADED and entry.first < self._indexed_to < entry.next

    # ------------------------------------------------------------------------------------------------ recovery

    def discard_above(self, end: int) -> None:
        """Drop every file that covers anything at or above ``end``, where the recovered log ends. Before dispatch."""
        with self._lock:
            if self._writer.file is not None:
                raise InvalidRequestError("files are discarded before the log is dispatched")
            self._remove([entry for entry in self._view.files if entry.next is None or entry.next > end])
            self._restart_writer()

    def gaps(self, border: int, end: int) -> list[tuple[int, int]]:
        """Half-open ranges from ``border`` up to ``end`` that neither a file nor the open stretch covers, ascending."""
        with self._lock:
            return uncovered(self._covered(), max(border, self._start), min(end, self._writer.first))

    def derive(self, first: int, next: int) -> DerivedRange:
        """A temporary subscriber that indexes exactly ``[first, next)``, a gap or part of one."""
        with self._lock:
            if not first < next <= self._writer.first or uncovered(self._covered(), first, next) != [
                (first, next)
            ]:
                raise InvalidRequestError(f"range {first} to {next} is not a gap of the index")
            return DerivedRange(self._lock, RangeWriter(self, first, next))

    def covered_to(self) -> int:
        """The physical offset below which every item lies in a sealed file; rises with :meth:`seal`."""
        with self._lock:
            missing = uncovered(self._covered(), self._start, self._writer.first)
            return missing[0][0] if missing else self._writer.first

    def _covered(self) -> Iterator[tuple[int, int]]:
        yield from self._blank
        for entry in self._view.files:
            assert entry.next is not None
            yield entry.first, entry.next

    def _restart_writer(self) -> None:
        reached = max((entry.next or 0 for entry in self._view.files), default=0)
        self._writer = RangeWriter(self, max(self._start, reached))

    # ---------------------------------------------------------------------------- compaction, upload and removal

    def compact_sealed(self) -> int:
        """Compact every sealed file, oldest range first; returns how many.

        Raises :class:`CorruptIndexError` for a damaged source, which is kept.
        """
        done = 0
        with self._compacting:
            for entry in self._view.files:
                if entry.state is IndexState.SEALED:
                    done += self._compact(entry)
        return done

    def _compact(self, entry: IndexFileEntry) -> bool:
        assert isinstance(entry.reader, ChainedIndexFile)
        target = self._folders.path(IndexState.COMPACTED, entry.begin_ms)
        compact(self._fs, entry.reader, target, self._tmp)
        reader = CompactedIndexFile.open(self._fs, target, layouts=self._layouts, verify=False)
        with self._lock:
            if entry not in self._view.files:  # removed meanwhile
                self._folders.remove(IndexState.COMPACTED, entry.begin_ms)
                return False
            self._replace(entry, IndexState.COMPACTED, reader)
            self._folders.remove(IndexState.SEALED, entry.begin_ms)
            self._settle()
        return True

    def pending(self) -> list[IndexFileEntry]:
        """Compacted files to upload, in the order to publish them; ends before the first hole or uncompacted file."""
        with self._lock:
            reached = max(self._indexed_to, self._start)
            found = []
            for entry in self._view.files:
                assert entry.next is not None
                if entry.next <= reached:
                    continue
                if entry.first > reached and uncovered(iter(self._blank), reached, entry.first):
                    break
                if entry.state is IndexState.COMPACTED:
                    found.append(entry)
                elif entry.state is not IndexState.UPLOADED:
                    break
                reached = entry.next
            return found

    def mark_uploaded(self, file: IndexFileEntry) -> None:
        """Note that a compacted file was published; a file already marked or removed is no error."""
        with self._lock:
            for entry in self._view.files:
                if entry.begin_ms == file.begin_ms and entry.state is IndexState.COMPACTED:
                    self._upload(entry)

    def _upload(self, entry: IndexFileEntry) -> None:
        self._folders.move(entry.begin_ms, IndexState.COMPACTED, IndexState.UPLOADED)
        self._replace(entry, IndexState.UPLOADED, entry.reader)

    def _settle(self) -> None:
        """Compacted files below the watermark were published before a stop, or derived again after it."""
        for entry in self._view.files:
            assert entry.next is not None
            if entry.state is IndexState.COMPACTED and entry.next <= self._indexed_to:
                self._upload(entry)

    def remove_below(self, border: int) -> int:
        """Unlink files that cover nothing at or above the border; snapshots keep them readable. Returns how many."""
        with self._lock:
            self._start = max(self._start, border)
            old = [entry for entry in self._view.files if entry.next is not None and entry.next <= border]
            self._remove(old)
            self._blank = [stretch for stretch in self._blank if stretch[1] > border]
            return len(old)

    # ------------------------------------------------------------------------------------------------- reading

    def snapshot(self) -> IndexSnapshot:
        """Everything that can be searched now."""
        return self._view

    def files(self) -> list[IndexFileEntry]:
        """Every file for a listing, the one being written last."""
        view = self._view
        return [*view.files, *view.writing]

    @staticmethod
    def candidates(
        snapshot: IndexSnapshot,
        topic: str,
        key: str,
        time_range: TimeRange | None = None,
        axis: TimeAxis = TimeAxis.STORE,
    ) -> Candidates:
        """See :meth:`IndexSnapshot.candidates`."""
        return snapshot.candidates(topic, key, time_range, axis)

    # ------------------------------------------------------------------------------ what writers need (IndexFileHost)

    def begin_file(self, store_ms: int, first: int, key_count: int) -> ChainedIndexFile:
        """Make a file of at least ``key_count`` keys and show it to readers."""
        begin_ms = self._folders.claim(store_ms)
        path = self._folders.path(IndexState.WRITING, begin_ms)
        items = max(self._items, key_count + 1)
        try:
            file = ChainedIndexFile.create(self._fs, path, self._layout, self._slots, items, begin_ms, first)
        except BaseException:
            self._folders.remove(IndexState.WRITING, begin_ms)
            self._folders.release(begin_ms)
            raise
        entry = IndexFileEntry(IndexState.WRITING, begin_ms, path, first, None, file)
        self._view = self._view.replaced((*self._view.writing, entry))
        return file

    def file_sealed(self, file: ChainedIndexFile) -> None:
        """Move a sealed file on and show it as such."""
        path = self._folders.move(file.begin_ms, IndexState.WRITING, IndexState.SEALED)
        assert file.next is not None
        entry = IndexFileEntry(IndexState.SEALED, file.begin_ms, path, file.first, file.next, file)
        writing = tuple(other for other in self._view.writing if other.reader is not file)
        self._view = IndexSnapshot(by_range([*self._view.files, entry]), writing)

    def range_without_items(self, first: int, end: int) -> None:
        """Remember a stretch without items until the next open."""
        if self._blank and self._blank[-1][1] == first:
            first = self._blank.pop()[0]
        self._blank.append((first, end))

    def cut(self) -> int:
        """The physical offset that no file may straddle."""
        return self._indexed_to

    def _replace(
        self, old: IndexFileEntry, state: IndexState, reader: ChainedIndexFile | CompactedIndexFile
    ) -> None:
        path = self._folders.path(state, old.begin_ms)
        new = IndexFileEntry(state, old.begin_ms, path, old.first, old.next, reader)
        files = tuple(new if entry is old else entry for entry in self._view.files)
        self._view = IndexSnapshot(files, self._view.writing)

    def _remove(self, entries: list[IndexFileEntry]) -> None:
        if not entries:
            return
        files = tuple(entry for entry in self._view.files if entry not in entries)
        self._view = IndexSnapshot(files, self._view.writing)
        for entry in entries:
            self._folders.remove(entry.state, entry.begin_ms)
            self._folders.release(entry.begin_ms)

    def _discard_writing(self, file: ChainedIndexFile) -> None:
        writing = tuple(other for other in self._view.writing if other.reader is not file)
        self._view = self._view.replaced(writing)
        self._folders.remove(IndexState.WRITING, file.begin_ms)
        self._folders.release(file.begin_ms)


class DerivedRange:
    """Subscriber that indexes one gap; :attr:`done` once the dispatcher has shown it everything below its end."""

    def __init__(self, lock: AbstractContextManager[object], writer: RangeWriter) -> None:
        self._lock = lock
        self._writer = writer

    @property
    def done(self) -> bool:
        """Whether the whole gap is sealed."""
        return self._writer.done

    def next_offset(self) -> int:
        """First physical offset not yet seen."""
        return self._writer.next

    def on_records(self, records: LogRange) -> None:
        """Index the records of the gap that were not yet seen; at its end its files are sealed and visible."""
        with self._lock:
            self._writer.write(records)
