"""Rewriting an archived segment: chosen records become fillers, nothing else moves or changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.stores.segments import BASE, Written, mixed_records, write_segment
from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError, ObjectNotFoundError
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.reading.bill import ReadBill
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.cold.segment.rewriter import choose_records, rewrite_segment
from tierlog.tiering.format.filler import make_filler
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.record import Record, encode_record


def rewritten(written: Written, is_chosen: Callable[[Record], bool], key: str = "new") -> LogEntry:
    chosen = choose_records(written.archive(), written.entry, lambda row: True, is_chosen)
    return rewrite_segment(written.objects, written.archive(), written.entry, chosen=chosen, key=key, level=1)


def without_place(row: DirectoryRow) -> DirectoryRow:
    return replace(row, frame_position=0, frame_length=0, frame_bytes=0, frame_checksum=0)


@pytest.mark.parametrize("seed", range(3))
def test_chosen_records_are_fillers_and_all_else_is_as_before(seed: int) -> None:
    written = write_segment(mixed_records(seed), tail=b"stale", frame_bytes=2048)
    entry = rewritten(written, lambda each: each.topic == "ab" or each.physical_offset % 3 == 0)
    reader, old = SegmentReader(written.archive(), entry), written.reader()
    physical, cold = reader.offset_map()
    assert [each.tolist() for each in old.offset_map()] == [physical.tolist(), cold.tolist()]
    assert list(map(without_place, reader.runs())) == list(map(without_place, old.runs()))
    table = reader.seek_table()
    assert all(row.place == table.place(row.frame) for row in reader.runs())
    wanted: dict[int, Record | None] = {
        int(place): None if each.topic == "ab" or each.physical_offset % 3 == 0 else each
        for place, each in ((cold[physical.tolist().index(each.physical_offset)], each) for each in written.records)
    }
    assert dict(reader.records_at(wanted)) == wanted
    left = [each for each in written.sorted_records if each.topic != "ab" and each.physical_offset % 3]
    assert list(reader.records_of(reader.runs())) == left
    gone = [each for each in written.records if each not in left]
    assert len(gone) > 20
    segment = bytearray(written.segment)
    for each in gone:
        start = each.physical_offset - BASE
        segment[start : start + each.size] = make_filler(encode_record(each))
    restored = reader.restore()
    assert (restored.data, restored.fillers) == (bytes(segment), len(gone))
    assert (entry.base, entry.records, entry.raw_bytes) == (BASE, written.entry.records, written.entry.raw_bytes)
    assert old.restore().data == written.segment, "the old object is untouched"


def test_nothing_of_a_removed_body_is_left() -> None:
    parts = [replace(part, body=b"%08d secret" % number * 9) for number, part in enumerate(mixed_records(7))]
    written = write_segment(parts, frame_bytes=2048)
    entry = rewritten(written, lambda each: True)
    assert b"secret" not in SegmentReader(written.archive(), entry).restore().data


def test_only_frames_that_change_are_compressed_again() -> None:
    written = write_segment(mixed_records(4), frame_bytes=2048)
    mine = written.sorted_records[70]
    entry = rewritten(written, lambda each: each.physical_offset == mine.physical_offset)
    old, new = written.reader().seek_table(), SegmentReader(written.archive(), entry).seek_table()
    assert (new.decompressed == old.decompressed).all()
    position = sum(each.size for each in written.sorted_records[:70])
    changed = old.frame_of(position)
    assert (new.checksums != old.checksums).nonzero()[0].tolist() == [changed]
    data = written.objects.get("new")[0]
    for number in range(len(old.checksums)):
        if number != changed:
            before = written.data[old.compressed[number] : old.compressed[number + 1]]
            assert data[new.compressed[number] : new.compressed[number + 1]] == before


def test_with_nothing_chosen_the_object_is_the_same() -> None:
    written = write_segment(mixed_records(4))
    entry = rewritten(written, lambda each: False)
    assert written.objects.get("new")[0] == written.data
    assert replace(entry, key="key") == written.entry


def test_twice_is_as_once_with_both() -> None:
    written = write_segment(mixed_records(5), frame_bytes=2048)
    both = rewritten(written, lambda each: each.topic in ("ab", "Z"), "both")
    first = rewritten(written, lambda each: each.topic == "ab", "first")
    chosen = choose_records(written.archive(), first, lambda row: True, lambda each: each.topic in ("ab", "Z"))
    assert chosen.records == sum(each.topic == "Z" for each in written.records)
    second = rewrite_segment(written.objects, written.archive(), first, chosen=chosen, key="second", level=1)
    assert written.objects.get("second")[0] == written.objects.get("both")[0]
    assert replace(second, key="both") == both


def test_choosing_reads_only_frames_of_runs_that_may_hold() -> None:
    written = write_segment(mixed_records(6), frame_bytes=2048)
    bill = ReadBill()
    reader = ArchiveReader(written.objects, ArchiveCache(1 << 20), bill)
    runs = list(SegmentReader(reader, written.entry).runs())
    before = bill.requests
    chosen = choose_records(reader, written.entry, lambda row: row.topic == "ab", lambda each: True)
    frames = {row.frame for row in runs if row.topic == "ab"}
    assert bill.requests - before == len(frames) < len(written.reader().seek_table().checksums)
    assert set(chosen.frames) == frames
    assert chosen.records == sum(each.topic == "ab" for each in written.records), "also those that are in no queue"


def test_a_damaged_object_is_not_written_again() -> None:
    written = write_segment(mixed_records(1, 30), frame_bytes=2048)
    chosen = choose_records(written.archive(), written.entry, lambda row: True, lambda each: each.topic == "ab")
    for place in range(0, len(written.data), 7):
        damaged = bytearray(written.data)
        damaged[place] ^= 1
        written.objects.put("key", bytes(damaged))
        with pytest.raises(CorruptionError):
            rewrite_segment(written.objects, written.archive(), written.entry, chosen=chosen, key="new", level=1)
        with pytest.raises(ObjectNotFoundError):
            written.objects.head("new")


def test_what_the_server_stored_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_segment(mixed_records(1, 30))
    upload = written.objects.upload
    monkeypatch.setattr(written.objects, "upload", lambda key, pieces: upload(key, [b"".join(pieces)[:-1] + b"?"]))
    with pytest.raises(ChecksumMismatchError):
        rewritten(written, lambda each: True)
