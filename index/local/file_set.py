"""The files of one store's index as readers see them, and their upkeep on the disk once they take no more keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tierlog.index.format.checkpoint import IndexCheckpoint, Stretch
from tierlog.index.format.layout import ItemLayout
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.local.snapshot import IndexFileEntry, IndexReader, IndexSnapshot, by_range
from tierlog.index.local.states import IndexFolders, IndexState
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import FileSystem


class IndexFileSet:
    """The files that writers, readers and upkeep share, under a lock that nobody holds while the disk is busy.

    Readers just take :attr:`view`. A file that is given up is hidden at once and unlinked later, by
    :class:`IndexUpkeep`; its name stays taken until then. Methods take :attr:`lock` themselves
    unless they say otherwise.
    """

    def __init__(
        self,
        folders: IndexFolders,
        *,
        slots: int,
        items: int,
        layout: ItemLayout,
        indexed_to: int,
        found: IndexCheckpoint,
    ) -> None:
        self._slots, self._items, self._layout = slots, items, layout
        self._blank: list[Stretch] = list(found.blank)
        self._hidden: list[int] = []
        self._damaged: set[int] = set()
        #: Of the last file made; every file has a higher one than those before.
        self.generation = found.generation
        self.folders = folders
        #: The physical offset that no file may straddle; below it all is published.
        self.indexed_to = indexed_to
        #: Replaced as a whole at every change.
        self.view = IndexSnapshot()
        #: Held for moments only.
        self.lock = threading.RLock()

    # --------------------------------------------------------------------------------------------- being written

    def make_file(self, fs: FileSystem, store_ms: int, first: int, key_count: int) -> ChainedIndexFile:
        """Makes a file of at least ``key_count`` keys, which takes the disk some ms. The caller holds no lock."""
        begin_ms = self.folders.claim(store_ms)
        path = self.folders.path(IndexState.WRITING, begin_ms)
        items = max(self._items, key_count + 1)
        with self.lock:
            self.generation += 1
            generation = self.generation
        try:
            return ChainedIndexFile.create(
                fs,
                path,
                self._layout,
                slots=self._slots,
                items=items,
                begin_ms=begin_ms,
                first_physical=first,
                generation=generation,
            )
        except BaseException:
            try:
                fs.unlink(path)  # at once: a part of it may hold what is left of the disk
                self.folders.release(begin_ms)
            except StoreError:
                with self.lock:
                    self._hidden.append(begin_ms)
            raise

    def show_writing(self, file: ChainedIndexFile) -> None:
        """Shows a file that is being written, or one that was full when the store was opened."""
        with self.lock:
            self.view = self.view.replaced((*self.view.writing, _unsealed(file)))

    def show_again(self, file: ChainedIndexFile) -> None:
        """Shows what a file in ``writing`` covers by now; a finished one waits to be sealed."""
        with self.lock:
            others = tuple(entry for entry in self.view.writing if entry.reader is not file)
            self.view = self.view.replaced((*others, _unsealed(file)))

    def discard_writing(self, file: ChainedIndexFile) -> None:
        """Gives up a file that is being written."""
        with self.lock:
            self.hide(entry for entry in self.view.writing if entry.reader is file)

    # ------------------------------------------------------------------------------------------- complete files

    @property
    def full(self) -> list[IndexFileEntry]:
        """Files that take no more keys and are not sealed, by ascending range."""
        return sorted((entry for entry in self.view.writing if entry.next is not None), key=lambda entry: entry.first)

    @property
    def finished(self) -> tuple[IndexFileEntry, ...]:
        """Every file but those that still take keys, by ascending range."""
        view = self.view
        return by_range([*view.files, *(entry for entry in view.writing if entry.next is not None)])

    def show(self, entries: tuple[IndexFileEntry, ...]) -> None:
        """Starts with files found on disk."""
        with self.lock:
            self.view = IndexSnapshot(entries, self.view.writing)

    def moved_on(self, old: IndexFileEntry, state: IndexState, reader: IndexReader) -> bool:
        """Shows a file in another state, in which it is on the disk by now; False if it was hidden meanwhile."""
        new = IndexFileEntry(
            state=state,
            begin_ms=old.begin_ms,
            path=self.folders.path(state, old.begin_ms),
            first=old.first,
            next=old.next,
            reader=reader,
        )
        with self.lock:
            view = self.view
            if old in view.writing:
                rest = tuple(entry for entry in view.writing if entry is not old)
                self.view = IndexSnapshot(by_range([*view.files, new]), rest)
            elif old in view.files:
                self.view = IndexSnapshot(tuple(new if entry is old else entry for entry in view.files), view.writing)
            else:
                return False
            return True

    def hide(self, entries: Iterable[IndexFileEntry], *, are_damaged: bool = False) -> int:
        """Takes files out of sight, to be unlinked later; returns how many. Snapshots taken before keep reading them.

        Those that ``are_damaged`` go to the quarantine instead.
        """
        with self.lock:
            view = self.view
            # one that somebody else has hidden meanwhile is unlinked once: its name may be another's by the second time
            gone = [entry for entry in entries if entry in view.writing or entry in view.files]
            if not gone:
                return 0
            writing = tuple(entry for entry in view.writing if entry not in gone)
            files = tuple(entry for entry in view.files if entry not in gone)
            self.view = view.replaced(writing) if len(files) == len(view.files) else IndexSnapshot(files, writing)
            self._hidden.extend(entry.begin_ms for entry in gone)
            if are_damaged:
                self._damaged.update(entry.begin_ms for entry in gone)
            return len(gone)

    @property
    def hidden(self) -> list[int]:
        """Begin times of files to unlink, in whichever state they are."""
        with self.lock:
            return list(self._hidden)

    def is_damaged(self, begin_ms: int) -> bool:
        """Whether a hidden file goes to the quarantine."""
        with self.lock:
            return begin_ms in self._damaged

    def unlinked(self, begin_ms: int) -> None:
        """Notes that a hidden file is gone; its name is free again."""
        with self.lock:
            self._hidden.remove(begin_ms)
            self._damaged.discard(begin_ms)
        self.folders.release(begin_ms)

    def hide_straddling(self) -> None:
        """Gives up files that straddle the watermark and are not published; they become gaps."""
        with self.lock:
            straddling = []
            for entry in self.finished:
                assert entry.next is not None
                if entry.state is not IndexState.UPLOADED and entry.first < self.indexed_to < entry.next:
                    straddling.append(entry)
            self.hide(straddling)

    # ----------------------------------------------------------------------------------------------- coverage

    def range_without_items(self, first: int, end: int) -> None:
        """Remembers that nothing in ``[first, end)`` has a key."""
        with self.lock:
            kept = self._blank
            if kept and kept[-1][1] == first:
                first, kept = kept[-1][0], kept[:-1]
            self._blank = [*kept, (first, end)]  # replaced as a whole: readers take no lock

    def blank(self) -> list[Stretch]:
        """Stretches known to have no items."""
        return list(self._blank)

    def forget_blank_below(self, border: int) -> None:
        """Drops stretches wholly below the border."""
        with self.lock:
            self._blank = [stretch for stretch in self._blank if stretch[1] > border]

    def forget_blank_above(self, end: int) -> None:
        """Drops what is known of the log at or above its end."""
        with self.lock:
            self._blank = [(first, min(stop, end)) for first, stop in self._blank if first < end]

    def covered(self, view: IndexSnapshot | None = None) -> Iterator[Stretch]:
        """Ranges of full and complete files and stretches without items, unordered; of a view taken before, too."""
        view = view or self.view
        yield from self._blank
        for entry in (*view.writing, *view.files):
            if entry.next is not None:
                yield entry.first, entry.next

    def sealed(self) -> Iterator[Stretch]:
        """Yields the same ranges as :meth:`covered`, without files that are not sealed."""
        yield from self._blank
        for entry in self.view.files:
            assert entry.next is not None
            yield entry.first, entry.next


def _unsealed(file: ChainedIndexFile) -> IndexFileEntry:
    return IndexFileEntry(
        state=IndexState.WRITING, begin_ms=file.begin_ms, path=file.path, first=file.first, next=file.next, reader=file
    )


class IndexUpkeep:
    """Seals, compacts, moves and unlinks the files of one set, beside their writer and their readers. Thread safe.

    One task at a time, whichever thread asks for it. The disk is changed first and what readers see afterwards, at a
    short lock; a file that was hidden meanwhile is not shown again, and is unlinked in whichever state it is by then.

    Killed anywhere: a file lies in one folder, or in two neighbouring ones, where the later state wins at the next
    open. One that is full and not sealed is named by ``index.json`` before sealing begins
    (``index.format.checkpoint``).
    """

    def __init__(
        self,
        files: IndexFileSet,
        fs: FileSystem,
        *,
        tmp_dir: Path,
        layouts: Mapping[int, ItemLayout],
        checkpoint: Callable[[], None],
        step: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """``checkpoint`` makes durable which files are full; ``step`` surrounds changes that ``fs`` does not see."""
        self._files = files
        self._fs = fs
        self._tmp = tmp_dir
        self._layouts = layouts
        self._checkpoint = checkpoint
        self._step = step
        self._upkeep_lock = threading.Lock()

    def seal_full(self) -> int:
        """Seals every full file, the oldest range first, durable with its name; returns how many.

        A file of which a flush failed is hidden, and its range becomes a gap: nobody knows what the disk holds of it,
        and a page that is read back may be an old one. Any other failure leaves it full, to be tried again.
        """
        done = 0
        with self._upkeep_lock:
            full = self._files.full
            try:
                if full:
                    with self._step():
                        self._checkpoint()  # names all of them: sealing writes over what tells who they are
                for entry in full:
                    self._seal(entry)
                    done += 1
            except StoreError:
                self._files.hide(entry for entry in full if _is_doubtful(entry))
                raise
        return done

    def _seal(self, entry: IndexFileEntry) -> None:
        file = entry.reader
        assert isinstance(file, ChainedIndexFile)
        with self._step():
            file.seal()
        self._files.folders.move(entry.begin_ms, IndexState.WRITING, IndexState.SEALED)
        self._files.moved_on(entry, IndexState.SEALED, file)

    def compact_sealed(self) -> int:
        """Compacts every sealed file, the oldest range first; returns how many.

        Raises :class:`CorruptIndexError` for a damaged source, which is kept.
        """
        done = 0
        with self._upkeep_lock:
            for entry in self._files.view.files:
                if entry.state is IndexState.SEALED:
                    done += self._compact(entry)
        return done

    def _compact(self, entry: IndexFileEntry) -> bool:
        assert isinstance(entry.reader, ChainedIndexFile)
        target = self._files.folders.path(IndexState.COMPACTED, entry.begin_ms)
        compact(self._fs, entry.reader, target, self._tmp)
        reader = CompactedIndexFile.open(self._fs, target, layouts=self._layouts, verify=False)
        is_shown = self._files.moved_on(entry, IndexState.COMPACTED, reader)
        if is_shown:
            self._files.folders.remove(IndexState.SEALED, entry.begin_ms)
        return is_shown

    def settle(self) -> int:
        """Moves compacted files below the watermark on: they are published. Returns how many.

        Their contents became durable when they were compacted. Killed before it: the next open does it.
        """
        done = 0
        with self._upkeep_lock:
            for entry in self._files.view.files:
                assert entry.next is not None
                if entry.state is IndexState.COMPACTED and entry.next <= self._files.indexed_to:
                    self._files.folders.move(entry.begin_ms, IndexState.COMPACTED, IndexState.UPLOADED)
                    done += self._files.moved_on(entry, IndexState.UPLOADED, entry.reader)
        return done

    def unlink_hidden(self) -> int:
        """Unlinks what was hidden, or puts it into the quarantine, durably; returns how many files.

        Killed before it: they may come back at an open.
        """
        with self._upkeep_lock:
            hidden = self._files.hidden
            for begin_ms in hidden:
                for state in IndexState:
                    if self._files.is_damaged(begin_ms):
                        self._files.folders.set_aside(state, begin_ms)
                    else:
                        self._files.folders.remove(state, begin_ms)
                self._files.unlinked(begin_ms)
        return len(hidden)


def _is_doubtful(entry: IndexFileEntry) -> bool:
    return isinstance(entry.reader, ChainedIndexFile) and entry.reader.is_doubtful
