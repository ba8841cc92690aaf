"""Physical to cold offsets of what the items of one index file point to, and of nothing else.

Kept are 8 bytes for each distinct record, its position in its segment, physical and cold, and fewer than 8 for the
buckets in which a position is looked for. While they are collected, 4 bytes an item come on top, and as much again and
the map of one segment at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.kernels.offsets import (
    FULL,
    NEGATIVE,
    SORT_SCRATCH_BYTES,
    collect_offsets,
    count_offsets,
    fill_buckets,
    sort_distinct,
)
from index.kernels.pages import TRANSLATE_SCRATCH_BYTES, translate
from index.layout import Items

Offsets = NDArray[np.int64]
#: The cold offsets of distinct, ascending physical ones that lie in one segment.
ToCold = Callable[[Offsets], Offsets]
#: A segment's base, where its next position goes, and where they end.
_ROW = np.dtype([("base", "<i8"), ("next", "<i8"), ("end", "<i8")])
_FIRST_ROOM = 16


class ColdOffsets:
    """A checked map: one to one, and inside each segment."""

    def __init__(self, bases: Offsets, starts: Offsets, pairs: NDArray[np.uint32], segment_bytes: int) -> None:
        """``pairs``: a row a record, ascending; side by side, so that one cache line has both positions."""
        self._bases = bases
        self._pairs = pairs
        self._segment_bytes = segment_bytes
        spread = segment_bytes * len(bases) // max(1, len(pairs))
        self._shift = max(1, spread).bit_length() - 1
        self._buckets_each = ((segment_bytes - 1) >> self._shift) + 1
        edges = self._buckets_each + 1
        self._buckets = np.empty(len(bases) * edges, np.uint32)
        for number, (start, end) in enumerate(pairwise(starts.tolist())):
            row = self._buckets[number * edges :]
            fill_buckets(pairs.ctypes.data, start, end, self._shift, row.ctypes.data, edges)

    @classmethod
    def collect(cls, pieces: Callable[[], Iterable[Items]], to_cold: ToCold, segment_bytes: int) -> ColdOffsets:
        """The map of the offsets of items, whose pieces, contiguous and of a compacted layout, are read twice.

        Raises :class:`CorruptIndexError` for a negative offset, and if ``to_cold``, asked once for each segment, is
        not one to one or leaves it.
        """
        rows = _counted(pieces(), segment_bytes)
        ends = np.cumsum(rows["end"])
        rows["next"], rows["end"] = ends - rows["end"], ends
        found = np.empty(int(ends[-1]) if len(ends) else 0, np.uint32)
        for items in pieces():
            done = collect_offsets(
                *_field(items), segment_bytes, rows.ctypes.data, len(rows), found.ctypes.data
            )  # fmt: skip
            if done < 0:
                raise CorruptIndexError("an index item changed its offset while an object was built of it")
        starts = _packed(found, ends)
        pairs = np.empty((int(starts[-1]), 2), np.uint32)
        pairs[:, 0] = found[: len(pairs)]
        del found
        bases = np.ascontiguousarray(rows["base"])
        for number, base in enumerate(bases.tolist()):
            mine = slice(int(starts[number]), int(starts[number + 1]))
            pairs[mine, 1] = _checked(
                to_cold(pairs[mine, 0].astype(np.int64) + base), base, mine.stop - mine.start, segment_bytes
            )
        return cls(bases, starts, pairs, segment_bytes)

    @property
    def segments(self) -> list[int]:
        """Bases of the segments that offsets lie in, ascending."""
        bases: list[int] = self._bases.tolist()
        return bases

    def translate(self, items: Items) -> None:
        """Rewrite the physical offsets of items, contiguous and of a compacted layout, as their cold ones."""
        scratch = np.empty(TRANSLATE_SCRATCH_BYTES, np.uint8)
        done = translate(
            *_field(items), self._segment_bytes, self._bases.ctypes.data, len(self._bases), self._buckets.ctypes.data,
            self._buckets_each, self._shift, self._pairs.ctypes.data, scratch.ctypes.data,
        )  # fmt: skip
        if done < 0:
            raise CorruptIndexError("an index item changed its offset while an object was built of it")


def _packed(found: NDArray[np.uint32], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keep the distinct offsets of each segment, one segment behind the other; where each one's begin, and the end."""
    starts = np.zeros(len(ends) + 1, np.int64)
    start = 0
    for number, end in enumerate(ends.tolist()):
        distinct = _distinct(found[start:end])
        kept = int(starts[number])
        found[kept : kept + len(distinct)] = distinct  # never beyond what was read
        starts[number + 1] = kept + len(distinct)
        start = end
    return starts


def _field(items: Items) -> tuple[int, int, int, int]:
    """What kernels are told of items and where their offsets are."""
    fields = items.dtype.fields
    assert fields is not None
    return items.ctypes.data, len(items), items.dtype.itemsize, int(fields["offset"][1])


def _counted(pieces: Iterable[Items], segment_bytes: int) -> NDArray[np.void]:
    """A row for each segment; ``end`` says how many offsets lie in it."""
    rows, known = np.zeros(_FIRST_ROOM, _ROW), 0
    for items in pieces:
        state = np.array([0, known], np.int64)
        while True:
            found = count_offsets(*_field(items), segment_bytes, rows.ctypes.data, len(rows), state.ctypes.data)
            if found == NEGATIVE:
                raise CorruptIndexError("an index item has a negative offset")
            known = int(state[1])
            if found != FULL:
                break
            rows = np.concatenate((rows, np.zeros_like(rows)))
    return rows[:known]


def _distinct(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Each number once, ascending, in place."""
    other, scratch = np.empty_like(values), np.empty(SORT_SCRATCH_BYTES, np.uint8)
    return values[: sort_distinct(values.ctypes.data, len(values), other.ctypes.data, scratch.ctypes.data)]


def _checked(cold: Offsets, base: int, count: int, segment_bytes: int) -> NDArray[np.uint32]:
    """Cold positions of one segment; :class:`CorruptIndexError` unless each is in it and none comes twice."""
    found = np.asarray(cold, np.int64) - base
    if found.shape != (count,):
        raise CorruptIndexError("offset map is not one to one")
    if count and (found.min() < 0 or found.max() >= segment_bytes):
        raise CorruptIndexError("offset map leaves the segment")
    positions = found.astype(np.uint32)
    if len(_distinct(positions.copy())) != count:
        raise CorruptIndexError("offset map is not one to one")
    return positions
