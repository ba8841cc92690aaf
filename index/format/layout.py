"""Item layouts of index files: which fields an item has, in which order. Big-endian.

========= ====== ===== =====================================================================
field     type   bytes meaning
========= ====== ===== =====================================================================
hash      int32  4     ``key_hash`` of topic and key, never negative
topic_id  int32  4     the topic's id
queue_id  int32  4
offset    int64  8     physical offset of the record; its cold offset in an index object
size      int32  4     bytes of the record
seconds   int32  4     (store time - begin time) / 1000, truncated toward zero, saturated
previous  int32  4     older item of the same slot, 0 = none; only while chained
hash_high uint32 4     XXH32 (seed 0) of the UTF-8 of ``topic#key``
========= ====== ===== =====================================================================

Fields lie back to back in the layout's order; compaction drops ``previous``. ``rocketmq`` is 32 bytes chained
and 28 compacted, ``tierlog`` 36 and 32: the same fields in the same order, then ``hash_high``. Checksum: none
of its own, see ``index.format.trailer``. Torn write: an item is linked only when it is complete, and of a file that
was not sealed the items flushed at the last checkpoint are linked again.
Plain-Python codec, the oracle of ``index.kernels.chains``.

A hit is an item that a look-up found, in either tier; its time is begin time + seconds. Seconds are truncated toward
zero, so the store time lies less than 1000 ms from it, and saturated, so the least and the greatest value stand for any
time beyond.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import TimeRange

Items = NDArray[np.void]

_CODES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "hash": ("i", ">i4"),
        "topic_id": ("i", ">i4"),
        "queue_id": ("i", ">i4"),
        "offset": ("q", ">i8"),
        "size": ("i", ">i4"),
        "seconds": ("i", ">i4"),
        "previous": ("i", ">i4"),
        "hash_high": ("I", ">u4"),
    }
)
_REQUIRED = ("hash", "offset", "seconds", "previous")
#: What ``index.format.trailer`` puts into item 0.
_COVER_BYTES = 32
SECONDS_MIN, SECONDS_MAX = -(1 << 31), (1 << 31) - 1
#: Every comparison with the time of a hit is wider by the second that truncation may have taken.
WIDEN_MS = 1000


@dataclass(frozen=True, slots=True)
class IndexItem:
    """One item; a field that a layout lacks is 0 when read."""

    hash: int = 0
    topic_id: int = 0
    queue_id: int = 0
    offset: int = 0
    size: int = 0
    seconds: int = 0
    hash_high: int = 0
    previous: int = 0


@dataclass(frozen=True)
class ItemLayout:
    """Names, order and sizes of an item's fields; another system's item is one more instance."""

    name: str
    number: int
    """What files store; unique among the layouts a program uses."""
    fields: tuple[str, ...]
    """Field names in chained order."""
    covered: bool
    """Whether files of this layout carry the cover record and the trailer (``index.format.trailer``)."""

    def __post_init__(self) -> None:
        unknown = set(self.fields) - _CODES.keys()
        missing = set(_REQUIRED) - set(self.fields)
        if unknown or missing or len(set(self.fields)) != len(self.fields):
            raise InvalidRequestError(f"item layout {self.name!r} has bad fields {self.fields}")
        if self.covered and self.chained_bytes < _COVER_BYTES:
            raise InvalidRequestError(f"item 0 of layout {self.name!r} is too small for the cover record")

    def __getstate__(self) -> dict[str, object]:
        """Returns the fields alone: not all that is computed from them can be pickled."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def has_hash_high(self) -> bool:
        """Whether items carry the second hash."""
        return "hash_high" in self.fields

    @cached_property
    def compacted_fields(self) -> tuple[str, ...]:
        """Field names in compacted order."""
        return tuple(name for name in self.fields if name != "previous")

    @cached_property
    def chained(self) -> np.dtype[np.void]:
        """The chained item as a packed numpy dtype."""
        return np.dtype([(name, _CODES[name][1]) for name in self.fields])

    @cached_property
    def compacted(self) -> np.dtype[np.void]:
        """The compacted item as a packed numpy dtype."""
        return np.dtype([(name, _CODES[name][1]) for name in self.compacted_fields])

    @cached_property
    def chained_bytes(self) -> int:
        """Bytes of a chained item."""
        return self.chained.itemsize

    @cached_property
    def compacted_bytes(self) -> int:
        """Bytes of a compacted item."""
        return self.compacted.itemsize

    @cached_property
    def _chained_struct(self) -> struct.Struct:
        return struct.Struct(">" + "".join(_CODES[name][0] for name in self.fields))

    @cached_property
    def _compacted_struct(self) -> struct.Struct:
        return struct.Struct(">" + "".join(_CODES[name][0] for name in self.compacted_fields))

    def encode_chained(self, item: IndexItem) -> bytes:
        """Returns the item's bytes in a writable or sealed file."""
        return self._chained_struct.pack(*(getattr(item, name) for name in self.fields))

    def decode_chained(self, data: bytes | bytearray | memoryview, position: int = 0) -> IndexItem:
        """Returns the chained item at ``position``; the caller has checked the bounds."""
        return IndexItem(**dict(zip(self.fields, self._chained_struct.unpack_from(data, position), strict=True)))

    def encode_compacted(self, item: IndexItem) -> bytes:
        """Returns the item's bytes in a compacted file; ``previous`` is dropped."""
        return self._compacted_struct.pack(*(getattr(item, name) for name in self.compacted_fields))

    def decode_compacted(self, data: bytes | bytearray | memoryview, position: int = 0) -> IndexItem:
        """Returns the compacted item at ``position``; the caller has checked the bounds."""
        values = self._compacted_struct.unpack_from(data, position)
        return IndexItem(**dict(zip(self.compacted_fields, values, strict=True)))

    @cached_property
    def kernel_offsets(self) -> NDArray[np.int64]:
        """Positions in a chained item in the order of ``index.kernels.chains``, -1 = absent; its bytes."""
        return np.array([*(self._chained_at(name) for name in _CODES), self.chained_bytes], np.int64)

    def _chained_at(self, name: str) -> int:
        fields = self.chained.fields
        assert fields is not None
        return int(fields[name][1]) if name in fields else -1


_ROCKETMQ_FIELDS = ("hash", "topic_id", "queue_id", "offset", "size", "seconds", "previous")
ROCKETMQ = ItemLayout("rocketmq", 1, _ROCKETMQ_FIELDS, covered=False)
TIERLOG = ItemLayout("tierlog", 2, (*_ROCKETMQ_FIELDS, "hash_high"), covered=True)

#: Layouts a reader knows, by the number that files store.
LAYOUTS: Mapping[int, ItemLayout] = MappingProxyType({layout.number: layout for layout in (ROCKETMQ, TIERLOG)})


def seconds_after(begin_ms: int, store_ms: int) -> int:
    """Whole seconds from a file's begin time, truncated toward zero as Java does, saturated to 32 bits."""
    difference = store_ms - begin_ms
    seconds = difference // 1000 if difference >= 0 else -(-difference // 1000)
    return max(SECONDS_MIN, min(SECONDS_MAX, seconds))


def may_lie_in(time_range: TimeRange, second_ms: NDArray[np.int64], seconds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether hits may lie in a range of store times."""
    is_inside = (second_ms > time_range.from_ms - WIDEN_MS) & (second_ms < time_range.to_ms + WIDEN_MS)
    kept: NDArray[np.bool_] = is_inside | is_saturated(seconds)
    return kept


def is_saturated(seconds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Returns which seconds are saturated: they stand for any time beyond them."""
    saturated: NDArray[np.bool_] = (seconds == SECONDS_MIN) | (seconds == SECONDS_MAX)
    return saturated
