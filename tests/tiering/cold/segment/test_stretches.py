"""Neighbouring frames that are decompressed together give what each of them gives alone: records, and errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from numpy.typing import NDArray

from tests.support.stores.hot_stores import record
from tests.support.stores.segments import write_segment
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import Tier
from tierlog.tiering.cold.segment import queue_frames
from tierlog.tiering.cold.segment.queue_frames import QueueFrames, QueuePiece
from tierlog.tiering.cold.segment.reader import QUEUE_RUN, QueueRuns, SegmentReader
from tierlog.tiering.format.filler import Filler, make_filler
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.format.sorted_segment import checksum_in_frame
from tierlog.tiering.kernels.frame_headers import leading_frames
from tierlog.tiering.message.record_columns import RecordBatchBuilder
from tierlog.tiering.message.stored_message import StoredMessage

TOPIC = "orders"
EVERYTHING = np.array([(-(1 << 63), (1 << 63) - 1)] * 4, np.int64)
START = 1000
"""Where the frames begin in the object."""


def compressed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(raw)


class Frames:
    """Frames of one queue, each of one run, or of two."""

    def __init__(self, seed: int, count: int = 8) -> None:
        self.chance = random.Random(seed)
        self.raw: list[bytearray] = []
        self.cuts: list[list[int]] = []
        self.sizes: list[list[int]] = []
        for _ in range(count):
            parts = [self._part(number) for number in range(self.chance.choice((1, 2, 5)))]
            self.raw.append(bytearray(b"".join(parts)))
            self.sizes.append([len(part) for part in parts])
            self.cuts.append([0, len(parts[0]), len(self.raw[-1])] if len(parts) > 2 else [0, len(self.raw[-1])])

    def _part(self, number: int) -> bytes:
        body = self.chance.randbytes(self.chance.choice((1, 40, 300)))
        one = record(topic=TOPIC, queue_offset=number, body=body, properties_text=b"KEYS\x01k\x02")
        raw = encode_record(one, checksum=self.chance.random() < 0.5)
        return make_filler(raw) if self.chance.random() < 0.1 else raw

    def made(self) -> tuple[bytearray, QueueRuns]:
        """The bytes of the frames, and the directory's rows of them."""
        data, rows = bytearray(), list[tuple[int, ...]]()
        for raw, cuts in zip(self.raw, self.cuts, strict=True):
            frame = compressed(bytes(raw))
            place = START + len(data), len(frame), len(raw), checksum_in_frame(frame)
            rows += [(*place, 10 * len(rows), 1, a, b - a) for a, b in pairwise(cuts)]
            data += frame
        return data, np.array(rows, QUEUE_RUN)


@pytest.fixture(scope="module")
def segment() -> SegmentReader:
    return write_segment([record()]).reader()


def batch_of(pieces: Iterator[QueuePiece]) -> tuple[pa.RecordBatch, str]:
    """What pieces hold as Arrow, taken apart as pulls do, up to an error."""
    columns, error = RecordBatchBuilder("store", Tier.COLD, 1 << 20), ""
    try:
        for piece in pieces:
            while not piece.is_read:
                before = piece.run, piece.position
                piece.go_to(*columns.add_runs(piece.data, piece.runs, *before, topic=TOPIC, bounds=EVERYTHING))
                if before == (piece.run, piece.position):
                    item = piece.item()
                    if not isinstance(item, Filler):
                        columns.add_plain(StoredMessage(item, "store", Tier.COLD))
                    piece.go_behind(item, 0)
    except StoreError as failed:
        error = f"{type(failed).__name__}: {failed}"
    return columns.finish(), error


def items_of(pieces: Iterator[QueuePiece]) -> tuple[list[object], str]:
    """The same item by item."""
    found: list[object] = []
    try:
        for piece in pieces:
            while not piece.is_read:
                found.append(item := piece.item())
                piece.go_behind(item, 0)
    except StoreError as failed:
        return found, f"{type(failed).__name__}: {failed}"
    return found, ""


def room(size: int) -> NDArray[np.uint8]:
    return np.empty(size, np.uint8)


def compare(
    segment: SegmentReader, data: bytes, runs: QueueRuns, sizes: tuple[int, ...] = (1, 700, 2000, 1 << 16)
) -> str:
    """All ways to read the frames give the same; what went wrong at last."""
    frames = QueueFrames(segment, runs)
    plain, error = items_of(frames.pieces(0, len(frames), data, room(0)))
    expected, alone = batch_of(frames.pieces(0, len(frames), data, room(0)))
    assert (expected.num_rows, alone) == (sum(not isinstance(item, Filler) for item in plain), error)
    for size in sizes:
        batch, failed = batch_of(frames.pieces(0, len(frames), data, room(size)))
        assert failed == error
        assert batch.equals(expected)
        assert items_of(frames.pieces(0, len(frames), data, room(size))) == (plain, error)
    return error


@pytest.mark.parametrize("seed", range(20))
def test_records_of_frames_that_are_decompressed_together_are_those_of_each(segment: SegmentReader, seed: int) -> None:
    made = Frames(seed)
    data, runs = made.made()
    assert compare(segment, bytes(data), runs) == ""
    frames = QueueFrames(segment, runs)
    raw_bytes = sum(map(len, made.raw))
    assert frames.room_for(0, len(frames)) == raw_bytes + 1
    (piece,) = frames.pieces(0, len(frames), bytes(data), room(raw_bytes + 1))
    assert piece.last_offset == int(runs["first_queue_offset"][-1])
    assert bytes(piece.data) == b"".join(made.raw)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_frame_ends_what_comes_before_it_with_the_error_that_it_has_alone(
    segment: SegmentReader, seed: int
) -> None:
    made = Frames(seed)
    data, runs = made.made()
    at = made.chance.randrange(len(data))
    data[at] ^= 1 << made.chance.randrange(8)
    compare(segment, bytes(data), runs)


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_a_directory_that_lie_about_frames_are_found_out_as_for_each_alone(
    segment: SegmentReader, seed: int
) -> None:
    made = Frames(seed)
    data, runs = made.made()
    position = int(made.chance.choice(runs["frame_position"]))
    name = made.chance.choice(("frame_length", "frame_bytes", "frame_checksum"))
    lie = made.chance.choice((-1, 1, 20, -20, 1 << 20, -(1 << 20)))
    runs[name][runs["frame_position"] == position] += lie
    assert compare(segment, bytes(data), runs) != ""


@pytest.mark.parametrize("seed", range(60))
def test_a_record_that_reaches_beyond_its_frame_is_refused_and_what_follows_is_not_read_as_part_of_it(
    segment: SegmentReader, seed: int
) -> None:
    made = Frames(seed)
    hostile = made.chance.randrange(len(made.raw) - 1)
    last = len(made.raw[hostile]) - made.sizes[hostile][-1]
    into = made.chance.choice((1, 4, made.sizes[hostile + 1][0], len(made.raw[hostile + 1])))
    size = made.sizes[hostile][-1] + into
    made.raw[hostile][last : last + 4] = size.to_bytes(4, "big")
    data, runs = made.made()
    assert compare(segment, bytes(data), runs) != ""


@pytest.mark.parametrize("seed", range(60))
def test_runs_with_wrong_ends_and_damaged_records_are_read_as_in_each_frame_alone(
    segment: SegmentReader, seed: int
) -> None:
    made = Frames(seed)
    chance = made.chance
    for _ in range(chance.randrange(3)):
        raw = chance.choice(made.raw)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    data, runs = made.made()
    for _ in range(chance.randrange(3)):
        runs["bytes"][chance.randrange(len(runs))] += chance.choice((-1, 1, 50, 300, 5000, -50))
    for _ in range(chance.randrange(2)):
        runs["position"][chance.randrange(len(runs))] += chance.choice((1, 100, 5000))
    compare(segment, bytes(data), runs)


def test_frames_with_something_else_between_them_are_no_neighbours(segment: SegmentReader) -> None:
    _, runs = Frames(1).made()
    positions = sorted(set(runs["frame_position"].tolist()))
    runs["frame_position"][runs["frame_position"] >= positions[3]] += 7
    frames = QueueFrames(segment, runs)
    assert frames.neighbours(0, 1 << 20) == 3
    assert frames.neighbours(3, 1 << 20) == len(frames) == len(positions)
    assert frames.neighbours(3, 0) == 4
    start, end = frames.bytes_between(0, 2)
    assert frames.neighbours(0, end - start) == 2
    assert frames.neighbours(0, end - start - 1) == 1


def test_what_is_decompressed_together_is_bounded(segment: SegmentReader, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Frames(2)
    data, runs = made.made()
    frames = QueueFrames(segment, runs)
    monkeypatch.setattr(queue_frames, "STRETCH_BYTES", 1000)
    assert frames.room_for(0, len(frames)) == 1001
    assert frames.room_for(0, 1) == 0
    given = list(frames.pieces(0, len(frames), bytes(data), room(1001)))
    assert len(given) > 2
    assert all(len(piece.data) <= max(1000, *map(len, made.raw)) for piece in given)
    assert any(len(piece.runs) > 1 for piece in given)


def test_frames_of_every_shape_that_zstd_writes_are_known(segment: SegmentReader) -> None:
    chance = random.Random(1)
    text = b"".join(b"%x " % chance.randrange(5000) for _ in range(120_000))
    kinds = [b"a", b"ab" * 90, chance.randbytes(400), bytes(70_000), chance.randbytes(400_000), text, bytes(1 << 20)]
    for level in (-5, 1, 3, 19):
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        frames = [compressor.compress(raw) for raw in kinds]
        data, rows = bytearray(b"before"), list[tuple[int, ...]]()
        for frame, raw in zip(frames, kinds, strict=True):
            rows.append((10 + len(data), len(frame), len(raw), checksum_in_frame(frame)))
            data += frame
        places = np.array(rows, np.int64)
        found = [leading_frames(bytes(data), 10, places[number : number + 1]) for number in range(len(kinds))]
        assert found == [len(frame) >= 21 for frame in frames], "shorter ones are not worth a look"
        assert leading_frames(bytes(data), 10, places[1:]) == len(kinds) - 1
        assert leading_frames(bytes(data[:-1]), 10, places[1:]) == len(kinds) - 2
        assert leading_frames(bytes(data), 11 + len(data), places) == 0


@pytest.mark.parametrize("has_checksum", [False, True])
def test_a_frame_that_does_not_say_enough_is_left_to_be_looked_at_alone(has_checksum: bool) -> None:
    raw = random.Random(1).randbytes(500)
    frame = zstandard.ZstdCompressor(write_checksum=has_checksum, write_content_size=not has_checksum).compress(raw)
    places = np.array([(0, len(frame), len(raw), checksum_in_frame(frame))], np.int64)
    assert leading_frames(frame, 0, places) == 0


def test_places_of_another_shape_are_refused() -> None:
    wrongs: list[NDArray[Any]] = [np.zeros((1, 3), np.int64), np.zeros((1, 4), np.int32), np.zeros(4, np.int64)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="four numbers"):
            leading_frames(b"", 0, wrong)


def test_runs_are_taken_as_far_as_there_is_room_for_rows_and_for_a_whole_run(segment: SegmentReader) -> None:
    made = Frames(4)
    data, runs = made.made()
    frames = QueueFrames(segment, runs)
    (piece,) = frames.pieces(0, len(frames), bytes(data), room(1 << 16))
    sizes = (piece.runs[:, 1] - piece.runs[:, 0]).tolist()
    for count in range(len(sizes)):
        columns = RecordBatchBuilder("store", Tier.COLD, sum(sizes[: count + 1]) - 1)
        assert columns.add_runs(piece.data, piece.runs, 0, 0, topic=TOPIC, bounds=EVERYTHING)[0] == count
        assert columns.room_bytes == sizes[count] - 1
    whole = batch_of(iter([piece]))[0]
    piece.go_to(0, 0)
    rows: list[pa.RecordBatch] = []
    while not piece.is_read:
        columns = RecordBatchBuilder("store", Tier.COLD, 1 << 16, 1)
        piece.go_to(
            *columns.add_runs(piece.data, piece.runs, piece.run, piece.position, topic=TOPIC, bounds=EVERYTHING)
        )
        rows.append(columns.finish())
        assert rows[-1].num_rows <= 1
    assert pa.Table.from_batches(rows).equals(pa.Table.from_batches([whole]))


def test_runs_that_are_not_numbers_of_eight_bytes_are_refused() -> None:
    columns = RecordBatchBuilder("store", Tier.COLD, 1000)
    wide = np.zeros((2, 8), np.int64)
    wrongs: list[NDArray[Any]] = [np.zeros((1, 4), np.int32), np.zeros((1, 3), np.int64), wide[:, ::2]]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="four numbers"):
            columns.add_runs(np.zeros(91, np.uint8), wrong, 0, 0, topic=TOPIC, bounds=EVERYTHING)
