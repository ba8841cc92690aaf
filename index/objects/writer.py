"""Writes an index object from items that come in its order, in bounded memory.

Everything is written in the object's order, except for the header of the pages section, which holds a length and is
written after the pages. Items are cut into pages, which are compressed one by one; ``index.objects.pages`` has their
format and reads them. In memory are the page that may still grow, the items handed over last, their compressed pages,
and 20 bytes for each page so far.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from tierlog.index.format.header import SLOT_BYTES
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.layout import ItemLayout, Items
from tierlog.index.format.object_sections import (
    DIRECTORY,
    FILTER,
    META,
    PAGES,
    SECTION_HEAD_BYTES,
    TAIL,
    TAIL_MAGIC,
    Sections,
    encode_section,
)
from tierlog.index.format.trailer import crc_of
from tierlog.index.kernels.pages import lay_page, slot_starts
from tierlog.index.objects.item_order import TimesFall, keys_of
from tierlog.index.objects.pages import PAGE_HEAD_BYTES, PAGE_ROW, PageDirectory
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.section import SectionRef
from tierlog.tiering.kernels.checksum import joined_crc32

DEFAULT_PAGE_BYTES = 64 << 10
#: Headers, meta and tail, without lists that grow with the object.
_END_BYTES = 1024
_LOW, _HIGH = struct.Struct(">i"), struct.Struct(">I")
_MAX_SECTION_BYTES = (1 << 32) - 1
#: docs/decisions/0022-index-files-compared-and-written-fast.md
_LEVEL = 1
#: Slots that are planned together; a file may have many more slots than items.
_MOST_SLOTS = 1 << 17


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Slots ``[slot, slot_end)`` and items ``[item, item_end)`` of one page."""

    slot: int
    slot_end: int
    item: int
    item_end: int


def plan_pages(
    starts: NDArray[np.int64], runs: Callable[[], NDArray[np.int64]], item_bytes: int, page_bytes: int
) -> Iterator[PageSpan]:
    """Cuts sorted items into pages of at most ``page_bytes`` before compression.

    ``starts`` is the first item of each slot and the number of items; ``runs`` finds the first item of each run of
    equal keys, which matters where a slot alone is longer than a page.
    """
    room = (page_bytes - PAGE_HEAD_BYTES - SLOT_BYTES) // item_bytes
    slots, count = len(starts) - 1, int(starts[-1])
    cost = SLOT_BYTES * np.arange(slots + 1, dtype=np.int64) + item_bytes * starts
    slot, item = 0, 0
    while slot < slots:
        limit = page_bytes - PAGE_HEAD_BYTES + SLOT_BYTES * slot + item_bytes * item
        slot_end = int(np.searchsorted(cost, limit, "right")) - 1
        if slot_end > slot:
            yield PageSpan(slot, slot_end, item, int(starts[slot_end]))
            slot, item = slot_end, int(starts[slot_end])
            continue
        # The slot alone is longer than a page: cut it between runs, a run too long for a page anywhere.
        run_starts = runs()
        cut = int(run_starts[int(np.searchsorted(run_starts, item + room, "right")) - 1])
        cut = cut if cut > item else min(item + room, count)
        yield PageSpan(slot, slot + 1, item, cut)
        item = cut


class PageWriter:
    """Hands the pages of an object whose slots begin with ``slot_from`` to ``write`` in order, neighbours joined."""

    def __init__(
        self, write: Callable[[bytes], None], layout: ItemLayout, *, slots: int, page_bytes: int, begin_ms: int,
        slot_from: int,
    ) -> None:  # fmt: skip
        if page_bytes < PAGE_HEAD_BYTES + SLOT_BYTES + layout.compacted_bytes:
            raise InvalidRequestError(f"a page of {page_bytes} bytes holds no item")
        self._write = write
        self._layout = layout
        self._slots = slots
        self._page_bytes = page_bytes
        self._begin_ms = begin_ms
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        fields = layout.compacted.fields
        assert fields is not None
        self._hash_at = int(fields["hash"][1])
        self._high_at = int(fields["hash_high"][1]) if "hash_high" in fields else -1
        self._raw, self._entries = np.empty(page_bytes, np.uint8), np.empty(page_bytes, np.uint8)
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._position = 0
        self._items: Items = np.empty(0, layout.compacted)
        self._slot = self._known = slot_from

    def add(self, items: Items, slot_end: int) -> None:
        """Adds the next items in the object's order, of slots below ``slot_end``; the last slot's may go on."""
        start = 0
        while True:
            reach = min(slot_end, self._known + _MOST_SLOTS)
            end = len(items) if reach == slot_end else start + self._items_below(items[start:], reach)
            self._items = _joined(self._items, items[start:end])
            self._known = reach
            self._cut(at_end=False)
            if reach == slot_end:
                return
            start = end

    def _items_below(self, items: Items, slot: int) -> int:
        return int(np.searchsorted(items["hash"].astype(np.int64) % self._slots, slot))

    @property
    def further_bytes(self) -> int:
        """Bytes on top of the pages so far, if nothing more is added: held items, and the directory's rows."""
        return self._items.nbytes + PAGE_ROW.itemsize * (len(self._rows) + 1)

    def finish(self, slot_end: int) -> PageDirectory:
        """Writes what is left, up to the end of the object's slots; returns the directory of all pages."""
        self.add(self._items[:0], slot_end)
        self._cut(at_end=True)
        rows = np.array(self._rows, PAGE_ROW)
        return PageDirectory(
            slots=self._slots,
            page_bytes=self._page_bytes,
            begin_ms=self._begin_ms,
            layout=self._layout,
            rows=rows,
            end=self._position,
        )

    def _cut(self, *, at_end: bool) -> None:
        """Writes the pages that later items cannot change: all but the last one."""
        items, width = self._items, self._layout.compacted_bytes
        starts = np.empty(self._known - self._slot + 1, np.int64)
        slot_starts(
            items=items.ctypes.data, count=len(items), width=width, hash_at=self._hash_at, slots=self._slots,
            slot_from=self._slot, slot_count=len(starts) - 1, out=starts.ctypes.data,
        )  # fmt: skip
        spans = list(plan_pages(starts, lambda: _run_starts(items), width, self._page_bytes))
        held = spans.pop() if spans and not at_end else None
        self._pages(spans, starts)
        if held is not None:
            self._slot += held.slot
            self._items = items[held.item :]

    def _pages(self, spans: list[PageSpan], starts: NDArray[np.int64]) -> None:
        """Writes neighbouring pages at once."""
        most = SLOT_BYTES * max((span.slot_end - span.slot for span in spans), default=0)
        if most > len(self._entries):
            self._entries = np.empty(most, np.uint8)
        # found once: numpy takes as long to say where an array is as the kernel takes for a tenth of a page
        items, raw, entries = self._items.ctypes.data, self._raw.ctypes.data, self._entries.ctypes.data
        first_items, bounds, width = self._items.view(np.uint8).data, starts.ctypes.data, self._layout.compacted_bytes
        pages = []
        for span in spans:
            first_slot = self._slot + span.slot
            length = lay_page(
                items=items, width=width, item=span.item, item_end=span.item_end, starts=bounds, slot=span.slot,
                slot_end=span.slot_end, first_slot=first_slot, head_bytes=PAGE_HEAD_BYTES, out=raw, entries=entries,
            )  # fmt: skip
            page = self._compressor.compress(self._raw[:length].data)
            low, high = 0, 0
            if starts[span.slot + 1] > span.item and span.item_end > span.item:
                at = width * span.item
                (low,) = _LOW.unpack_from(first_items, at + self._hash_at)
                if self._high_at >= 0:
                    (high,) = _HIGH.unpack_from(first_items, at + self._high_at)
            self._rows.append((first_slot, low, high, crc_of(np.frombuffer(page, np.uint8)), self._position))
            self._position += len(page)
            pages.append(page)
        if self._position > _MAX_SECTION_BYTES:
            raise InvalidRequestError("an index object has at most 4 GiB of pages", hint="cut it by slot range")
        if pages:
            self._write(b"".join(pages))


def _run_starts(items: Items) -> NDArray[np.int64]:
    """Returns the first item of each run of equal keys."""
    return np.concatenate([[0], np.flatnonzero(np.diff(keys_of(items))) + 1]).astype(np.int64)


def _joined(left: Items, right: Items) -> Items:
    """Joins both as bytes: numpy would copy them field by field."""
    return np.concatenate((left.view(np.uint8), right.view(np.uint8))).view(left.dtype)


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """The part of an object's meta section that does not follow from the items."""

    store_id: str
    segment_bytes: int
    topics: Mapping[int, str]
    """Topic names by id, of every topic that has items."""


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The range, times and layout of an object, and how it is cut into pages."""

    layout: ItemLayout
    slots: int
    begin_ms: int
    """``seconds`` of items count from here."""
    first: int
    """First physical offset covered."""
    next: int
    """First physical offset above those covered."""
    bounds: TimeBounds
    page_bytes: int = DEFAULT_PAGE_BYTES


class ObjectTarget(Protocol):
    """A place where an object is assembled: a file, or memory."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Puts bytes at a place, perhaps beyond the end so far."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """Size, checksum and contents of a written object, as the manifest says them."""

    size_bytes: int
    crc32: int
    items: int
    slot_from: int
    slot_end: int
    sections: Sections
    meta: Mapping[str, Any]
    times_fall: bool
    """Whether of some key a later item has an earlier second."""


class ObjectWriter:
    """Writes one object to its target: items, then the end."""

    def __init__(self, target: ObjectTarget, shape: ObjectShape, meta: IndexMeta, slot_from: int) -> None:
        self._shape = shape
        self._meta = meta
        self._slot_from = slot_from
        self._sections = _SectionWriter(target)
        self._pages = PageWriter(
            self._sections.page,
            shape.layout,
            slots=shape.slots,
            page_bytes=shape.page_bytes,
            begin_ms=shape.begin_ms,
            slot_from=slot_from,
        )
        self._items = 0
        self._times_fall = TimesFall()

    @property
    def size_bytes(self) -> int:
        """About what the object would have without a filter if it ended now; not less, but for its segments' names."""
        return self._sections.position + self._pages.further_bytes + _END_BYTES

    def add(self, items: Items, slot_end: int) -> None:
        """Adds the next items in the object's order, with cold offsets, of slots below ``slot_end``.

        The last slot's may go on.
        """
        self._items += len(items)
        self._times_fall.add(items)
        self._pages.add(items, slot_end)

    def finish(self, slot_end: int, segments: Iterable[int], key_filter: KeyFilter | None) -> Written:
        """Writes the rest. The object is about slots below ``slot_end`` and points into these segments."""
        directory = self._pages.finish(slot_end)
        sections = self._sections
        sections.end_of_pages()
        sections.section(DIRECTORY, directory.encode())
        if key_filter is not None:
            sections.pieces(FILTER, key_filter.pieces())
        else:
            sections.nothing(FILTER)
        described = self._described(directory, sorted(segments), slot_end)
        sections.section(META, json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode())
        ref = sections.sections[META]
        sections.page(TAIL.pack(ref.length, ref.crc32, TAIL_MAGIC))
        return Written(
            size_bytes=sections.position,
            crc32=sections.crc,
            items=self._items,
            slot_from=self._slot_from,
            slot_end=slot_end,
            sections=sections.sections,
            meta=described,
            times_fall=self._times_fall.is_found,
        )

    def _described(self, directory: PageDirectory, segments: list[int], slot_end: int) -> dict[str, Any]:
        shape, bounds = self._shape, self._shape.bounds
        falls = {"times_fall": True} if self._times_fall.is_found else {}
        return {
            "store_id": self._meta.store_id,
            "layout": shape.layout.name,
            "slots": shape.slots,
            "slot_range": [self._slot_from, slot_end],
            "items": self._items,
            "pages": len(directory),
            "page_bytes": directory.page_bytes,
            "begin_ms": shape.begin_ms,
            "min_store_ms": bounds.min_store_ms,
            "max_store_ms": bounds.max_store_ms,
            "min_born_ms": bounds.min_born_ms,
            "max_born_ms": bounds.max_born_ms,
            **falls,
            "first": shape.first,
            "next": shape.next,
            "segment_bytes": self._meta.segment_bytes,
            "segments": segments,
            "topics": {str(number): name for number, name in sorted(self._meta.topics.items())},
            "sections": {
                name: {"position": ref.position, "length": ref.length, "crc": ref.crc32}
                for name, ref in self._sections.sections.items()
            },
        }


class _SectionWriter:
    """Writes sections at their places, and keeps the checksum of all of them."""

    def __init__(self, target: ObjectTarget) -> None:
        self._target = target
        self.position = SECTION_HEAD_BYTES
        self.crc = 0
        """Of the pages, then of everything so far."""
        self.sections: dict[str, SectionRef] = {}

    def page(self, data: bytes | memoryview) -> None:
        self._target.write_at(self.position, data)
        self.crc = crc_of(np.frombuffer(data, np.uint8), self.crc)
        self.position += len(data)

    def end_of_pages(self) -> None:
        length = self.position
        head = encode_section(PAGES, b"", length - SECTION_HEAD_BYTES)
        self._target.write_at(0, head)
        self.crc = int(joined_crc32(zlib.crc32(head), self.crc, length - SECTION_HEAD_BYTES))
        self.sections[PAGES] = SectionRef(0, length, length, self.crc)

    def section(self, name: str, table: bytes) -> None:
        self.pieces(name, [encode_section(name, table)])

    def pieces(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        start, crc = self.position, 0
        for piece in pieces:
            crc = crc_of(np.frombuffer(piece, np.uint8), crc)
            self.page(piece)
        self.sections[name] = SectionRef(start, self.position - start, self.position - start, crc)

    def nothing(self, name: str) -> None:
        self.sections[name] = SectionRef(self.position, 0, 0, 0)
