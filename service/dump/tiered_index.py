"""Index files of ours and of RocketMQ's tiered store, chained and compacted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import (
    BEGIN_MAGIC,
    END_MAGIC,
    HEADER_BYTES,
    SLOT_BYTES,
    FileHeader,
    chained_bytes,
    compacted_bytes,
    items_position,
)
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, ItemLayout
from tierlog.index.format.trailer import (
    PAGED_TRAILER_MAGIC,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    CoverRecord,
    Trailer,
    are_page_checksums_sound,
    crc_of,
    page_checksums_of,
)
from tierlog.index.local.compacted_file import SLOT_ENTRY
from tierlog.index.local.states import IndexState
from tierlog.service.dump.capacity import Capacity, Shape, chained_capacity, remembered, slot_heads, whole_number
from tierlog.service.dump.result import Dump, DumpOptions, Json, columns_of, window
from tierlog.service.dump.source import Source
from tierlog.tiering.base.errors import InvalidRequestError, UnsupportedFormatError
from tierlog.tiering.base.types import TimeBounds

_ITEM = "slot hash hash_high topic_id queue_id offset size seconds store_ms"
CHAINED_COLUMNS = columns_of(f"item {_ITEM} previous is_newest:bool")
COMPACTED_COLUMNS = columns_of(f"item {_ITEM}")
_PIECE_ITEMS = 4_096
_TRAILER_MAGICS = (TRAILER_MAGIC, PAGED_TRAILER_MAGIC)
_NAMES = {BEGIN_MAGIC: "begin", END_MAGIC: "end"}


class _File:
    """The contents of header and trailer, and what is wrong with them."""

    def __init__(self, source: Source, options: DumpOptions, dump: Dump) -> None:
        self.source, self.options, self.dump = source, options, dump
        self.header = FileHeader.decode(source.array(0, HEADER_BYTES))
        self.trailer = self._read_trailer()
        self.layout = self._layout()
        self.checksums_bytes = 0
        if self.trailer is not None and self.trailer.is_paged:
            self.checksums_bytes = page_checksums_of(source.size - TRAILER_BYTES)
        #: Everything behind the items.
        self.trailer_bytes = TRAILER_BYTES + self.checksums_bytes if self.layout.covered else 0

    def _read_trailer(self) -> Trailer | None:
        data = self.source.array(self.source.size - TRAILER_BYTES, self.source.size)
        if data[-8:].tobytes() not in _TRAILER_MAGICS:
            return None
        try:
            return Trailer.decode(data)
        except (CorruptIndexError, UnsupportedFormatError) as error:
            self.dump.find(error.message)
            return None

    def _layout(self) -> ItemLayout:
        if self.options.layout is not None:
            return {layout.name: layout for layout in self.options.layouts.values()}[self.options.layout]
        if self.trailer is not None:
            found = self.options.layouts.get(self.trailer.cover.layout_number)
            if found is not None:
                return found
            self.dump.find(f"layout {self.trailer.cover.layout_number} is unknown")
        end = self.source.read(self.source.size - len(TRAILER_MAGIC), self.source.size)
        return TIERLOG if end in _TRAILER_MAGICS or _is_in_our_folders(self.source) else ROCKETMQ

    @property
    def compacted_slots(self) -> int | None:
        """The number of slots by the length of a compacted file, None if it is not one's."""
        rest = self.source.size - self.trailer_bytes - compacted_bytes(self.layout, 0, self.header.item_count)
        slots, odd = divmod(rest, SLOT_BYTES)
        return slots if slots > 0 and not odd and self.header.item_count >= 0 else None

    def is_compacted(self) -> bool:
        """Whether items lie slot by slot: by the lengths of both forms, and by where the first slot says they begin."""
        if self.header.magic != END_MAGIC:
            return False
        if self.trailer is not None:
            cover = self.trailer.cover
            if self.source.size == chained_bytes(self.layout, cover.slots, cover.items) + TRAILER_BYTES:
                return False
        elif self.source.folder() in (IndexState.WRITING, IndexState.SEALED) and self.layout.covered:
            return False
        slots = self.trailer.cover.slots if self.trailer else self.compacted_slots
        first = self.source.read(HEADER_BYTES, HEADER_BYTES + 4)
        return slots is not None and int.from_bytes(first, "big") == items_position(slots)

    def describe(self, slots: int) -> Json:
        """Makes the head of the dump; the checksum is computed over all of the file."""
        header = self.header
        found: Json = {
            "layout": self.layout.name, "magic": _NAMES[header.magic], "begin_ms": header.begin_ms,
            "end_ms": header.end_ms, "used_slots": header.used_slots, "item_count": header.item_count, "slots": slots,
        }  # fmt: skip
        if self.trailer is not None:
            body = self.source.array(0, self.source.size - self.trailer_bytes)
            intact = crc_of(body) == self.trailer.body_crc
            if not intact:
                self.dump.find("checksum of the file differs from its trailer's")
            if self.checksums_bytes and not self._has_sound_checksums(len(body)):
                intact = False
                self.dump.find("page checksums are damaged")
            found |= describe_cover(self.trailer.cover) | describe_bounds(self.trailer.bounds)
            found["file_crc"] = "ok" if intact else "bad"
        elif self.layout.covered:
            found["trailer"] = "none: the file was not sealed, or is damaged"
        return {**found, "bytes": self.source.size}

    def _has_sound_checksums(self, at: int) -> bool:
        end = at + self.checksums_bytes
        return are_page_checksums_sound(self.source.array(at, end), self.source.array(end, self.source.size))


def is_compacted(source: Source, options: DumpOptions) -> bool:
    """Whether a file with the magic of an index file has its items slot by slot."""
    scratch = Dump("", {})
    with scratch.surviving():
        return _File(source, replace(options, layout=None), scratch).is_compacted()
    return False


def describe_cover(cover: CoverRecord) -> Json:
    """Returns what a cover record says."""
    return {"first": cover.first, "next": cover.next, "items": cover.items}


def describe_bounds(bounds: TimeBounds | None) -> Json:
    """Returns least and greatest times."""
    if bounds is None:
        return {}
    return {
        "min_store_ms": bounds.min_store_ms, "max_store_ms": bounds.max_store_ms,
        "min_born_ms": bounds.min_born_ms, "max_born_ms": bounds.max_born_ms,
    }  # fmt: skip


def _is_in_our_folders(source: Source) -> bool:
    return source.folder(1) == "index" and source.folder() in {state.value for state in IndexState}


def dump_chained(source: Source, options: DumpOptions) -> Dump:
    """Dumps header, cover and trailer if sealed, and the items with their chains."""
    dump = Dump("index-chained", {"bytes": source.size}, "items", CHAINED_COLUMNS)
    with dump.surviving():
        file = _File(source, options, dump)
        slots, items = _chained_capacity(file)
        dump.head = {**file.describe(slots), "items": items}
        dump.rows = _chained_rows(file, slots, items)
    return dump


def _chained_capacity(file: _File) -> Capacity:
    shape = Shape(HEADER_BYTES, SLOT_BYTES, file.layout.chained_bytes, file.trailer_bytes)
    known: list[Capacity] = []
    if file.trailer is not None:
        known.append((file.trailer.cover.slots, file.trailer.cover.items))
    if _is_in_our_folders(file.source):
        for keys in (("writing",), ("full", 0)):
            unsealed = remembered(file.source, "index.json", keys, 2)
            known.append((whole_number(unsealed, "slots"), whole_number(unsealed, "items")))
    header = file.header
    return chained_capacity(
        file.source, shape, used_slots=header.used_slots, count=header.item_count, options=file.options, known=known
    )


def _chained_rows(file: _File, slots: int, items: int) -> Iterator[Json]:
    dump, source, layout = file.dump, file.source, file.layout
    count = file.header.item_count
    if not 0 <= count < items:
        dump.find(f"header says {count} items, the file has room for {items - 1}")
        count = max(0, min(count, items - 1))
    heads = slot_heads(source, Shape(HEADER_BYTES, SLOT_BYTES, layout.chained_bytes), slots)
    used = int(np.count_nonzero(heads > 0))
    dump.end["slots_in_use"] = used
    if used != file.header.used_slots:
        dump.find(f"header says {file.header.used_slots} slots are in use, {used} are")
    beyond = int(np.count_nonzero((heads > count) | (heads < 0)))
    if beyond:
        dump.find(f"{beyond} slots point at no item")
    at, width = items_position(slots), layout.chained_bytes
    start, stop = window(file.options, 1, count + 1)
    for first in range(start, stop, _PIECE_ITEMS):
        end = min(first + _PIECE_ITEMS, stop)
        piece = source.array(at + width * first, at + width * end).view(layout.chained)
        names = layout.fields
        for number, values in enumerate(piece.tolist(), first):
            item = dict(zip(names, values, strict=True))
            if item["hash"] < 0 or not 0 <= item["previous"] < number:
                dump.find(f"item {number} has hash {item['hash']} and previous item {item['previous']}")
            slot = item["hash"] % slots
            row = item_row(number, item, slot, file.header.begin_ms)
            yield {**row, "previous": item["previous"], "is_newest": int(heads[slot]) == number}


def item_row(number: int, item: Json, slot: int, begin_ms: int) -> Json:
    """Makes the row of an item of either form; what its layout lacks is None."""
    store_ms = begin_ms + 1000 * item["seconds"]
    return {
        "item": number, "slot": slot, "hash": item["hash"], "hash_high": item.get("hash_high"),
        "topic_id": item.get("topic_id"), "queue_id": item.get("queue_id"), "offset": item["offset"],
        "size": item.get("size"),
        "seconds": item["seconds"], "store_ms": store_ms if -(1 << 63) <= store_ms < 1 << 63 else None,
    }  # fmt: skip


def dump_compacted(source: Source, options: DumpOptions) -> Dump:
    """Dumps header, trailer of ours, and the items slot by slot. An upload of a file without items may be empty."""
    dump = Dump("index-compacted", {"bytes": source.size}, "items", COMPACTED_COLUMNS)
    if not source.size:
        dump.head["item_count"] = 0
        return dump
    with dump.surviving():
        file = _File(source, options, dump)
        slots = options.slots or (file.trailer.cover.slots if file.trailer else file.compacted_slots)
        if slots is None or items_position(slots) > source.size:
            raise InvalidRequestError(
                "how many slots this index file has does not follow from its length",
                path=source.name, hint="give --slots, or --layout",
            )  # fmt: skip
        dump.head = file.describe(slots)
        dump.rows = _compacted_rows(file, slots)
    return dump


def _compacted_rows(file: _File, slots: int) -> Iterator[Json]:
    dump, layout = file.dump, file.layout
    at, width = items_position(slots), layout.compacted_bytes
    room = (file.source.size - file.trailer_bytes - at) // width
    count = max(0, min(file.header.item_count, room))
    if count != file.header.item_count or at + width * count + file.trailer_bytes != file.source.size:
        dump.find(f"header says {file.header.item_count} items, the length of the file {room}")
    table = file.source.array(HEADER_BYTES, at).view(SLOT_ENTRY)
    lengths = table["length"].astype(np.int64)
    ends = np.cumsum(lengths)
    dump.end["slots_in_use"] = used = int(np.count_nonzero(lengths))
    if used != file.header.used_slots:
        dump.find(f"header says {file.header.used_slots} slots are in use, {used} are")
    bad = (table["position"] != at + ends - lengths) | (lengths < 0) | (lengths % width != 0)
    if bad.any():
        dump.find(f"{int(bad.sum())} slots do not lie where the ones before them end, the first is {int(bad.argmax())}")
    elif ends[-1] != width * count:
        dump.find(f"slots hold {int(ends[-1]) // width} items, not {count}")
    start, stop = window(file.options, 0, count)
    for first in range(start, stop, _PIECE_ITEMS):
        end = min(first + _PIECE_ITEMS, stop)
        piece = file.source.array(at + width * first, at + width * end).view(layout.compacted)
        slot_of = piece["hash"].astype(np.int64) % slots
        if not bad.any() and (np.searchsorted(ends, width * np.arange(first, end), "right") != slot_of).any():
            dump.find(f"items {first} to {end - 1}: not all lie in the slot of their hash")
        for number, (values, slot) in enumerate(zip(piece.tolist(), slot_of.tolist(), strict=True), first):
            item = dict(zip(layout.compacted_fields, values, strict=True))
            yield item_row(number, item, slot, file.header.begin_ms)
