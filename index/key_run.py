"""The items of one key in an index object, read page by page through the caches; neighbouring pages in one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from index.index_object import IndexObjectReader
from index.layout import LAYOUTS, ItemLayout, Items
from tiering.cold.reading import ArchiveReader
from tiering.format.manifest import IndexEntry

_T = TypeVar("_T")


def open_index_object(
    reader: ArchiveReader, entry: IndexEntry, layouts: Mapping[int, ItemLayout] = LAYOUTS
) -> IndexObjectReader:
    """An object whose page directory is read through the caches; nothing is asked yet."""

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
        """The pages that may hold the key, in item order: newest first."""
        return self._object.page_directory().pages_of(*self._hashes())

    def items(self, pages: range) -> Items:
        """What these neighbouring pages hold of the key, newest physical offset first."""
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
        """Where these pages lie in the object."""
        return [self._object.page_range(number) for number in pages]

    @property
    def items_a_page(self) -> int:
        """How many items of one key a page holds at most, or a few more."""
        directory = self._object.page_directory()
        return max(1, directory.page_bytes // directory.layout.compacted_bytes)

    def _hashes(self) -> tuple[int, int]:
        return self._low, self._high if self._object.page_directory().layout.has_hash_high else 0
