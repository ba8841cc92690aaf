"""Merges the items of index objects of one number of slots, in the order of an object, in bounded memory.

Objects that follow each other in the log have their items in one order: slot, hash, hash_high, and of one key those of
the later object first. So nothing is asked of the segments: cold offsets go over as they are, and only seconds are
counted from another begin time.

In memory are a few pages of each object: what the merge is about to give, at most as many pages as
:data:`LEAST_PAGES` or twice as many as there are objects, and the page that each object stands in. A key whose items
are more than that is not gathered: its items come object by object and page by page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.errors import CorruptIndexError
from index.index_object import Fetch, IndexObjectReader
from index.layout import LAYOUTS, SECONDS_MAX, SECONDS_MIN, ItemLayout, Items
from index.object_order import place_of_slot, places_of
from index.object_pages import PageDirectory
from tiering.errors import CorruptionError, ObjectNotFoundError
from tiering.format.manifest import IndexEntry

#: Pages that are gathered together, if there are fewer objects.
LEAST_PAGES = 64
#: What all objects together may have read ahead.
_AHEAD_BYTES = 32 << 20
_MOST_AHEAD_BYTES = 1 << 20
Places = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Merged:
    """The next items of a merge, with cold offsets and seconds of the result."""

    items: Items
    places: Places
    """Of each item, see :func:`index.object_order.places_of`."""


class Merge:
    """The items of one slot range of several objects, which share layout and number of slots.

    ``entries`` follow each other in the log, the oldest first; their ranges may meet only where their slots do not.
    Items that point below ``cold_min`` are left out: their segments have expired. Used by one thread.
    """

    def __init__(
        self, entries: Sequence[IndexEntry], fetch_of: Callable[[IndexEntry], Fetch], begin_ms: int,
        slot_from: int, slot_end: int, cold_min: int = 0, layouts: Mapping[int, ItemLayout] = LAYOUTS,
    ) -> None:  # fmt: skip
        """Reads every page directory.

        Raises :class:`CorruptionError` or :class:`ObjectNotFoundError` with the object's name, here and later.
        """
        self.slots = entries[0].slots
        self._low, self._end = place_of_slot(slot_from, self.slots), place_of_slot(slot_end, self.slots)
        ahead = min(_MOST_AHEAD_BYTES, _AHEAD_BYTES // len(entries))
        self._sources = [
            _Source(entry, fetch_of(entry), begin_ms, cold_min, self._low, self._end, ahead, layouts)
            for entry in sorted(entries, key=lambda entry: entry.first, reverse=True)
        ]
        self._pages = max(LEAST_PAGES, len(entries))

    def __iter__(self) -> Iterator[Merged]:
        """All items in the order of an object, once."""
        for bound, is_run in self._bounds():
            if not is_run:
                yield from self._gathered(bound)
                continue
            for source in self._sources:
                yield from source.below(bound)

    def bytes_of_long_slots(self) -> Sequence[tuple[IndexEntry, dict[int, int]]]:
        """Of each object, the compressed bytes of slots that several of its pages begin with."""
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
        self, entry: IndexEntry, fetch: Fetch, begin_ms: int, cold_min: int, low: int, end: int, ahead_bytes: int,
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
        with _Named(entry):
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
        """The first place of each page that is to be read."""
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
        """The next items up to a place, page by page; none is read before it is wanted."""
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
        """The next page with items of the range, unless it begins at a place or above it."""
        while self._page < self._stop and int(self._starts[self._page]) < bound:
            with _Named(self.entry):
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
                return Merged(self._counted_anew(items), places)
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

    def _counted_anew(self, items: Items) -> Items:
        if not self._later_s:
            return items
        items = items.copy()
        items["seconds"] = counted_anew(items["seconds"].astype(np.int64), self._later_s)
        return items


def counted_anew(seconds: NDArray[np.int64], later_s: int) -> NDArray[np.int64]:
    """Seconds from a begin time that is so much earlier than the one they counted from; exact.

    What does not fit the field is saturated, as everywhere, and what was saturated stays so: it stands for any time
    beyond.
    """
    moved = np.clip(seconds + later_s, SECONDS_MIN, SECONDS_MAX)
    return np.where((seconds == SECONDS_MIN) | (seconds == SECONDS_MAX), seconds, moved)


class _Named:
    """Gives what goes wrong the name of the object."""

    def __init__(self, entry: IndexEntry) -> None:
        self._entry = entry

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorruptionError | ObjectNotFoundError) and error.path is None:
            error.path = self._entry.key


def _starts_of(directory: PageDirectory) -> Places:
    """The first place of each page; of one that begins with an empty slot, the slot's."""
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
