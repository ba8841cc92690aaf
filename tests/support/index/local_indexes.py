"""A key index of one store on a real disk, and what tests ask of it."""

from __future__ import annotations

from tests.support.index.index_logs import Log
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import IndexFileEntry
from tierlog.index.local.states import IndexState
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import TimeAxis, TimeRange


def open_index(
    paths: StorePaths,
    *,
    slots: int = 100,
    items: int = 400,
    indexed_to: int = 0,
    border: int = 0,
    fs: FileSystem | None = None,
) -> LocalIndex:
    fs = fs or LocalFileSystem()
    for folder in (paths.tmp, paths.tierlog):
        fs.make_dirs(folder)
    return LocalIndex.open(
        fs, paths, slots=slots, items=items, layout=TIERLOG, border=border,
        indexed_to=indexed_to, log_start=0,
    )  # fmt: skip


def hits(
    index: LocalIndex, key: str, time_range: TimeRange | None = None, axis: TimeAxis = TimeAxis.STORE
) -> list[int]:
    found = index.snapshot().candidates("t", key, time_range, axis)
    return [int(offset) for offset in found["physical_offset"]]


def derive_all(index: LocalIndex, log: Log, end: int) -> None:
    """What the engine does after opening."""
    for first, next_offset in index.gaps(0, end):
        derived = index.derive(first, next_offset)
        derived.on_records(log.range())
        assert derived.done
    index.on_records(log.range())
    index.seal_full()


def publish(index: LocalIndex, file: IndexFileEntry) -> None:
    """Note that a file was published."""
    assert file.next is not None
    index.set_indexed_to(file.next)
    index.settle()


def states(index: LocalIndex) -> list[tuple[str, int, int | None]]:
    return [(entry.state.value, entry.first, entry.next) for entry in index.files()]


def names(paths: StorePaths) -> dict[str, list[str]]:
    return {state.value: sorted(item.name for item in (paths.index / state).iterdir()) for state in IndexState}


def assert_all_found(index: LocalIndex, log: Log, keys: int = 1) -> None:
    for i, offset in enumerate(log.offsets):
        for k in range(keys):
            assert hits(index, f"k{i}-{k}") == [offset]
