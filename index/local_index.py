"""The key index of one store: follows the log, moves its files through their states, answers readers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from index.chained_file import ChainedIndexFile
from index.checkpoint import IndexCheckpoint, Stretch
from index.errors import CorruptIndexError
from index.file_set import IndexFileSet
from index.header import check_capacity
from index.layout import LAYOUTS, ItemLayout
from index.opening import load_entries, take_up_unsealed, unsealed_to_keep
from index.range_writer import RangeWriter
from index.ranges import uncovered
from index.snapshot import Candidates, IndexFileEntry, IndexSnapshot
from index.states import IndexFolders, IndexState
from index.upkeep import IndexUpkeep
from tiering.errors import InvalidRequestError
from tiering.fs import FileSystem
from tiering.gated_fs import Gate, GatedFileSystem
from tiering.hot.dispatch import LogRange
from tiering.paths import StorePaths
from tiering.types import TimeAxis, TimeRange


class LocalIndex:
    """Index files of one store. One thread writes, one at a time keeps the files, and readers take no lock.

    Writing never waits for what happens to full files: sealing, compaction, publishing and removal change the disk
    beside it, and meet it at the lock of :class:`IndexFileSet`, which nobody holds while the disk is busy.

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
        step: Gate,
    ) -> None:
        if not layout.covered:
            raise InvalidRequestError(f"layout {layout.name!r} is for import and export only")
        check_capacity(layout, slots, items)
        self._fs = fs
        self._step = step
        self._flush_log: Callable[[int], object] = lambda upto: None
        beside = GatedFileSystem(fs, step)
        self._tmp = paths.tmp
        self._layouts = {**LAYOUTS, layout.number: layout}
        self._json = paths.index_json
        self._checkpoint = IndexCheckpoint.read(fs, paths.index_json)
        self._set = IndexFileSet(
            IndexFolders(beside, paths.index, paths.quarantine), slots=slots, items=items, layout=layout,
            indexed_to=indexed_to, found=self._checkpoint,
        )  # fmt: skip
        self._start = 0
        self._checkpointing = threading.Lock()
        self._noted: dict[str, CorruptIndexError] = {}
        self._writer = RangeWriter(self._set, fs, 0)
        self._upkeep = IndexUpkeep(self._set, beside, self._tmp, self._layouts, self.checkpoint, step)

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
        step: Gate = contextlib.nullcontext,
        flush_log: Callable[[int], object] = lambda upto: None,
    ) -> LocalIndex:
        """Open after any stop: drop what is unfinished, double or straddles ``indexed_to``, put aside what is damaged.

        ``slots``, ``items`` and ``layout`` hold for new files. ``step`` surrounds every change of the disk that is not
        the writer's own, and raises once the store was stopped. ``flush_log`` makes the log durable up to an offset
        before a checkpoint names it. Follow with :meth:`discard_above`, then derive each of
        :meth:`gaps`; the dispatcher goes on from :meth:`next_offset`.
        """
        index = cls(fs, paths, slots=slots, items=items, layout=layout, indexed_to=indexed_to, step=step)
        index._start, index._flush_log, files = max(border, log_start), flush_log, index._set
        files.show(load_entries(fs, files.folders, index._layouts, index._start, indexed_to))
        full, writing = unsealed_to_keep(index._checkpoint, files.covered(), index._start, indexed_to)
        full_files, file = take_up_unsealed(fs, files.folders, index._layouts, full, writing)
        for each in full_files:
            files.show_writing(each)
        index._restart_writer()
        if file is not None and writing is not None:
            files.show_writing(file)
            index._writer.go_on(file, writing.next)
        index._upkeep.settle()
        return index

    # -------------------------------------------------------------------------------------- following the log

    def next_offset(self) -> int:
        """First physical offset not yet seen."""
        return self._writer.next

    @property
    def open_from(self) -> int:
        """First physical offset of the stretch that is being written: what lies below is in full or complete files."""
        return self._writer.first

    def on_records(self, records: LogRange) -> None:
        """Index the records not yet seen; they can be found when this returns.

        Raises :class:`DiskFullError`, or whatever else the disk says, when a new file cannot be made; the call can
        then be repeated, and nothing is lost or put twice.
        """
        self._writer.write(records)

    def put_aside(self, before_ms: int | None = None) -> bool:
        """End the current stretch, in memory only; returns whether there is a file to be sealed now.

        With ``before_ms`` only a file that has an item stored before that time. An empty file is never sealed.
        """
        with self._set.lock:
            file = self._writer.file
            if before_ms is not None and (file is None or file.bounds is None or file.bounds.min_store_ms >= before_ms):
                return False
            self._writer.finish_stretch()
            return file is not None and file.bounds is not None

    def seal(self) -> bool:
        """Put the current file aside and seal all that are full, durable at return; move on over one without items.

        Returns whether there was a current file. :meth:`covered_to` is :meth:`next_offset` afterwards, gaps apart.
        """
        had_file = self.put_aside()
        self.seal_full()
        return had_file

    def set_indexed_to(self, indexed_to: int) -> None:
        """Take note of a risen watermark: files end there from now on, and those below are published.

        It should be at most :meth:`published_to`. A file that straddles it is dropped and becomes a gap. In memory
        only; :meth:`keep_house` moves the files.
        """
        with self._set.lock:
            if indexed_to <= self._set.indexed_to:
                return
            self._set.indexed_to = indexed_to
            writer = self._writer
            if writer.first < indexed_to < writer.next and writer.file is not None:
                writer.give_up()
            elif writer.first < indexed_to <= writer.next:
                writer.finish_stretch()
            self._set.hide_straddling()

    # ----------------------------------------------------------------------------------------------- recovery

    def discard_above(self, end: int) -> None:
        """Drop files that cover anything at or above ``end``, where the log now ends, durably."""
        with self._set.lock:
            self._set.hide(entry for entry in self._set.finished if entry.next is None or entry.next > end)
            self._set.forget_blank_above(end)
            if self._writer.file is None or self._writer.next > end:
                self._writer.give_up()
                self._restart_writer()
        self._upkeep.unlink_hidden()
        self.checkpoint()

    def gaps(self, border: int, end: int) -> list[tuple[int, int]]:
        """Half-open ranges in ``[border, end)``, ascending, that no file and no open stretch covers."""
        with self._set.lock:
            return uncovered(self._set.covered(), max(border, self._start), min(end, self._writer.first))

    def derive(self, first: int, next: int) -> DerivedRange:
        """A temporary subscriber that indexes exactly ``[first, next)``, a gap or part of one."""
        with self._set.lock:
            is_gap = uncovered(self._set.covered(), first, next) == [(first, next)]
            if not first < next <= self._writer.first or not is_gap:
                raise InvalidRequestError(f"range {first} to {next} is not a gap of the index")
            # not a gated file system: a checkpoint flushes the file, at the end of the store too
            writer = RangeWriter(self._set, self._fs, first, next, self._step)
            return DerivedRange(self._set, writer, self._upkeep)

    def discard(self, file: IndexFileEntry) -> None:
        """Drop a damaged file, which makes its range a gap; one already gone is no error."""
        files = self._set
        files.hide((entry for entry in files.finished if entry.begin_ms == file.begin_ms), are_damaged=True)

    def discard_damaged(self, suspect: CorruptIndexError | None = None) -> int:
        """Read every full and complete file and drop the damaged ones, which become gaps; how many.

        The file that ``suspect`` names goes too: what was damaged before it was sealed has a checksum that agrees.
        They go to the quarantine.
        """
        dropped = 0 if suspect is None else self._discard_named(suspect)
        for entry in self._set.finished:
            try:
                entry.reader.verify()
            except CorruptIndexError:
                self.discard(entry)
                dropped += 1
        self._upkeep.unlink_hidden()
        return dropped

    def note_damage(self, error: CorruptIndexError) -> None:
        """Remember the file that a look-up found to be damaged, for :meth:`discard_noted`. For any thread; no disk."""
        with self._set.lock:
            self._noted.setdefault(error.path or "", error)

    def discard_noted(self) -> list[CorruptIndexError]:
        """Put the files aside that look-ups found to be damaged, also the one being written; the reasons.

        They go to the quarantine, and their ranges are gaps.
        """
        with self._set.lock:
            noted, self._noted = self._noted, {}
        dropped = [error for error in noted.values() if self._discard_named(error)]
        if dropped:
            self._upkeep.unlink_hidden()
        return dropped

    @property
    def damaged_files(self) -> int:
        """How many damaged files were put into the quarantine since the index was opened."""
        return self._set.folders.set_aside_count

    def _discard_named(self, error: CorruptIndexError) -> int:
        named = Path(error.path).name if error.path is not None else None
        with self._set.lock:
            if self._writer.file is not None and self._writer.file.path.name == named:
                self._writer.finish_stretch()
            return self._set.hide((entry for entry in self._set.finished if entry.name == named), are_damaged=True)

    def covered_to(self) -> int:
        """The physical offset below which every item lies in a sealed, compacted or uploaded file.

        Below :attr:`open_from` by gaps and by files that are full and not sealed yet.
        """
        with self._set.lock:
            missing = uncovered(self._set.sealed(), self._start, self._writer.first)
            return missing[0][0] if missing else self._writer.first

    def checkpoint(self) -> None:
        """Make durable how far the index is, so that the next open goes on there; cheap when nothing changed."""
        with self._checkpointing:
            with self._set.lock:
                (state, files), reached = self._durable_state(), self._writer.next
            if state == self._checkpoint:
                return
            self._flush_log(reached)  # a crash must not leave an index of records that are gone
            for file, item_count in files:
                file.flush_items(self._fs, item_count)
            state.save(self._fs, self._json, self._tmp)
            self._checkpoint = state

    def _durable_state(self) -> tuple[IndexCheckpoint, list[tuple[ChainedIndexFile, int]]]:
        """What a checkpoint says now, and up to which item the files it names have to be durable."""
        writer, blank = self._writer, self._set.blank()
        files = [entry.reader for entry in self._set.full if isinstance(entry.reader, ChainedIndexFile)]
        full = tuple(file.written(file.next or 0) for file in files)
        writing = None
        if writer.file is None and writer.first < writer.next:
            blank.append((writer.first, writer.next))
        elif writer.file is not None and writer.file.bounds is not None:
            writing = writer.file.written(writer.next)
            files.append(writer.file)
        state = IndexCheckpoint(self._set.generation, tuple(blank), writing, full)
        return state, [(file, file.item_count) for file in files]

    def _restart_writer(self) -> None:
        reached = max((end for _, end in self._set.covered()), default=0)
        self._writer = RangeWriter(self._set, self._fs, max(self._start, reached))

    # ---------------------------------------------------------------------------- upkeep, publishing and removal

    def keep_house(self) -> None:
        """Whatever waits: unlink what was dropped, seal what is full, compact it, move on what is published.

        Raises what the disk says, and :class:`CorruptIndexError` for a damaged source, which is kept: :meth:`discard`
        it and derive its range again. What is left to do is done by the next call.
        """
        self._upkeep.unlink_hidden()
        self._upkeep.seal_full()
        self._upkeep.compact_sealed()
        self._upkeep.settle()

    def seal_full(self) -> int:
        """See :meth:`IndexUpkeep.seal_full`."""
        return self._upkeep.seal_full()

    def compact_sealed(self) -> int:
        """See :meth:`IndexUpkeep.compact_sealed`; what lies below the watermark was published before."""
        done = self._upkeep.compact_sealed()
        self._upkeep.settle()
        return done

    def settle(self) -> int:
        """See :meth:`IndexUpkeep.settle`."""
        return self._upkeep.settle()

    def waiting(self) -> int:
        """How many files are full or sealed, and not compacted."""
        files = self._set.finished
        return sum(entry.state in (IndexState.WRITING, IndexState.SEALED) for entry in files)

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
        with self._set.lock:
            reached = max(self._set.indexed_to, self._start)
            published = reached
            found: list[IndexFileEntry] = []
            blank = self._set.blank()
            for entry in self._set.finished:
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

    def remove_below(self, border: int) -> int:
        """Hide files that cover nothing at or above the border; returns how many. :meth:`keep_house` unlinks them."""
        with self._set.lock:
            self._start = max(self._start, border)
            old = [entry for entry in self._set.finished if entry.next is not None and entry.next <= border]
            self._set.hide(old)
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
            missing = uncovered(self._set.covered(view), border, min(end, open_from))
            if self._writer.first == open_from:  # what lies above was in the view, and not moved on meanwhile
                return view, missing

    def files(self) -> list[IndexFileEntry]:
        """Every file for a listing, by ascending range; those that take keys last."""
        with self._set.lock:
            return [*self._set.finished, *(entry for entry in self._set.view.writing if entry.next is None)]

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

    def __init__(self, files: IndexFileSet, writer: RangeWriter, upkeep: IndexUpkeep) -> None:
        self._files = files
        self._writer = writer
        self._upkeep = upkeep

    def abandon(self) -> None:
        """Give up a file that was begun and not finished; nothing happens once the gap is done."""
        with self._files.lock:
            is_begun = self._writer.file is not None
            if is_begun:
                self._writer.give_up()
        if is_begun:
            self._upkeep.unlink_hidden()

    @property
    def done(self) -> bool:
        """Whether the whole gap lies in full files."""
        return self._writer.done

    def next_offset(self) -> int:
        """First physical offset not yet seen."""
        return self._writer.next

    def on_records(self, records: LogRange) -> None:
        """Index the records of the gap not yet seen; at its end its files are full and wait to be sealed."""
        self._writer.write(records)
