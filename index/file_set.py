"""The files of one store's index as readers see them, and what waits to be done to them on the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from index.chained_file import ChainedIndexFile
from index.checkpoint import IndexCheckpoint, Stretch
from index.layout import ItemLayout
from index.snapshot import IndexFileEntry, IndexReader, IndexSnapshot, by_range
from index.states import IndexFolders, IndexState
from tiering.errors import StoreError
from tiering.fs import FileSystem


class IndexFileSet:
    """Writers, readers and upkeep meet here, at a lock that nobody holds while the disk is busy.

    Readers just take :attr:`view`. A file that is given up is hidden at once and unlinked later, by
    :class:`index.upkeep.IndexUpkeep`; its name stays taken until then. Methods take :attr:`lock` themselves unless they
    say otherwise.
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
        """Make a file of at least ``key_count`` keys, which takes the disk some ms. The caller holds no lock."""
        begin_ms = self.folders.claim(store_ms)
        path = self.folders.path(IndexState.WRITING, begin_ms)
        items = max(self._items, key_count + 1)
        with self.lock:
            self.generation += 1
            generation = self.generation
        try:
            return ChainedIndexFile.create(fs, path, self._layout, self._slots, items, begin_ms, first, generation)
        except BaseException:
            try:
                fs.unlink(path)  # at once: a part of it may hold what is left of the disk
                self.folders.release(begin_ms)
            except StoreError:
                with self.lock:
                    self._hidden.append(begin_ms)
            raise

    def show_writing(self, file: ChainedIndexFile) -> None:
        """Show a file that is being written, or one that was full when the store was opened."""
        with self.lock:
            self.view = self.view.replaced((*self.view.writing, _unsealed(file)))

    def show_again(self, file: ChainedIndexFile) -> None:
        """Show what a file in ``writing`` covers by now; a finished one waits to be sealed."""
        with self.lock:
            others = tuple(entry for entry in self.view.writing if entry.reader is not file)
            self.view = self.view.replaced((*others, _unsealed(file)))

    def discard_writing(self, file: ChainedIndexFile) -> None:
        """Give up a file that is being written."""
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
        """Start with files found on disk."""
        with self.lock:
            self.view = IndexSnapshot(entries, self.view.writing)

    def moved_on(self, old: IndexFileEntry, state: IndexState, reader: IndexReader) -> bool:
        """Show a file in another state, in which it is on the disk by now; False if it was hidden meanwhile."""
        new = IndexFileEntry(state, old.begin_ms, self.folders.path(state, old.begin_ms), old.first, old.next, reader)
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
        """Take files out of sight; they are unlinked later, and snapshots taken before keep reading them; how many.

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
        """Note that a hidden file is gone; its name is free again."""
        with self.lock:
            self._hidden.remove(begin_ms)
            self._damaged.discard(begin_ms)
        self.folders.release(begin_ms)

    def hide_straddling(self) -> None:
        """Give up files that straddle the watermark and are not published; they become gaps."""
        with self.lock:
            straddling = []
            for entry in self.finished:
                assert entry.next is not None
                if entry.state is not IndexState.UPLOADED and entry.first < self.indexed_to < entry.next:
                    straddling.append(entry)
            self.hide(straddling)

    # ----------------------------------------------------------------------------------------------- coverage

    def range_without_items(self, first: int, end: int) -> None:
        """Remember that nothing in ``[first, end)`` has a key."""
        with self.lock:
            kept = self._blank
            if kept and kept[-1][1] == first:
                first, kept = kept[-1][0], kept[:-1]
            self._blank = [*kept, (first, end)]  # replaced as a whole: readers take no lock

    def blank(self) -> list[Stretch]:
        """Stretches known to have no items."""
        return list(self._blank)

    def forget_blank_below(self, border: int) -> None:
        """Drop stretches wholly below the border."""
        with self.lock:
            self._blank = [stretch for stretch in self._blank if stretch[1] > border]

    def forget_blank_above(self, end: int) -> None:
        """Drop what is known of the log at or above its end."""
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
        """The same without files that are not sealed."""
        yield from self._blank
        for entry in self.view.files:
            assert entry.next is not None
            yield entry.first, entry.next


def _unsealed(file: ChainedIndexFile) -> IndexFileEntry:
    return IndexFileEntry(IndexState.WRITING, file.begin_ms, file.path, file.first, file.next, file)
