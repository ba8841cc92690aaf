"""RocketMQ's classic index file in plain Python, which tests compare ``index.kernels.classic`` with."""

from __future__ import annotations

from collections.abc import Sequence

from tierlog.index.rocketmq.classic_format import (
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    SLOT_BYTES,
    ClassicHeader,
    classic_hashes,
    file_bytes,
)
from tierlog.tiering.format.record import Record

_MAX_SECONDS = (1 << 31) - 1


class PlainClassicFile:
    """A classic index file as a bytearray."""

    def __init__(self, slots: int, items: int, *, after: ClassicHeader | None = None) -> None:
        """An empty file; ``after`` is the header of the file before it."""
        self.slots = slots
        self.items = items
        self.data = bytearray(file_bytes(slots, items))
        if after is not None:
            self.data[:HEADER_BYTES] = ClassicHeader.after(after.end_ms, after.end_offset).encode()

    @property
    def header(self) -> ClassicHeader:
        """The header as it lies in the bytes."""
        return ClassicHeader.decode(self.data)

    def _slot_at(self, hash: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * (hash % self.slots)

    def _item_at(self, number: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots + ITEM_BYTES * number

    def _newest(self, hash: int) -> int:
        at = self._slot_at(hash)
        number = int.from_bytes(self.data[at : at + SLOT_BYTES], "big", signed=True)
        return number if 0 < number <= min(self.header.next_item, self.items - 1) else 0

    def put(self, hash: int, offset: int, store_ms: int) -> bool:
        """Puts one item; returns False if the file is full."""
        header = self.header
        number = header.next_item
        if number >= self.items:
            return False
        previous = self._newest(hash)
        difference = store_ms - header.begin_ms
        seconds = min(difference // 1000, _MAX_SECONDS) if header.begin_ms > 0 and difference > 0 else 0
        ITEM.pack_into(self.data, self._item_at(number), hash, offset, seconds, previous)
        self.data[self._slot_at(hash) : self._slot_at(hash) + SLOT_BYTES] = number.to_bytes(4, "big")
        begin = (store_ms, offset) if number == 1 else (header.begin_ms, header.begin_offset)
        self.data[:HEADER_BYTES] = ClassicHeader(
            begin_ms=begin[0],
            end_ms=store_ms,
            begin_offset=begin[1],
            end_offset=offset,
            used_slots=header.used_slots + (previous == 0),
            counter=number + 1,
        ).encode()
        return True

    def query(self, hash: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of items with this hash and a time in the closed range, newest first."""
        header = self.header
        found: list[int] = []
        number = self._newest(hash) if header.next_item > 1 else 0
        while number and len(found) < limit:
            item_hash, offset, seconds, previous = ITEM.unpack_from(self.data, self._item_at(number))
            time = header.begin_ms + seconds * 1000
            if seconds < 0:
                break
            if item_hash == hash and begin_ms <= time <= end_ms:
                found.append(offset)
            if time < begin_ms or not 0 < previous < number:
                break
            number = previous
        return found


def plain_items(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Returns (row, hash) of every item of consecutive records, as ``hash_classic_items`` emits them."""
    return [(row, hash) for row, record in enumerate(records) for hash in classic_hashes(record)]
