"""The items of a compacted file in the order of an index object, some at a time.

A file's slots ascend already; what is sorted is what lies inside each: by hash, hash_high, then newest physical offset
first. A slot that is longer than a piece is sorted as a whole, for 8 bytes an item of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import Items
from tierlog.index.kernels.order import rising_slots, sort_slots

#: Items that are sorted and translated together.
PIECE_ITEMS = 1 << 17


def highs(items: Items) -> NDArray[np.int64]:
    """``hash_high`` of items, 0 where the layout has none."""
    if items.dtype.names is not None and "hash_high" in items.dtype.names:
        return items["hash_high"].astype(np.int64)
    return np.zeros(len(items), np.int64)


def keys_of(items: Items) -> NDArray[np.int64]:
    """One number for both hashes of each item, in the order of an object inside a slot."""
    return items["hash"].astype(np.int64) << 32 | highs(items)


def places_of(items: Items, slots: int) -> NDArray[np.uint64]:
    """One number for the slot and both hashes of each item: objects are in its order.

    Hashes of a slot differ by multiples of ``slots``, so that slot and multiple are as good as slot and hash, and take
    no more than 32 bits together.
    """
    hashes = items["hash"].astype(np.uint64)
    multiples, found = np.divmod(hashes, np.uint64(slots))
    return (found * np.uint64(_multiples(slots)) + multiples) << np.uint64(32) | highs(items).astype(np.uint64)


class TimesFall:
    """Looks among items in the order of an object for a key of which a later record has an earlier second."""

    def __init__(self) -> None:
        self.is_found = False
        self._last: Items | None = None

    def add(self, items: Items) -> None:
        """Takes the next items; a key may go on from those before."""
        if self.is_found or not len(items):
            return
        if self._last is not None:
            self.is_found = _fall(np.concatenate((self._last, items[:1])))
        self.is_found = self.is_found or _fall(items)
        self._last = items[-1:].copy()


def _fall(items: Items) -> bool:
    """Whether times of neighbours fall: of one key those of the newest record come first."""
    hashes, seconds = items["hash"].astype(np.int32), items["seconds"].astype(np.int32)
    older = np.flatnonzero((hashes[1:] == hashes[:-1]) & (seconds[1:] > seconds[:-1])) + 1
    return bool((highs(items[older]) == highs(items[older - 1])).any())


def place_of_slot(slot: int, slots: int) -> int:
    """Returns the least number that an item of a slot may have: all items of slots below have lower ones."""
    return slot * _multiples(slots) << 32


def _multiples(slots: int) -> int:
    return -(-(1 << 31) // slots)


@dataclass(frozen=True, slots=True)
class ItemBlock:
    """The next items: of whole slots, or of a part of the one that is longer than a piece."""

    items: Items
    slot_end: int
    """Slots below it have come, the last of them perhaps not to its end."""


class SlotOrder:
    """Reads the items of one slot range of a source; :meth:`sorted` checks that they lie slot by slot."""

    def __init__(self, items: Items, slots: int, slot_from: int, slot_end: int, piece_items: int = PIECE_ITEMS) -> None:
        fields = items.dtype.fields
        assert fields is not None
        self._items = items
        self._at = [int(fields[name][1]) if name in fields else -1 for name in ("hash", "hash_high", "offset")]
        self._slots = slots
        self._start = self._first_of(slot_from) if slot_from else 0
        self._end = self._first_of(slot_end) if slot_end < slots else len(items)
        self._slot_from, self._slot_end = slot_from, slot_end
        self._most = piece_items

    def __len__(self) -> int:
        return max(0, self._end - self._start)

    def pieces(self) -> Iterator[Items]:
        """Yields the items as the source has them; views, cut anywhere."""
        for start in range(self._start, self._end, self._most):
            yield self._items[start : min(start + self._most, self._end)]

    def sorted(self) -> Iterator[ItemBlock]:
        """Yields the items in the object's order, copies; slots that are longer than a piece come in several."""
        for start, end in self._cuts():
            items = self._items[start:end]
            slot_end = int(items["hash"][-1]) % self._slots + 1
            if end - start <= self._most:
                yield ItemBlock(_taken(items, self._order(items)), slot_end)
                continue
            order = self._order(items)
            for at in range(0, end - start, self._most):
                yield ItemBlock(_taken(items, order[at : at + self._most]), slot_end)

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Half-open runs of whole slots, at most a piece long unless one slot alone is longer."""
        start, reached = self._start, self._slot_from
        while start < self._end:
            stop = min(start + self._most, self._end)
            first, last, last_start = self._slots_in(start, stop, reached)
            if stop < self._end and int(self._items["hash"][stop]) % self._slots == last:
                stop = start + last_start
                last -= 1
                if stop == start:
                    last = first
                    stop = self._end_of_slot(start, last)
            yield start, stop
            start, reached = stop, last + 1

    def _slots_in(self, start: int, stop: int, reached: int) -> tuple[int, int, int]:
        """First and last slot of some items, and the first item of the last slot, counted from ``start``."""
        items, ends = self._items[start:stop], np.empty(2, np.int64)
        last_start = rising_slots(
            items=items.ctypes.data,
            count=len(items),
            width=items.dtype.itemsize,
            hash_at=self._at[0],
            slots=self._slots,
            slot_from=reached,
            out=ends.ctypes.data,
        )
        first, last = ends.tolist()
        if last_start < 0 or last >= self._slot_end:
            raise CorruptIndexError("items of an index file do not lie slot by slot")
        return first, last, int(last_start)

    def _end_of_slot(self, start: int, slot: int) -> int:
        stop = max(start + 1, min(self._first_of(slot + 1), self._end))
        for at in range(start, stop, self._most):
            if self._slots_in(at, min(at + self._most, stop), slot)[1] != slot:
                raise CorruptIndexError("items of an index file do not lie slot by slot")
        return stop

    def _first_of(self, slot: int) -> int:
        """Returns the first item of a slot, or where it would be."""
        hashes = self._items["hash"]
        return bisect_left(range(len(self._items)), slot, key=lambda at: int(hashes[at]) % self._slots)

    def _order(self, items: Items) -> NDArray[np.int32]:
        """Returns the object's order of items of whole slots."""
        order, scratch = np.empty(len(items), np.int32), np.empty(len(items), np.int32)
        sort_slots(
            items=items.ctypes.data, count=len(items), width=items.dtype.itemsize, hash_at=self._at[0],
            high_at=self._at[1], offset_at=self._at[2], slots=self._slots, order=order.ctypes.data,
            scratch=scratch.ctypes.data,
        )  # fmt: skip
        return order


def _taken(items: Items, numbers: NDArray[np.int32]) -> Items:
    """Copies of the items with these numbers; whole rows, which is several times as fast as field by field."""
    rows = items.view(np.uint8).reshape(len(items), items.dtype.itemsize)
    found: Items = rows.take(numbers, axis=0).view(items.dtype)[:, 0]
    return found
