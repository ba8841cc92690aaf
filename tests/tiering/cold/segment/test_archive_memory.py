"""Archiving holds a few bytes a record, whatever else it does; benchmarks/archive_memory.py has the whole figure."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

import pytest

from tests.support.stores.hot_stores import array, record
from tests.support.stores.segments import BASE, IDS, NAMES
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.cold.segment.scan import scan_segment
from tierlog.tiering.cold.segment.writer import SegmentWriter
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, encode_record
from tierlog.tiering.kernels.scan import TopicTable

_LIMIT_BYTES_A_RECORD = 25  # 12 in the scan's arrays, the offset map's pages, and room for an allocator's whims


def segment_of(records: int, queues: int) -> bytes:
    template = record(topic="a", body=b"b" * 20)
    data = bytearray()
    for number in range(records):
        queue = number * 7919 % queues
        data += encode_record(
            replace(template, queue_id=queue, queue_offset=number // queues, physical_offset=BASE + len(data))
        )
    size = (len(data) + 8 + 4095) // 4096 * 4096
    return bytes(data + BLANK.pack(size - len(data), MAGIC_BLANK)).ljust(size, b"\0")


def peak_bytes(segment: bytes) -> int:
    """The highest of five peaks, each with as much in flight as threads may have: what takes it waits for them."""
    return max(_peak_bytes(array(segment)) for _ in range(5))


def _peak_bytes(data: ByteArray) -> int:
    tracemalloc.start()
    try:
        writer = SegmentWriter(scan_segment(data, BASE, TopicTable(NAMES)), IDS, ColdOptions())
        for _ in writer.pieces():
            time.sleep(0.005)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("queues", [1, 50])
def test_bytes_held_for_each_further_record(queues: int) -> None:
    few, many = segment_of(60_000, queues), segment_of(150_000, queues)
    peak_bytes(few)  # what is allocated once
    assert (peak_bytes(many) - peak_bytes(few)) / 90_000 < _LIMIT_BYTES_A_RECORD


def test_what_is_kept_of_a_record_is_twelve_bytes() -> None:
    scanned = scan_segment(array(segment_of(1000, 3)), BASE, TopicTable(NAMES))
    kept = (scanned.order, scanned.records.places, scanned.records.positions[:-1])
    assert [each.nbytes for each in kept] == [4000] * 3


def test_many_queues_cost_no_more_than_their_rows() -> None:
    few, many = segment_of(50_000, 100), segment_of(50_000, 50_000)
    peak_bytes(few)
    assert (peak_bytes(many) - peak_bytes(few)) / 49_900 < 500
