"""Index objects that are sound in themselves and say something else than they should."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.support.index.given_items import GivenItems, by_slot
from tests.support.world import STORE_ID, World
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.layout import LAYOUTS, Items
from tierlog.index.format.object_sections import FILTER, META, TAIL, TAIL_MAGIC, encode_section
from tierlog.index.objects.builder import IndexMeta, build_index_object
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.format.manifest import Head, IndexEntry
from tierlog.tiering.format.section import SectionRef


def items_of(world: World, entry: IndexEntry) -> Items:
    """All items of a stored object."""
    data = world.objects._objects[entry.key][0]
    reader = IndexObjectReader(lambda start, end: data[start:end], entry.sections)
    pages = [reader.page(number).items for number in range(len(reader.page_directory()))]
    return np.concatenate(pages).astype(reader.page_directory().layout.compacted)  # concatenate turns the bytes around


def changed_object(world: World, entry: IndexEntry, change: Callable[[Items], Items], key: str) -> IndexEntry:
    """Store an object with changed items under ``key``; the entry that names it."""
    layout = next(layout for layout in LAYOUTS.values() if layout.name == entry.layout)
    items = change(items_of(world, entry)).astype(layout.compacted)
    given = GivenItems(
        by_slot(items, entry.slots), entry.slots, layout, entry.begin_ms, entry.first, entry.next, entry.bounds
    )
    built = build_index_object(given, lambda offsets: offsets, IndexMeta(STORE_ID, 16_384, {}), 4096)
    world.objects.put(key, built.data)
    return replace(
        entry, key=key, size_bytes=len(built.data), crc32=zlib.crc32(built.data), sections=dict(built.sections),
        items=len(items), times_fall=built.meta.get("times_fall", False),
    )  # fmt: skip


def with_filter(
    world: World, entry: IndexEntry, change: Callable[[KeyFilter], KeyFilter | None], key: str
) -> IndexEntry:
    """Store an object with another key filter, or without one, under ``key``; the entry that names it."""
    data = world.objects._objects[entry.key][0]
    reader, meta = IndexObjectReader.from_tail(lambda start, end: data[start:end], len(data))
    old = reader.key_filter()
    assert old is not None
    new = change(old)
    body = new.encode() if new is not None else b""
    start, size = entry.sections[FILTER].position, len(body)
    ref = SectionRef(start, size, size, zlib.crc32(body))
    meta["sections"][FILTER] = {"position": start, "length": size, "crc": ref.crc32}
    table = encode_section(META, json.dumps(meta).encode())
    at = SectionRef(start + size, len(table), len(table), zlib.crc32(table))
    made = data[:start] + body + table + TAIL.pack(at.length, at.crc32, TAIL_MAGIC)
    world.objects.put(key, made)
    return replace(
        entry, key=key, size_bytes=len(made), crc32=zlib.crc32(made),
        sections={**entry.sections, FILTER: ref, META: at},
    )  # fmt: skip


def edit_head(world: World, change: Callable[[Head], Head]) -> None:
    """Another head, as if it had been committed."""
    key = f"{STORE_ID}/head"
    head = Head.decode(world.objects._objects[key][0], path=key)
    world.objects.put(key, change(head).encode())
