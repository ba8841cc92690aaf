"""A bit that flips in memory between log and object: noticed before anything is named, whichever stage it strikes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard

from tests.support.stores.segments import BASE, IDS, NAMES, SEGMENT, build_segment, mixed_records
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.cold.segment.scan import ScannedSegment, scan_segment
from tierlog.tiering.cold.segment.writer import SegmentWriter
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.sorted_segment import checksum_in_frame
from tierlog.tiering.kernels.frames import FrameBatch, FrameGatherer
from tierlog.tiering.kernels.scan import ScanResult, TopicTable, scan
from tierlog.tiering.objects.memory import MemoryObjectStore

SEGMENT_BYTES, RECORDS = build_segment(
    [replace(part, properties_text=b"KEYS\x01k%d" % number) for number, part in enumerate(mixed_records(3, 60))]
)
USED = sum(record.size for record in RECORDS)
LEFT_OUT = {int(IDS[NAMES.index("ab")])}


def log() -> ByteArray:
    return np.frombuffer(bytearray(SEGMENT_BYTES), np.uint8)


def flip(data: np.ndarray[tuple[int], np.dtype[np.uint8]], chance: random.Random, end: int | None = None) -> None:
    data[chance.randrange(end or len(data))] ^= 1 << chance.randrange(8)


def scanned(data: ByteArray) -> ScannedSegment:
    return scan_segment(data, BASE, TopicTable(NAMES))


def written(segment: ScannedSegment, left_out: set[int] | None = None) -> list[object]:
    """What a reader finds in the object that was written."""
    writer = SegmentWriter(segment, IDS, ColdOptions(frame_bytes=2048), left_out=left_out or ())
    objects = MemoryObjectStore(ManualClock())
    objects.upload("key", writer.pieces())
    summary = writer.summary()
    entry = LogEntry(
        "key", BASE, SEGMENT, summary.size_bytes, summary.crc32, summary.raw_bytes, summary.records, summary.bounds,
        summary.sections, None,
    )  # fmt: skip
    reader = SegmentReader(ArchiveReader(objects, ArchiveCache(1 << 20)), entry)
    return [reader.restore(), [each.tolist() for each in reader.offset_map()], list(reader.runs())]


EXPECTED = {frozenset(left_out): written(scanned(log()), left_out) for left_out in (set[int](), LEFT_OUT)}


def noticed(strike: Callable[[], list[object]], left_out: set[int] | None = None) -> bool:
    """Whether an error stopped it; without one, the object must be the right one all the same."""
    try:
        found = strike()
    except CorruptionError:
        return True
    assert found == EXPECTED[frozenset(left_out or ())]
    return False


@pytest.mark.parametrize("left_out", [set(), LEFT_OUT], ids=["all", "some left out"])
def test_a_bit_of_the_log_flips_after_its_checksums_were_verified(left_out: set[int], seed: int) -> None:
    for number in range(300):
        data = log()
        segment = scanned(data)
        flip(data, random.Random(1000 * seed + number), USED)
        assert noticed(lambda segment=segment: written(segment, left_out), left_out), number  # type: ignore[misc]


def test_a_bit_of_the_log_flips_while_its_checksums_are_verified(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    for number in range(300):
        chance, data = random.Random(1000 * seed + number), log()

        def flipping(
            *args: object, chance: random.Random = chance, data: ByteArray = data, **options: object
        ) -> ScanResult:
            found = scan(*args, **options)  # type: ignore[arg-type]
            flip(data, chance, USED)
            return found

        monkeypatch.setattr("tierlog.tiering.cold.segment.scan.scan", flipping)
        assert noticed(lambda data=data: written(scanned(data))), number  # type: ignore[misc]


@pytest.mark.parametrize("left_out", [set(), LEFT_OUT], ids=["all", "some left out"])
def test_a_bit_of_a_gathered_frame_flips(monkeypatch: pytest.MonkeyPatch, left_out: set[int], seed: int) -> None:
    gather = FrameGatherer.gather
    monkeypatch.setattr("tierlog.tiering.cold.segment.writer._BATCH_BYTES", 2048)
    for number in range(300):
        chance = random.Random(1000 * seed + number)
        struck = chance.randrange(5)

        def flipping(
            self: FrameGatherer, *args: Any, struck: int = struck, chance: random.Random = chance
        ) -> FrameBatch:
            found = gather(self, *args)
            if found.number == struck:
                flip(found.data, chance)
            return found

        monkeypatch.setattr(FrameGatherer, "gather", flipping)
        assert noticed(lambda: written(scanned(log()), left_out), left_out), number


@pytest.mark.parametrize("left_out", [set(), LEFT_OUT], ids=["all", "some left out"])
def test_a_bit_of_a_planned_frame_s_group_flips(monkeypatch: pytest.MonkeyPatch, left_out: set[int]) -> None:
    plan = FrameGatherer.plan
    strikes = 0
    for bit in (*range(6), 12, 30, 31, 40, 62, 63):
        for place in range(4):

            def flipping(self: FrameGatherer, *args: Any, bit: int = bit, place: int = place) -> np.ndarray[Any, Any]:
                frames = plan(self, *args)
                frames["group"].view(np.uint64)[place] ^= np.uint64(1 << bit)
                return frames

            monkeypatch.setattr(FrameGatherer, "plan", flipping)
            strikes += noticed(lambda: written(scanned(log()), left_out), left_out)
    assert strikes > 24


def test_a_bit_of_a_compressed_frame_flips(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    strikes = 0
    for number in range(300):
        chance = random.Random(1000 * seed + number)

        class Flipping:
            def __init__(self, *, chance: random.Random = chance, **options: Any) -> None:
                self._inner = zstandard.ZstdCompressor(**options)
                self._left = chance.randrange(5)
                self._chance = chance

            def compress(self, data: bytes) -> bytes:
                piece = np.frombuffer(bytearray(self._inner.compress(data)), np.uint8)
                self._left -= 1
                if self._left == 0:
                    flip(piece, self._chance)
                return piece.tobytes()

        monkeypatch.setattr("tierlog.tiering.cold.segment.writer.zstandard", SimpleNamespace(ZstdCompressor=Flipping))
        strikes += noticed(lambda: written(scanned(log())))
    assert strikes > 200


def test_a_bit_of_a_frame_s_checksum_flips_before_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for struck in range(5):
        asked = iter(range(1_000_000))

        def flipping(frame: bytes, *, asked: Iterator[int] = asked, struck: int = struck) -> int:
            return checksum_in_frame(frame) ^ (next(asked) == struck)

        monkeypatch.setattr("tierlog.tiering.cold.segment.writer.checksum_in_frame", flipping)
        with pytest.raises(CorruptionError, match="another checksum"):
            list(SegmentWriter(scanned(log()), IDS, ColdOptions(frame_bytes=2048)).pieces())


@pytest.mark.parametrize("kept", ["order", "positions", pytest.param("places", marks=pytest.mark.slow)])
def test_a_bit_of_what_is_kept_of_the_records_flips(kept: str, seed: int) -> None:
    strikes = 0
    for number in range(300):
        segment = scanned(log())
        array = segment.order if kept == "order" else getattr(segment.records, kept)
        flip(array.view(np.uint8), random.Random(1000 * seed + number))
        strikes += noticed(lambda segment=segment: written(segment))  # type: ignore[misc]
    assert strikes == (0 if kept == "places" else 300), "places are not read again before they are written"


@pytest.mark.parametrize("page", ["segment.writer.encode_map_page", "segment.directory.encode_directory_page"])
def test_a_bit_of_a_section_page_flips(monkeypatch: pytest.MonkeyPatch, page: str, seed: int) -> None:
    import tierlog.tiering.format.sorted_segment as formats

    encode = getattr(formats, page.split(".")[-1])
    for number in range(300):
        chance = random.Random(1000 * seed + number)

        calls: list[None] = []

        def flipping(*args: object, chance: random.Random = chance, calls: list[None] = calls) -> bytes:
            data = np.frombuffer(bytearray(encode(*args)), np.uint8)
            if not calls:
                flip(data, chance)
            calls.append(None)
            return data.tobytes()

        monkeypatch.setattr(f"tierlog.tiering.cold.{page}", flipping)
        noticed(lambda: written(scanned(log())))


def test_a_bit_of_the_map_flips_after_the_records_were_gathered(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    compare = FrameGatherer.compare
    for number in range(300):
        chance, segment = random.Random(1000 * seed + number), scanned(log())
        array = chance.choice((segment.records.places, segment.records.positions[:-1]))

        def flipping(
            self: FrameGatherer, record_sum: int, *, chance: random.Random = chance, array: object = array
        ) -> None:
            compare(self, record_sum)
            assert isinstance(array, np.ndarray)
            flip(array.view(np.uint8), chance)

        monkeypatch.setattr(FrameGatherer, "compare", flipping)
        assert noticed(lambda segment=segment: written(segment)), number  # type: ignore[misc]
