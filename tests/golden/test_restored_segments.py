"""Segments that Apache RocketMQ wrote, crashed and torn ones too, archived and put back byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.rocketmq.golden import STORES, unpack
from tests.support.stores.hot_stores import array
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.cold.segment.restoration import RestoredFile, restore_segment
from tierlog.tiering.cold.segment.scan import scan_segment
from tierlog.tiering.cold.segment.writer import SegmentWriter
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan, topic_at_stop
from tierlog.tiering.objects.memory import MemoryObjectStore


def topics_in(data: bytes, base: int) -> tuple[list[str], int, ScanStop]:
    """Names of all topics, where the valid records end, and why."""
    names: list[str] = []
    while True:
        found = scan(array(data), 0, len(data), base, TopicTable(names), check_crc=True)
        if found.stop is not ScanStop.UNKNOWN_TOPIC:
            return names, found.position, found.stop
        names.append(topic_at_stop(array(data), found))


def put_back(data: bytes, base: int, names: list[str], out: Path) -> RestoredFile:
    """Through an archive object and back into a file."""
    ids = np.arange(len(names)).astype(np.int32)
    writer = SegmentWriter(scan_segment(array(data), base, TopicTable(names)), ids, ColdOptions(frame_bytes=16_384))
    objects = MemoryObjectStore(ManualClock())
    objects.upload("key", writer.pieces())
    done = writer.summary()
    entry = LogEntry(
        "key", base, len(data), done.size_bytes, done.crc32, done.raw_bytes, done.records, done.bounds, done.sections,
        None,
    )  # fmt: skip
    reader = ArchiveReader(objects, ArchiveCache(1 << 20))
    return restore_segment(SegmentReader(reader, entry), entry, LocalFileSystem(), out, "x")


@pytest.mark.parametrize("name", STORES)
def test_segments_come_back_byte_for_byte(tmp_path: Path, name: str) -> None:
    log = unpack(name, tmp_path / "store") / "commitlog"
    archived = 0
    for path in sorted(log.iterdir()):
        data, base = path.read_bytes(), int(path.name)
        names, end, stop = topics_in(data, base)
        if stop is not ScanStop.BLANK:
            with pytest.raises(CorruptionError):
                scan_segment(array(data), base, TopicTable(names))
            if len(data) - end < BLANK.size:
                continue
            # what a store does with its last segment, torn or not: cut it where it ends, and roll it
            data = data[:end] + BLANK.pack(len(data) - end, MAGIC_BLANK) + data[end + BLANK.size :]
        out = tmp_path / path.name
        restored = put_back(data, base, names, out)
        assert out.read_bytes() == data
        assert (restored.size_bytes, restored.fillers) == (len(data), 0)
        archived += 1
    assert archived
