"""Look-ups of keys in the index objects of an archive: of one key, of all hits of several, and of segments alone.

A :class:`KeyRun` reads the items of one key in one object page by page, through the caches, neighbouring pages in one
request; a search (``index.search.searcher``) takes from it in the order of its answer and stops when its page is
certain. :func:`key_hits` gives all cold offsets that the index has for some keys at one head, for a caller who reads
them all in an order of his own, so that the reading can be shared out. :func:`segments_of_keys` only names the archived
segments in which an object has any of many keys.

Hashes may collide: topic and key are to be compared on the records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.layout import LAYOUTS, ItemLayout, Items, may_lie_in
from tierlog.index.objects.catalogue import ColdIndex
from tierlog.index.objects.item_order import keys_of
from tierlog.index.objects.pages import PageDirectory
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.types import EVER, TimeAxis, TimeRange
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry

_T = TypeVar("_T")

#: Does the same with each index object: ``map``, or a pool's, as the look-ups may run beside each other.
Each = Callable[[Callable[[IndexEntry], NDArray[np.int64]], Sequence[IndexEntry]], Iterable[NDArray[np.int64]]]
_Hashes = Sequence[tuple[int, int]]
#: Both hashes of some keys, each as one number, ascending.
KeyNumbers = NDArray[np.int64]


def open_index_object(
    reader: ArchiveReader, entry: IndexEntry, layouts: Mapping[int, ItemLayout] = LAYOUTS
) -> IndexObjectReader:
    """Returns an object whose page directory is read through the caches; nothing is asked yet."""

    def read(start: int, end: int, decode: Callable[[bytes], _T]) -> _T:
        return reader.metadata(entry.key, start, end, "page directory", decode)

    return IndexObjectReader(reader.fetcher(entry.key, "index"), entry.sections, layouts=layouts, read=read)


class KeyRun:
    """One key in one object. Costs no request until :meth:`pages`, which needs the page directory."""

    def __init__(
        self,
        reader: ArchiveReader,
        entry: IndexEntry,
        hash_low: int,
        hash_high: int,
        layouts: Mapping[int, ItemLayout] = LAYOUTS,
    ) -> None:
        self._reader = reader
        self._key = entry.key
        self._low, self._high = hash_low, hash_high
        self._object = open_index_object(reader, entry, layouts)

    def pages(self) -> range:
        """Returns the pages that may hold the key, in item order: newest first."""
        return self._object.page_directory().pages_of(*self._hashes())

    def items(self, pages: range) -> Items:
        """Returns the key's items in these neighbouring pages, newest physical offset first."""
        low, high = self._hashes()
        directory = self._object.page_directory()
        slot, none = low % directory.slots, np.empty(0, directory.layout.compacted)
        found = self._reader.data_of(
            self._key,
            [self._object.page_range(number) for number in pages],
            "index page",
            lambda at, data: self._object.decode_page(pages[at], data).lookup(slot, low, high),
        )
        items: Items = np.concatenate([none, *found])
        return items

    def places(self, pages: range) -> list[tuple[int, int]]:
        """Returns the byte ranges of these pages in the object."""
        return [self._object.page_range(number) for number in pages]

    @property
    def items_a_page(self) -> int:
        """The most items of one key that a page holds, or a few more."""
        directory = self._object.page_directory()
        return max(1, directory.page_bytes // directory.layout.compacted_bytes)

    def _hashes(self) -> tuple[int, int]:
        return self._low, self._high if self._object.page_directory().layout.has_hash_high else 0


@dataclass(frozen=True, slots=True)
class SegmentHits:
    """The places of records in one segment: distinct cold offsets, ascending."""

    entry: LogEntry
    offsets: NDArray[np.int64]


def key_hits(
    cold: ColdIndex,
    head: Head,
    keys: Collection[tuple[str, str]],
    within: TimeRange = EVER,
    axis: TimeAxis = TimeAxis.STORE,
    *,
    each: Each = map,
) -> Iterator[SegmentHits]:
    """Yields the archived records below ``indexed_to`` that may have one of the keys, (topic, key) each, by segment.

    Records outside of ``within`` may be left out. An index object costs its page directory and the pages of its keys,
    neighbours in one request; one whose slots or resident filter rule all keys out costs nothing. Segments below
    ``cold_min`` are passed over. Raises the error of whatever cannot be read: nothing is ever left out for that.
    """
    manifest = cold.manifest
    reader = manifest.reader()
    # objects that may hold a key, and which keys
    hashes = [(key_hash(topic, key), key_hash_high(topic, key)) for topic, key in keys]
    wanted: dict[str, _Hashes] = {}
    entries = []
    for entry in cold.overlapping(reader, head, axis=axis, within=within):
        wanted[entry.key] = [each for each in hashes if not cold.rules_out(entry, *each)]
        if wanted[entry.key]:
            entries.append(entry)

    def look_up(entry: IndexEntry) -> NDArray[np.int64]:
        with _naming(entry):
            items = _items(cold, manifest.reader(), entry, wanted[entry.key])
        cold.looked_up(entry, found=len(items) > 0)
        if axis is TimeAxis.STORE:
            seconds = items["seconds"]
            items = items[may_lie_in(within, entry.begin_ms + seconds.astype(np.int64) * 1000, seconds)]
        return items["offset"].astype(np.int64)

    # their hits, by segment
    found = list(each(look_up, entries))
    offsets = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    offsets = offsets[offsets >= head.cold_min]
    while len(offsets):
        segment = manifest.segment_of(reader, head, int(offsets[0]))
        if segment is None:
            raise CorruptionError(
                f"an index object points to offset {offsets[0]}, of which the manifest has no segment"
            )
        count = int(np.searchsorted(offsets, segment.next))
        yield SegmentHits(segment, offsets[:count])
        offsets = offsets[count:]


def _items(cold: ColdIndex, reader: ArchiveReader, entry: IndexEntry, hashes: _Hashes) -> Items:
    """Returns the items of all these keys in one object; every page is read once."""
    opened = open_index_object(reader, entry, cold.layouts)
    directory = opened.page_directory()
    of_page: dict[int, list[tuple[int, int]]] = {}
    for low, high in hashes:
        high = high if directory.layout.has_hash_high else 0
        for number in directory.pages_of(low, high):
            of_page.setdefault(number, []).append((low, high))
    numbers = sorted(of_page)

    def decode(at: int, data: bytes) -> list[Items]:
        page = opened.decode_page(numbers[at], data)
        return [page.lookup(low % directory.slots, low, high) for low, high in of_page[numbers[at]]]

    found = reader.data_of(entry.key, [opened.page_range(number) for number in numbers], "index page", decode)
    items: Items = np.concatenate([np.empty(0, directory.layout.compacted), *(each for page in found for each in page)])
    return items


@contextlib.contextmanager
def _naming(entry: IndexEntry) -> Iterator[None]:
    """Adds the object's name to errors of damage."""
    try:
        yield
    except CorruptionError as error:
        error.path = error.path or entry.key
        raise


def key_numbers(topic: str, keys: Iterable[str]) -> KeyNumbers:
    """Returns both hashes of each key of a topic as one number, ascending."""
    numbers = [key_hash(topic, key) << 32 | key_hash_high(topic, key) for key in keys]
    return np.unique(np.array(numbers, np.int64))


def segments_of_keys(reader: ArchiveReader, entry: IndexEntry, keys: KeyNumbers, segment_bytes: int) -> set[int]:
    """Returns the bases of the segments to which the object's items with these keys, or with their hashes, lead.

    Reads a few pages for a few keys, else all pages, each once and through no cache. Raises :class:`CorruptionError` or
    :class:`ObjectNotFoundError` if it cannot tell.
    """
    fetch = reader.fetcher(entry.key, "index")
    found = IndexObjectReader(fetch, entry.sections)
    directory = found.page_directory()
    if not directory.layout.has_hash_high:
        keys = np.unique(keys >> 32 << 32)
    slots = (keys >> 32) % entry.slots
    keys = keys[(slots >= entry.slot_from) & (slots < entry.slot_end)]
    pages = _pages_of(directory, keys)
    bases: set[int] = set()
    for items in reader.data_of(
        entry.key,
        [found.page_range(number) for number in pages],
        "index page",
        lambda at, data: found.decode_page(pages[at], data).items,
    ):
        bases |= _bases(items, keys, segment_bytes)
    return bases


def _pages_of(directory: PageDirectory, keys: KeyNumbers) -> list[int]:
    if len(keys) >= len(directory):
        return list(range(len(directory)))
    pages: set[int] = set()
    for number in keys.tolist():
        pages.update(directory.pages_of(number >> 32, number & 0xFFFFFFFF))
    return sorted(pages)


def _bases(items: Items, keys: KeyNumbers, segment_bytes: int) -> set[int]:
    offsets = items["offset"][np.isin(keys_of(items), keys)].astype(np.int64)
    return set(np.unique(offsets - offsets % segment_bytes).tolist())
