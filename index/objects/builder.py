"""Builds an index object of a compacted file, or of a slot range of one, in bounded memory.

The source is read four times, some 100,000 items at a time: to count segments, to collect the offsets, slot by slot to
sort, translate, pack and count keys, and to fill the key filter. In memory are the :class:`ColdOffsets`, after them the
key filter, and a few pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.key_filter import DEFAULT_BITS_PER_KEY, KeyFilter
from tierlog.index.format.layout import ItemLayout, Items
from tierlog.index.format.object_sections import Sections
from tierlog.index.kernels.filter import count_keys
from tierlog.index.kernels.offsets import (
    FULL,
    NEGATIVE,
    SORT_SCRATCH_BYTES,
    collect_offsets,
    count_offsets,
    fill_buckets,
    sort_distinct,
)
from tierlog.index.kernels.pages import TRANSLATE_SCRATCH_BYTES, translate
from tierlog.index.objects.item_order import PIECE_ITEMS, SlotOrder
from tierlog.index.objects.writer import DEFAULT_PAGE_BYTES, IndexMeta, ObjectShape, ObjectTarget, ObjectWriter, Written
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import TimeBounds

Offsets = NDArray[np.int64]
#: The cold offsets of distinct, ascending physical ones that lie in one segment.
ToCold = Callable[[Offsets], Offsets]
#: A segment's base, where its next position goes, and where they end.
_ROW = np.dtype([("base", "<i8"), ("next", "<i8"), ("end", "<i8")])
_FIRST_ROOM = 16

__all__ = ["DEFAULT_PAGE_BYTES", "IndexMeta", "IndexObject", "Written", "build_index_object", "write_index_object"]


class CompactedSource(Protocol):
    """The source of an object: a ``CompactedIndexFile``, or a merge that looks like one."""

    @property
    def layout(self) -> ItemLayout:
        """Fields of the items."""
        ...

    @property
    def slots(self) -> int:
        """Hash slots."""
        ...

    @property
    def begin_ms(self) -> int:
        """``seconds`` of items count from here."""
        ...

    @property
    def first(self) -> int:
        """First physical offset covered."""
        ...

    @property
    def next(self) -> int:
        """First physical offset above those covered."""
        ...

    @property
    def bounds(self) -> TimeBounds | None:
        """Least and greatest times over the items."""
        ...

    def verify(self) -> None:
        """Checks all bytes."""
        ...

    def all_items(self) -> Items:
        """Returns all items, in compacted form, slot by slot; better a view of a map than an array in memory."""
        ...


@dataclass(frozen=True, slots=True)
class IndexObject:
    """One object in memory, and what the manifest says about it."""

    data: bytes
    sections: Sections
    meta: Mapping[str, Any]


def build_index_object(
    source: CompactedSource,
    to_cold: ToCold,
    meta: IndexMeta,
    page_bytes: int = DEFAULT_PAGE_BYTES,
    *,
    filter_bits: int = DEFAULT_BITS_PER_KEY,
    slot_range: tuple[int, int] | None = None,
    piece_items: int = PIECE_ITEMS,
) -> IndexObject:
    """Builds an object in memory, as :func:`write_index_object` does in a target."""
    target = _Memory()
    written = write_index_object(
        target, source, to_cold, meta, page_bytes, filter_bits=filter_bits, slot_range=slot_range,
        piece_items=piece_items,
    )  # fmt: skip
    return IndexObject(bytes(target.data), written.sections, written.meta)


def write_index_object(
    target: ObjectTarget,
    source: CompactedSource,
    to_cold: ToCold,
    meta: IndexMeta,
    page_bytes: int = DEFAULT_PAGE_BYTES,
    *,
    filter_bits: int = DEFAULT_BITS_PER_KEY,
    slot_range: tuple[int, int] | None = None,
    piece_items: int = PIECE_ITEMS,
) -> Written:
    """Sorts a source's items, rewrites their offsets with ``to_cold``, packs them into pages and writes the object.

    ``filter_bits`` a distinct key go into the key filter, 0 leaves it out, as does a layout without a second hash.
    ``slot_range`` takes the items of those slots only, half-open. Raises :class:`CorruptIndexError` if the source's
    checksum differs, its items do not lie slot by slot, or the map is not one to one or leaves a segment.
    """
    # the source is whole, and holds items of the slots
    source.verify()
    slot_from, slot_end = slot_range or (0, source.slots)
    if not 0 <= slot_from < slot_end <= source.slots:
        raise InvalidRequestError(f"slots {slot_from} to {slot_end} of {source.slots}")
    # the map of a file is taken as it is
    order = SlotOrder(
        np.ascontiguousarray(source.all_items(), source.layout.compacted),
        source.slots,
        slot_from,
        slot_end,
        piece_items,
    )
    if source.bounds is None or not len(order):
        raise InvalidRequestError("an index object is built from a file with items and a trailer")
    # where the records lie in the archive
    offsets = ColdOffsets.collect(order.pieces, to_cold, meta.segment_bytes)
    shape = ObjectShape(
        layout=source.layout,
        slots=source.slots,
        begin_ms=source.begin_ms,
        first=source.first,
        next=source.next,
        bounds=source.bounds,
        page_bytes=page_bytes,
    )
    # sort, translate and pack, slot by slot
    writer = ObjectWriter(target, shape, meta, slot_from)
    keys = KeyCount(source.layout)
    for piece in order.sorted():
        offsets.translate(piece.items)
        keys.add(piece.items)
        writer.add(piece.items, piece.slot_end)
    segments = offsets.segments
    del offsets
    # the filter, whose size is known only now
    key_filter = None
    if filter_bits and source.layout.has_hash_high:
        key_filter = KeyFilter.sized(keys.count, filter_bits)
        total = sum(key_filter.add_items(items) for items in order.pieces())
        if (total - keys.total) % (1 << 64):  # a filter without a key would hide what the pages hold
            raise CorruptIndexError("an index item changed its key while an object was built of it")
    return writer.finish(slot_end, segments, key_filter)


class KeyCount:
    """Counts the distinct keys of items that come in the object's order, and sums up those of all items."""

    def __init__(self, layout: ItemLayout) -> None:
        fields = layout.compacted.fields
        assert fields is not None
        self._at = [int(fields[name][1]) if name in fields else -1 for name in ("hash", "hash_high")]
        self._last = np.array([-1, -1, 0], np.int64)
        self.count = 0

    def add(self, items: Items) -> None:
        """Counts the next items; a key may go on from those before."""
        self.count += count_keys(
            items=items.ctypes.data, count=len(items), width=items.dtype.itemsize, hash_at=self._at[0],
            high_at=self._at[1], last=self._last.ctypes.data,
        )  # fmt: skip

    @property
    def total(self) -> int:
        """The sum that :meth:`KeyFilter.add_items` gives of the same items, whatever their order."""
        return int(self._last[2])


class _Memory:
    def __init__(self) -> None:
        self.data = bytearray()

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data


class ColdOffsets:
    """Physical to cold offsets of what the items of one file point to, and of nothing else.

    The map is checked: one to one, and inside each segment. Kept are 8 bytes for each distinct record, its position in
    its segment, physical and cold, and fewer than 8 for the buckets in which a position is looked for. While they are
    collected, 4 bytes an item come on top, and as much again and the map of one segment at a time.
    """

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
            fill_buckets(
                pairs.ctypes.data, start=start, end=end, shift=self._shift, buckets=row.ctypes.data, count=edges
            )

    @classmethod
    def collect(cls, pieces: Callable[[], Iterable[Items]], to_cold: ToCold, segment_bytes: int) -> ColdOffsets:
        """Returns the map of the offsets of items, whose pieces, contiguous and of a compacted layout, are read twice.

        Raises :class:`CorruptIndexError` for a negative offset, and if ``to_cold``, asked once for each segment, is
        not one to one or leaves it.
        """
        rows = _counted(pieces(), segment_bytes)
        ends = np.cumsum(rows["end"])
        rows["next"], rows["end"] = ends - rows["end"], ends
        found = np.empty(int(ends[-1]) if len(ends) else 0, np.uint32)
        for items in pieces():
            done = collect_offsets(
                **_field(items), segment_bytes=segment_bytes, rows=rows.ctypes.data, known=len(rows),
                found=found.ctypes.data,
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
        """Rewrites the physical offsets of items, contiguous and of a compacted layout, as their cold ones."""
        scratch = np.empty(TRANSLATE_SCRATCH_BYTES, np.uint8)
        done = translate(
            **_field(items), segment_bytes=self._segment_bytes, bases=self._bases.ctypes.data,
            segments=len(self._bases), buckets=self._buckets.ctypes.data, buckets_each=self._buckets_each,
            shift=self._shift, pairs=self._pairs.ctypes.data, scratch=scratch.ctypes.data,
        )  # fmt: skip
        if done < 0:
            raise CorruptIndexError("an index item changed its offset while an object was built of it")


def _packed(found: NDArray[np.uint32], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keeps the distinct offsets of each segment, segment by segment; returns where each one's begin, and the end."""
    starts = np.zeros(len(ends) + 1, np.int64)
    start = 0
    for number, end in enumerate(ends.tolist()):
        distinct = _distinct(found[start:end])
        kept = int(starts[number])
        found[kept : kept + len(distinct)] = distinct  # never beyond what was read
        starts[number + 1] = kept + len(distinct)
        start = end
    return starts


def _field(items: Items) -> dict[str, int]:
    """Returns the arguments that say to kernels where items and their offsets are."""
    fields = items.dtype.fields
    assert fields is not None
    return {
        "items": items.ctypes.data, "count": len(items), "width": items.dtype.itemsize,
        "offset_at": int(fields["offset"][1]),
    }  # fmt: skip


def _counted(pieces: Iterable[Items], segment_bytes: int) -> NDArray[np.void]:
    """Returns a row for each segment; ``end`` says how many offsets lie in it."""
    rows, known = np.zeros(_FIRST_ROOM, _ROW), 0
    for items in pieces:
        state = np.array([0, known], np.int64)
        while True:
            found = count_offsets(
                **_field(items), segment_bytes=segment_bytes, rows=rows.ctypes.data, most=len(rows),
                state=state.ctypes.data,
            )  # fmt: skip
            if found == NEGATIVE:
                raise CorruptIndexError("an index item has a negative offset")
            known = int(state[1])
            if found != FULL:
                break
            rows = np.concatenate((rows, np.zeros_like(rows)))
    return rows[:known]


def _distinct(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns each number once, ascending, in place."""
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
