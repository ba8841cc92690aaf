"""The files of one store's index in memory and on disk, kept in step through every change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from index.chained_file import ChainedIndexFile
from index.checkpoint import IndexCheckpoint, Stretch
from index.compacted_file import CompactedIndexFile
from index.layout import ItemLayout
from index.snapshot import IndexFileEntry, IndexSnapshot, by_range
from index.states import IndexFolders, IndexState
from tiering.fs import FileSystem


class IndexFileSet:
    """Host of the range writers. The owner holds a lock for every call; readers just take :attr:`view`."""

    def __init__(
        self,
        fs: FileSystem,
        folders: IndexFolders,
        *,
        slots: int,
        items: int,
        layout: ItemLayout,
        indexed_to: int,
        found: IndexCheckpoint,
    ) -> None:
        self._fs = fs
        self._slots, self._items, self._layout = slots, items, layout
        self._blank: list[Stretch] = list(found.blank)
        #: Of the last file made; every file has a higher one than those before.
        self.generation = found.generation
        self.folders = folders
        self.indexed_to = indexed_to
        #: Replaced as a whole at every change.
        self.view = IndexSnapshot()

    # --------------------------------------------------------------------- IndexFileHost (index.range_writer)

    def begin_file(self, store_ms: int, first: int, key_count: int) -> ChainedIndexFile:
        """Make a file of at least ``key_count`` keys and show it to readers."""
        begin_ms = self.folders.claim(store_ms)
        path = self.folders.path(IndexState.WRITING, begin_ms)
        items = max(self._items, key_count + 1)
        self.generation += 1
        try:
            file = ChainedIndexFile.create(
                self._fs, path, self._layout, self._slots, items, begin_ms, first, self.generation
            )
        except BaseException:
            self.folders.remove(IndexState.WRITING, begin_ms)
            self.folders.release(begin_ms)
            raise
        self.show_writing(file)
        return file

    def file_sealed(self, file: ChainedIndexFile) -> None:
        """Move a sealed file on and show it as such."""
        path = self.folders.move(file.begin_ms, IndexState.WRITING, IndexState.SEALED)
        assert file.next is not None
        entry = IndexFileEntry(IndexState.SEALED, file.begin_ms, path, file.first, file.next, file)
        self.view = IndexSnapshot(by_range([*self.view.files, entry]), self._writing_without(file))

    def range_without_items(self, first: int, end: int) -> None:
        """Remember a stretch without items."""
        kept = self._blank
        if kept and kept[-1][1] == first:
            first, kept = kept[-1][0], kept[:-1]
        self._blank = [*kept, (first, end)]  # replaced as a whole: readers take no lock

    def cut(self) -> int:
        """The physical offset that no file may straddle."""
        return self.indexed_to

    # ------------------------------------------------------------------------------------------ state changes

    def show_writing(self, file: ChainedIndexFile) -> None:
        """Show a file that is being written."""
        entry = IndexFileEntry(IndexState.WRITING, file.begin_ms, file.path, file.first, None, file)
        self.view = self.view.replaced((*self.view.writing, entry))

    def show(self, entries: tuple[IndexFileEntry, ...]) -> None:
        """Start with files found on disk."""
        self.view = IndexSnapshot(entries)

    def replace(self, old: IndexFileEntry, state: IndexState, reader: ChainedIndexFile | CompactedIndexFile) -> None:
        """Show a file in another state; the disk was changed before."""
        path = self.folders.path(state, old.begin_ms)
        new = IndexFileEntry(state, old.begin_ms, path, old.first, old.next, reader)
        self.view = IndexSnapshot(tuple(new if entry is old else entry for entry in self.view.files), self.view.writing)

    def remove(self, entries: Iterable[IndexFileEntry]) -> None:
        """Hide files, then unlink them; snapshots taken before keep reading them."""
        gone = list(entries)
        if not gone:
            return
        kept = tuple(entry for entry in self.view.files if entry not in gone)
        self.view = IndexSnapshot(kept, self.view.writing)
        for entry in gone:
            self.folders.remove(entry.state, entry.begin_ms)
            self.folders.release(entry.begin_ms)

    def discard_writing(self, file: ChainedIndexFile) -> None:
        """Give up a file that is being written."""
        self.view = self.view.replaced(self._writing_without(file))
        self.folders.remove(IndexState.WRITING, file.begin_ms)
        self.folders.release(file.begin_ms)

    def settle(self) -> None:
        """Compacted files below the watermark were published before a stop, or derived again after it."""
        for entry in self.view.files:
            assert entry.next is not None
            if entry.state is IndexState.COMPACTED and entry.next <= self.indexed_to:
                self.upload(entry)

    def upload(self, entry: IndexFileEntry) -> None:
        """Move a compacted file on; its contents were made durable when it was compacted."""
        self.folders.move(entry.begin_ms, IndexState.COMPACTED, IndexState.UPLOADED)
        self.replace(entry, IndexState.UPLOADED, entry.reader)

    def drop_straddling(self) -> None:
        """Remove files that straddle the watermark and are not published; they become gaps."""
        straddling = []
        for entry in self.view.files:
            assert entry.next is not None
            if entry.state is not IndexState.UPLOADED and entry.first < self.indexed_to < entry.next:
                straddling.append(entry)
        self.remove(straddling)

    # ----------------------------------------------------------------------------------------------- coverage

    def blank(self) -> list[Stretch]:
        """Stretches known to have no items."""
        return list(self._blank)

    def forget_blank_below(self, border: int) -> None:
        """Drop stretches wholly below the border."""
        self._blank = [stretch for stretch in self._blank if stretch[1] > border]

    def forget_blank_above(self, end: int) -> None:
        """Drop what is known of the log at or above its end."""
        self._blank = [(first, min(stop, end)) for first, stop in self._blank if first < end]

    def covered(self) -> Iterator[Stretch]:
        """Ranges of complete files and stretches without items, unordered."""
        return self.covered_by(self.view)

    def covered_by(self, view: IndexSnapshot) -> Iterator[Stretch]:
        """The same with the files of a view that was taken before."""
        yield from self._blank
        for entry in view.files:
            assert entry.next is not None
            yield entry.first, entry.next

    def _writing_without(self, file: ChainedIndexFile) -> tuple[IndexFileEntry, ...]:
        return tuple(entry for entry in self.view.writing if entry.reader is not file)
