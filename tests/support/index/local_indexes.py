"""A key index of one store on a real disk, and what tests ask of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.support.index.index_logs import Log
from tierlog.index.format.layout import TIERLOG, may_lie_in
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.snapshot import IndexFileEntry, IndexSnapshot, KeyWalk
from tierlog.index.local.states import IndexState
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import TimeAxis, TimeRange
from tierlog.tiering.format.hashing import key_hash, key_hash_high


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


@dataclass(frozen=True, slots=True)
class Hit:
    """An item that a look-up found. ``second_ms``: the store time lies less than 1000 ms from it."""

    offset: int
    second_ms: int
    seconds: int
    size: int
    topic_id: int


def found_in(
    snapshot: IndexSnapshot, key: str, time_range: TimeRange | None = None, axis: TimeAxis = TimeAxis.STORE
) -> list[Hit]:
    """All items of a key of topic ``t``, those of the newest file first, in steps of a few items."""
    found = []
    for entry in snapshot.select(time_range, axis):
        walk: KeyWalk | None = KeyWalk.newest_first(entry.reader, (key_hash("t", key), key_hash_high("t", key)))
        while walk is not None:
            items, walk = walk.take(3)
            for item in items:
                seconds = int(item["seconds"])
                size, topic_id = (
                    int(item[name]) if name in entry.reader.layout.fields else 0 for name in ("size", "topic_id")
                )
                found.append(Hit(int(item["offset"]), entry.begin_ms + 1000 * seconds, seconds, size, topic_id))
    return found


def hits(
    index: LocalIndex, key: str, time_range: TimeRange | None = None, axis: TimeAxis = TimeAxis.STORE
) -> list[int]:
    """Offsets of a key's messages that may lie in a range."""
    found = found_in(index.snapshot(), key, time_range, axis)
    if time_range is not None and axis is TimeAxis.STORE:
        second_ms, seconds = (np.array([getattr(hit, name) for hit in found]) for name in ("second_ms", "seconds"))
        kept = may_lie_in(time_range, second_ms, seconds)
        found = [hit for hit, is_inside in zip(found, kept, strict=True) if is_inside]
    return [hit.offset for hit in found]


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
