"""Opens the key index after any stop: decides which index files are kept, and seals what fills up until it is open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from tierlog.index.format.checkpoint import IndexCheckpoint, Stretch, WritingFile
from tierlog.index.format.errors import CorruptIndexError, OtherIndexFileError
from tierlog.index.format.layout import ItemLayout
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.snapshot import IndexFileEntry, by_range
from tierlog.index.local.states import IndexFolders, IndexState
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.types import uncovered
from tierlog.tiering.hot.dispatch import LogRange, LogSubscriber

_LOG = logging.getLogger("tierlog")
_LATEST_FIRST = (IndexState.UPLOADED, IndexState.COMPACTED, IndexState.SEALED)


def load_entries(
    fs: FileSystem, folders: IndexFolders, layouts: Mapping[int, ItemLayout], start: int, indexed_to: int
) -> tuple[IndexFileEntry, ...]:
    """Opens every complete file that is kept, and removes the others; all are derived data.

    A damaged file goes to the quarantine. One is unlinked whose begin time exists in a later state, whose range
    overlaps that of a file in a later state, that straddles ``indexed_to`` and is not published, or that covers nothing
    from ``start`` on. Trailers are checked, not whole files: compaction, upload and look-ups check what they read.
    """
    found: list[IndexFileEntry] = []
    seen: set[int] = set()
    for state in _LATEST_FIRST:
        for begin_ms in folders.list(state):
            if begin_ms in seen:
                folders.remove(state, begin_ms)
                continue
            entry = _open(fs, folders, layouts, state, begin_ms)
            if entry is None:
                _set_aside(folders, state, begin_ms)
            else:
                seen.add(begin_ms)
                found.append(entry)
    kept: list[IndexFileEntry] = []
    for entry in found:
        overlapping = [other for other in kept if _overlap(entry, other)]
        if overlapping and not _is_proved(entry):
            _set_aside(folders, entry.state, entry.begin_ms)
            continue
        for other in overlapping:  # no two files cover one range, unless one says what is not true
            if not _is_proved(other):
                kept.remove(other)
                _set_aside(folders, other.state, other.begin_ms)
        if _unwanted(entry, kept, start, indexed_to):
            _drop(folders, entry.state, entry.begin_ms)
        else:
            kept.append(entry)
    return by_range(kept)


def unsealed_to_keep(
    found: IndexCheckpoint, covered: Iterable[Stretch], start: int, indexed_to: int
) -> tuple[list[WritingFile], WritingFile | None]:
    """Returns the files of a checkpoint to go on with: those that wait to be sealed, and the one being written.

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
    """Opens files of the folder ``writing``, as far as they are there, and unlinks every other one in it.

    Damaged ones go to the quarantine.
    """
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
        except OtherIndexFileError:
            _drop(folders, IndexState.WRITING, begin_ms)
            continue
        except CorruptIndexError as error:
            _LOG.error("%s", error)
            _set_aside(folders, IndexState.WRITING, begin_ms)
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


def _set_aside(folders: IndexFolders, state: IndexState, begin_ms: int) -> None:
    folders.set_aside(state, begin_ms)
    if not any(begin_ms in folders.list(other) for other in IndexState):
        folders.release(begin_ms)


def _is_proved(entry: IndexFileEntry) -> bool:
    """Whether a file's trailer belongs to its other bytes."""
    try:
        entry.reader.get_ready()
    except CorruptIndexError as error:
        _LOG.error("%s", error)
        return False
    return True


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
    except CorruptIndexError as error:
        _LOG.error("%s", error)
        return None
    if reader.begin_ms != begin_ms:
        _LOG.error("index file %s begins at %d", path, reader.begin_ms)
        return None
    return IndexFileEntry(
        state=state, begin_ms=begin_ms, path=path, first=reader.first, next=reader.next, reader=reader
    )


def _unwanted(entry: IndexFileEntry, kept: Iterable[IndexFileEntry], start: int, indexed_to: int) -> bool:
    assert entry.next is not None
    if entry.next <= start:
        return True
    if entry.state is not IndexState.UPLOADED and entry.first < indexed_to < entry.next:
        return True
    return any(_overlap(entry, other) for other in kept)


def _overlap(entry: IndexFileEntry, other: IndexFileEntry) -> bool:
    assert entry.next is not None
    assert other.next is not None
    return other.first < entry.next and entry.first < other.next


class RecoveringIndex:
    """The key index while its store is opened: hands records on, and seals the files that they fill.

    A long log may be derived then, and nothing maintains the index's files beside it yet. With them sealed, an opening
    that is cut off need not begin anew.
    """

    def __init__(self, subscriber: LogSubscriber, seal_full: Callable[[], object]) -> None:
        self._subscriber = subscriber
        self._seal_full: Callable[[], object] | None = seal_full

    def next_offset(self) -> int:
        """First physical offset not seen yet."""
        return self._subscriber.next_offset()

    def on_records(self, records: LogRange) -> None:
        """Indexes the records; until :meth:`end`, files that are full by then are durable when this returns."""
        self._subscriber.on_records(records)
        if self._seal_full is not None:
            self._seal_full()

    def end(self) -> None:
        """Waits for no file any more: the store is open, and they are sealed beside it."""
        self._seal_full = None
