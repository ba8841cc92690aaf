"""Index objects that follow each other in a log, made of given keys, and what must become of them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tests.support.index.given_items import GivenItems
from tierlog.index.format.layout import SECONDS_MAX, SECONDS_MIN, TIERLOG, ItemLayout, Items
from tierlog.index.maintenance.check import items_of_object
from tierlog.index.maintenance.merge_task import MergeTask
from tierlog.index.objects.builder import build_index_object
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.index.objects.writer import IndexMeta
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.objects.memory import MemoryObjectStore

SEGMENT = 1024
STEP = 64
DAY_MS = 86_400_000
META = IndexMeta("store", SEGMENT, {1: "orders"})
Key = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """One item as everybody must see it."""

    place: tuple[int, int, int]
    """Slot and both hashes."""
    cold: int
    second: int | None
    """Since the epoch; None where it is saturated."""


def _second(begin_ms: int, seconds: int) -> int | None:
    return None if seconds in (SECONDS_MIN, SECONDS_MAX) else begin_ms // 1000 + seconds


def mirrored(physical: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cold offsets, counted from the end of each segment."""
    base = physical // SEGMENT * SEGMENT
    return base + SEGMENT - 1 - (physical - base)


class Inputs:
    """Objects in a bucket: one for each list of keys, which are put in that order."""

    def __init__(
        self, put: Sequence[Sequence[Key]], slots: int, *, page_bytes: int = 65536, layout: ItemLayout = TIERLOG,
        begin_ms: Sequence[int] | None = None, seconds: Sequence[int] = (0, 1, 5), slot_cuts: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """``slot_cuts`` are where the even objects are cut into parts."""
        self.objects = MemoryObjectStore(ManualClock())
        self.slots = slots
        self.page_bytes = page_bytes
        self.entries: list[IndexEntry] = []
        self.rows: list[Row] = []
        """All items in the order of a merged object."""
        self._by_file: list[list[Row]] = []
        physical = 0
        for number, keys in enumerate(put):
            begin = begin_ms[number] if begin_ms is not None else number * 1_000_000
            items = np.zeros(len(keys), layout.compacted)
            items["hash"] = [low for low, _ in keys]
            if layout.has_hash_high:
                items["hash_high"] = [high for _, high in keys]
            items["topic_id"] = 1
            items["offset"] = physical + STEP * np.arange(len(keys))
            items["seconds"] = [seconds[at % len(seconds)] for at in range(len(keys))]
            end = physical + STEP * len(keys)
            self._store(items, layout, begin, physical, end, slot_cuts if number % 2 == 0 else ())
            self._by_file.append([self._row(item, begin) for item in items[::-1]])
            physical = end
        self.rows = [row for rows in reversed(self._by_file) for row in rows]
        self.rows.sort(key=lambda row: row.place)

    def _row(self, item: np.void, begin_ms: int) -> Row:
        low = int(item["hash"])
        high = int(item["hash_high"]) if "hash_high" in (item.dtype.names or ()) else 0
        cold = int(mirrored(np.array([int(item["offset"])]))[0])
        second = int(item["seconds"])
        return Row((low % self.slots, low, high), cold, _second(begin_ms, second))

    def _store(
        self, items: Items, layout: ItemLayout, begin_ms: int, first: int, end: int, cuts: Sequence[int]
    ) -> None:
        items = items[np.lexsort((-items["offset"].astype(np.int64), items["hash"].astype(np.int64) % self.slots))]
        bounds = TimeBounds(begin_ms, begin_ms + 999, begin_ms - 5, begin_ms + 5)
        source = GivenItems(items, self.slots, layout, begin_ms, first, end, bounds)
        edges = sorted({0, self.slots, *(cut for cut in cuts if 0 < cut < self.slots)})
        for slot_from, slot_end in pairwise(edges):
            slots = items["hash"].astype(np.int64) % self.slots
            if not ((slots >= slot_from) & (slots < slot_end)).any():
                continue
            made = build_index_object(source, mirrored, META, self.page_bytes, slot_range=(slot_from, slot_end))
            key = ColdKeys("store").index(
                0, begin_ms=begin_ms, first_physical=first, epoch=1, nonce=f"{len(self.entries):08x}"
            )
            self.objects.put(key, made.data)
            self.entries.append(
                IndexEntry(
                    key, 0, first, end, begin_ms, len(made.data), zlib.crc32(made.data), made.meta["items"],
                    self.slots, slot_from, slot_end, layout.name, bounds, dict(made.sections),
                    times_fall=made.meta.get("times_fall", False),
                )
            )  # fmt: skip

    def task(self, **changes: object) -> MergeTask:
        """Merges all of them, unless it is changed."""
        whole = MergeTask(1, tuple(self.entries), 0, self.slots, META, 1, 0, 600 << 20, self.page_bytes)
        return replace(whole, **changes)  # type: ignore[arg-type]

    def found(self, entries: Sequence[IndexEntry]) -> list[Row]:
        """The items of objects one after the other; each is checked as ``check --deep`` does."""
        rows = []
        for entry in entries:
            findings: list[str] = []
            for items in items_of_object(self.objects, "store", entry, findings.append):
                for item in items:
                    row = self._row_of_cold(item, entry.begin_ms)
                    rows.append(row)
            assert findings == [], entry
        return rows

    def _row_of_cold(self, item: np.void, begin_ms: int) -> Row:
        low, second = int(item["hash"]), int(item["seconds"])
        high = int(item["hash_high"]) if "hash_high" in (item.dtype.names or ()) else 0
        return Row(
            (low % self.slots, low, high), int(item["offset"]),
            _second(begin_ms, second),
        )  # fmt: skip

    def look_up(self, entries: Sequence[IndexEntry], key: Key) -> list[int]:
        """Cold offsets of a key as a search finds them, newest object first."""
        found: list[int] = []
        for entry in sorted(entries, key=lambda each: -each.first):
            if entry.slot_from <= key[0] % self.slots < entry.slot_end:
                reader = IndexObjectReader(
                    lambda start, end, key=entry.key: self.objects.get_range(key, start, end),  # type: ignore[misc]
                    entry.sections,
                )
                found += reader.lookup(*key)["offset"].tolist()
        return found
