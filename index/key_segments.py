"""In which archived segments an index object has any of many keys: by a few pages for a few keys, else by all pages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from index.index_object import IndexObjectReader
from index.layout import Items
from index.object_order import keys_of
from index.object_pages import PageDirectory
from tiering.cold.reading import ArchiveReader
from tiering.format.hashing import key_hash, key_hash_high
from tiering.format.manifest import IndexEntry

#: Both hashes of some keys, each as one number, ascending.
KeyNumbers = NDArray[np.int64]


def key_numbers(topic: str, keys: Iterable[str]) -> KeyNumbers:
    """Both hashes of each key of a topic as one number, ascending."""
    numbers = [key_hash(topic, key) << 32 | key_hash_high(topic, key) for key in keys]
    return np.unique(np.array(numbers, np.int64))


def segments_of_keys(reader: ArchiveReader, entry: IndexEntry, keys: KeyNumbers, segment_bytes: int) -> set[int]:
    """Bases of the segments to which the object's items with these keys, or with their hashes, lead.

    Reads each page once, through no cache. Raises :class:`CorruptionError` or :class:`ObjectNotFoundError` if it
    cannot tell.
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
