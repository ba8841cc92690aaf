"""A segment put together frame by frame equals the one put together item by item, or is refused and left alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.stores.hot_stores import array, record
from tests.support.stores.segments import BASE, NAMES, SEGMENT, Written, mixed_records, write_segment
from tierlog.tiering.base.errors import TornRecordError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.filler import decode_filler, is_filler
from tierlog.tiering.kernels.placement import place_items
from tierlog.tiering.kernels.scan import ScanRows, ScanStop, TopicTable, scan


def random_removal(chance: random.Random, share: float) -> object:
    def removal(data: ByteArray, rows: ScanRows) -> NDArray[np.bool_]:
        return np.array([chance.random() < share for _ in rows], bool)

    return removal


def written(seed: int, share: float) -> Written:
    return write_segment(mixed_records(seed), removal=random_removal(random.Random(seed), share))  # type: ignore[arg-type]


def plain(of: Written) -> tuple[bytes, list[tuple[int, int, bool]]]:
    """Item by item: the records and fillers where they lay, and what they are in cold order."""
    segment, items = bytearray(SEGMENT), []
    for position, item in of.reader().raw_items():
        segment[position : position + len(item)] = item
        items.append((position, len(item), is_filler(item)))
    return bytes(segment), items


@pytest.mark.parametrize("share", [0, 0.3, 1])
@pytest.mark.parametrize("chosen", range(4))
def test_all_frames_together_are_the_plain_segment(seed: int, chosen: int, share: float) -> None:
    of = written(seed + chosen, share)
    out = np.zeros(SEGMENT, np.uint8)
    items = np.concatenate(list(of.reader().put_together(out)))
    wanted, told = plain(of)
    assert out.tobytes() == wanted
    assert [tuple(item) for item in items[["position", "size", "filler"]].tolist()] == told
    assert (items["row"] == -1).all()


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_scan_passes_over_fillers_if_it_is_told_to(seed: int, share: float) -> None:
    of = written(seed, share)
    out = np.zeros(SEGMENT, np.uint8)
    items = np.concatenate(list(of.reader().put_together(out)))
    table, end = TopicTable(NAMES), of.entry.raw_bytes
    found = scan(out, 0, end, BASE, table, check_crc=True, pass_fillers=True)
    assert (found.stop, found.position) == (ScanStop.END, end)
    assert found.rows["position"].tolist() == sorted(items["position"][~items["filler"]].tolist())
    if items["filler"].any():
        stopped = scan(out, 0, end, BASE, table, check_crc=True)
        assert stopped.stop is ScanStop.INVALID
        assert stopped.position == items["position"][items["filler"]].min(), "a log holds none"


def frame_of(count: int) -> bytes:
    of = write_segment([record(topic="a", queue_offset=number) for number in range(count)], frame_bytes=SEGMENT)
    return next(of.reader().frames([of.reader().seek_table().place(0)]))


def test_what_is_no_record_leaves_no_trace(seed: int) -> None:
    """Sizes, offsets and the zeros of fillers are looked at; the rest of a record is for the scan."""
    chance, frame = random.Random(seed), frame_of(20)
    refused = 0
    for _ in range(300):
        damaged = bytearray(frame)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        out = np.zeros(SEGMENT, np.uint8)
        try:
            items = place_items(bytes(damaged), BASE, out)
        except TornRecordError:
            refused += 1
            assert not out.any()
            continue
        assert items["size"].sum() == len(frame)
        assert all(item["position"] + item["size"] <= SEGMENT for item in items)
    assert refused


@pytest.mark.parametrize("cut", [1, 35, 90])
def test_a_frame_cut_short(cut: int) -> None:
    frame, out = frame_of(3), np.zeros(SEGMENT, np.uint8)
    with pytest.raises(TornRecordError):
        place_items(frame[:-cut], BASE, out)
    assert not out.any()


@pytest.mark.parametrize("base", [BASE + 1, BASE - SEGMENT + 100, BASE + SEGMENT])
def test_records_of_another_segment(base: int) -> None:
    with pytest.raises(TornRecordError):
        place_items(frame_of(3), base, np.zeros(SEGMENT, np.uint8))


@pytest.mark.parametrize("at", [8, 11, 16, 19, 36, -1])
def test_a_filler_that_is_not_zero(at: int) -> None:
    of = write_segment([record(topic="a", queue_offset=0, body=b"x" * 50)], left_out=[12])
    frame = bytearray(next(of.reader().frames([of.reader().seek_table().place(0)])))
    assert decode_filler(bytes(frame)).size == len(frame)
    out = np.zeros(SEGMENT, np.uint8)
    place_items(bytes(frame), BASE, out)
    assert out[: len(frame)].tobytes() == frame
    frame[at] = 1
    with pytest.raises(TornRecordError):
        place_items(bytes(frame), BASE, array(bytes(SEGMENT)))


def test_an_empty_frame_and_an_empty_segment() -> None:
    assert len(place_items(b"", BASE, np.zeros(SEGMENT, np.uint8))) == 0
    assert list(write_segment([], segment_bytes=4096).reader().put_together(np.zeros(4096, np.uint8))) == []
