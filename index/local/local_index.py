"""The key index of one store: follows the log, moves its files through their states, answers readers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tierlog.index.format.checkpoint import IndexCheckpoint, Stretch
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import check_capacity
from tierlog.index.format.layout import LAYOUTS, ItemLayout
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.file_set import IndexFileSet, IndexUpkeep
from tierlog.index.local.key_batch import KeyBatch
from tierlog.index.local.recovery import load_entries, take_up_unsealed, unsealed_to_keep
from tierlog.index.local.snapshot import IndexFileEntry, IndexSnapshot
from tierlog.index.local.states import IndexFolders, IndexState
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import uncovered
from tierlog.tiering.base.wrapped_fs import Gate, GatedFileSystem
from tierlog.tiering.hot.dispatch import LogRange

#: Most keys put while the lock is held, unless one message has more: about 2 ms.
_PIECE_KEYS = 1 << 14


class LocalIndex:
    """The index files of one store. One thread writes, one at a time does upkeep, and readers take no lock.

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
        self._upkeep = IndexUpkeep(
            self._set, beside, tmp_dir=self._tmp, layouts=self._layouts, checkpoint=self.checkpoint, step=step
        )

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
        """Opens after any stop; drops what is unfinished, double or straddles ``indexed_to``, sets aside damaged files.

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

    def link(self) -> None:
        """Makes the slots of files that were taken up, for which the first put or look-up would have to wait."""
        for entry in self._set.view.writing:
            entry.reader.look_up_row()

    def close(self) -> None:
        """Lets no snapshot that somebody keeps change files from here on."""
        for entry in self._set.view.writing:
            if isinstance(entry.reader, ChainedIndexFile):
                entry.reader.retire()

    # -------------------------------------------------------------------------------------- following the log

    def next_offset(self) -> int:
        """First physical offset not yet seen."""
        return self._writer.next

    @property
    def open_from(self) -> int:
        """First physical offset of the stretch that is being written: what lies below is in full or complete files."""
        return self._writer.first

    def on_records(self, records: LogRange) -> None:
        """Indexes the records not yet seen; they can be found when this returns.

        Raises :class:`DiskFullError`, or whatever else the disk says, when a new file cannot be made; the call can
        then be repeated, and nothing is lost or put twice.
        """
        self._writer.write(records)

    def put_aside(self, before_ms: int | None = None) -> bool:
        """Ends the current stretch, in memory only; returns whether there is a file to be sealed now.

        With ``before_ms`` only a file that has an item stored before that time. An empty file is never sealed.
        """
        with self._set.lock:
            file = self._writer.file
            if before_ms is not None and (file is None or file.bounds is None or file.bounds.min_store_ms >= before_ms):
                return False
            self._writer.finish_stretch()
            return file is not None and file.bounds is not None

    def seal(self) -> bool:
        """Puts the current file aside and seals all that are full, durably; moves on over one without items.

        Returns whether there was a current file. :meth:`covered_to` is :meth:`next_offset` afterwards, gaps apart.
        """
        had_file = self.put_aside()
        self.seal_full()
        return had_file

    def set_indexed_to(self, indexed_to: int) -> None:
        """Takes note of a risen watermark: files end there from now on, and those below are published.

        It should be at most :meth:`published_to`. A file that straddles it is dropped and becomes a gap. In memory
        only; :meth:`maintain` moves the files.
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
        """Drops files that cover anything at or above ``end``, where the log now ends, durably."""
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
        """Returns a temporary subscriber that indexes exactly ``[first, next)``, a gap or part of one."""
        with self._set.lock:
            is_gap = uncovered(self._set.covered(), first, next) == [(first, next)]
            if not first < next <= self._writer.first or not is_gap:
                raise InvalidRequestError(f"range {first} to {next} is not a gap of the index")
            # not a gated file system: a checkpoint flushes the file, at the end of the store too
            writer = RangeWriter(self._set, self._fs, first, next, self._step)
            return DerivedRange(self._set, writer, self._upkeep)

    def discard(self, file: IndexFileEntry) -> None:
        """Drops a damaged file, which makes its range a gap; one already gone is no error."""
        files = self._set
        files.hide((entry for entry in files.finished if entry.begin_ms == file.begin_ms), are_damaged=True)

    def discard_damaged(self, suspect: CorruptIndexError | None = None) -> int:
        """Reads every full and complete file and drops the damaged ones, which become gaps; returns how many.

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
        """Remembers the file that a look-up found to be damaged, for :meth:`discard_noted`. For any thread; no disk."""
        with self._set.lock:
            self._noted.setdefault(error.path or "", error)

    def discard_noted(self) -> list[CorruptIndexError]:
        """Puts the files aside that look-ups found to be damaged, also the one being written; returns the errors.

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
        """Number of damaged files that were put into the quarantine since the index was opened."""
        return self._set.folders.set_aside_count

    def _discard_named(self, error: CorruptIndexError) -> int:
        named = Path(error.path).name if error.path is not None else None
        with self._set.lock:
            if self._writer.file is not None and self._writer.file.path.name == named:
                self._writer.finish_stretch()
            return self._set.hide((entry for entry in self._set.finished if entry.name == named), are_damaged=True)

    def covered_to(self) -> int:
        """Returns the physical offset below which every item lies in a sealed, compacted or uploaded file.

        Below :attr:`open_from` by gaps and by files that are full and not sealed yet.
        """
        with self._set.lock:
            missing = uncovered(self._set.sealed(), self._start, self._writer.first)
            return missing[0][0] if missing else self._writer.first

    def checkpoint(self) -> None:
        """Makes durable how far the index is, so that the next open goes on there; cheap when nothing changed."""
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
        """Returns what a checkpoint says now, and up to which item the files it names have to be durable."""
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

    def maintain(self) -> None:
        """Does all upkeep that waits: unlinks what was dropped, seals, compacts, and moves on what is published.

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
        """Returns how many files are full or sealed, and not compacted."""
        files = self._set.finished
        return sum(entry.state in (IndexState.WRITING, IndexState.SEALED) for entry in files)

    def pending(self) -> list[IndexFileEntry]:
        """Compacted files to upload, in the order to publish them.

        The list ends before the first gap or uncompacted file, so that the watermark never passes one.
        """
        return self._unpublished()[0]

    def published_to(self) -> int:
        """Returns the greatest value that ``indexed_to`` may have: no item below it waits to be uploaded.

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
        """Hides files that cover nothing at or above the border; returns how many. :meth:`maintain` unlinks them."""
        with self._set.lock:
            self._start = max(self._start, border)
            old = [entry for entry in self._set.finished if entry.next is not None and entry.next <= border]
            self._set.hide(old)
            self._set.forget_blank_below(border)
            return len(old)

    # ------------------------------------------------------------------------------------------------ reading

    def snapshot(self) -> IndexSnapshot:
        """Returns everything that can be searched now."""
        return self._set.view

    def searchable(self, border: int, end: int) -> tuple[IndexSnapshot, list[Stretch]]:
        """Returns all that can be searched now, and the stretches of ``[border, end)`` whose items are not in it.

        There are some while a file that was dropped is derived again. The dispatcher must have seen up to ``end``.
        """
        while True:
            open_from = self._writer.first
            view = self._set.view
            missing = uncovered(self._set.covered(view), border, min(end, open_from))
            if self._writer.first == open_from:  # what lies above was in the view, and not moved on meanwhile
                return view, missing

    def files(self) -> list[IndexFileEntry]:
        """Returns every file for a listing, by ascending range; those that take keys last."""
        with self._set.lock:
            return [*self._set.finished, *(entry for entry in self._set.view.writing if entry.next is None)]


class DerivedRange:
    """Subscriber that indexes one gap; :attr:`done` once it has seen everything below the gap's end."""

    def __init__(self, files: IndexFileSet, writer: RangeWriter, upkeep: IndexUpkeep) -> None:
        self._files = files
        self._writer = writer
        self._upkeep = upkeep

    def abandon(self) -> None:
        """Gives up a file that was begun and not finished; nothing happens once the gap is done."""
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
        """Indexes the records of the gap not yet seen; at its end its files are full and wait to be sealed."""
        self._writer.write(records)


class RangeWriter:
    """Writes the items of ``[first, limit)`` into chained files whose ranges abut, without waiting for what follows.

    Records come in ascending order, and ranges before are no-ops. One thread writes. Any thread may end the current
    stretch: what is written is changed under the lock of the file set only, for the time of one piece, and a new file
    is made outside of it. A full file is put aside and the next one begins at once. All keys of one message lie in one
    file. A failed call can be repeated, and puts nothing twice.
    """

    def __init__(
        self,
        files: IndexFileSet,
        fs: FileSystem,
        first: int,
        limit: int | None = None,
        step: Gate = contextlib.nullcontext,
    ) -> None:
        """New files are made with ``fs``, inside ``step()``."""
        self._files = files
        self._fs = fs
        self._step = step
        self._limit = limit
        self.file: ChainedIndexFile | None = None
        #: Start of the stretch that the current file covers or the next one will.
        self.first = first
        #: First physical offset not yet seen.
        self.next = first

    def go_on(self, file: ChainedIndexFile, next_offset: int) -> None:
        """Takes up a file that holds everything below ``next_offset``."""
        self.file, self.first, self.next = file, file.first, next_offset

    @property
    def done(self) -> bool:
        """Whether the whole range was written; its last file is full by then."""
        return self._limit is not None and self.first >= self._limit

    def write(self, records: LogRange) -> None:
        """Puts the keys of all records not yet seen; sees everything below ``records.end`` afterwards."""
        end = records.end if self._limit is None else min(records.end, self._limit)
        if end <= self.next:
            return
        if records.start > self.next:
            raise InvalidRequestError(f"range starts at {records.start}, but {self.next} was not seen yet")
        physical = np.ascontiguousarray(records.rows["physical_offset"])
        low, high = np.searchsorted(physical, [self.next, end])
        batch = KeyBatch.of(records.data, records.rows[low:high], records.topic_ids)
        at = 0
        while self.next < end:
            with self._files.lock:
                at, needs_file = self._put_piece(batch, at, end)
            if needs_file:
                with self._step():
                    made = self._files.make_file(
                        self._fs, batch.store_ms(at), self.first, batch.message_end(at) - at
                    )  # fmt: skip
                with self._files.lock:
                    made.first = self.first  # somebody may have ended a stretch without items meanwhile
                    self.file = made
                    self._files.show_writing(made)

    def _put_piece(self, batch: KeyBatch, at: int, end: int) -> tuple[int, bool]:
        """Puts some keys from ``at`` on; returns the first key not put, and whether it needs a new file."""
        cut = self._files.indexed_to
        stop = cut if self.next < cut < end else end
        last = len(batch) if stop == end else batch.first_key_from(stop)
        if at < last:
            if self.file is None:
                return at, True
            upto = min(batch.fit(at, min(self.file.room, max(_PIECE_KEYS, batch.message_end(at) - at))), last)
            if upto == at:
                self.next = max(self.next, batch.physical_offset(at))
                self.finish_stretch()
                return at, False
            self.file.put(batch, at, upto)
            at = upto
        # Noted at once, so that a full disk at the next file leaves nothing to be put twice.
        self.next = batch.physical_offset(at) if at < last else stop
        if self.first < cut <= self.next or self.next == self._limit:
            self.finish_stretch()
        return at, False

    def finish_stretch(self) -> None:
        """Ends the stretch ``[first, next)``: puts its file aside to be sealed, or notes that there are no items.

        In memory only. The caller holds the file set's lock.
        """
        file = self.file
        if file is not None and file.bounds is not None:
            self.file = None
            file.finish(self.next)
            self._files.show_again(file)
            self._files.hide_straddling()  # the watermark may have risen into it while a gap was derived
        elif self.first < self.next:
            self._files.range_without_items(self.first, self.next)
            if file is not None:  # it was just made, and goes on empty
                file.first = self.next
                self._files.show_again(file)
        self.first = self.next  # last: a reader without the lock has seen all below it

    def give_up(self) -> None:
        """Throws the current file away, whose stretch becomes a gap. The caller holds the file set's lock."""
        file, self.file = self.file, None
        self.first = self.next  # before readers lose sight of the file
        if file is not None:
            self._files.discard_writing(file)
