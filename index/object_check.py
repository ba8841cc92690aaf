"""Reads one index object from its first to its last byte and checks it against its manifest entry and itself.

After it a look-up of any item's key comes to the item: slots, pages and page directory lead there, and the key filter
does not rule it out. In memory are a page and, where there is one, the filter twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from index.errors import CorruptIndexError, DamagedFilterError
from index.header import SLOT_BYTES
from index.index_object import IndexObjectReader
from index.key_filter import KeyFilter
from index.layout import LAYOUTS, ItemLayout, Items
from index.object_order import highs, keys_of
from index.object_pages import PAGE_HEAD_BYTES, IndexPage, PageDirectory
from index.object_sections import DIRECTORY, FILTER, META, PAGES, SECTION_HEAD_BYTES, open_section
from tiering.cold.object_store import ObjectStore
from tiering.cold.object_stream import ObjectStream
from tiering.errors import CorruptionError, UnsupportedFormatError
from tiering.format.manifest import IndexEntry

Find = Callable[[str], None]


def items_of_object(
    objects: ObjectStore,
    store_id: str,
    entry: IndexEntry,
    find: Find,
    layouts: Mapping[int, ItemLayout] = LAYOUTS,
) -> Iterator[Items]:
    """The items of each page that can be read, in the object's order.

    Damage inside the object is told; raises what makes all of it unreadable, and the object store's errors.
    """
    size = objects.head(entry.key).size_bytes
    if size != entry.size_bytes:
        raise CorruptIndexError(f"is {size} bytes long, the manifest says {entry.size_bytes}")
    reader = IndexObjectReader(
        lambda start, end: objects.get_range(entry.key, start, end), entry.sections, layouts=layouts
    )
    directory = reader.page_directory()
    if (directory.slots, directory.begin_ms, directory.layout.name) != (entry.slots, entry.begin_ms, entry.layout):
        find("its page directory and the manifest disagree")
    against = _FilterCheck(_filter_of(reader, find))
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
            _check_range(directory, number, page, entry)
        except CorruptionError as error:
            damaged += 1
            find(f"page {number} is damaged ({error.message}); {_slots_of(directory, number)}")
            continue
        count += len(page.items)
        against.add(page.items)
        yield page.items
    stream.take_rest()
    try:
        _check_meta(objects, store_id, entry)
    except CorruptionError as error:
        damaged += 1
        find(error.message)
    if not damaged and count != entry.items:
        find(f"holds {count} items, the manifest says {entry.items}")
    against.tell(find, all_seen=not damaged)
    if not damaged and stream.crc32 != entry.crc32:
        find("its checksum differs from the manifest")


def _filter_of(reader: IndexObjectReader, find: Find) -> KeyFilter | None:
    try:
        return reader.key_filter()
    except (DamagedFilterError, UnsupportedFormatError) as error:
        find(f"{error.message}: every look-up reads a page of it")
        return None


class _FilterCheck:
    """Compares a key filter with the items, which come in the object's order."""

    def __init__(self, given: KeyFilter | None) -> None:
        self._given = given
        self._again = given.empty_like() if given is not None else None
        self._keys = self._ruled_out = 0
        self._last = -1

    def add(self, items: Items) -> None:
        if self._given is None or self._again is None or not len(items):
            return
        low, high, keys = items["hash"].astype(np.int64), highs(items), keys_of(items)
        self._again.add(low, high)
        self._ruled_out += int(np.count_nonzero(~self._given.may_contain_each(low, high)))
        self._keys += int(np.count_nonzero(np.diff(keys))) + (int(keys[0]) != self._last)
        self._last = int(keys[-1])

    def tell(self, find: Find, *, all_seen: bool) -> None:
        """Say what is wrong; whether the filter is that of the items, and no more, only if all of them were seen."""
        if self._given is None or self._again is None:
            return
        if self._ruled_out:
            find(f"its key filter rules out {self._ruled_out} items that it holds")
        elif all_seen and not self._given.has_same_bits(self._again):
            find("its key filter has bits of keys that it does not hold")
        if all_seen and self._keys != self._given.keys:
            find(f"its key filter says {self._given.keys} keys, it holds {self._keys}")


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


def _check_range(directory: PageDirectory, number: int, page: IndexPage, entry: IndexEntry) -> None:
    """Pages follow each other from the first slot of the object to the last."""
    end = page.first_slot + len(page.entries)
    following = _row(directory, number + 1)
    if number == 0 and page.first_slot != entry.slot_from:
        raise CorruptIndexError(f"it starts with slot {page.first_slot}, the object with {entry.slot_from}")
    if following is None and end != entry.slot_end:
        raise CorruptIndexError(f"it ends with slot {end - 1}, the object with {entry.slot_end - 1}")
    if following is not None and following[0] not in (end, end - 1):
        raise CorruptIndexError(f"slots between it and slot {following[0]} are missing")


def _row(directory: PageDirectory, number: int) -> tuple[int, int, int] | None:
    if number >= len(directory):
        return None
    row = directory.rows[number]
    return int(row["slot"]), int(row["hash"]), int(row["hash_high"])


def _check_meta(objects: ObjectStore, store_id: str, entry: IndexEntry) -> None:
    found, meta = IndexObjectReader.from_tail(
        lambda start, end: objects.get_range(entry.key, start, end), entry.size_bytes
    )
    for name in (PAGES, DIRECTORY, FILTER, META):
        if found.sections.get(name) != entry.sections.get(name):
            raise CorruptIndexError(f"its meta and the manifest have different places for the {name} section")
    known = {
        "store_id": store_id, "layout": entry.layout, "slots": entry.slots, "items": entry.items,
        "begin_ms": entry.begin_ms, "first": entry.first, "next": entry.next,
        "slot_range": [entry.slot_from, entry.slot_end],
    }  # fmt: skip
    for name, value in known.items():
        if meta.get(name) != value:
            raise CorruptIndexError(f"its meta says {name} is {meta.get(name)}, the manifest {value}")
