"""The index as readers see it: an immutable set of open index files, selected by overlap with their true times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import WIDEN_MS, may_lie_in
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.states import IndexState
from tierlog.tiering.base.types import TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.format.hashing import key_hash, key_hash_high

#: One hit of a look-up. ``second_ms`` is begin time + seconds: the store time lies less than 1000 ms from it.
CANDIDATE = np.dtype(
    [
        ("physical_offset", "<i8"),
        ("second_ms", "<i8"),
        ("size", "<i4"),
        ("topic_id", "<i4"),
        ("queue_id", "<i4"),
        ("seconds", "<i4"),
    ]
)
Candidates = NDArray[np.void]
IndexReader = ChainedIndexFile | CompactedIndexFile


@dataclass(frozen=True, slots=True, eq=False)
class IndexFileEntry:
    """One index file in one state, with an open reader. ``next`` of a file being written is open: None."""

    state: IndexState
    begin_ms: int
    path: Path
    first: int
    next: int | None
    reader: IndexReader

    @property
    def name(self) -> str:
        """The file's name in every state."""
        return str(self.begin_ms)

    @property
    def bounds(self) -> TimeBounds | None:
        """Least and greatest times over the items; None while there is none."""
        return self.reader.bounds

    @property
    def items(self) -> int:
        """Items in the file."""
        return self.reader.item_count

    @property
    def bytes(self) -> int:
        """Length of the file."""
        return len(self.reader.data)


class OverlapOrder:
    """Files by least time with the running maximum of their greatest times: O(log n + answers) mostly."""

    def __init__(self, files: Iterable[tuple[int, int, IndexFileEntry]]) -> None:
        self._files = sorted(files, key=lambda file: file[0])
        self._starts = [start for start, _, _ in self._files]
        self._greatest: list[int] = []
        for _, end, _ in self._files:
            self._greatest.append(max(end, self._greatest[-1]) if self._greatest else end)

    def overlapping(self, from_ms: int, to_ms: int) -> list[IndexFileEntry]:
        """Files with any instant of their inclusive [least, greatest] in ``[from_ms, to_ms)``, latest first."""
        found = []
        for place in range(bisect_left(self._starts, to_ms) - 1, -1, -1):
            if self._greatest[place] < from_ms:
                break
            if self._files[place][1] >= from_ms:
                found.append(self._files[place][2])
        return found


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """A set of open files that stay usable whatever happens to the store; ``writing`` ones go on growing."""

    files: tuple[IndexFileEntry, ...] = ()
    """Sealed, compacted and uploaded files by ascending physical range."""
    writing: tuple[IndexFileEntry, ...] = ()
    _orders: dict[TimeAxis, OverlapOrder] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bounded = [(entry, entry.bounds) for entry in self.files]
        orders = {
            axis: OverlapOrder((*bounds.on(axis), entry) for entry, bounds in bounded if bounds is not None)
            for axis in TimeAxis
        }
        object.__setattr__(self, "_orders", orders)

    def replaced(self, writing: tuple[IndexFileEntry, ...]) -> IndexSnapshot:
        """Returns the same sealed files with others being written, without ordering them again."""
        snapshot = object.__new__(IndexSnapshot)
        object.__setattr__(snapshot, "files", self.files)
        object.__setattr__(snapshot, "writing", writing)
        object.__setattr__(snapshot, "_orders", self._orders)
        return snapshot

    def select(self, time_range: TimeRange | None = None, axis: TimeAxis = TimeAxis.STORE) -> list[IndexFileEntry]:
        """Files that may hold a message in the range, newest first; all of them without a range."""
        if time_range is None:
            return [*self.writing, *reversed(self.files)]
        from_ms, to_ms = time_range.from_ms - WIDEN_MS, time_range.to_ms + WIDEN_MS
        widened = TimeRange(from_ms, to_ms)
        chosen = []
        for entry in self.writing:
            bounds = entry.bounds
            if bounds is not None and widened.overlaps(*bounds.on(axis)):
                chosen.append(entry)
        return chosen + self._orders[axis].overlapping(from_ms, to_ms)

    def candidates(
        self,
        topic: str,
        key: str,
        time_range: TimeRange | None = None,
        axis: TimeAxis = TimeAxis.STORE,
        damaged: dict[int, CorruptIndexError] | None = None,
    ) -> Candidates:
        """Hits of a key in the selected files, newest file first and newest item first inside a file.

        Topic, key and time must still be compared on the record: hashes may collide, and only on the store
        axis are items filtered by time, widened by a second. A damaged file is passed over, and its begin time and
        what is wrong are put into ``damaged``; without that its :class:`CorruptIndexError` is raised.
        """
        low, high = key_hash(topic, key), key_hash_high(topic, key)
        entries = self.select(time_range, axis)
        found = []
        for entry in entries:
            try:
                found.append(_candidates_of(entry.reader, low, high))
            except CorruptIndexError as error:
                if damaged is None:
                    raise
                damaged[entry.begin_ms] = error
        hits: Candidates = np.concatenate(found) if found else np.empty(0, CANDIDATE)
        if time_range is None or axis is not TimeAxis.STORE:
            return hits
        kept: Candidates = hits[may_lie_in(time_range, hits["second_ms"], hits["seconds"])]
        return kept


def _candidates_of(reader: IndexReader, low: int, high: int) -> Candidates:
    items = reader.lookup(low, high)
    hits = np.zeros(len(items), CANDIDATE)
    hits["physical_offset"] = items["offset"]
    for name in ("size", "topic_id", "queue_id", "seconds"):
        if name in reader.layout.fields:
            hits[name] = items[name]
    hits["second_ms"] = reader.begin_ms + hits["seconds"].astype(np.int64) * 1000
    return hits


def by_range(entries: Sequence[IndexFileEntry]) -> tuple[IndexFileEntry, ...]:
    """Entries by ascending first physical offset."""
    return tuple(sorted(entries, key=lambda entry: entry.first))
