"""The index as readers see it: an immutable set of open index files, selected by overlap with their true times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import WIDEN_MS, Items
from tierlog.index.kernels.point_lookup import find_slot, offset_of_item, walk_items
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile, FileRow
from tierlog.index.local.states import IndexState
from tierlog.tiering.base.types import Order, TimeAxis, TimeBounds, TimeRange

IndexReader = ChainedIndexFile | CompactedIndexFile
_SHORT_CHAIN = 4096
"""Items of a slot that are read at once. What has more is not far from any place among all items of its file."""
_MOST_STEPS = 1 << 16
"""Items that are looked at between two looks at the clock, most of them by waiting for memory: some milliseconds."""


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


class Border(Protocol):
    """A border in a log whose store times rise: all records from somewhere on lie beyond it."""

    def is_reached(self, offset: int) -> bool:
        """Whether a record lies beyond the border, by what stands there: nothing is checked."""
        ...

    def lies_between(self, before: int | None, behind: int | None) -> bool:
        """Whether the one record lies before the border and the other beyond it, both sound; None: there is none."""
        ...


class KeyWalk:
    """A way through one key's items in one index file, taken in steps of bounded time and memory.

    Taking a step changes nothing: it gives the items and the rest of the way. A file being written may grow meanwhile.
    Of a damaged file :class:`CorruptIndexError` is raised where the way meets the damage.
    """

    __slots__ = ("_high", "_kept", "_low", "_reader", "_row", "_state")

    def __init__(
        self, reader: IndexReader, row: FileRow, hashes: tuple[int, int], state: tuple[int, int, int],
        kept: Items | None = None,
    ) -> None:  # fmt: skip
        """``state`` is that of ``index.kernels.point_lookup.walk_items``; items that are ``kept`` come first."""
        self._reader, self._row, self._state = reader, row, state
        self._low, self._high = hashes
        self._kept = np.empty(0, _kind(reader)) if kept is None else kept

    @classmethod
    def newest_first(cls, reader: IndexReader, hashes: tuple[int, int]) -> KeyWalk:
        """Returns the way through all items with both hashes, the newest first: as they were put in, backwards."""
        if isinstance(reader, ChainedIndexFile) and (items := reader.unlinked_items(*hashes)) is not None:
            return cls(reader, np.empty(0, np.int64), hashes, (0, 1, 0), items)
        row, last = reader.look_up_row(), np.zeros(1, np.int64)
        first = find_slot(row.ctypes.data, hashes[0], last.ctypes.data)
        if first < 0:
            raise _damaged(reader)
        is_chained = isinstance(reader, ChainedIndexFile)
        return cls(reader, row, hashes, (first, 1, 0) if is_chained else (first, int(last[0]), 1))

    @classmethod
    def in_order(
        cls, reader: IndexReader, hashes: tuple[int, int], order: Order, low: Border | None, high: Border | None
    ) -> KeyWalk:
        """Returns the way through the items between two borders, None where the file lies inside, in an order.

        The items of a file have to lie in the order of their times, as they were put in. Some items beyond the border
        where the way ends may come too, and beyond the other one if a short way leads there.
        """
        walk = cls.newest_first(reader, hashes)
        is_newest = order is Order.NEWEST
        first, last, change = walk._state
        if not first and not len(walk._kept):
            return walk
        if change:  # numbers fall as offsets rise: counted from the last one they rise too
            return walk._in_run(first, last, order, low, high)
        # a short chain is read at once
        newest, rest = walk._take(max(_SHORT_CHAIN, len(walk._kept)), _SHORT_CHAIN)
        oldest_first = newest[::-1]
        offsets = oldest_first["offset"]
        if rest is None:
            start = _place(low, 0, len(newest), offsets.__getitem__, else_at=0)
            end = _place(high, start, len(newest), offsets.__getitem__, else_at=len(newest))
            kept = oldest_first[start:end]
            return cls(reader, walk._row, hashes, (0, 1, 0), kept[::-1] if is_newest else kept)
        # through a long one leads a way from its newest end, and its items are near any place among all items
        if is_newest:
            end = _place(high, 0, len(newest), offsets.__getitem__, else_at=len(newest))
            if end or high is None:
                return cls(reader, walk._row, hashes, rest._state, oldest_first[:end][::-1])
            number = _place(high, 0, rest._state[0], walk._offset_of_place, else_at=rest._state[0])
            return cls(reader, walk._row, hashes, (number, 1, 0))
        count = reader.item_count
        start = _place(low, 0, count, walk._offset_of_place, else_at=0)
        end = _place(high, start, count, walk._offset_of_place, else_at=count)
        return cls(reader, walk._row, hashes, (start + 1 if start < end else 0, end, 1))

    def _in_run(self, first: int, last: int, order: Order, low: Border | None, high: Border | None) -> KeyWalk:
        def offset_of(place: int) -> int:
            return self._offset(last - place)

        count = last + 1 - first
        if order is Order.NEWEST:
            end = _place(high, 0, count, offset_of, else_at=count)
            state = (last + 1 - end, last, 1) if end else (0, last, 1)
        else:
            start = _place(low, 0, count, offset_of, else_at=0)
            state = (last - start, first, -1) if start < count else (0, first, -1)
        return KeyWalk(self._reader, self._row, (self._low, self._high), state)

    def take(self, most: int) -> tuple[Items, KeyWalk | None]:
        """Returns the next items, at most so many, and the rest of the way, None at the end.

        As a bounded number of items is looked at, there may be none of the key among them before the end.
        """
        return self._take(most, _MOST_STEPS)

    def _take(self, most: int, steps: int) -> tuple[Items, KeyWalk | None]:
        hashes = self._low, self._high
        if len(self._kept) or not self._state[0]:
            items, kept = self._kept[:most], self._kept[most:]
            is_over = not len(kept) and not self._state[0]
            return items, None if is_over else KeyWalk(self._reader, self._row, hashes, self._state, kept)
        state, items = np.array(self._state, np.int64), np.empty(most, _kind(self._reader))
        found = walk_items(
            file=self._row.ctypes.data, low=self._low, high=self._high, state=state.ctypes.data, steps=steps,
            out=items.ctypes.data, capacity=most,
        )  # fmt: skip
        if found < 0:
            raise _damaged(self._reader)
        number, last, change = state.tolist()
        rest = KeyWalk(self._reader, self._row, hashes, (number, last, change)) if number else None
        return items[:found], rest

    def _offset_of_place(self, place: int) -> int:
        return self._offset(place + 1)

    def _offset(self, number: int) -> int:
        """Returns the physical offset of an item by its number, from 1 on."""
        offset = int(offset_of_item(self._row.ctypes.data, number))
        if offset < 0:
            raise _damaged(self._reader)
        return offset


def _place(border: Border | None, start: int, end: int, offset_of: Callable[[int], int], *, else_at: int) -> int:
    """Returns the first place of ``[start, end)`` beyond a border; ``else_at`` if records do not bear it out.

    ``offset_of`` gives rising offsets.
    """
    if border is None:
        return else_at
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        if border.is_reached(int(offset_of(middle))):
            high = middle
        else:
            low = middle + 1
    before = int(offset_of(low - 1)) if low > start else None
    behind = int(offset_of(low)) if low < end else None
    return low if border.lies_between(before, behind) else else_at


def _kind(reader: IndexReader) -> np.dtype[np.void]:
    layout = reader.layout
    return layout.chained if isinstance(reader, ChainedIndexFile) else layout.compacted


def _damaged(reader: IndexReader) -> CorruptIndexError:
    return CorruptIndexError("slot, chain or page of an index file is damaged", path=str(reader.path))


def by_range(entries: Sequence[IndexFileEntry]) -> tuple[IndexFileEntry, ...]:
    """Entries by ascending first physical offset."""
    return tuple(sorted(entries, key=lambda entry: entry.first))
