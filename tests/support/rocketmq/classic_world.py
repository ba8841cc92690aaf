"""A hot store with the classic index switched on, and what that index has to hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.oracles.plain_classic import PlainClassicFile
from tests.support.stores.hot_stores import STORE_HOST, HotWorld
from tierlog.index.rocketmq.classic_format import HEADER_BYTES, ITEM_BYTES, SLOT_BYTES, classic_hashes
from tierlog.index.rocketmq.classic_index import ClassicIndex, ClassicIndexFile
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.format.record import Record, decode_record
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message


@dataclass
class ClassicWorld(HotWorld):
    """Tiny files, so that every few messages begin one."""

    slots: int = 5
    items: int = 12
    opened: list[HotStore] = field(default_factory=list)

    def open_both(self, fs: FileSystem | None = None) -> tuple[HotStore, ClassicIndex]:
        """Open and recover, as the engine does."""
        fs = fs or self.fs
        options = HotOptions(self.segment_bytes, self.queue_file_units, default_queues=self.default_queues)
        hot = HotStore(fs, self.paths, self.clock, options, STORE_HOST)
        classic = ClassicIndex.open(
            fs, self.paths, self.clock, slots=self.slots, items=self.items, log_begin=hot.log.begin
        )
        hot.recover([], classic)
        if classic.next_offset() > hot.log.end:
            classic.restart(hot.log.begin)
        hot.dispatch()
        return hot, classic


def numbered(start: int, count: int, topic: str = "t") -> list[Message]:
    """Messages with three items each, some with more."""
    return [
        Message(
            topic, f"body {i}".encode(), keys=[f"k{i}", f"k{i % 5}", *([f"x{i}-{x}" for x in range(i % 3)])], tag="T"
        )
        for i in range(start, start + count)
    ]


def records_of(hot: HotStore) -> Iterator[Record]:
    """Every record of the hot log."""
    for segment in hot.log.segments():
        position = 0
        while segment.base_offset + position < min(hot.log.end, segment.end) - 8:
            if bytes(segment.data[position + 4 : position + 8]) == bytes.fromhex("cbd43194"):
                break
            record = decode_record(segment.data.data, position)
            yield record
            position += record.size


def wanted_items(hot: HotStore, *, until_ms: int = END_OF_TIME_MS) -> Counter[tuple[int, int]]:
    """(hash, physical offset) of every item that the hot log has up to a store time, included."""
    return Counter(
        (hash, record.physical_offset)
        for record in records_of(hot)
        if record.store_ms <= until_ms
        for hash in classic_hashes(record)
    )


def items_of(files: list[ClassicIndexFile], data: list[bytes], border: int = 0) -> Counter[tuple[int, int]]:
    """(hash, physical offset) of every item at or above the border in files with these bytes."""
    found: Counter[tuple[int, int]] = Counter()
    for file, content in zip(files, data, strict=True):
        first = HEADER_BYTES + SLOT_BYTES * file.slots
        for number in range(1, file.item_count + 1):
            item = content[first + ITEM_BYTES * number : first + ITEM_BYTES * (number + 1)]
            offset = int.from_bytes(item[4:12], "big", signed=True)
            if offset >= border:
                found[int.from_bytes(item[:4], "big", signed=True), offset] += 1
    return found


def wanted_files(hot: HotStore, slots: int, items: int) -> list[bytes]:
    """Bytes of the files that a run over the whole log gives."""
    files: list[PlainClassicFile] = []
    for record in records_of(hot):
        for hash in classic_hashes(record):
            if not files or files[-1].header.next_item >= items:
                files.append(PlainClassicFile(slots, items, after=files[-1].header if files else None))
            assert files[-1].put(hash, record.physical_offset, record.store_ms)
    return [bytes(file.data) for file in files]
