"""What reading one topic of an archived segment transfers, from an empty cache, among a thousand topics."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import zstandard

from tests.support.stores.hot_stores import array, record
from tests.support.stores.segments import BASE
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.segment.reader import SegmentReader, _rows
from tierlog.tiering.cold.segment.scan import scan_segment
from tierlog.tiering.cold.segment.writer import SegmentWriter
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, encode_record
from tierlog.tiering.format.sorted_segment import FramePlace
from tierlog.tiering.kernels.scan import TopicTable
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore

TOPICS = [f"topic-{number:03d}" for number in range(1000)]
SIZES = ("even", "tiny", "skewed", "queues")
WORDS = [f"{word}{number}" for word in ("user", "order", "GET /cart", "timeout") for number in range(300)]


@dataclass(frozen=True)
class Archived:
    objects: MemoryObjectStore
    entry: LogEntry
    records: dict[str, list[bytes]]


def counts(kind: str) -> list[int]:
    """Records of each topic."""
    if kind == "even":
        return [30] * len(TOPICS)
    if kind == "tiny":
        return [1 + number % 3 for number in range(len(TOPICS))]
    if kind == "queues":
        return [16] * len(TOPICS)
    chance = random.Random(3)
    found = [1 + 6_000 // (rank + 1) for rank in range(len(TOPICS))]
    chance.shuffle(found)
    return found


@cache
def archived(kind: str) -> Archived:
    chance = random.Random(7)
    order = [number for number, count in enumerate(counts(kind)) for _ in range(count)]
    chance.shuffle(order)
    queues = 16 if kind == "queues" else 2
    data, following = bytearray(), dict[tuple[int, int], int]()
    held: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    for number in order:
        queue = chance.randrange(queues)
        offset = following.get((number, queue), 0)
        following[number, queue] = offset + 1
        body = " ".join(chance.choices(WORDS, k=24)).encode()
        raw = encode_record(
            replace(record(topic=TOPICS[number], body=body), queue_id=queue, queue_offset=offset,
                    physical_offset=BASE + len(data))
        )  # fmt: skip
        held[TOPICS[number]].append(raw)
        data += raw
    size = (len(data) + 8 + 4095) // 4096 * 4096
    segment = array(bytes(data + BLANK.pack(size - len(data), MAGIC_BLANK)).ljust(size, b"\0"))
    writer = SegmentWriter(
        scan_segment(segment, BASE, TopicTable(TOPICS)), np.arange(len(TOPICS)).astype(np.int32), ColdOptions()
    )
    objects = MemoryObjectStore(ManualClock())
    objects.upload("key", writer.pieces())
    done = writer.summary()
    entry = LogEntry(
        "key", BASE, size, done.size_bytes, done.crc32, done.raw_bytes, done.records, done.bounds, done.sections, None
    )
    return Archived(objects, entry, held)


def compressed_bytes(records: list[bytes]) -> int:
    """What the records take alone, in frames of their own."""
    compressor = zstandard.ZstdCompressor(level=ColdOptions().compression_level)
    raw = b"".join(records)
    return sum(len(compressor.compress(raw[at : at + 65536])) for at in range(0, len(raw), 65536))


@pytest.mark.parametrize("kind", SIZES)
def test_one_topic_of_a_thousand(kind: str) -> None:
    world = archived(kind)
    whole = SegmentReader(ArchiveReader(world.objects, ArchiveCache(1 << 24)), world.entry)
    head = whole._head("directory", b"TLSEGDIR")
    frames: dict[str, set[FramePlace]] = {}
    pages: dict[str, set[int]] = {}
    for number, page in enumerate(head.pages):
        for row in _rows(whole._directory_page(page)):
            frames.setdefault(row.topic, set()).add(row.place)
            pages.setdefault(row.topic, set()).add(number)
    largest = max(place.length for held in frames.values() for place in held)
    largest_page = max(page.length for page in head.pages)
    for topic, mine in world.records.items():
        transferred = head.head_length + sum(place.length for place in frames[topic])
        transferred += sum(head.pages[number].length for number in pages[topic])
        # the head, which lists the pages, is counted with the page
        assert transferred <= 3 * compressed_bytes(mine) + largest + largest_page, topic
        if topic in TOPICS[::40]:
            meter = Meter()
            objects = MeteredObjectStore(world.objects, meter)
            reader = SegmentReader(ArchiveReader(objects, ArchiveCache(1 << 24)), world.entry)
            found = list(reader.records_of(reader.directory_rows(topic)))
            assert sorted(encode_record(each) for each in found) == sorted(mine)
            assert meter.bytes_read == transferred


def test_a_queue_of_a_large_topic_reads_its_own_frames_alone() -> None:
    world = archived("skewed")
    topic = max(world.records, key=lambda topic: len(world.records[topic]))
    whole = SegmentReader(ArchiveReader(world.objects, ArchiveCache(1 << 24)), world.entry)
    others = {row.frame for row in whole.runs() if row.topic != topic}
    for queue in (0, 1):
        mine = {row.frame for row in whole.directory_rows(topic, queue)}
        assert len(mine) > 5
        assert not mine & {row.frame for row in whole.directory_rows(topic, 1 - queue)}
        assert len(mine & others) <= 1
