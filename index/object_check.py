"""Reads one index object from its first to its last byte and checks it against its manifest entry and itself.

After it a look-up of any item's key comes to the item: slots, pages and page directory lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from index.errors import CorruptIndexError
from index.header import SLOT_BYTES
from index.index_object import DIRECTORY, META, PAGES, IndexObjectReader
from index.layout import Items
from index.object_pages import PAGE_HEAD_BYTES, IndexPage, PageDirectory, highs
from index.object_sections import SECTION_HEAD_BYTES, open_section
from tiering.cold.object_store import ObjectStore
from tiering.cold.object_stream import ObjectStream
from tiering.errors import CorruptionError
from tiering.format.manifest import IndexEntry

Find = Callable[[str], None]


def items_of_object(objects: ObjectStore, store_id: str, entry: IndexEntry, find: Find) -> Iterator[Items]:
    """The items of each page that can be read, in the object's order.

    Damage inside the object is told; raises what makes all of it unreadable, and the object store's errors.
    """
    size = objects.head(entry.key).size_bytes
    if size != entry.size_bytes:
        raise CorruptIndexError(f"is {size} bytes long, the manifest says {entry.size_bytes}")
    reader = IndexObjectReader(lambda start, end: objects.get_range(entry.key, start, end), entry.sections)
    directory = reader.page_directory()
    if (directory.slots, directory.begin_ms, directory.layout.name) != (entry.slots, entry.begin_ms, entry.layout):
        find("its page directory and the manifest disagree")
    stream = ObjectStream(objects, entry.key, size)
    head = stream.take(entry.sections[PAGES].position + SECTION_HEAD_BYTES)
    damaged, count = 0, 0
    try:
        open_section(PAGES, head[entry.sections[PAGES].position :])
    except CorruptionError as error:
        find(f"pages: {error.message}")
        damaged += 1
    for number in range(len(directory)):
        start, end = directory.span(number)
        data = stream.take(end - start)
        try:
            directory.check(number, data)
            page = IndexPage.decode(data, directory.layout, directory.page_bytes)
            _check_page(directory, number, page)
        except CorruptionError as error:
            damaged += 1
            find(f"page {number} is damaged ({error.message}); {_slots_of(directory, number)}")
            continue
        count += len(page.items)
        yield page.items
    stream.take_rest()
    try:
        _check_meta(objects, store_id, entry)
    except CorruptionError as error:
        damaged += 1
        find(error.message)
    if not damaged and count != entry.items:
        find(f"holds {count} items, the manifest says {entry.items}")
    if not damaged and stream.crc32 != entry.crc32:
        find("its checksum differs from the manifest")


def _slots_of(directory: PageDirectory, number: int) -> str:
    first = int(directory.rows["slot"][number])
    last = int(directory.rows["slot"][number + 1]) if number + 1 < len(directory) else directory.slots - 1
    return f"keys in slots {first} to {last} are not found"


def _check_page(directory: PageDirectory, number: int, page: IndexPage) -> None:
    """Slot entries, order of items, and the directory's rows around the page; raises :class:`CorruptIndexError`."""
    items, entries = page.items, page.entries
    width, slots = items.dtype.itemsize, directory.slots
    if page.first_slot != int(directory.rows["slot"][number]) or page.first_slot + len(entries) > slots:
        raise CorruptIndexError("it starts with another slot than its directory says")
    lengths = entries["length"].astype(np.int64)
    positions = PAGE_HEAD_BYTES + SLOT_BYTES * len(entries) + np.cumsum(lengths) - lengths
    if (entries["position"] != positions).any() or int(lengths.sum()) != width * len(items) or (lengths % width).any():
        raise CorruptIndexError("its slots do not make up its items")
    hashes, high = items["hash"].astype(np.int64), highs(items)
    slot = np.repeat(page.first_slot + np.arange(len(entries)), lengths // width)
    if (hashes < 0).any() or (hashes % slots != slot).any():
        raise CorruptIndexError("an item lies in another slot than its hash says")
    place = slot << 31 | hashes
    step = np.diff(place)
    if ((step < 0) | (step == 0) & (np.diff(high) < 0)).any():
        raise CorruptIndexError("its items are out of order")
    row, following = _row(directory, number), _row(directory, number + 1)
    first = (int(slot[0]), int(hashes[0]), int(high[0])) if len(items) else (page.first_slot, 0, 0)
    last = (int(slot[-1]), int(hashes[-1]), int(high[-1])) if len(items) else first
    if row is None or (first[0] == row[0] and first != row and row[1:] != (0, 0)) or first < row:
        raise CorruptIndexError("its directory names another first key")
    if following is not None and (last > following or (last == following and first != last)):
        raise CorruptIndexError("its last key belongs to the next page")


def _row(directory: PageDirectory, number: int) -> tuple[int, int, int] | None:
    if number >= len(directory):
        return None
    row = directory.rows[number]
    return int(row["slot"]), int(row["hash"]), int(row["hash_high"])


def _check_meta(objects: ObjectStore, store_id: str, entry: IndexEntry) -> None:
    found, meta = IndexObjectReader.from_tail(
        lambda start, end: objects.get_range(entry.key, start, end), entry.size_bytes
    )
    for name in (PAGES, DIRECTORY, META):
        if found.sections[name] != entry.sections[name]:
            raise CorruptIndexError(f"its meta and the manifest have different places for the {name} section")
    said = {name: meta.get(name) for name in ("store_id", "layout", "slots", "items", "begin_ms", "first", "next")}
    known = {
        "store_id": store_id, "layout": entry.layout, "slots": entry.slots, "items": entry.items,
        "begin_ms": entry.begin_ms, "first": entry.first, "next": entry.next,
    }  # fmt: skip
    for name, value in known.items():
        if said[name] != value:
            raise CorruptIndexError(f"its meta says {name} is {said[name]}, the manifest {value}")
