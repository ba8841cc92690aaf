"""Merges one slot range of some index objects into objects of a size, and uploads them.

Killed anywhere: objects that nobody names, and files in a folder for what is half made. Who commits the entries names
them. In memory, beside what :mod:`index.merging` and the page writer hold: the key filter of the part that ends. The
keys for it wait in a file, 8 bytes each, because a filter's size is known only when all of them are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.key_filter import DEFAULT_BITS_PER_KEY, KeyFilter
from index.layout import LAYOUTS, ItemLayout, Items
from index.merging import Merge, Merged
from index.object_order import keys_of
from index.object_writer import DEFAULT_PAGE_BYTES, IndexMeta, ObjectShape, ObjectWriter
from index.publish import Draft, Workbench, upload_draft
from tiering.cold.object_store import ObjectStore
from tiering.format.manifest import IndexEntry
from tiering.paths import ColdKeys
from tiering.randomness import Randomness
from tiering.types import TimeBounds

#: What a part may grow by between two looks at its size, as a share of the size.
_STEPS = 32
_KEY_BYTES = 8
#: Keys that are taken back from the file at a time.
_KEYS_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One slot range of objects that become one; all that whoever merges them needs beside the bucket."""

    level: int
    """Of the result."""
    inputs: tuple[IndexEntry, ...]
    """Of one layout and number of slots, following each other in the log, the oldest first."""
    slot_from: int
    slot_end: int
    meta: IndexMeta
    epoch: int
    cold_min: int
    """Items that point below it are left out."""
    max_part_bytes: int
    """No part grows larger, unless one slot of one input does."""
    page_bytes: int = DEFAULT_PAGE_BYTES
    filter_bits: int = DEFAULT_BITS_PER_KEY


@dataclass(frozen=True, slots=True)
class MergedRange:
    """The objects that a slot range became, none if it has no items."""

    entries: tuple[IndexEntry, ...]

    @property
    def items(self) -> int:
        """Items of all of them."""
        return sum(entry.items for entry in self.entries)


def merge_range(task: MergeTask, objects: ObjectStore, randomness: Randomness, workbench: Workbench) -> MergedRange:
    """Merge a slot range, upload its parts and verify them.

    Parts are cut between slots, and before that by time where one slot alone would pass the size. Raises
    :class:`CorruptionError` or :class:`ObjectNotFoundError` with the name of the input that cannot be read.
    """
    inputs = [entry for entry in task.inputs if entry.slot_from < task.slot_end and task.slot_from < entry.slot_end]
    inputs = sorted((entry for entry in inputs if entry.next > task.cold_min), key=lambda entry: entry.first)
    if not inputs:
        return MergedRange(())
    merge = _merge(task, inputs, objects)
    runs = _cut_by_time(merge.bytes_of_long_slots(), task.max_part_bytes)
    done: list[IndexEntry] = []
    for run in runs:
        with contextlib.closing(_Parts(task, run, objects, randomness, workbench)) as parts:
            for merged in merge if len(runs) == 1 else _merge(task, run, objects):
                parts.add(merged)
            done += parts.finish()
    return MergedRange(tuple(done))


def _merge(task: MergeTask, run: Sequence[IndexEntry], objects: ObjectStore) -> Merge:
    return Merge(
        run, lambda entry: lambda start, end: objects.get_range(entry.key, start, end), run[0].begin_ms,
        task.slot_from, task.slot_end, task.cold_min,
    )  # fmt: skip


def _cut_by_time(
    long_slots: Sequence[tuple[IndexEntry, dict[int, int]]], max_part_bytes: int
) -> list[list[IndexEntry]]:
    """Runs of neighbours, the oldest first, in which no slot has more bytes than a part may have."""
    runs: list[list[IndexEntry]] = [[]]
    held: dict[int, int] = {}
    for entry, slots in sorted(long_slots, key=lambda each: each[0].first):
        run = runs[-1]
        overlaps = bool(run) and entry.first < max(each.next for each in run)  # it stays with its other slot ranges
        if run and not overlaps and any(held.get(slot, 0) + size > max_part_bytes for slot, size in slots.items()):
            run, held = [], {}
            runs.append(run)
        run.append(entry)
        for slot, size in slots.items():
            held[slot] = held.get(slot, 0) + size
    return runs


class _Parts:
    """Objects one after the other, each of the slots where the one before ends."""

    def __init__(
        self, task: MergeTask, run: Sequence[IndexEntry], objects: ObjectStore, randomness: Randomness,
        workbench: Workbench,
    ) -> None:  # fmt: skip
        layout = next((each for each in LAYOUTS.values() if each.name == run[0].layout), None)
        bounds = [entry.bounds for entry in run if entry.bounds is not None]
        if layout is None or not bounds:
            raise CorruptIndexError("a merged object has a known layout and times", path=run[0].key)
        self._task = task
        self._objects = objects
        self._randomness = randomness
        self._workbench = workbench
        first = max(task.cold_min, min(entry.first for entry in run))
        self._shape = ObjectShape(
            layout, run[0].slots, run[0].begin_ms, first, max(entry.next for entry in run),
            reduce(TimeBounds.union, bounds), task.page_bytes,
        )  # fmt: skip
        self._step = max(1, task.max_part_bytes // (_STEPS * self._bytes_of(1)))
        self._part: _Part | None = None
        self._slot = task.slot_from
        self._done: list[IndexEntry] = []

    def _bytes_of(self, items: int) -> int:
        """What items may take at most, the entries of their slots and their keys included."""
        return items * (self._shape.layout.compacted_bytes + 8 + self._task.filter_bits // 8 + 1)

    def add(self, merged: Merged) -> None:
        """The next items of the merge."""
        places, slots = merged.places, self._shape.slots
        slot_of = merged.items["hash"].astype(np.int64) % slots
        start = 0
        while start < len(places):
            slot, stop = int(slot_of[start]), min(start + self._step, len(places))
            if stop < len(places):  # whole slots, and one that is larger than a step for itself
                last = int(slot_of[stop - 1])
                stop = start + int(np.searchsorted(slot_of[start:], last if last > slot else last + 1))
            more = stop - start
            if self._part is not None and self._part.size_with(more) + self._bytes_of(more) > self._task.max_part_bytes:
                if slot == self._part.slot_end - 1:
                    stop = start + int(np.searchsorted(slot_of[start:], slot + 1))
                else:
                    self._end_part(slot)
            if self._part is None:
                self._part = _Part(self._workbench, self._shape, self._task, self._slot)
            self._part.add(merged.items[start:stop], int(slot_of[stop - 1]) + 1)
            start = stop

    def finish(self) -> list[IndexEntry]:
        """End the last part; the entries of all of them."""
        if self._part is not None:
            self._end_part(self._task.slot_end)
        return self._done

    def close(self) -> None:
        """Drop what is half made."""
        if self._part is not None:
            self._part.close()
            self._part = None

    def _end_part(self, slot_end: int) -> None:
        assert self._part is not None
        self._done.append(self._uploaded(self._part, slot_end))
        self.close()
        self._slot = slot_end

    def _uploaded(self, part: _Part, slot_end: int) -> IndexEntry:
        shape, task = self._shape, self._task
        written = part.writer.finish(slot_end, part.segments(), part.key_filter())
        slots = (written.slot_from, slot_end)
        key = ColdKeys(task.meta.store_id).index(
            task.level, shape.begin_ms, shape.first, task.epoch, self._randomness.token_hex(4),
            None if slots == (0, shape.slots) else slots,
        )  # fmt: skip
        upload_draft(self._objects, key, part.draft, written)
        return IndexEntry(
            key, task.level, shape.first, shape.next, shape.begin_ms, written.size_bytes, written.crc32,
            written.items, shape.slots, *slots, shape.layout.name, shape.bounds, dict(written.sections),
        )  # fmt: skip


class _Part:
    """One object that grows in a file, and the keys for its filter in another."""

    def __init__(self, workbench: Workbench, shape: ObjectShape, task: MergeTask, slot_from: int) -> None:
        self._layout: ItemLayout = shape.layout
        self._bits = task.filter_bits if shape.layout.has_hash_high else 0
        self._segment_bytes = task.meta.segment_bytes
        self._files = contextlib.ExitStack()
        self.draft: Draft = self._files.enter_context(workbench.file(f"merge-{slot_from}"))
        self._spool: Draft = self._files.enter_context(workbench.file(f"merge-{slot_from}-keys"))
        self.writer = ObjectWriter(self.draft, shape, task.meta, slot_from)
        self.slot_end = slot_from
        """Behind the last slot with items."""
        self._keys = 0
        self._last_key = -1
        self._first_segment = shape.first // self._segment_bytes
        self._has_segment = np.zeros(-(-shape.next // self._segment_bytes) - self._first_segment, np.bool_)
        self._segments = 0
        self._name_bytes = len(str(shape.next)) + 2

    def size_with(self, items: int) -> int:
        """About what the object would have, not less, if it ended after so many items more; without these items."""
        segments = min(self._segments + items, len(self._has_segment))
        return self.writer.size_bytes + self._keys * self._bits // 8 + segments * self._name_bytes

    def add(self, items: Items, slot_end: int) -> None:
        segments = items["offset"].astype(np.int64) // self._segment_bytes - self._first_segment
        if segments.min() < 0 or segments.max() >= len(self._has_segment):
            raise CorruptIndexError("an index item points out of the range that its object covers")
        self._segments += len(np.unique(segments[~self._has_segment[segments]]))
        self._has_segment[segments] = True
        if self._bits:
            self._spool_keys(keys_of(items))
        self.writer.add(items, slot_end)
        self.slot_end = slot_end

    def _spool_keys(self, keys: NDArray[np.int64]) -> None:
        is_new = np.diff(keys, prepend=self._last_key) != 0
        new = keys[is_new]
        self._spool.write_at(_KEY_BYTES * self._keys, new.tobytes())
        self._keys += len(new)
        self._last_key = int(keys[-1])

    def segments(self) -> list[int]:
        """Bases of the segments that items point into."""
        found = np.flatnonzero(self._has_segment) + self._first_segment
        bases: list[int] = (found * self._segment_bytes).tolist()
        return bases

    def key_filter(self) -> KeyFilter | None:
        if not self._bits:
            return None
        found = KeyFilter.sized(self._keys, self._bits)
        for start in range(0, self._keys, _KEYS_AT_ONCE):
            count = min(_KEYS_AT_ONCE, self._keys - start)
            keys = np.frombuffer(self._spool.read_at(_KEY_BYTES * start, _KEY_BYTES * count), np.int64)
            found.add(keys >> 32, keys & 0xFFFFFFFF)
        return found

    def close(self) -> None:
        self._files.close()
