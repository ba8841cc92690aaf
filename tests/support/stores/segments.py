"""Sorted segments made from records, with all that a test needs to read them back."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.stores.hot_stores import NOW_MS, array, record
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.cold.segment.scan import Removal, scan_segment
from tierlog.tiering.cold.segment.writer import SegmentSummary, SegmentWriter
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, Record, RecordVersion, decode_record, encode_record
from tierlog.tiering.kernels.scan import TopicTable
from tierlog.tiering.objects.memory import MemoryObjectStore

BASE = 3 * 65536
SEGMENT = 65536
NAMES = ["orders", "a", "ab", "%RETRY%x", "Z", "-unsorted", "T" * 130]
IDS = np.arange(11, 11 + len(NAMES)).astype(np.int32)


@dataclass
class Written:
    """A written object with everything a reader of it needs."""

    segment: bytes
    records: list[Record]
    data: bytes
    summary: SegmentSummary
    entry: LogEntry
    objects: MemoryObjectStore

    def archive(self) -> ArchiveReader:
        return ArchiveReader(self.objects, ArchiveCache(1 << 20))

    def reader(self) -> SegmentReader:
        return SegmentReader(self.archive(), self.entry)

    @property
    def sorted_records(self) -> list[Record]:
        def place(each: Record) -> tuple[bytes, int, bool, int, int]:
            return (
                each.topic.encode(), each.queue_id, not each.has_queue_unit,
                each.queue_offset if each.has_queue_unit else 0, each.physical_offset,
            )  # fmt: skip

        return sorted(self.records, key=place)


def build_segment(
    parts: list[Record], *, tail: bytes = b"", segment_bytes: int = SEGMENT
) -> tuple[bytes, list[Record]]:
    """Records back to back from BASE on, a blank record, and what else lies behind it."""
    data, records = b"", []
    for part in parts:
        raw = encode_record(
            Record(**{name: getattr(part, name) for name in Record.__slots__} | {"physical_offset": BASE + len(data)})
        )
        records.append(decode_record(raw))
        data += raw
    data += BLANK.pack(segment_bytes - len(data), MAGIC_BLANK) + tail
    return data.ljust(segment_bytes, b"\0"), records


def mixed_records(seed: int, count: int = 150) -> list[Record]:
    """Records of several queues, some of them transactions that are in no queue."""
    chance = random.Random(seed)
    offsets: dict[tuple[str, int], int] = {}
    parts: list[Record] = []
    for _ in range(count):
        topic, queue_id = chance.choice(NAMES), chance.choice((0, 0, 1, 2, 10))
        sys_flag = chance.choice((0, 0, 0, 0x8, 0x4, 0xC))
        is_queued = sys_flag in (0, 0x8)
        queue_offset = offsets.setdefault((topic, queue_id), chance.randrange(500)) if is_queued else 0
        if is_queued:
            offsets[topic, queue_id] += 1
        parts.append(
            record(
                topic=topic, queue_id=queue_id, queue_offset=queue_offset, sys_flag=sys_flag,
                version=RecordVersion.V2 if len(topic) > 127 else RecordVersion.V1,
                body=chance.randbytes(chance.choice((1, 50, 50, 400))), store_ms=NOW_MS + len(parts),
                born_ms=NOW_MS - chance.randrange(9000), reconsume_times=chance.randrange(3),
            )
        )  # fmt: skip
    return parts


def write_segment(
    parts: list[Record],
    *,
    tail: bytes = b"",
    frame_bytes: int = 4096,
    segment_bytes: int = SEGMENT,
    removal: Removal | None = None,
    left_out: Collection[int] = (),
) -> Written:
    segment, records = build_segment(parts, tail=tail, segment_bytes=segment_bytes)
    scanned = scan_segment(array(segment), BASE, TopicTable(NAMES), removal)
    writer = SegmentWriter(scanned, IDS, ColdOptions(frame_bytes=frame_bytes), left_out=left_out)
    with pytest.raises(RuntimeError):
        writer.summary()
    data = b"".join(writer.pieces())
    objects = MemoryObjectStore(ManualClock())
    objects.put("key", data)
    summary = writer.summary()
    entry = LogEntry(
        "key", BASE, segment_bytes, summary.size_bytes, summary.crc32, summary.raw_bytes, summary.records,
        summary.bounds, summary.sections, None,
    )  # fmt: skip
    return Written(segment, records, data, summary, entry, objects)
