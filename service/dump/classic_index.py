"""RocketMQ's classic index files, written by a broker or by us."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from tierlog.index.rocketmq.classic_format import HEADER_BYTES, ITEM_BYTES, ITEM_DTYPE, SLOT_BYTES, ClassicHeader
from tierlog.service.dump.capacity import Shape, chained_capacity, checked_header, remembered, slot_heads, whole_number
from tierlog.service.dump.result import Dump, DumpOptions, Json, columns_of, window
from tierlog.service.dump.source import Source

_SHAPE = Shape(HEADER_BYTES, SLOT_BYTES, ITEM_BYTES)
_COLUMNS = columns_of("item slot hash physical_offset seconds store_ms previous is_newest:bool")
_PIECE_ITEMS = 4_096
#: A time that is not beyond what an int64 holds, whatever the header says.
_INT64 = range(-(1 << 63), 1 << 63)


def dump_classic(source: Source, options: DumpOptions) -> Dump:
    """Dumps header, slots in use and items; item 0 is never used."""
    dump = Dump("index-classic", {"bytes": source.size}, "items", _COLUMNS)
    with dump.surviving():
        checked_header(source.size, HEADER_BYTES)
        header = ClassicHeader.decode(source.array(0, HEADER_BYTES))
        count = header.next_item - 1
        ours = remembered(source, "classic_index.json", (), 1)
        known = (whole_number(ours, "slots"), whole_number(ours, "items"))
        slots, items = chained_capacity(
            source, _SHAPE, used_slots=header.used_slots, count=count, options=options, known=[known]
        )
        dump.head = {**asdict(header), "slots": slots, "items": items, "item_count": count, "bytes": source.size}
        if count >= items:
            dump.find(f"header says {count} items, the file has room for {items - 1}")
        dump.rows = _rows(source, options, dump=dump, header=header, slots=slots, count=min(count, items - 1))
    return dump


def _rows(
    source: Source, options: DumpOptions, *, dump: Dump, header: ClassicHeader, slots: int, count: int
) -> Iterator[Json]:
    heads = slot_heads(source, _SHAPE, slots)
    used = int(np.count_nonzero(heads > 0))
    dump.end["slots_in_use"] = used
    beyond = int(np.count_nonzero((heads > count) | (heads < 0)))
    if beyond:
        dump.find(f"{beyond} slots point at no item")
    if header.used_slots not in (used, count):  # old brokers count every item
        dump.find(f"header says {header.used_slots} slots are in use, {used} are")
    start, stop = window(options, 1, count + 1)
    for first in range(start, stop, _PIECE_ITEMS):
        end = min(first + _PIECE_ITEMS, stop)
        at = HEADER_BYTES + SLOT_BYTES * slots
        piece = source.array(at + ITEM_BYTES * first, at + ITEM_BYTES * end).view(ITEM_DTYPE)
        for number, (hash_low, offset, seconds, previous) in enumerate(piece.tolist(), first):
            if hash_low < 0 or seconds < 0 or not 0 <= previous < number:
                dump.find(f"item {number} has hash {hash_low}, seconds {seconds} and previous item {previous}")
            slot = hash_low % slots
            time = header.begin_ms + 1000 * seconds
            yield {
                "item": number, "slot": slot, "hash": hash_low, "physical_offset": offset, "seconds": seconds,
                "store_ms": time if time in _INT64 else None, "previous": previous,
                "is_newest": int(heads[slot]) == number,
            }  # fmt: skip
