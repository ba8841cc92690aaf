"""What is done to index files on the disk once they take no more keys, beside their writer and their readers.

One step at a time, whoever asks for it. The disk is changed first and what readers see afterwards, at a short lock; a
file that was hidden meanwhile is not shown again, and is unlinked in whichever state it is by then.

Killed anywhere: a file lies in one folder, or in two neighbouring ones, where the later state wins at the next open.
One that is full and not sealed is named by ``index.json`` before sealing begins (``index.checkpoint``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from index.chained_file import ChainedIndexFile
from index.compacted_file import CompactedIndexFile
from index.compactor import compact
from index.file_set import IndexFileSet
from index.layout import ItemLayout
from index.snapshot import IndexFileEntry
from index.states import IndexState
from tiering.errors import StoreError
from tiering.fs import FileSystem

_ALL_STATES = tuple(IndexState)


class IndexUpkeep:
    """Seals, compacts, moves and unlinks the files of one set. Thread safe; callers wait for each other."""

    def __init__(
        self,
        files: IndexFileSet,
        fs: FileSystem,
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
        self._turn = threading.Lock()

    def seal_full(self) -> int:
        """Seal every full file, the oldest range first, durable with its name; returns how many.

        A file of which a flush failed is hidden, and its range becomes a gap: nobody knows what the disk holds of it,
        and a page that is read back may be an old one. Any other failure leaves it full, to be tried again.
        """
        done = 0
        with self._turn:
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
        """Compact every sealed file, the oldest range first; returns how many.

        Raises :class:`CorruptIndexError` for a damaged source, which is kept.
        """
        done = 0
        with self._turn:
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
        """Move compacted files below the watermark on: they are published. Returns how many.

        Their contents became durable when they were compacted. Killed before it: the next open does it.
        """
        done = 0
        with self._turn:
            for entry in self._files.view.files:
                assert entry.next is not None
                if entry.state is IndexState.COMPACTED and entry.next <= self._files.indexed_to:
                    self._files.folders.move(entry.begin_ms, IndexState.COMPACTED, IndexState.UPLOADED)
                    done += self._files.moved_on(entry, IndexState.UPLOADED, entry.reader)
        return done

    def unlink_hidden(self) -> int:
        """Unlink what was hidden, or put it into the quarantine, durably; returns how many files.

        Killed before it: they may come back at an open.
        """
        with self._turn:
            hidden = self._files.hidden
            for begin_ms in hidden:
                for state in _ALL_STATES:
                    if self._files.is_damaged(begin_ms):
                        self._files.folders.set_aside(state, begin_ms)
                    else:
                        self._files.folders.remove(state, begin_ms)
                self._files.unlinked(begin_ms)
        return len(hidden)


def _is_doubtful(entry: IndexFileEntry) -> bool:
    return isinstance(entry.reader, ChainedIndexFile) and entry.reader.is_doubtful
