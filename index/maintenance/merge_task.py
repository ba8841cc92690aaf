"""Merges one slot range of some index objects into objects of a size, in bounded memory, and uploads them.

Killed anywhere: objects that nobody names, and files in a folder for what is half made. Committing the entries
names them. In memory, beside what :class:`Merge` and the page writer hold: the key filter of the part that ends. The
keys for it wait in a file, 8 bytes each, because a filter's size is known only when all of them are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.key_filter import DEFAULT_BITS_PER_KEY, KeyFilter
from tierlog.index.format.layout import LAYOUTS, SECONDS_MAX, SECONDS_MIN, ItemLayout, Items
from tierlog.index.objects.item_order import keys_of, place_of_slot, places_of
from tierlog.index.objects.pages import PageDirectory
from tierlog.index.objects.publisher import AssemblyFile, AssemblyFolder, upload_assembled
from tierlog.index.objects.reader import Fetch, IndexObjectReader
from tierlog.index.objects.writer import DEFAULT_PAGE_BYTES, IndexMeta, ObjectShape, ObjectWriter
from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.objects.object_store import ObjectStore

#: Pages that are gathered together, if there are fewer objects.
LEAST_PAGES = 64
#: What all objects together may have read ahead.
_AHEAD_BYTES = 32 << 20
_MOST_AHEAD_BYTES = 1 << 20
#: What a part may grow by between two looks at its size, as a share of the size.
_STEPS = 32
_KEY_BYTES = 8
#: Keys that are taken back from the file at a time.
_KEYS_AT_ONCE = 1 << 17
Places = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One slot range of objects to merge, with everything a task needs besides the bucket."""

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


def merge_range(task: MergeTask, objects: ObjectStore, randomness: Randomness, assembly: AssemblyFolder) -> MergedRange:
    """Merges a slot range, uploads its parts and verifies them.

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
        with contextlib.closing(_Parts(task, run, objects, randomness, assembly)) as parts:
            for merged in merge if len(runs) == 1 else _merge(task, run, objects):
                parts.add(merged)
            done += parts.finish()
    return MergedRange(tuple(done))


def _merge(task: MergeTask, run: Sequence[IndexEntry], objects: ObjectStore) -> Merge:
    return Merge(
        run, lambda entry: lambda start, end: objects.get_range(entry.key, start, end), begin_ms=run[0].begin_ms,
        slot_from=task.slot_from, slot_end=task.slot_end, cold_min=task.cold_min,
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
        assembly: AssemblyFolder,
    ) -> None:  # fmt: skip
        layout = next((each for each in LAYOUTS.values() if each.name == run[0].layout), None)
        bounds = [entry.bounds for entry in run if entry.bounds is not None]
        if layout is None or not bounds:
            raise CorruptIndexError("a merged object has a known layout and times", path=run[0].key)
        self._task = task
        self._objects = objects
        self._randomness = randomness
        self._assembly = assembly
        first = max(task.cold_min, min(entry.first for entry in run))
        self._shape = ObjectShape(
            layout=layout, slots=run[0].slots, begin_ms=run[0].begin_ms, first=first,
            next=max(entry.next for entry in run), bounds=reduce(TimeBounds.union, bounds), page_bytes=task.page_bytes,
        )  # fmt: skip
        self._step = max(1, task.max_part_bytes // (_STEPS * self._bytes_of(1)))
        self._part: _Part | None = None
        self._slot = task.slot_from
        self._done: list[IndexEntry] = []

    def _bytes_of(self, items: int) -> int:
        """Returns the most bytes that items may take, the entries of their slots and their keys included."""
        return items * (self._shape.layout.compacted_bytes + 8 + self._task.filter_bits // 8 + 1)

    def add(self, merged: Merged) -> None:
        """Takes the next items of the merge."""
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
                self._part = _Part(self._assembly, self._shape, self._task, self._slot)
            self._part.add(merged.items[start:stop], int(slot_of[stop - 1]) + 1)
            start = stop

    def finish(self) -> list[IndexEntry]:
        """Ends the last part; returns the entries of all of them."""
        if self._part is not None:
            self._end_part(self._task.slot_end)
        return self._done

    def close(self) -> None:
        """Drops the part that is half made."""
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
            task.level, begin_ms=shape.begin_ms, first_physical=shape.first, epoch=task.epoch,
            nonce=self._randomness.token_hex(4), slots=None if slots == (0, shape.slots) else slots,
        )  # fmt: skip
        upload_assembled(self._objects, key, part.draft, written)
        return IndexEntry(
            key=key, level=task.level, first=shape.first, next=shape.next, begin_ms=shape.begin_ms,
            size_bytes=written.size_bytes, crc32=written.crc32, items=written.items, slots=shape.slots,
            slot_from=written.slot_from, slot_end=slot_end, layout=shape.layout.name, bounds=shape.bounds,
            sections=dict(written.sections), times_fall=written.times_fall,
        )  # fmt: skip


class _Part:
    """One object that grows in a file, and the keys for its filter in another."""

    def __init__(self, assembly: AssemblyFolder, shape: ObjectShape, task: MergeTask, slot_from: int) -> None:
        self._layout: ItemLayout = shape.layout
        self._bits = task.filter_bits if shape.layout.has_hash_high else 0
        self._segment_bytes = task.meta.segment_bytes
        self._files = contextlib.ExitStack()
        self.draft: AssemblyFile = self._files.enter_context(assembly.file(f"merge-{slot_from}"))
        self._spool: AssemblyFile = self._files.enter_context(assembly.file(f"merge-{slot_from}-keys"))
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


@dataclass(frozen=True, slots=True)
class Merged:
    """The next items of a merge, with cold offsets and seconds of the result."""

    items: Items
    places: Places
    """Of each item, see :func:`index.objects.item_order.places_of`."""


class Merge:
    """The items of one slot range of several objects, which share layout and number of slots, in an object's order.

    Objects that follow each other in the log have their items in one order: slot, hash, hash_high, and of one key those
    of the later object first. So nothing is asked of the segments: cold offsets go over as they are, and only seconds
    are counted from another begin time.

    In memory are a few pages of each object: what the merge is about to give, at most as many pages as
    :data:`LEAST_PAGES` or twice as many as there are objects, and the page that each object stands in. A key whose
    items are more than that is not gathered: its items come object by object and page by page.

    ``entries`` follow each other in the log, the oldest first; their ranges may meet only where their slots do not.
    Items that point below ``cold_min`` are left out: their segments have expired. Used by one thread.
    """

    def __init__(
        self, entries: Sequence[IndexEntry], fetch_of: Callable[[IndexEntry], Fetch], *, begin_ms: int,
        slot_from: int, slot_end: int, cold_min: int = 0, layouts: Mapping[int, ItemLayout] = LAYOUTS,
    ) -> None:  # fmt: skip
        """Reads every page directory.

        Raises :class:`CorruptionError` or :class:`ObjectNotFoundError` with the object's name, here and later.
        """
        self.slots = entries[0].slots
        self._low, self._end = place_of_slot(slot_from, self.slots), place_of_slot(slot_end, self.slots)
        ahead = min(_MOST_AHEAD_BYTES, _AHEAD_BYTES // len(entries))
        self._sources = [
            _Source(
                entry,
                fetch_of(entry),
                begin_ms=begin_ms,
                cold_min=cold_min,
                low=self._low,
                end=self._end,
                ahead_bytes=ahead,
                layouts=layouts,
            )
            for entry in sorted(entries, key=lambda entry: entry.first, reverse=True)
        ]
        self._pages = max(LEAST_PAGES, len(entries))

    def __iter__(self) -> Iterator[Merged]:
        """Yields all items in the order of an object, once."""
        for bound, is_run in self._bounds():
            if not is_run:
                yield from self._gathered(bound)
                continue
            for source in self._sources:
                yield from source.below(bound)

    def bytes_of_long_slots(self) -> Sequence[tuple[IndexEntry, dict[int, int]]]:
        """Returns, for each object, the compressed bytes of slots that several of its pages begin with."""
        return [(source.entry, source.long_slots()) for source in self._sources]

    def _bounds(self) -> Iterator[tuple[int, bool]]:
        """Numbers up to which the items are gathered and sorted, or, of one key, taken as they lie."""
        starts, counts = np.unique(np.concatenate([source.starts() for source in self._sources]), return_counts=True)
        held = 0
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            if count > self._pages:
                yield start, False
                yield start + 1, True
                held = 0
            elif held + count > self._pages:
                yield start, False
                held = count
            else:
                held += count
        yield self._end, False

    def _gathered(self, bound: int) -> Iterator[Merged]:
        pieces = [piece for source in self._sources for piece in source.below(bound)]
        if not pieces:
            return
        items = _joined([piece.items for piece in pieces])
        places = np.concatenate([piece.places for piece in pieces])
        order = np.argsort(places, kind="stable")
        yield Merged(_raw(items)[order].view(items.dtype), places[order])


class _Source:
    """One object's items from the first place of the range on."""

    def __init__(
        self, entry: IndexEntry, fetch: Fetch, *, begin_ms: int, cold_min: int, low: int, end: int, ahead_bytes: int,
        layouts: Mapping[int, ItemLayout],
    ) -> None:  # fmt: skip
        self.entry = entry
        self._fetch = fetch
        self._cold_min = cold_min
        self._low, self._bound = low, end
        self._ahead_bytes = ahead_bytes
        seconds, odd_ms = divmod(entry.begin_ms - begin_ms, 1000)
        if odd_ms:
            raise CorruptIndexError("begin times are not whole seconds apart", path=entry.key)
        self._later_s = seconds
        self._reader = IndexObjectReader(fetch, entry.sections, layouts=layouts)
        with _NamingErrors(entry):
            directory = self._reader.page_directory()
            if (directory.slots, directory.begin_ms, directory.layout.name) != (
                entry.slots, entry.begin_ms, entry.layout,
            ):  # fmt: skip
                raise CorruptIndexError("its page directory and the manifest disagree")
        self._starts = _starts_of(directory)
        first = int(np.searchsorted(self._starts, np.uint64(low)))
        if first and (first == len(directory) or int(self._starts[first]) > low):
            first -= 1  # a page that begins with an earlier slot
        self._page = first
        self._stop = int(np.searchsorted(self._starts, np.uint64(end)))
        self._ahead = b""
        self._ahead_at = self._ahead_end = 0
        self._rest: Merged | None = None
        self._last = -1

    def starts(self) -> Places:
        """Returns the first place of each page that is to be read."""
        return np.maximum(self._starts[self._page : self._stop], np.uint64(self._low))

    def long_slots(self) -> dict[int, int]:
        directory = self._reader.page_directory()
        rows = directory.rows[self._page : self._stop]
        slots, counts = np.unique(rows["slot"].astype(np.int64), return_counts=True)
        found = {}
        for slot in slots[counts > 1].tolist():
            pages = self._page + np.flatnonzero(rows["slot"] == slot)
            found[slot] = directory.span(int(pages[-1]))[1] - directory.span(int(pages[0]))[0]
        return found

    def below(self, bound: int) -> Iterator[Merged]:
        """Yields the next items up to a place, page by page; none is read before it is wanted."""
        while True:
            piece = self._rest or self._next(bound)
            if piece is None:
                return
            count = int(np.searchsorted(piece.places, np.uint64(bound)))
            self._rest = None if count == len(piece.places) else Merged(piece.items[count:], piece.places[count:])
            if count:
                yield Merged(piece.items[:count], piece.places[:count])
            if self._rest is not None:
                return

    def _next(self, bound: int) -> Merged | None:
        """Returns the next page with items of the range, unless it begins at a place or above it."""
        while self._page < self._stop and int(self._starts[self._page]) < bound:
            with _NamingErrors(self.entry):
                items = self._reader.decode_page(self._page, self._compressed(self._page)).items
                places = places_of(items, self.entry.slots)
                if len(places) and (int(places[0]) < self._last or (places[1:] < places[:-1]).any()):
                    raise CorruptIndexError(f"items of page {self._page} are out of order")
            self._page += 1
            if len(places):
                self._last = int(places[-1])
            wanted = (places >= np.uint64(self._low)) & (places < np.uint64(self._bound))
            if self.entry.first < self._cold_min:
                wanted &= items["offset"] >= self._cold_min
            if not wanted.all():
                items, places = items[wanted], places[wanted]
            if len(items):
                return Merged(self._rebased(items), places)
        return None

    def _compressed(self, page: int) -> bytes:
        start, end = self._reader.page_range(page)
        if end > self._ahead_end:
            last = page
            while last + 1 < self._stop and self._reader.page_range(last + 1)[1] - start <= self._ahead_bytes:
                last += 1
            self._ahead_at, self._ahead_end = start, self._reader.page_range(last)[1]
            self._ahead = self._fetch(start, self._ahead_end)
            if len(self._ahead) != self._ahead_end - start:
                raise CorruptIndexError(f"got {len(self._ahead)} of {self._ahead_end - start} bytes", position=start)
        return self._ahead[start - self._ahead_at : end - self._ahead_at]

    def _rebased(self, items: Items) -> Items:
        if not self._later_s:
            return items
        items = items.copy()
        items["seconds"] = rebased_seconds(items["seconds"].astype(np.int64), self._later_s)
        return items


def rebased_seconds(seconds: NDArray[np.int64], later_s: int) -> NDArray[np.int64]:
    """Rebases seconds onto a begin time that is ``later_s`` earlier, exactly.

    What does not fit the field is saturated, as everywhere, and what was saturated stays so: it stands for any time
    beyond.
    """
    moved = np.clip(seconds + later_s, SECONDS_MIN, SECONDS_MAX)
    return np.where((seconds == SECONDS_MIN) | (seconds == SECONDS_MAX), seconds, moved)


class _NamingErrors:
    """A context that gives errors of damage the name of the object."""

    def __init__(self, entry: IndexEntry) -> None:
        self._entry = entry

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorruptionError | ObjectNotFoundError) and error.path is None:
            error.path = self._entry.key


def _starts_of(directory: PageDirectory) -> Places:
    """Returns the first place of each page; of one that begins with an empty slot, the slot's."""
    rows = directory.rows
    hashes = np.where((rows["hash"] == 0) & (rows["hash_high"] == 0), rows["slot"], rows["hash"])
    names = np.empty(len(rows), [("hash", "<i8"), ("hash_high", "<u4")])
    names["hash"], names["hash_high"] = hashes, rows["hash_high"]
    return places_of(names, directory.slots)


def _raw(items: Items) -> NDArray[np.void]:
    """Items as bytes, which numpy moves at once and not field by field."""
    return np.ascontiguousarray(items).view(f"V{items.dtype.itemsize}")


def _joined(pieces: Sequence[Items]) -> Items:
    return np.concatenate([_raw(piece) for piece in pieces]).view(pieces[0].dtype)
