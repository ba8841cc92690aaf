"""The key index of one store: follows the log, moves its files through their states, answers readers."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from index.chained_file import ChainedIndexFile
from index.checkpoint import IndexCheckpoint, Stretch, WritingFile
from index.compacted_file import CompactedIndexFile
from index.compactor import compact
from index.errors import CorruptIndexError
from index.file_set import IndexFileSet
from index.header import check_capacity
from index.layout import LAYOUTS, ItemLayout
from index.opening import load_entries, take_up_writing
from index.range_writer import RangeWriter
from index.ranges import uncovered
from index.snapshot import Candidates, IndexFileEntry, IndexSnapshot
from index.states import IndexFolders, IndexState
from tiering.errors import InvalidRequestError
from tiering.fs import FileSystem
from tiering.hot.dispatch import LogRange
from tiering.paths import StorePaths
from tiering.types import TimeAxis, TimeRange


class LocalIndex:
    """Index files of one store. One thread dispatches, one compacts; readers take no lock.

    The index is derived data: what was not durable at the last :meth:`checkpoint` is derived again after every
    stop. Sealed, compacted and uploaded files are durable before their names are. Subscribes to the log's dispatcher.
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
        check_capacity(layout, slots, items)
        self._fs = fs
        self._tmp = paths.tmp
        self._layouts = {**LAYOUTS, layout.number: layout}
        folders = IndexFolders(fs, paths.index)
        self._json = paths.index_json
        self._checkpoint = IndexCheckpoint.read(fs, paths.index_json)
        self._set = IndexFileSet(
            fs, folders, slots=slots, items=items, layout=layout, indexed_to=indexed_to, found=self._checkpoint
        )  # fmt: skip
        self._start = 0
        self._lock = threading.RLock()
        self._compacting = threading.Lock()
        self._checkpointing = threading.Lock()
        self._writer = RangeWriter(self._set, 0)

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
        """Open after any stop: drop what is unfinished, damaged, double or straddles ``indexed_to``.

        ``slots``, ``items`` and ``layout`` hold for new files. Follow with :meth:`discard_above`, then derive
        each of :meth:`gaps`; the dispatcher goes on from :meth:`next_offset`.
        """
        index = cls(fs, paths, slots=slots, items=items, layout=layout, indexed_to=indexed_to)
        index._start = max(border, log_start)
        index._set.show(load_entries(fs, index._set.folders, index._layouts, indexed_to))
        index._set.settle()
        index._restart_writer()
        index._take_up_writing()
        return index

    def _take_up_writing(self) -> None:
        state, files = self._checkpoint.writing, self._set
        reached = max((entry.next or 0 for entry in files.view.files), default=0)
        if state is not None and (state.next < self._start or state.first < max(reached, files.indexed_to)):
            state = None  # the border has passed it, or it would overlap what is complete or straddle the watermark
        file = take_up_writing(self._fs, files.folders, self._layouts, state)
        if file is not None and state is not None:
            files.show_writing(file)
            self._writer.go_on(file, state.next)

    # -------------------------------------------------------------------------------------- following the log

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
        """Seal the current file, durable at return, or move on over a stretch without items.

        Returns whether there was a file. :meth:`covered_to` is :meth:`next_offset` afterwards, gaps apart.
        """
        with self._lock:
            sealed = self._writer.file is not None
            self._writer.finish_stretch()
            return sealed

    def set_indexed_to(self, indexed_to: int) -> None:
        """Take note of a risen watermark: files end there from now on, and those below count as uploaded.

        It should be at most :meth:`published_to`. A file that straddles it is dropped and becomes a gap.
        """
        with self._lock:
            if indexed_to <= self._set.indexed_to:
                return
            self._set.indexed_to = indexed_to
            writer = self._writer
            if writer.first < indexed_to < writer.next and writer.file is not None:
                file, writer.file, writer.first = writer.file, None, writer.next  # before readers lose sight of it
                self._set.discard_writing(file)
            elif writer.first < indexed_to <= writer.next:
                writer.finish_stretch()
            self._set.drop_straddling()
            self._set.settle()

    # ----------------------------------------------------------------------------------------------- recovery

    def discard_above(self, end: int) -> None:
        """Drop files that cover anything at or above ``end``, where the log now ends, durably."""
        with self._lock:
            self._set.remove([entry for entry in self._set.view.files if entry.next is None or entry.next > end])
            self._set.forget_blank_above(end)
            if self._writer.file is None or self._writer.next > end:
                if self._writer.file is not None:
                    self._set.discard_writing(self._writer.file)
                self._restart_writer()
        self.checkpoint()

    def gaps(self, border: int, end: int) -> list[tuple[int, int]]:
        """Half-open ranges in ``[border, end)``, ascending, that no file and no open stretch covers."""
        with self._lock:
            return uncovered(self._set.covered(), max(border, self._start), min(end, self._writer.first))

    def derive(self, first: int, next: int) -> DerivedRange:
        """A temporary subscriber that indexes exactly ``[first, next)``, a gap or part of one."""
        with self._lock:
            is_gap = uncovered(self._set.covered(), first, next) == [(first, next)]
            if not first < next <= self._writer.first or not is_gap:
                raise InvalidRequestError(f"range {first} to {next} is not a gap of the index")
            return DerivedRange(self._lock, self._set, RangeWriter(self._set, first, next))

    def discard(self, file: IndexFileEntry) -> None:
        """Drop a damaged file, which makes its range a gap; one already gone is no error."""
        with self._lock:
            self._set.remove([entry for entry in self._set.view.files if entry.begin_ms == file.begin_ms])

    def discard_damaged(self) -> int:
        """Read every sealed, compacted and uploaded file and drop the damaged ones, which become gaps; how many."""
        dropped = 0
        for entry in self._set.view.files:
            try:
                entry.reader.verify()
            except CorruptIndexError:
                self.discard(entry)
                dropped += 1
        return dropped

    def covered_to(self) -> int:
        """The physical offset below which every item lies in a sealed, compacted or uploaded file."""
        with self._lock:
            missing = uncovered(self._set.covered(), self._start, self._writer.first)
            return missing[0][0] if missing else self._writer.first

    def checkpoint(self) -> None:
        """Make durable how far the index is, so that the next open goes on from there; cheap when nothing changed."""
        with self._checkpointing:
            with self._lock:
                file, state = self._writer.file, self._durable_state()
            if state == self._checkpoint:
                return
            if file is not None and state.writing is not None:
                file.flush_items(state.writing.item_count)
            state.save(self._fs, self._json, self._tmp)
            self._checkpoint = state

    def _durable_state(self) -> IndexCheckpoint:
        writer, blank, writing = self._writer, self._set.blank(), None
        file = writer.file
        if file is None and writer.first < writer.next:
            blank.append((writer.first, writer.next))
        elif file is not None and file.bounds is not None:
            writing = WritingFile(
                file.begin_ms, file.generation, file.first, writer.next, file.slots, file.items,
                file.layout.number, file.item_count, file.bounds,
            )  # fmt: skip
        return IndexCheckpoint(self._set.generation, tuple(blank), writing)

    def _restart_writer(self) -> None:
        reached = max((end for _, end in self._set.covered()), default=0)
        self._writer = RangeWriter(self._set, max(self._start, reached))

    # ------------------------------------------------------------------------- compaction, upload and removal

    def compact_sealed(self) -> int:
        """Compact every sealed file, oldest range first; returns how many.

        Raises :class:`CorruptIndexError` for a damaged source, which is kept: :meth:`discard` it and derive
        its range again.
        """
        done = 0
        with self._compacting:
            for entry in self._set.view.files:
                if entry.state is IndexState.SEALED:
                    done += self._compact(entry)
        return done

    def _compact(self, entry: IndexFileEntry) -> bool:
        assert isinstance(entry.reader, ChainedIndexFile)
        target = self._set.folders.path(IndexState.COMPACTED, entry.begin_ms)
        compact(self._fs, entry.reader, target, self._tmp)
        reader = CompactedIndexFile.open(self._fs, target, layouts=self._layouts, verify=False)
        with self._lock:
            if entry not in self._set.view.files:  # removed meanwhile
                self._set.folders.remove(IndexState.COMPACTED, entry.begin_ms)
                return False
            self._set.replace(entry, IndexState.COMPACTED, reader)
            self._set.folders.remove(IndexState.SEALED, entry.begin_ms)
            self._set.settle()
        return True

    def pending(self) -> list[IndexFileEntry]:
        """Compacted files to upload, in the order to publish them.

        The list ends before the first gap or uncompacted file, so that the watermark never passes one.
        """
        return self._unpublished()[0]

    def published_to(self) -> int:
        """The greatest value that ``indexed_to`` may have: no item below it waits to be uploaded.

        Unlike :meth:`covered_to` it stops before sealed and compacted files and before gaps.
        """
        return self._unpublished()[1]

    def _unpublished(self) -> tuple[list[IndexFileEntry], int]:
        with self._lock:
            reached = max(self._set.indexed_to, self._start)
            published = reached
            found: list[IndexFileEntry] = []
            blank = self._set.blank()
            for entry in self._set.view.files:
                assert entry.next is not None
                if entry.next <= reached:
                    continue
                missing = uncovered(blank, reached, entry.first)
                if missing:
                    return found, published if found else missing[0][0]
                if not found:
                    published = max(reached, entry.first)
                if entry.state is IndexState.COMPACTED:
                    found.append(entry)
                elif entry.state is not IndexState.UPLOADED:
                    return found, published
                reached = entry.next
                if not found:
                    published = reached
            if not found:
                missing = uncovered(blank, reached, self._writer.first)
                published = missing[0][0] if missing else max(reached, self._writer.first)
            return found, published

    def mark_uploaded(self, file: IndexFileEntry) -> None:
        """Note that a compacted file was published; a file already marked or removed is no error."""
        with self._lock:
            for entry in self._set.view.files:
                if entry.begin_ms == file.begin_ms and entry.state is IndexState.COMPACTED:
                    self._set.upload(entry)

    def remove_below(self, border: int) -> int:
        """Unlink files that cover nothing at or above the border; returns how many."""
        with self._lock:
            self._start = max(self._start, border)
            old = [entry for entry in self._set.view.files if entry.next is not None and entry.next <= border]
            self._set.remove(old)
            self._set.forget_blank_below(border)
            return len(old)

    # ------------------------------------------------------------------------------------------------ reading

    def snapshot(self) -> IndexSnapshot:
        """Everything that can be searched now."""
        return self._set.view

    def searchable(self, border: int, end: int) -> tuple[IndexSnapshot, list[Stretch]]:
        """Everything that can be searched now, and the stretches of ``[border, end)`` whose items are not in it.

        There are some while a file that was dropped is derived again. The dispatcher must have seen up to ``end``.
        """
        while True:
            open_from = self._writer.first
            view = self._set.view
            missing = uncovered(self._set.covered_by(view), border, min(end, open_from))
            if self._writer.first == open_from:  # what lies above was in the view, and not moved on meanwhile
                return view, missing

    def files(self) -> list[IndexFileEntry]:
        """Every file for a listing, the one being written last."""
        view = self._set.view
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


class DerivedRange:
    """Subscriber that indexes one gap; :attr:`done` once it has seen everything below the gap's end."""

    def __init__(self, lock: AbstractContextManager[object], files: IndexFileSet, writer: RangeWriter) -> None:
        self._lock = lock
        self._files = files
        self._writer = writer

    def abandon(self) -> None:
        """Give up a file that was begun and not sealed; nothing happens once the gap is done."""
        with self._lock:
            file, self._writer.file = self._writer.file, None
            if file is not None:
                self._files.discard_writing(file)

    @property
    def done(self) -> bool:
        """Whether the whole gap is sealed."""
        return self._writer.done

    def next_offset(self) -> int:
        """First physical offset not yet seen."""
        return self._writer.next

    def on_records(self, records: LogRange) -> None:
        """Index the records of the gap not yet seen; at its end its files are sealed and visible."""
        with self._lock:
            self._writer.write(records)
