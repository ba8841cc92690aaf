"""Sorted segments: order, frames, seek table, offset map, directory, restoring, and damage to any byte of them."""

from __future__ import annotations

import io
import random
import struct
from dataclasses import dataclass, replace

import numpy as np
import pytest
import xxhash
import zstandard

from tests.support.stores.hot_stores import array, record
from tests.support.stores.segments import BASE, NAMES, SEGMENT, Written, build_segment, mixed_records, write_segment
from tierlog.tiering.base.errors import CorruptionError, StoreError, UnsupportedFormatError
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.cold.segment.reader import DirectoryRow, RestoredSegment
from tierlog.tiering.cold.segment.scan import scan_segment
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, Record, decode_record, encode_record
from tierlog.tiering.kernels.scan import TopicTable


@dataclass
class SeekRow:
    compressed: int
    decompressed: int
    checksum: int


def parse_seek_table(data: bytes) -> list[SeekRow]:
    """From the description of the seekable format alone: the object's last frame, little-endian."""
    count, descriptor, magic = struct.unpack("<IBI", data[-9:])
    assert magic == 0x8F92EAB1
    assert descriptor == 0x80, "checksums, reserved bits zero"
    length = 12 * count + 9
    assert struct.unpack("<II", data[-length - 8 : -length]) == (0x184D2A5E, length)
    return [SeekRow(*struct.unpack_from("<III", data, len(data) - length + 12 * number)) for number in range(count)]


def frames_by_hand(data: bytes) -> list[bytes]:
    """Every record frame, cut out by the seek table and checked with its checksum."""
    found, at = [], 0
    for row in parse_seek_table(data):
        piece = data[at : at + row.compressed]
        at += row.compressed
        if row.decompressed:
            raw = zstandard.ZstdDecompressor().decompress(piece)
            assert len(raw) == row.decompressed
            assert xxhash.xxh64_intdigest(raw) & 0xFFFFFFFF == row.checksum
            found.append(raw)
        else:
            assert struct.unpack_from("<I", piece)[0] in range(0x184D2A50, 0x184D2A60)
            assert struct.unpack_from("<I", piece, 4)[0] == row.compressed - 8
    assert len(data) - at == 12 * len(parse_seek_table(data)) + 9 + 8, "the rows cover all frames before the table"
    return found


@pytest.mark.parametrize("seed", range(4))
def test_sorted_order_and_plain_decompression(seed: int) -> None:
    written = write_segment(mixed_records(seed))
    wanted = b"".join(encode_record(each) for each in written.sorted_records)
    stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(written.data), read_across_frames=True)
    assert stream.read() == wanted
    assert b"".join(frames_by_hand(written.data)) == wanted
    assert written.summary.raw_bytes == len(wanted)
    assert written.summary.records == len(written.records)
    assert written.summary.size_bytes == len(written.data)


@pytest.mark.parametrize("seed", range(4))
def test_a_frame_holds_part_of_one_queue_or_whole_queues(seed: int) -> None:
    written = write_segment(mixed_records(seed), frame_bytes=2048)
    totals: dict[tuple[str, int], int] = {}
    for each in written.records:
        totals[each.topic, each.queue_id] = totals.get((each.topic, each.queue_id), 0) + 1
    for frame in frames_by_hand(written.data):
        held: dict[tuple[str, int], int] = {}
        at = count = 0
        while at < len(frame):
            each = decode_record(frame, at)
            held[each.topic, each.queue_id] = held.get((each.topic, each.queue_id), 0) + 1
            at += each.size
            count += 1
        assert len(frame) <= 2048 or count == 1
        assert len(held) == 1 or all(totals[queue] == number for queue, number in held.items())


def test_a_huge_record_is_alone_in_its_frame() -> None:
    parts = [record(topic="a", queue_offset=number, body=b"x" * size) for number, size in enumerate((9, 9, 9000, 9, 9))]
    frames = frames_by_hand(write_segment(parts, frame_bytes=4096).data)
    assert [len(frame) > 9000 for frame in frames] == [False, True, False]


def test_offset_map_is_the_true_bijection() -> None:
    written = write_segment(mixed_records(5))
    cold, at = {}, BASE
    for each in written.sorted_records:
        cold[each.physical_offset] = at
        at += each.size
    physical, found = written.reader().offset_map()
    assert physical.tolist() == sorted(cold)
    assert dict(zip(physical.tolist(), found.tolist(), strict=True)) == cold
    assert (found >= BASE).all()
    assert (found < BASE + SEGMENT).all()


def test_records_by_cold_offset() -> None:
    written = write_segment(mixed_records(6))
    reader = written.reader()
    physical, cold = reader.offset_map()
    by_offset = {each.physical_offset: each for each in written.records}
    wanted = {int(c): by_offset[int(p)] for p, c in zip(physical, cold, strict=True)}
    assert dict(reader.records_at(wanted)) == wanted
    with pytest.raises(StoreError):
        list(reader.records_at([BASE + SEGMENT - 1]))
    with pytest.raises(StoreError):
        list(reader.records_at([BASE - 1]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tail", [b"", b"stale bytes\0\0behind", bytes(100) + b"x", b"\xff" * 3000])
def test_restore_is_the_segment_byte_for_byte(seed: int, tail: bytes) -> None:
    written = write_segment(mixed_records(seed, 60), tail=tail)
    assert written.reader().restore() == RestoredSegment(written.segment, 0)


def test_restore_with_the_blank_record_at_the_very_end() -> None:
    parts = [record(topic="a", queue_offset=0, body=b"x" * (4096 - 8 - 92))]
    written = write_segment(parts, segment_bytes=4096)
    assert written.segment[-8:] == BLANK.pack(8, MAGIC_BLANK)
    assert written.reader().restore() == RestoredSegment(written.segment, 0)


def test_a_segment_without_records() -> None:
    written = write_segment([], segment_bytes=4096)
    assert written.reader().restore() == RestoredSegment(written.segment, 0)
    assert written.summary.bounds is None
    assert len(written.summary.queue_rows) == 0
    assert [len(each) for each in written.reader().offset_map()] == [0, 0]
    assert written.reader().directory_rows("a") == []


def all_rows(written: Written) -> list[DirectoryRow]:
    return list(written.reader().runs())


@pytest.mark.parametrize("seed", range(3))
def test_directory_rows_are_complete_and_true(seed: int) -> None:
    written = write_segment(mixed_records(seed), frame_bytes=2048)
    frames = frames_by_hand(written.data)
    found: list[Record] = []
    table = written.reader().seek_table()
    for row in all_rows(written):
        assert row.place == table.place(row.frame)
        at, mine = row.position, []
        for _ in range(row.records):
            mine.append(decode_record(frames[row.frame], at))
            at += mine[-1].size
        assert at == row.position + row.bytes
        assert {(each.topic, each.queue_id) for each in mine} == {(row.topic, row.queue_id)}
        if row.first_queue_offset < 0:
            assert not any(each.has_queue_unit for each in mine)
        else:
            assert [each.queue_offset for each in mine] == [row.first_queue_offset + n for n in range(row.records)]
        assert row.bounds == bounds_of(mine)
        found += mine
    assert found == written.sorted_records
    assert written.summary.bounds == bounds_of(written.records)


def bounds_of(records: list[Record]) -> TimeBounds:
    stored, born = [each.store_ms for each in records], [each.born_ms for each in records]
    return TimeBounds(min(stored), max(stored), min(born), max(born))


def test_one_queue_and_one_topic_through_the_directory() -> None:
    written = write_segment(mixed_records(8), frame_bytes=2048)
    reader = written.reader()
    queued = [each for each in written.sorted_records if each.has_queue_unit]
    for topic in [*NAMES, "unknown"]:
        mine = [each for each in queued if each.topic == topic]
        assert list(reader.records_of(reader.directory_rows(topic))) == mine
        for queue_id in (0, 1, 10, 11):
            of_queue = [each for each in mine if each.queue_id == queue_id]
            assert list(reader.records_of(reader.directory_rows(topic, queue_id))) == of_queue


@pytest.mark.parametrize("page_rows", [1, 3])
def test_directory_and_map_over_many_pages(monkeypatch: pytest.MonkeyPatch, page_rows: int) -> None:
    monkeypatch.setattr("tierlog.tiering.cold.segment.directory.DIRECTORY_PAGE_ROWS", page_rows)
    monkeypatch.setattr("tierlog.tiering.cold.segment.writer.MAP_PAGE_RECORDS", 2 * page_rows)
    test_one_queue_and_one_topic_through_the_directory()
    test_offset_map_is_the_true_bijection()
    test_directory_rows_are_complete_and_true(1)


def test_queue_rows_of_the_manifest() -> None:
    written = write_segment(mixed_records(9))
    wanted: dict[tuple[str, int], list[Record]] = {}
    for each in written.sorted_records:
        if each.has_queue_unit:
            wanted.setdefault((each.topic, each.queue_id), []).append(each)
    found = written.summary.queue_rows
    assert len(found) == len(wanted)
    for row in found:
        mine = wanted[NAMES[int(row["topic_id"]) - 11], int(row["queue_id"])]
        bounds = bounds_of(mine)
        assert row.tolist()[2:] == (
            BASE, mine[0].queue_offset, len(mine),
            bounds.min_store_ms, bounds.max_store_ms, bounds.min_born_ms, bounds.max_born_ms,
        )  # fmt: skip


@pytest.mark.parametrize("stretch_bytes", [1, 100, 700, 5000])
@pytest.mark.parametrize("most_bytes", [300, 1 << 20])
def test_a_body_that_holds_a_record_of_its_very_place_belongs_to_its_message(
    monkeypatch: pytest.MonkeyPatch, stretch_bytes: int, most_bytes: int, seed: int
) -> None:
    chance, parts, at, end = random.Random(seed), list[Record](), 0, 0
    for number in range(60):
        queued = {"topic": "orders", "queue_offset": number, "properties_text": b""}
        inner = record(topic=chance.choice(("orders", "unknown")), body=b"i" * chance.randrange(300))
        outer = record(body=b"", **queued)
        in_body = BASE + at + 88  # where the body of a record with IPv4 hosts begins
        body = encode_record(replace(inner, physical_offset=in_body)) + chance.randbytes(chance.randrange(200))
        parts.append(replace(outer, body=body if chance.random() < 0.5 else body[88:]))
        end = at + len(encode_record(parts[-1]))
        at = end
    monkeypatch.setattr("tierlog.tiering.cold.segment.scan._STRETCH_BYTES", stretch_bytes)
    monkeypatch.setattr("tierlog.tiering.cold.segment.scan._MOST_RECORD_BYTES", most_bytes)
    written = write_segment(parts)
    assert (written.summary.records, written.summary.raw_bytes) == (60, end)
    assert written.reader().restore().data == written.segment
    assert list(written.reader().records_of(written.reader().directory_rows("orders"))) == written.sorted_records


def test_damaged_segments_are_not_archived() -> None:
    segment, _ = build_segment(mixed_records(1, 20))
    table = TopicTable(NAMES)
    no_blank = segment.replace(b"\xcb\xd4\x31\x94", bytes(4))
    flipped = bytearray(segment)
    flipped[90] ^= 1
    for data in (no_blank, bytes(flipped), segment[: -SEGMENT // 2].replace(b"\xcb\xd4\x31\x94", bytes(4))):
        with pytest.raises(CorruptionError):
            scan_segment(array(data), BASE, table)
    with pytest.raises(CorruptionError, match="unknown_topic"):
        scan_segment(array(segment), BASE, TopicTable(["other"]))


def everything(written: Written) -> tuple[object, ...]:
    reader = written.reader()
    physical, cold = reader.offset_map()
    rows = [row for topic in NAMES for row in reader.directory_rows(topic)]
    return (
        reader.restore(), physical.tolist(), cold.tolist(), rows, list(reader.records_of(rows)),
        list(reader.records_at(cold.tolist())),
    )  # fmt: skip


@pytest.mark.slow
def test_every_flipped_byte_is_noticed_or_harmless() -> None:
    written = write_segment(mixed_records(2, 15), tail=b"tail")
    wanted = everything(written)
    silent = 0
    for place in range(0, len(written.data), 1 if len(written.data) < 2500 else 2):
        damaged = bytearray(written.data)
        damaged[place] ^= 1 << place % 8
        written.objects.put("key", bytes(damaged))
        try:
            assert everything(written) == wanted, f"byte {place} of {len(written.data)}"
            silent += 1
        except (CorruptionError, UnsupportedFormatError):
            pass
    assert silent < len(written.data) // 20, "most bytes are read by somebody"


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_cut_object_is_noticed(kept: float) -> None:
    written = write_segment(mixed_records(2, 25))
    written.objects.put("key", written.data[: int(len(written.data) * kept)])
    with pytest.raises(CorruptionError):
        everything(written)


def test_incompressible_records_grow_by_no_more_than_zstd_says() -> None:
    chance = random.Random(1)
    parts = [record(topic="a", queue_offset=number, body=chance.randbytes(9000)) for number in range(6)]
    written = write_segment(parts, frame_bytes=16_384)
    table = written.reader().seek_table()
    raw, packed = np.diff(table.decompressed), np.diff(table.compressed)
    assert len(raw) == 6
    assert (packed <= raw + raw // 256 + 64).all(), "ZSTD_compressBound, checksum included"
