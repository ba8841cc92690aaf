"""Key extraction, the chained file and its compaction in plain Python, which tests compare ``index.kernels`` with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import (
    BEGIN_MAGIC,
    END_MAGIC,
    HEADER_BYTES,
    SLOT_BYTES,
    FileHeader,
    chained_bytes,
    items_position,
)
from tierlog.index.format.layout import IndexItem, ItemLayout
from tierlog.tiering.format.hashing import key_hash, key_hash_high
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.record import TRANSACTION_MASK, Record, SysFlag


def plain_keys(records: Sequence[Record]) -> list[tuple[int, int, int]]:
    """Returns (row, hash, hash_high) of every key, as ``hash_keys`` emits them."""
    keys: list[tuple[int, int, int]] = []
    for row, record in enumerate(records):
        if record.sys_flag & TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
            continue
        hashes = (
            (row, key_hash(record.topic, key), key_hash_high(record.topic, key))
            for key in indexed_keys(record.properties)
        )
        keys.extend(dict.fromkeys(hashes))
    return keys


class PlainChainedFile:
    """A chained index file as a bytearray."""

    def __init__(self, layout: ItemLayout, slots: int, items: int, begin_ms: int) -> None:
        self.layout = layout
        self.slots = slots
        self.items = items
        self.data = bytearray(chained_bytes(layout, slots, items))
        self._set_header(FileHeader(BEGIN_MAGIC, begin_ms))

    def _set_header(self, header: FileHeader) -> None:
        self.data[:HEADER_BYTES] = header.encode()

    @property
    def header(self) -> FileHeader:
        """The header as it lies in the bytes."""
        return FileHeader.decode(bytes(self.data))

    def _i32(self, position: int) -> int:
        return int.from_bytes(self.data[position : position + 4], "big", signed=True)

    def _item_at(self, number: int) -> int:
        return items_position(self.slots) + self.layout.chained_bytes * number

    def put(self, item: IndexItem, store_ms: int) -> bool:
        """Puts one item (``previous`` is filled in); returns False if the file is full."""
        header = self.header
        number = header.item_count + 1
        if number >= self.items:
            return False
        slot = HEADER_BYTES + SLOT_BYTES * (item.hash % self.slots)
        previous = max(0, self._i32(slot))
        at = self._item_at(number)
        encoded = self.layout.encode_chained(replace(item, previous=previous))
        self.data[at : at + len(encoded)] = encoded
        self.data[slot : slot + 4] = number.to_bytes(4, "big")
        magic = END_MAGIC if number + 1 == self.items else header.magic
        used = header.used_slots + (previous == 0)
        self._set_header(FileHeader(magic, header.begin_ms, max(header.end_ms, store_ms), used, number))
        return True

    def lookup(self, hash_low: int, hash_high: int | None = None) -> list[IndexItem]:
        """Returns items with these hashes, newest first; :class:`CorruptIndexError` for a bad chain."""
        found = []
        above = min(self.header.item_count + 1, self.items)  # the header may be damaged, too
        number = self._i32(HEADER_BYTES + SLOT_BYTES * (hash_low % self.slots))
        while number:
            if not 0 < number < above:
                raise CorruptIndexError("item numbers of a chain do not fall")
            item = self.layout.decode_chained(self.data, self._item_at(number))
            if item.hash == hash_low and hash_high in (None, item.hash_high):
                found.append(item)
            above, number = number, item.previous
        return found

    def compacted(self) -> bytes:
        """Returns the compacted form without trailer."""
        header = self.header
        runs: list[list[IndexItem]] = [[] for _ in range(self.slots)]
        for number in range(header.item_count, 0, -1):
            item = self.layout.decode_chained(self.data, self._item_at(number))
            runs[item.hash % self.slots].append(item)
        position, slots, items = items_position(self.slots), b"", b""
        for run in runs:
            encoded = b"".join(self.layout.encode_compacted(item) for item in run)
            slots += position.to_bytes(4, "big") + len(encoded).to_bytes(4, "big")
            position, items = position + len(encoded), items + encoded
        end = FileHeader(END_MAGIC, header.begin_ms, header.end_ms, header.used_slots, header.item_count)
        return end.encode() + slots + items
