"""RocketMQ's look-up by key in its tiered store, done again request by request, so that its requests can be counted.

Written after the behaviour of ``IndexStoreService.queryAsync``, ``IndexStoreFile.queryAsyncFromSegmentFile`` and
``MessageStoreFetcherImpl.queryMessageAsync`` of RocketMQ 5.4: files created inside the range that is asked for; of each
8 bytes of the slot, then the items of the slot; then one read a message. All files are asked at the same time, and all
messages after the last of them has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from tierlog.index.format.header import END_MAGIC, HEADER_BYTES, SLOT_BYTES, FileHeader, items_position
from tierlog.index.format.layout import ROCKETMQ, Items
from tierlog.index.local.compacted_file import SLOT_ENTRY
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.objects.object_store import ObjectStore

#: Items of a slot that are read.
MOST_OF_A_SLOT = 1024


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A compacted index file in an object store; its creation time is its key in the broker's table."""

    key: str
    created_ms: int
    size_bytes: int


@dataclass(slots=True)
class RocketMqAnswer:
    """Items found, at most the number asked for, in no order, and what they cost."""

    items: list[tuple[int, ...]] = field(default_factory=list)
    """Hash, topic id, queue id, offset, size, seconds."""
    messages: list[bytes] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)
    """Requests that waited for each other, of every file that was asked."""
    bytes_read: int = 0

    @property
    def requests(self) -> int:
        """Requests in all."""
        return sum(self.chains) + len(self.messages)


class RocketMqLookup:
    """Asks the files of one broker's cold copy as the broker does."""

    def __init__(self, objects: ObjectStore, files: Iterable[UploadedFile], slots: int) -> None:
        self._objects = objects
        self._files = sorted(files, key=lambda file: file.created_ms)
        self._slots = slots

    def query(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> RocketMqAnswer:
        """Items of the key's hash with a time in the inclusive range; several topics' are among them."""
        answer = RocketMqAnswer()
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        for file in reversed(self._files):
            if not begin_ms <= file.created_ms <= end_ms:
                continue
            for item in self.query_file(file, key_hash(topic, key), most, begin_ms, end_ms, answer):
                if len(found) < most:
                    found[item[2], item[3]] = item
        answer.items = list(found.values())
        return answer

    def query_file(
        self, file: UploadedFile, hash_low: int, most: int, begin_ms: int, end_ms: int, answer: RocketMqAnswer
    ) -> list[tuple[int, ...]]:
        """What one file has, newest first; its requests are noted in ``answer``."""
        if file.size_bytes <= HEADER_BYTES:
            return []
        at = HEADER_BYTES + SLOT_BYTES * (hash_low % self._slots)
        slot = np.frombuffer(self._read(file.key, at, at + SLOT_BYTES, answer), SLOT_ENTRY)[0]
        answer.chains.append(1)
        position = int(slot["position"])
        length = min(int(slot["length"]), MOST_OF_A_SLOT * ROCKETMQ.compacted_bytes)
        if position <= 0 or length <= 0:
            return []
        data = self._read(file.key, position, position + length, answer)
        answer.chains[-1] += 1
        if len(data) % ROCKETMQ.compacted_bytes:
            return []
        items = np.frombuffer(data, ROCKETMQ.compacted)
        times = file.created_ms + items["seconds"].astype(np.int64) * 1000
        chosen = items[(items["hash"] == hash_low) & (begin_ms <= times) & (times <= end_ms)][:most]
        return [tuple(int(item[name]) for name in ROCKETMQ.compacted_fields) for item in chosen]

    def fetch(self, answer: RocketMqAnswer, topic_id: int, place: Callable[[int], tuple[str, int]]) -> None:
        """Read the messages of a topic; ``place`` tells object and position of an item's offset."""
        for item in answer.items:
            if item[1] == topic_id:
                key, start = place(item[3])
                answer.messages.append(self._read(key, start, start + item[4], answer))

    def _read(self, key: str, start: int, end: int, answer: RocketMqAnswer) -> bytes:
        answer.bytes_read += end - start
        return self._objects.get_range(key, start, end)


def rocketmq_form(items: Items, slots: int, begin_ms: int, end_ms: int) -> bytes:
    """A compacted file as RocketMQ uploads it, of items from the oldest to the newest."""
    slot_of = items["hash"].astype(np.int64) % slots
    order = np.lexsort((-np.arange(len(items)), slot_of))
    compacted = np.empty(len(items), ROCKETMQ.compacted)
    for name in ROCKETMQ.compacted_fields:
        compacted[name] = items[name][order]
    lengths = np.bincount(slot_of, minlength=slots) * ROCKETMQ.compacted_bytes
    table = np.empty(slots, SLOT_ENTRY)
    table["position"], table["length"] = items_position(slots) + np.cumsum(lengths) - lengths, lengths
    header = FileHeader(END_MAGIC, begin_ms, end_ms, int(np.count_nonzero(lengths)), len(items))
    return header.encode() + table.tobytes() + compacted.tobytes()
