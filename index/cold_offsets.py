"""Physical to cold offsets of what the items of one index file point to, and of nothing else.

Kept are 8 bytes for each distinct record, its position in its segment, physical and cold, and fewer than 8 for the
buckets in which a position is looked for. While they are collected, 4 bytes an item come on top, and the map of one
segment at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.kernels.pages import TRANSLATE_SCRATCH_BYTES, translate
from index.layout import Items

Offsets = NDArray[np.int64]
#: The cold offsets of distinct, ascending physical ones that lie in one segment.
ToCold = Callable[[Offsets], Offsets]


class ColdOffsets:
    """A checked map: one to one, and inside each segment."""

    def __init__(self, bases: Offsets, starts: Offsets, pairs: NDArray[np.uint32], segment_bytes: int) -> None:
        """``pairs``: a row a record, ascending; side by side, so that one cache line has both positions."""
        self._bases = bases
        self._pairs, known = pairs, pairs[:, 0]
        self._segment_bytes = segment_bytes
        spread = segment_bytes * len(bases) // max(1, len(pairs))
        self._shift = max(1, spread).bit_length() - 1
        self._buckets_each = ((segment_bytes - 1) >> self._shift) + 1
        edges = np.arange(self._buckets_each + 1, dtype=np.int64) << self._shift
        self._buckets = np.empty(len(bases) * len(edges), np.uint32)
        for number in range(len(bases)):
            start, end = int(starts[number]), int(starts[number + 1])
            row = self._buckets[number * len(edges) : (number + 1) * len(edges)]
            row[:-1] = np.searchsorted(known[start:end], edges[:-1].astype(np.uint32)) + start
            row[-1] = end

    @classmethod
    def collect(
        cls, counts: dict[int, int], physical: Iterable[Offsets], to_cold: ToCold, segment_bytes: int
    ) -> ColdOffsets:
        """The map of ``physical``, pieces of offsets in any order, of which ``counts`` lie in the segment of each base.

        Raises :class:`CorruptIndexError` if ``to_cold``, asked once for each segment, is not one to one or leaves it.
        """
        bases = np.array(sorted(counts), np.int64)
        ends = np.cumsum([counts[base] for base in bases.tolist()], dtype=np.int64)
        found = np.empty(int(ends[-1]) if len(ends) else 0, np.uint32)
        filled = np.concatenate(([0], ends[:-1])).astype(np.int64)
        for piece in physical:
            ordered = np.sort(piece)
            for number, start, end in _runs(ordered, bases, segment_bytes):
                place = int(filled[number])
                found[place : place + end - start] = ordered[start:end] - bases[number]
                filled[number] += end - start
        starts = np.zeros(len(bases) + 1, np.int64)
        start = 0
        for number, end in enumerate(ends.tolist()):
            distinct = _distinct(found[start:end])
            kept = int(starts[number])
            found[kept : kept + len(distinct)] = distinct  # never beyond what was read
            starts[number + 1] = kept + len(distinct)
            start = end
        pairs = np.empty((int(starts[-1]), 2), np.uint32)
        pairs[:, 0] = found[: len(pairs)]
        del found
        for number, base in enumerate(bases.tolist()):
            mine = slice(int(starts[number]), int(starts[number + 1]))
            pairs[mine, 1] = _checked(
                to_cold(pairs[mine, 0].astype(np.int64) + base), base, mine.stop - mine.start, segment_bytes
            )
        return cls(bases, starts, pairs, segment_bytes)

    def translate(self, items: Items) -> None:
        """Rewrite the physical offsets of items, contiguous and of a compacted layout, as their cold ones."""
        fields = items.dtype.fields
        assert fields is not None
        scratch = np.empty(TRANSLATE_SCRATCH_BYTES, np.uint8)
        done = translate(
            items.ctypes.data, len(items), items.dtype.itemsize, int(fields["offset"][1]), self._segment_bytes,
            self._bases.ctypes.data, len(self._bases), self._buckets.ctypes.data, self._buckets_each, self._shift,
            self._pairs.ctypes.data, scratch.ctypes.data,
        )  # fmt: skip
        if done < 0:
            raise CorruptIndexError("an index item changed its offset while an object was built of it")


def count_segments(counts: dict[int, int], physical: Offsets, segment_bytes: int) -> None:
    """Add to ``counts`` how many offsets lie in the segment of each base."""
    bases, numbers = np.unique(physical // segment_bytes, return_counts=True)
    for base, number in zip((bases * segment_bytes).tolist(), numbers.tolist(), strict=True):
        counts[base] = counts.get(base, 0) + number


def _runs(ordered: Offsets, bases: Offsets, segment_bytes: int) -> Iterable[tuple[int, int, int]]:
    """Number of the segment, start and end of each segment's offsets among ascending ones."""
    start = 0
    while start < len(ordered):
        base = int(ordered[start]) // segment_bytes * segment_bytes
        end = int(np.searchsorted(ordered, base + segment_bytes))
        yield int(np.searchsorted(bases, base)), start, end
        start = end


def _distinct(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    values.sort()
    is_first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    found: NDArray[np.uint32] = values[is_first]
    return found


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
