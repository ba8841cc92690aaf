"""Cuts the sorted items of an index object into pages and compresses them one by one.

``index.object_pages`` has the format and reads it.

In memory are the page that may still grow and the items handed over last.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from index.compacted_file import SLOT_ENTRY
from index.header import SLOT_BYTES
from index.layout import ItemLayout, Items
from index.object_order import highs, keys_of
from index.object_pages import PAGE_HEAD, PAGE_HEAD_BYTES, PAGE_ROW, PageDirectory
from tiering.errors import InvalidRequestError

_MAX_SECTION_BYTES = (1 << 32) - 1
_LEVEL = 3
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
    starts: NDArray[np.int64], run_starts: NDArray[np.int64], item_bytes: int, page_bytes: int
) -> Iterator[PageSpan]:
    """Cut sorted items into pages of at most ``page_bytes`` before compression.

    ``starts`` is the first item of each slot and the number of items; ``run_starts`` the first item of each
    run of equal keys.
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
        cut = int(run_starts[int(np.searchsorted(run_starts, item + room, "right")) - 1])
        cut = cut if cut > item else min(item + room, count)
        yield PageSpan(slot, slot + 1, item, cut)
        item = cut


class PageWriter:
    """Pages of an object whose slots begin with ``slot_from``, handed to ``write`` one after the other."""

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
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._position = 0
        self._items: Items = np.empty(0, layout.compacted)
        self._slot = self._known = slot_from

    def add(self, items: Items, slot_end: int) -> None:
        """The next items in the object's order, of slots below ``slot_end``; the last slot's may go on."""
        slots = items["hash"].astype(np.int64) % self._slots
        start = 0
        while True:
            reach = min(slot_end, self._known + _MOST_SLOTS)
            end = int(np.searchsorted(slots, reach))
            self._items = np.concatenate((self._items, items[start:end])).astype(self._layout.compacted, copy=False)
            self._known = reach
            self._cut(at_end=False)
            if reach == slot_end:
                return
            start = end

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
        slots = items["hash"].astype(np.int64) % self._slots
        starts = np.searchsorted(slots, np.arange(self._slot, self._known + 1))
        run_starts = np.concatenate([[0], np.flatnonzero(np.diff(keys_of(items))) + 1]).astype(np.int64)
        held: PageSpan | None = None
        for span in plan_pages(starts, run_starts, width, self._page_bytes):
            if held is not None:
                self._page(held, starts)
            held = span
        if held is not None and at_end:
            self._page(held, starts)
        elif held is not None:
            self._slot += held.slot
            self._items = items[held.item :]

    def _page(self, span: PageSpan, starts: NDArray[np.int64]) -> None:
        items = self._items[span.item : span.item_end]
        edges = np.clip(starts[span.slot : span.slot_end + 1], span.item, span.item_end)
        width, count = self._layout.compacted_bytes, span.slot_end - span.slot
        entries = np.empty(count, SLOT_ENTRY)
        entries["position"] = PAGE_HEAD_BYTES + SLOT_BYTES * count + width * (edges[:-1] - span.item)
        entries["length"] = width * np.diff(edges)
        first_slot = self._slot + span.slot
        raw = PAGE_HEAD.pack(first_slot, count) + _transposed(entries) + _transposed(items)
        page = self._compressor.compress(raw)
        key = (int(items["hash"][0]), int(highs(items[:1])[0])) if edges[0] < edges[1] else (0, 0)
        self._rows.append((first_slot, *key, zlib.crc32(page), self._position))
        self._position += len(page)
        if self._position > _MAX_SECTION_BYTES:
            raise InvalidRequestError("an index object has at most 4 GiB of pages", hint="cut it by slot range")
        self._write(page)


def _transposed(rows: NDArray[np.void]) -> bytes:
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return np.ascontiguousarray(flat.T).tobytes()
