"""Compaction: the same bytes in any pieces, no damage taken over, a comparison of its own, memory that stays small."""

from __future__ import annotations

import threading
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.index.index_bytes import compacted_body
from tests.support.index.index_puts import T
from tests.support.index.item_layouts import EVERY
from tests.support.oracles.plain_index import PlainChainedFile
from tests.support.stores.hold import Hold
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import FileHeader, items_position
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, IndexItem, ItemLayout
from tierlog.index.format.trailer import TRAILER_BYTES
from tierlog.index.kernels.keys import KEY_ROW
from tierlog.index.kernels.slots import GROUP, ROUNDS
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compaction import Comparison, SlotShare, compact, slot_pieces
from tierlog.index.local.key_batch import KeyBatch
from tierlog.tiering.base.errors import DiskFailedError
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem
from tierlog.tiering.kernels.scan import SCAN_ROW

FS = LocalFileSystem()
SLOTS = 3 * GROUP + 5


def hashed(path: Path, layout: ItemLayout, hashes: list[int], slots: int) -> ChainedIndexFile:
    """An open file with an item of each hash."""
    count = len(hashes)
    rows, keys = np.zeros(count, SCAN_ROW), np.zeros(count, KEY_ROW)
    rows["physical_offset"] = keys["row"] = np.arange(count)
    rows["store_ms"] = rows["born_ms"] = T
    keys["hash"] = hashes
    keys["hash_high"] = np.arange(count) * 3
    file = ChainedIndexFile.create(FS, path, layout, slots=slots, items=count + 1, begin_ms=T, first_physical=0)
    file.put(KeyBatch(rows, keys, np.array([5], np.int32)), 0, count)
    return file


def uneven_hashes() -> list[int]:
    """Slots that are empty, that have one item, as many as are walked side by side, one more, and far more."""
    hashes: list[int] = []
    for slot, length in enumerate([0, 1, ROUNDS, ROUNDS + 1, 0, 0, 700, 2, ROUNDS - 1, 3 * ROUNDS]):
        hashes += [slot + SLOTS * turn for turn in range(length)]
    hashes += [slot for slot in range(GROUP - 2, SLOTS, 3) for _ in range(slot % 5)]
    order = sorted(range(len(hashes)), key=lambda place: (place * 7919) % 10_007)
    return [hashes[place] for place in order]


def written(path: Path, layout: ItemLayout) -> bytes:
    return compacted_body(path.read_bytes(), layout)


@pytest.mark.parametrize("layout", EVERY, ids=lambda layout: layout.name)
def test_result_is_the_plain_one_in_pieces_of_any_size(tmp_path: Path, layout: ItemLayout) -> None:
    hashes = uneven_hashes()
    plain = PlainChainedFile(layout, SLOTS, len(hashes) + 1, T)
    for place, low in enumerate(hashes):
        assert plain.put(IndexItem(low, 5, 0, place, 0, 0, place * 3), T)
    file = hashed(tmp_path / "f", layout, hashes, SLOTS)
    file.seal(10_000)
    least = ROUNDS * layout.compacted_bytes
    for piece_bytes in (least, least + 1, 2 * least + 8, 10 * least, 1 << 20):
        compact(FS, file, tmp_path / "g", tmp_path / "tmp", piece_bytes=piece_bytes)
        assert written(tmp_path / "g", layout) == plain.compacted()
        if layout.covered:
            assert file.trailer is not None
            body_crc = int.from_bytes((tmp_path / "g").read_bytes()[-TRAILER_BYTES:][64:68], "big")
            assert body_crc == zlib.crc32(plain.compacted())


def test_one_slot_for_all_items(tmp_path: Path) -> None:
    file = hashed(tmp_path / "f", TIERLOG, [7 * number for number in range(5000)], 1)
    file.seal(10_000)
    compact(FS, file, tmp_path / "g", tmp_path / "tmp", piece_bytes=ROUNDS * TIERLOG.compacted_bytes)
    offsets = np.frombuffer(written(tmp_path / "g", TIERLOG)[items_position(1) :], TIERLOG.compacted)["offset"]
    assert offsets.tolist() == list(range(4999, -1, -1))


# ---- damage of the source: layout rocketmq has no checksum that would notice it first


def put_be32(data: ByteArray, position: int, value: int) -> None:
    data[position : position + 4] = np.frombuffer(value.to_bytes(4, "big", signed=True), np.uint8)


def item_at(number: int) -> int:
    return items_position(SLOTS) + ROCKETMQ.chained_bytes * number


DAMAGE: dict[str, Callable[[ChainedIndexFile], None]] = {
    "slot points beyond the items": lambda file: put_be32(file.data, 28 + 8 * 2, file.item_count + 1),
    "slot is negative": lambda file: put_be32(file.data, 28 + 8 * 2, -5),
    "slot points at an item of another slot": lambda file: put_be32(file.data, 28 + 8 * 2, 1),
    "slot with items is empty": lambda file: put_be32(file.data, 28 + 8 * 6, 0),
    "chain rises": lambda file: put_be32(file.data, item_at(1) + 28, file.item_count),
    "chain goes in circles": lambda file: put_be32(file.data, item_at(3) + 28, 3),
    "chain turns negative": lambda file: put_be32(file.data, item_at(1) + 28, -1),
    "chain ends early": lambda file: put_be32(file.data, item_at(file.item_count) + 28, 0),
    "hash is negative": lambda file: put_be32(file.data, item_at(9), -(1 << 31)),
    "hash is of another slot": lambda file: put_be32(
        file.data, item_at(9), int.from_bytes(bytes(file.data[item_at(9) : item_at(9) + 4]), "big") + 1
    ),
    "more slots are said to be in use": lambda file: put_be32(file.data, 20, file.header.used_slots + 1),
    "items are said to be fewer": lambda file: set_count(file, file.item_count - 1),
    "items are said to be more": lambda file: set_count(file, file.item_count + 1),
}


def set_count(file: ChainedIndexFile, count: int) -> None:
    put_be32(file.data, 24, count)
    file.item_count = count


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_source_is_refused(tmp_path: Path, damage: str) -> None:
    file = hashed(tmp_path / "f", ROCKETMQ, uneven_hashes(), SLOTS)
    DAMAGE[damage](file)
    file.seal(10_000)
    with pytest.raises(CorruptIndexError):
        compact(FS, file, tmp_path / "g", tmp_path / "tmp")
    assert not (tmp_path / "g").exists()
    assert not list((tmp_path / "tmp").iterdir())


# ---- a disk that fails while several pieces are under way


class OneWriteFails(FaultyFileSystem):
    """Refuses one write of the file that is being made, counted from the header's."""

    def __init__(self, number: int) -> None:
        super().__init__(FS)
        self.left = number

    def fault(self, operation: str, path: Path) -> Any:
        if operation == "write_at":
            self.left -= 1
            if self.left == 0:
                self.refuse("write_at", times=1)
        return super().fault(operation, path)


def test_a_write_that_fails_in_any_piece_ends_the_compaction_and_leaves_nothing(tmp_path: Path) -> None:
    file = hashed(tmp_path / "f", TIERLOG, uneven_hashes(), SLOTS)
    file.seal(10_000)
    piece_bytes, number = ROUNDS * TIERLOG.compacted_bytes, 0
    while True:
        number += 1
        fs = OneWriteFails(number)
        try:
            compact(fs, file, tmp_path / "g", tmp_path / "tmp", piece_bytes=piece_bytes)
        except DiskFailedError:
            assert not (tmp_path / "g").exists()
            assert not list((tmp_path / "tmp").iterdir())
        else:
            break
    assert fs.left > 0
    assert number > 10  # header, slots and items of several pieces, trailer
    compact(FS, file, tmp_path / "wanted", tmp_path / "tmp")
    assert (tmp_path / "g").read_bytes() == (tmp_path / "wanted").read_bytes()


class OneHalfWaits(FaultyFileSystem):
    """Refuses the caller's writes after the header's, while the other thread's first write waits."""

    def __init__(self) -> None:
        super().__init__(FS)
        self.held, self.writes = Hold(), 0

    def fault(self, operation: str, path: Path) -> Any:
        if operation == "write_at" and threading.current_thread().name == "tierlog-compaction":
            self.held.stop_here()
        elif operation == "write_at":
            self.writes += 1
            if self.writes == 2:
                self.refuse("write_at", times=1)
        return super().fault(operation, path)


def test_the_file_is_not_closed_under_the_other_halfs_write(tmp_path: Path) -> None:
    file = hashed(tmp_path / "f", TIERLOG, uneven_hashes(), SLOTS)
    file.seal(10_000)
    fs = OneHalfWaits()
    caller = ThreadPoolExecutor(1)
    failing = caller.submit(compact, fs, file, tmp_path / "g", tmp_path / "tmp")
    fs.held.wait_until_reached()
    with pytest.raises(TimeoutError):
        failing.result(0.2)
    fs.held.release()
    with pytest.raises(DiskFailedError):
        failing.result(60)
    caller.shutdown()
    assert not list((tmp_path / "tmp").iterdir())


def test_without_a_second_thread_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = hashed(tmp_path / "f", TIERLOG, uneven_hashes(), SLOTS)
    file.seal(10_000)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="thread"):
        compact(FS, file, tmp_path / "g", tmp_path / "tmp")
    assert not list((tmp_path / "tmp").iterdir())


# ---- the comparison does not depend on what it compares


def sealed_and_compacted(folder: Path) -> tuple[ChainedIndexFile, ByteArray]:
    file = hashed(folder / "f", TIERLOG, uneven_hashes(), SLOTS)
    file.seal(10_000)
    compact(FS, file, folder / "g", folder / "tmp")
    return file, np.fromfile(folder / "g", np.uint8)


def compare(file: ChainedIndexFile, compacted: ByteArray) -> None:
    comparison = Comparison(file, compacted)
    for piece in slot_pieces(file):
        comparison.go_on(piece)
    comparison.finish()


def test_comparison_notices_every_changed_byte_of_slots_and_items(tmp_path: Path) -> None:
    file, good = sealed_and_compacted(tmp_path)
    compare(file, good)
    for position in range(28, len(compacted_body(good.tobytes(), TIERLOG)), 3):
        bad = good.copy()
        bad[position] ^= 1 << position % 8
        with pytest.raises(CorruptIndexError):
            compare(file, bad)


def test_comparison_notices_items_that_are_twice_swapped_or_in_a_slot_beside(tmp_path: Path) -> None:
    file, good = sealed_and_compacted(tmp_path)
    width, first = TIERLOG.compacted_bytes, items_position(SLOTS)
    for here, there in ((0, 1), (1, 2), (0, file.item_count - 1), (40, 90)):
        left, right = slice(first + width * here, first + width * (here + 1)), slice(
            first + width * there, first + width * (there + 1)
        )  # fmt: skip
        twice, swapped = good.copy(), good.copy()
        twice[left] = good[right]
        swapped[left], swapped[right] = good[right], good[left]
        for bad in (twice, swapped):
            with pytest.raises(CorruptIndexError):
                compare(file, bad)
    moved = good.copy()  # slot 1 ends with what slot 2 begins with
    put_be32(moved, 28 + 8 + 4, width * 2)
    put_be32(moved, 28 + 16, first + width * 2)
    put_be32(moved, 28 + 16 + 4, width * (ROUNDS - 1))
    with pytest.raises(CorruptIndexError):
        compare(file, moved)


def test_comparison_does_not_trust_what_the_walk_says_of_an_item(tmp_path: Path) -> None:
    file, good = sealed_and_compacted(tmp_path)
    (piece,) = slot_pieces(file)
    chance = np.random.default_rng(2)
    for place in range(0, len(piece.numbers), 7):
        for number in (0, -1, 1 << 30, piece.numbers[place] + 1, piece.numbers[place - 1], *chance.integers(1, 900, 2)):
            numbers = piece.numbers.copy()
            if numbers[place] == number:
                continue
            numbers[place] = number
            with pytest.raises(CorruptIndexError):
                Comparison(file, good).go_on(piece._replace(numbers=numbers))


def test_a_share_that_is_said_to_have_more_items_is_not_finished(tmp_path: Path) -> None:
    file, good = sealed_and_compacted(tmp_path)
    width = TIERLOG.compacted_bytes
    slots = good[28 : items_position(SLOTS)].view(">i4").reshape(-1, 2)
    middle = (int(slots[SLOTS // 2, 0]) - items_position(SLOTS)) // width
    for items in (range(middle), range(middle - 1), range(middle + 1)):
        share = SlotShare(range(SLOTS // 2), items)
        comparison = Comparison(file, good, share)
        if len(items) == middle:
            for piece in slot_pieces(file, share=share):
                comparison.go_on(piece)
            comparison.finish()
        else:
            with pytest.raises(CorruptIndexError):
                list(slot_pieces(file, share=share))
            with pytest.raises(CorruptIndexError, match="differ in length"):
                comparison.finish()


def test_comparison_finds_a_chain_that_lost_an_item_in_the_walk(tmp_path: Path) -> None:
    """The walk and the file agree on a chain that is too short: then items are missing at the end."""
    file = hashed(tmp_path / "f", TIERLOG, [1, 1 + SLOTS, 2], SLOTS)
    file.seal(10_000)
    compact(FS, file, tmp_path / "g", tmp_path / "tmp")
    (piece,) = slot_pieces(file)
    assert piece.numbers.tolist() == [2, 1, 3]
    short, width, first = np.fromfile(tmp_path / "g", np.uint8), TIERLOG.compacted_bytes, items_position(SLOTS)
    put_be32(short, 28 + 8 + 4, width)
    put_be32(short, 28 + 8 * 2, first + width)
    for slot in range(3, SLOTS):
        put_be32(short, 28 + 8 * slot, first + 2 * width)
    short[first + width : first + 2 * width] = short[first + 2 * width : first + 3 * width]
    comparison = Comparison(file, short)
    comparison.go_on(piece._replace(numbers=piece.numbers[[0, 2]]))
    with pytest.raises(CorruptIndexError, match="differ in length"):
        comparison.finish()


@given(st.binary(max_size=300), st.integers(0, 40))
def test_comparison_of_arbitrary_bytes_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int
) -> None:
    file = hashed(tmp_path_factory.getbasetemp() / "junk", ROCKETMQ, [3, 1, 4, 1, 5, 9, 2, 6], 5)
    file.seal(100)
    compacted = np.zeros(28 + 8 * 5 + 28 * 8, np.uint8)
    piece = np.frombuffer(junk, np.uint8)[: len(compacted) - 28 - at]
    compacted[28 + at : 28 + at + len(piece)] = piece
    with pytest.raises(CorruptIndexError):
        compare(file, compacted)
    for length in (0, 28, 28 + 8 * 5, len(compacted) - 1):
        with pytest.raises(CorruptIndexError):
            compare(file, compacted[:length])


# ---- checksum and memory


def test_memory_does_not_grow_with_the_items(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    peaks = []
    for count in (1000, 400_000):
        file = hashed(tmp_path / str(count), TIERLOG, chance.integers(0, 1 << 31, count).tolist(), 1000)
        file.seal(1 << 30)
        tracemalloc.start()
        try:
            compact(FS, file, tmp_path / f"{count}.compacted", tmp_path / "tmp")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert FileHeader.decode((tmp_path / f"{count}.compacted").read_bytes()).item_count == count
    # each of two threads has the buffers, and with few items the second may begin when the first is done
    assert peaks[1] < 2 * peaks[0] + 100_000, peaks
