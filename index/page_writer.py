"""Cuts the sorted items of an index object into pages and compresses them one by one.

``index.object_pages`` has the format and reads it.

In memory are the page that may still grow, the items handed over last and, compressed, their pages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from index.cover import crc_of
from index.header import SLOT_BYTES
from index.kernels.pages import lay_page, slot_starts
from index.layout import ItemLayout, Items
from index.object_order import keys_of
from index.object_pages import PAGE_HEAD_BYTES, PAGE_ROW, PageDirectory
from tiering.errors import InvalidRequestError

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
    """Cut sorted items into pages of at most ``page_bytes`` before compression.

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
    """Pages of an object whose slots begin with ``slot_from``, handed to ``write`` in order, neighbours joined."""

    def __init__(
        self, write: Callable[[bytes], None], layout: ItemLayout, slots: int, page_bytes: int, begin_ms: int,
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
        """The next items in the object's order, of slots below ``slot_end``; the last slot's may go on."""
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
        """What comes on top of the pages so far, if nothing more is added: held items, and the directory's rows."""
        return self._items.nbytes + PAGE_ROW.itemsize * (len(self._rows) + 1)

    def finish(self, slot_end: int) -> PageDirectory:
        """Write what is left, up to the end of the object's slots; the directory of all pages."""
        self.add(self._items[:0], slot_end)
        self._cut(at_end=True)
        rows = np.array(self._rows, PAGE_ROW)
        return PageDirectory(self._slots, self._page_bytes, self._begin_ms, self._layout, rows, self._position)

    def _cut(self, *, at_end: bool) -> None:
        """Write the pages that later items cannot change: all but the last one."""
        items, width = self._items, self._layout.compacted_bytes
        starts = np.empty(self._known - self._slot + 1, np.int64)
        slot_starts(
            items.ctypes.data, len(items), width, self._hash_at, self._slots, self._slot, len(starts) - 1,
            starts.ctypes.data,
        )  # fmt: skip
        spans = list(plan_pages(starts, lambda: _run_starts(items), width, self._page_bytes))
        held = spans.pop() if spans and not at_end else None
        self._pages(spans, starts)
        if held is not None:
            self._slot += held.slot
            self._items = items[held.item :]

    def _pages(self, spans: list[PageSpan], starts: NDArray[np.int64]) -> None:
        """Write neighbouring pages at once."""
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
                items, width, span.item, span.item_end, bounds, span.slot, span.slot_end, first_slot, PAGE_HEAD_BYTES,
                raw, entries,
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
    """The first item of each run of equal keys."""
    return np.concatenate([[0], np.flatnonzero(np.diff(keys_of(items))) + 1]).astype(np.int64)


def _joined(left: Items, right: Items) -> Items:
    """Both, as bytes: numpy would copy them field by field."""
    return np.concatenate((left.view(np.uint8), right.view(np.uint8))).view(left.dtype)
