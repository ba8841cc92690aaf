"""Decides, after any stop, which index files of a store are kept."""

from __future__ import annotations

from collections.abc import Mapping

from index.chained_file import ChainedIndexFile
from index.checkpoint import WritingFile
from index.compacted_file import CompactedIndexFile
from index.errors import CorruptIndexError
from index.layout import ItemLayout
from index.snapshot import IndexFileEntry, by_range
from index.states import IndexFolders, IndexState
from tiering.fs import FileSystem

_LATEST_FIRST = (IndexState.UPLOADED, IndexState.COMPACTED, IndexState.SEALED)


def load_entries(
    fs: FileSystem, folders: IndexFolders, layouts: Mapping[int, ItemLayout], indexed_to: int
) -> tuple[IndexFileEntry, ...]:
    """Open every complete file to keep and unlink the rest, all of it derived data.

    A file goes whose trailer is invalid, one whose begin time exists in a later state, one whose range overlaps
    that of a file in a later state, and one that straddles ``indexed_to`` and is not published. Trailers are
    checked, not whole files: compaction and upload do that before they trust one.
    """
    kept: dict[int, IndexFileEntry] = {}
    for state in _LATEST_FIRST:
        for begin_ms in folders.list(state):
            if begin_ms in kept:
                folders.remove(state, begin_ms)
                continue
            entry = _open(fs, folders, layouts, state, begin_ms)
            if entry is None or _unwanted(entry, kept, indexed_to):
                _drop(folders, state, begin_ms)
            else:
                kept[begin_ms] = entry
    return by_range(list(kept.values()))


def take_up_writing(
    fs: FileSystem, folders: IndexFolders, layouts: Mapping[int, ItemLayout], state: WritingFile | None
) -> ChainedIndexFile | None:
    """Open the file that was being written as ``state`` says, and unlink every other one; None if it is not there."""
    file = None
    for begin_ms in folders.list(IndexState.WRITING):
        if state is not None and state.begin_ms == begin_ms:
            path = folders.path(IndexState.WRITING, begin_ms)
            try:
                file = ChainedIndexFile.open_writing(fs, path, state, layouts=layouts)
                continue
            except CorruptIndexError:
                pass  # derived again
        _drop(folders, IndexState.WRITING, begin_ms)
    return file


def _drop(folders: IndexFolders, state: IndexState, begin_ms: int) -> None:
    folders.remove(state, begin_ms)
    if not any(begin_ms in folders.list(other) for other in IndexState):
        folders.release(begin_ms)


def _open(
    fs: FileSystem, folders: IndexFolders, layouts: Mapping[int, ItemLayout], state: IndexState, begin_ms: int
) -> IndexFileEntry | None:
    path = folders.path(state, begin_ms)
    reader: ChainedIndexFile | CompactedIndexFile
    try:
        if state is IndexState.SEALED:
            reader = ChainedIndexFile.open_sealed(fs, path, layouts=layouts, verify=False)
        else:
            reader = CompactedIndexFile.open(fs, path, layouts=layouts, verify=False)
    except CorruptIndexError:
        return None
    if reader.begin_ms != begin_ms:
        return None
    return IndexFileEntry(state, begin_ms, path, reader.first, reader.next, reader)


def _unwanted(entry: IndexFileEntry, kept: Mapping[int, IndexFileEntry], indexed_to: int) -> bool:
    assert entry.next is not None
    if entry.state is not IndexState.UPLOADED and entry.first < indexed_to < entry.next:
        return True
    return any(
        other.first < entry.next and other.next is not None and entry.first < other.next for other in kept.values()
    )
