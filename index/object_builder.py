"""Builds an index object of a compacted file, or of a slot range of one, in bounded memory.

The source is read four times, some 100,000 items at a time: to count segments, to collect the offsets, slot by slot to
sort, translate, pack and count keys, and to fill the key filter. In memory: 8 bytes a distinct record (12 and some
while they are collected), after them the key filter, and a few pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from index.cold_offsets import ColdOffsets, ToCold
from index.errors import CorruptIndexError
from index.kernels.filter import count_keys
from index.key_filter import DEFAULT_BITS_PER_KEY, KeyFilter
from index.layout import ItemLayout, Items
from index.object_order import PIECE_ITEMS, SlotOrder
from index.object_sections import Sections
from index.object_writer import DEFAULT_PAGE_BYTES, IndexMeta, ObjectShape, ObjectWriter, Target, Written
from tiering.errors import InvalidRequestError
from tiering.types import TimeBounds

__all__ = ["DEFAULT_PAGE_BYTES", "IndexMeta", "IndexObject", "Written", "build_index_object", "write_index_object"]


class CompactedSource(Protocol):
    """What the builder reads: ``CompactedIndexFile``, or a merge that looks like one."""

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
        """Check all bytes."""
        ...

    def all_items(self) -> Items:
        """All items, in compacted form, slot by slot; better a view of a map than an array in memory."""
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
    """An object in memory; as :func:`write_index_object`."""
    target = _Memory()
    written = write_index_object(
        target, source, to_cold, meta, page_bytes, filter_bits=filter_bits, slot_range=slot_range,
        piece_items=piece_items,
    )  # fmt: skip
    return IndexObject(bytes(target.data), written.sections, written.meta)


def write_index_object(
    target: Target,
    source: CompactedSource,
    to_cold: ToCold,
    meta: IndexMeta,
    page_bytes: int = DEFAULT_PAGE_BYTES,
    *,
    filter_bits: int = DEFAULT_BITS_PER_KEY,
    slot_range: tuple[int, int] | None = None,
    piece_items: int = PIECE_ITEMS,
) -> Written:
    """Sort a source's items, rewrite their offsets with ``to_cold``, pack them into pages and write the object.

    ``filter_bits`` a distinct key go into the key filter, 0 leaves it out, as does a layout without a second hash.
    ``slot_range`` takes the items of those slots only, half-open. Raises :class:`CorruptIndexError` if the source's
    checksum differs, its items do not lie slot by slot, or the map is not one to one or leaves a segment.
    """
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
    offsets = ColdOffsets.collect(order.pieces, to_cold, meta.segment_bytes)
    shape = ObjectShape(
        source.layout, source.slots, source.begin_ms, source.first, source.next, source.bounds, page_bytes
    )
    writer = ObjectWriter(target, shape, meta, slot_from)
    keys = KeyCount(source.layout)
    for piece in order.sorted():
        offsets.translate(piece.items)
        keys.add(piece.items)
        writer.add(piece.items, piece.slot_end)
    segments = offsets.segments
    del offsets
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
        """The next items; a key may go on from those before."""
        self.count += count_keys(
            items.ctypes.data, len(items), items.dtype.itemsize, *self._at, self._last.ctypes.data
        )  # fmt: skip

    @property
    def total(self) -> int:
        """As :meth:`KeyFilter.add_items` sums the same items up, whatever their order."""
        return int(self._last[2])


class _Memory:
    def __init__(self) -> None:
        self.data = bytearray()

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
