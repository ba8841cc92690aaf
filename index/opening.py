"""Decides, after any stop, which index files of a store are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from index.chained_file import ChainedIndexFile
from index.checkpoint import IndexCheckpoint, Stretch, WritingFile
from index.compacted_file import CompactedIndexFile
from index.errors import CorruptIndexError
from index.layout import ItemLayout
from index.ranges import uncovered
from index.snapshot import IndexFileEntry, by_range
from index.states import IndexFolders, IndexState
from tiering.fs import FileSystem

_LATEST_FIRST = (IndexState.UPLOADED, IndexState.COMPACTED, IndexState.SEALED)


def load_entries(
    fs: FileSystem, folders: IndexFolders, layouts: Mapping[int, ItemLayout], start: int, indexed_to: int
) -> tuple[IndexFileEntry, ...]:
    """Open every complete file to keep and unlink the rest, all of it derived data.

    A file goes whose trailer is invalid, one whose begin time exists in a later state, one whose range overlaps
    that of a file in a later state, one that straddles ``indexed_to`` and is not published, and one that covers nothing
    from ``start`` on. Trailers are checked, not whole files: compaction and upload do that before they trust one.
    """
    kept: dict[int, IndexFileEntry] = {}
    for state in _LATEST_FIRST:
        for begin_ms in folders.list(state):
            if begin_ms in kept:
                folders.remove(state, begin_ms)
                continue
            entry = _open(fs, folders, layouts, state, begin_ms)
            if entry is None or _unwanted(entry, kept, start, indexed_to):
                _drop(folders, state, begin_ms)
            else:
                kept[begin_ms] = entry
    return by_range(list(kept.values()))


def unsealed_to_keep(
    found: IndexCheckpoint, covered: Iterable[Stretch], start: int, indexed_to: int
) -> tuple[list[WritingFile], WritingFile | None]:
    """The files of a checkpoint to go on with: those that wait to be sealed, and the one being written.

    Not what lies below ``start``, overlaps what complete files cover, or straddles the watermark.
    """
    taken = sorted(covered)
    full = []
    for state in sorted(found.full, key=lambda state: state.first):
        is_free = uncovered(taken, state.first, state.next) == [(state.first, state.next)]
        if state.next > start and is_free and not state.first < indexed_to < state.next:
            full.append(state)
            taken.append((state.first, state.next))
    writing = found.writing
    reached = max((end for _, end in taken), default=0)
    if writing is not None and (writing.next < start or writing.first < max(reached, indexed_to)):
        writing = None
    return full, writing


def take_up_unsealed(
    fs: FileSystem,
    folders: IndexFolders,
    layouts: Mapping[int, ItemLayout],
    full: Iterable[WritingFile],
    writing: WritingFile | None,
) -> tuple[list[ChainedIndexFile], ChainedIndexFile | None]:
    """Open files of the folder ``writing``, as far as they are there, and unlink every other one in it."""
    wanted = {state.begin_ms: state for state in full}
    if writing is not None:
        wanted[writing.begin_ms] = writing
    full_files, file = [], None
    for begin_ms in folders.list(IndexState.WRITING):
        state = wanted.get(begin_ms)
        if state is None:
            _drop(folders, IndexState.WRITING, begin_ms)
            continue
        try:
            found = ChainedIndexFile.open_writing(
                fs, folders.path(IndexState.WRITING, begin_ms), state, is_full=state is not writing, layouts=layouts
            )
        except CorruptIndexError:  # derived again
            _drop(folders, IndexState.WRITING, begin_ms)
            continue
        if state is writing:
            file = found
        else:
            full_files.append(found)
    return full_files, file


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


def _unwanted(entry: IndexFileEntry, kept: Mapping[int, IndexFileEntry], start: int, indexed_to: int) -> bool:
    assert entry.next is not None
    if entry.next <= start:
        return True
    if entry.state is not IndexState.UPLOADED and entry.first < indexed_to < entry.next:
        return True
    return any(
        other.first < entry.next and other.next is not None and entry.first < other.next for other in kept.values()
    )
