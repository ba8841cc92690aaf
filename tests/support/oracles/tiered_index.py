"""The key index in the cold copy of a RocketMQ broker: compacted files of layout ``rocketmq``.

RocketMQ looks only into files created inside the range that is asked for, trusts the seconds of an item and compares no
key, so that it misses messages, finds those of other keys, and loses one of two topics' messages with equal queue and
offset. Here every file is looked into and the record decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.oracles.tiered_copy import ColdSegment, TieredCopy
from tierlog.index.format.header import items_position
from tierlog.index.format.layout import ROCKETMQ, Items
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.types import TimeRange
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.record import Record


@dataclass(frozen=True, slots=True)
class IndexFileItems:
    """The items of a key in one index file: those of equal hash, newest first."""

    segment: ColdSegment
    begin_ms: int
    items: Items


class TieredIndex:
    """Finds messages of a cold copy by key."""

    def __init__(self, fs: FileSystem, copy: TieredCopy, *, slots: int) -> None:
        """``slots`` is the broker's ``tieredStoreIndexFileMaxHashSlotNum``, which stands in no file.

        Raises :class:`CorruptIndexError` for an index file that has another number of slots or is damaged.
        """
        self._copy = copy
        self._topic_ids = copy.topic_ids()
        self._files = [
            (segment, CompactedIndexFile.open_bare(fs, segment.path, ROCKETMQ, slots))
            for segment in copy.index_segments
            if segment.size > items_position(slots)  # an index file without items is uploaded without any
        ]

    def items(self, topic: str, key: str) -> list[IndexFileItems]:
        """Items of equal hash file by file, newest file first; they may belong to other keys and topics."""
        low = key_hash(topic, key)
        return [IndexFileItems(segment, file.begin_ms, file.lookup(low)) for segment, file in reversed(self._files)]

    def find(self, topic: str, key: str, time_range: TimeRange | None = None) -> list[Record]:
        """Messages of a topic that have the key and a store time in the range, newest first.

        A record's physical offset is the one in its queue's log. Items whose log has expired are passed over.
        """
        found: dict[tuple[int, int], Record] = {}
        for file in self.items(topic, key):
            for item in file.items[file.items["topic_id"] == self._topic_ids.get(topic, -1)]:
                queue = self._copy.queues.get((topic, int(item["queue_id"])))
                offset = int(item["offset"])
                if queue is None or offset < queue.log_begin or (queue.queue_id, offset) in found:
                    continue
                record = queue.record_at(offset, int(item["size"]))
                if record.topic == topic and key in indexed_keys(record.properties):
                    found[queue.queue_id, offset] = record
        records = [record for record in found.values() if time_range is None or time_range.contains(record.store_ms)]
        return sorted(
            records, key=lambda record: (record.store_ms, record.queue_id, record.physical_offset), reverse=True
        )
