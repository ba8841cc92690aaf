"""Index objects that are sound in themselves and say something else than they should."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from index.index_object import IndexMeta, IndexObjectReader, build_index_object
from index.layout import LAYOUTS, ItemLayout, Items
from tests.support.archives import STORE, ArchiveWorld
from tiering.format.manifest import Head, IndexEntry
from tiering.types import TimeBounds


@dataclass(frozen=True)
class GivenItems:
    """Items as the builder of an object takes them."""

    layout: ItemLayout
    slots: int
    begin_ms: int
    first: int
    next: int
    bounds: TimeBounds | None
    items: Items

    def verify(self) -> None:
        """They are what they are."""

    def all_items(self) -> Items:
        """All of them."""
        return self.items


def items_of(world: ArchiveWorld, entry: IndexEntry) -> Items:
    """All items of a stored object."""
    data = world.objects._objects[entry.key][0]
    reader = IndexObjectReader(lambda start, end: data[start:end], entry.sections)
    pages = [reader.page(number).items for number in range(len(reader.page_directory()))]
    return np.concatenate(pages).astype(reader.page_directory().layout.compacted)  # concatenate turns the bytes around


def changed_object(world: ArchiveWorld, entry: IndexEntry, change: Callable[[Items], Items], key: str) -> IndexEntry:
    """Store an object with changed items under ``key``; the entry that names it."""
    layout = next(layout for layout in LAYOUTS.values() if layout.name == entry.layout)
    items = change(items_of(world, entry)).astype(layout.compacted)
    given = GivenItems(layout, entry.slots, entry.begin_ms, entry.first, entry.next, entry.bounds, items)
    built = build_index_object(given, lambda offsets: offsets, IndexMeta(STORE, 16_384, {}), 4096)
    world.objects.put(key, built.data)
    return replace(
        entry, key=key, size_bytes=len(built.data), crc32=zlib.crc32(built.data), sections=dict(built.sections),
        items=len(items),
    )  # fmt: skip


def edit_head(world: ArchiveWorld, change: Callable[[Head], Head]) -> None:
    """Another head, as if it had been committed."""
    key = f"{STORE}/head"
    head = Head.decode(world.objects._objects[key][0], path=key)
    world.objects.put(key, change(head).encode())
