"""Bytes of index files: golden vectors, damage, limits."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.support.index.index_bytes import compacted_body
from tests.support.index.index_puts import PUTS_A11, Put, T, batch_of
from tests.support.index.item_layouts import EVERY
from tests.support.oracles.plain_index import PlainChainedFile
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import BEGIN_MAGIC, END_MAGIC, HEADER_BYTES, FileHeader, chained_bytes, items_position
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, IndexItem, ItemLayout, seconds_after
from tierlog.index.format.trailer import TRAILER_BYTES, CoverRecord, Trailer
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.tiering.base.errors import CapacityError, InvalidRequestError, UnsupportedFormatError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.hashing import key_hash, key_hash_high

CHAINED_A11 = bytes.fromhex(
    "bcc502890000018bcfe568000000018bcfe58b280000000300000005000000030000000000000002"
    "00000000000000050000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000029e6a800000000000000030000000000000000000000a900000000"
    "000000000029e6a9000000000000000300000000000000a9000000a900000000000000000029e6a8"
    "00000000000000030000000000000152000000a900000001000000017170b16a0000000100000000"
    "0000000000000000000000c8fffffffe000000000029e6aa000000000000000300000000000001fb"
    "000000a9000000090000000400000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000000000000000000000000000"
)
COMPACTED_A11 = bytes.fromhex(
    "bcc502850000018bcfe568000000018bcfe58b2800000003000000050000003c0000003800000074"
    "0000001c0000009000000038000000c8000000000029e6a800000000000000030000000000000152"
    "000000a9000000010029e6a800000000000000030000000000000000000000a9000000000029e6a9"
    "000000000000000300000000000000a9000000a9000000000029e6aa000000000000000300000000"
    "000001fb000000a9000000097170b16a00000001000000000000000000000000000000c8fffffffe"
)


def same_key(count: int, step_ms: int = 1) -> list[Put]:
    return [("TopicTest", 123, 2, "MessageKey", 666 + i, 1024, T + i * step_ms) for i in range(count)]


@pytest.fixture
def fs() -> LocalFileSystem:
    return LocalFileSystem()


def chained(
    fs: LocalFileSystem, path: Path, layout: ItemLayout, puts: list[Put], *, slots: int = 4, items: int = 8
) -> ChainedIndexFile:
    file = ChainedIndexFile.create(fs, path, layout, slots=slots, items=items, begin_ms=T, first_physical=0)
    batch = batch_of(puts)
    file.put(batch, 0, len(batch))
    return file


def test_fresh_rocketmq_file_is_the_golden_one(fs: LocalFileSystem, tmp_path: Path) -> None:
    ChainedIndexFile.create(fs, tmp_path / "f", ROCKETMQ, slots=4, items=8, begin_ms=T, first_physical=0)
    assert (tmp_path / "f").read_bytes() == bytes.fromhex("bcc502890000018bcfe56800") + bytes(304)


def test_rocketmq_file_is_the_golden_one_chained_and_compacted(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", ROCKETMQ, PUTS_A11)
    assert (tmp_path / "f").read_bytes() == CHAINED_A11
    hash_k1 = key_hash("TopicTest", "k1")
    assert file.lookup(hash_k1)["offset"].tolist() == [338, 0]
    assert file.lookup(hash_k1)["seconds"].tolist() == [1, 0]
    assert file.lookup(key_hash("TopicB", "k1"))["seconds"].tolist() == [-2]
    file.seal(1000)
    compact(fs, file, tmp_path / "g", tmp_path / "tmp")
    assert (tmp_path / "g").read_bytes() == COMPACTED_A11
    opened = CompactedIndexFile.open_bare(fs, tmp_path / "g", ROCKETMQ, 4)
    assert opened.lookup(hash_k1)["offset"].tolist() == [338, 0]
    assert len(opened.lookup(key_hash("TopicB", "none"))) == 0


def test_end_magic_comes_with_the_last_item(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", ROCKETMQ, [])
    batch = batch_of(same_key(8))
    for put in range(7):
        assert file.header.magic == BEGIN_MAGIC
        file.put(batch, put, put + 1)
    assert file.header.magic == END_MAGIC
    assert file.room == 0
    before = (tmp_path / "f").read_bytes()
    with pytest.raises(CapacityError):
        file.put(batch, 7, 8)
    assert (tmp_path / "f").read_bytes() == before


def test_positions_that_rocketmqs_own_tests_assert(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", ROCKETMQ, same_key(18), slots=5, items=20)
    data = (tmp_path / "f").read_bytes()
    assert len(data) == 28 + 5 * 8 + 20 * 32
    assert struct.unpack_from(">iqqii", data) == (BEGIN_MAGIC, T, T + 17, 1, 18)
    assert key_hash("TopicTest", "MessageKey") == 638347386
    assert 638347386 % 5 == 1
    assert struct.unpack_from(">i", data, 28 + 8)[0] == 18
    assert struct.unpack_from(">i", data, 28 + 40 + 64)[0] == 638347386
    batch = batch_of(same_key(2))
    file.put(batch, 0, 1)
    with pytest.raises(CapacityError):
        file.put(batch, 1, 2)
    assert file.header.item_count == 19


def test_five_topics_use_five_slots(fs: LocalFileSystem, tmp_path: Path) -> None:
    puts = [(f"TopicTest{i}", 123, 2, "MessageKey", 666, 1024, T + j) for i in range(5) for j in range(3)]
    file = chained(fs, tmp_path / "f", ROCKETMQ, puts, slots=5, items=20)
    assert (file.header.used_slots, file.item_count) == (5, 15)
    assert len(file.lookup(key_hash("TopicTest1", "MessageKey"))) == 3
    file.seal(10_000)
    compact(fs, file, tmp_path / "g", tmp_path / "tmp")
    opened = CompactedIndexFile.open_bare(fs, tmp_path / "g", ROCKETMQ, 5)
    found = [
        len(opened.lookup(key_hash(topic, key)))
        for topic, key in [
            ("TopicTest", "MessageKey"),
            ("TopicTest1", "MessageKey1"),
            ("TopicTest1", "MessageKey"),
        ]
    ]
    assert found == [0, 0, 3]


def test_tierlog_items_without_their_last_four_bytes_are_rocketmq_items(fs: LocalFileSystem, tmp_path: Path) -> None:
    for name, layout in (("r", ROCKETMQ), ("t", TIERLOG)):
        file = chained(fs, tmp_path / name, layout, PUTS_A11)
        (tmp_path / f"{name}.open").write_bytes((tmp_path / name).read_bytes())
        file.seal(1000)
        compact(fs, file, tmp_path / f"{name}.compacted", tmp_path / "tmp")
    raw = (tmp_path / "t.open").read_bytes()[:-TRAILER_BYTES]
    at = items_position(4)
    cut = b"".join(raw[start : start + 32] for start in range(at, len(raw), 36))
    assert raw[:at] + cut == (tmp_path / "r.open").read_bytes()
    raw = compacted_body((tmp_path / "t.compacted").read_bytes(), TIERLOG)
    cut = b"".join(raw[start : start + 28] for start in range(at, len(raw), 32))
    rocketmq = (tmp_path / "r.compacted").read_bytes()
    assert cut == rocketmq[at:]
    assert raw[:HEADER_BYTES] == rocketmq[:HEADER_BYTES]


@pytest.mark.parametrize("layout", EVERY, ids=lambda layout: layout.name)
def test_every_layout_equals_the_plain_codec(fs: LocalFileSystem, tmp_path: Path, layout: ItemLayout) -> None:
    puts = [("t", 5, i % 3, f"key{i % 9}", 100 * i, 50 + i, T - 3000 + 700 * i) for i in range(100)]
    file = chained(fs, tmp_path / "f", layout, puts, slots=7, items=128)
    plain = PlainChainedFile(layout, 7, 128, T)
    for topic, topic_id, queue_id, key, offset, size, store_ms in puts:
        item = IndexItem(
            key_hash(topic, key), topic_id, queue_id, offset, size, seconds_after(T, store_ms),
            key_hash_high(topic, key),
        )  # fmt: skip
        assert plain.put(item, store_ms)
    assert bytes(file.data[: len(plain.data)]) == bytes(plain.data)
    file.seal(10_000)
    compact(fs, file, tmp_path / "g", tmp_path / "tmp")
    written = (tmp_path / "g").read_bytes()
    assert compacted_body(written, layout) == plain.compacted()
    if layout.covered:
        opened = CompactedIndexFile.open(fs, tmp_path / "g", layouts={layout.number: layout})
        assert (opened.first, opened.next) == (0, 10_000)
        assert opened.bounds == file.bounds == TimeBounds(T - 3000, T + 66_300, T - 3007, T + 66_293)
    else:
        opened = CompactedIndexFile.open_bare(fs, tmp_path / "g", layout, 7)
    for key in {put[3] for put in puts}:
        low, high = key_hash("t", key), key_hash_high("t", key)
        expected = [layout.encode_compacted(item) for item in plain.lookup(low, high if layout.has_hash_high else None)]
        assert expected
        assert [item.tobytes() for item in file.lookup(low, high)] == expected
        assert [item.tobytes() for item in opened.lookup(low, high)] == expected
        assert layout.encode_compacted(layout.decode_compacted(expected[0])) == expected[0]


def test_seconds_are_truncated_toward_zero_and_saturate() -> None:
    assert [seconds_after(T, T + ms) for ms in (-2500, -999, 0, 999, 1000)] == [-2, 0, 0, 0, 1]
    assert seconds_after(0, 1 << 62) == (1 << 31) - 1
    assert seconds_after(0, -(1 << 62)) == -(1 << 31)


def test_nonsense_times_saturate_in_the_kernel(fs: LocalFileSystem, tmp_path: Path) -> None:
    times = (-(1 << 63), (1 << 63) - 1)
    file = chained(
        fs,
        tmp_path / "f",
        TIERLOG,
        [("t", 0, 0, "k", i, 91, ms + 7 * (ms < 0)) for i, ms in enumerate(times)],
    )
    found = file.lookup(key_hash("t", "k"))
    assert found["seconds"].tolist() == [(1 << 31) - 1, -(1 << 31)]


def test_sealed_file_opens_with_its_range_and_bounds(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", TIERLOG, PUTS_A11)
    file.seal(676)
    file.seal(676)
    opened = ChainedIndexFile.open_sealed(fs, tmp_path / "f")
    assert (opened.first, opened.next, opened.slots, opened.items, opened.item_count) == (0, 676, 4, 8, 5)
    assert opened.bounds == TimeBounds(T - 2500, T + 9000, T - 2507, T + 8993)
    assert opened.header.magic == END_MAGIC
    assert opened.room == 0
    assert opened.lookup(key_hash("TopicTest", "k1"), key_hash_high("TopicTest", "k1"))["offset"].tolist() == [338, 0]
    assert len(opened.lookup(key_hash("TopicTest", "k1"), 1)) == 0
    with pytest.raises(InvalidRequestError):
        opened.put(batch_of(PUTS_A11), 0, 1)


def test_empty_file_is_never_sealed(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", TIERLOG, [])
    with pytest.raises(InvalidRequestError):
        file.seal(100)


def test_capacity_beyond_32_bit_positions_is_refused(fs: LocalFileSystem, tmp_path: Path) -> None:
    for slots, items in ((0, 8), (4, 1), (5_000_000, 70_000_000)):
        with pytest.raises(InvalidRequestError):
            ChainedIndexFile.create(fs, tmp_path / "f", TIERLOG, slots=slots, items=items, begin_ms=T, first_physical=0)


def test_every_flipped_byte_of_a_sealed_or_compacted_file_is_noticed(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", TIERLOG, PUTS_A11)
    file.seal(676)
    compact(fs, file, tmp_path / "g", tmp_path / "tmp")
    for name, opener in (("f", ChainedIndexFile.open_sealed), ("g", CompactedIndexFile.open)):
        good = (tmp_path / name).read_bytes()
        for at in range(len(good)):
            (tmp_path / "bad").write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
            with pytest.raises(CorruptIndexError):
                opener(fs, tmp_path / "bad")
        for length in range(0, len(good), 7):
            (tmp_path / "bad").write_bytes(good[:length])
            with pytest.raises(CorruptIndexError):
                opener(fs, tmp_path / "bad")


@pytest.mark.parametrize("number", [-1, 3, 9, 1 << 30])
def test_chain_that_does_not_fall_is_refused_by_lookup_and_compaction(
    fs: LocalFileSystem, tmp_path: Path, number: int
) -> None:
    file = chained(fs, tmp_path / "f", ROCKETMQ, PUTS_A11)
    previous = items_position(4) + 3 * 32 + 28
    file.data[previous : previous + 4] = np.frombuffer(struct.pack(">i", number), np.uint8)
    with pytest.raises(CorruptIndexError):
        file.lookup(key_hash("TopicTest", "k1"))
    file.seal(1000)
    with pytest.raises(CorruptIndexError):
        compact(fs, file, tmp_path / "g", tmp_path / "tmp")
    assert not (tmp_path / "g").exists()
    assert not list((tmp_path / "tmp").iterdir())
    assert (tmp_path / "f").exists()


def test_item_in_the_wrong_slot_is_refused_by_compaction(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", ROCKETMQ, PUTS_A11)
    file.data[items_position(4) + 32 + 3] ^= 1
    file.seal(1000)
    with pytest.raises(CorruptIndexError):
        compact(fs, file, tmp_path / "g", tmp_path / "tmp")


def test_damaged_slot_of_a_compacted_file_is_refused(fs: LocalFileSystem, tmp_path: Path) -> None:
    low = key_hash("TopicTest", "k1")
    for position, length in ((0, 28), (60, -28), (60, 29), (61, 28), (60, 28 * 6), (1 << 30, 28), (-4, 28)):
        bad = bytearray(COMPACTED_A11)
        struct.pack_into(">ii", bad, 28 + 8 * (low % 4), position, length)
        (tmp_path / "g").write_bytes(bad)
        with pytest.raises(CorruptIndexError):
            CompactedIndexFile.open_bare(fs, tmp_path / "g", ROCKETMQ, 4).lookup(low)


def test_newer_version_is_told_apart_from_damage() -> None:
    cover = CoverRecord(0, 10, 4, 8, TIERLOG.number, version=2)
    with pytest.raises(UnsupportedFormatError):
        CoverRecord.decode(cover.encode())
    with pytest.raises(CorruptIndexError):
        CoverRecord.decode(CoverRecord(10, 10, 4, 8, TIERLOG.number).encode())


def test_cover_and_trailer_come_back() -> None:
    trailer = Trailer(CoverRecord(1, 2, 3, 4, 5), TimeBounds(-1, 1, -2, 2), 99)
    assert len(trailer.encode()) == TRAILER_BYTES
    assert Trailer.decode(trailer.encode()) == trailer
    assert FileHeader.decode(FileHeader(END_MAGIC, 1, 2, 3, 4).encode()) == FileHeader(END_MAGIC, 1, 2, 3, 4)


def test_lookup_returns_more_items_than_its_first_guess(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", TIERLOG, same_key(1000), items=1001)
    assert file.lookup(key_hash("TopicTest", "MessageKey"))["offset"].tolist() == list(range(1665, 665, -1))


def test_maps_outlive_the_file(fs: LocalFileSystem, tmp_path: Path) -> None:
    file = chained(fs, tmp_path / "f", TIERLOG, PUTS_A11)
    file.seal(676)
    compact(fs, file, tmp_path / "g", tmp_path / "tmp")
    opened = CompactedIndexFile.open(fs, tmp_path / "g")
    (tmp_path / "f").unlink()
    (tmp_path / "g").unlink()
    low = key_hash("TopicTest", "k3")
    assert len(file.lookup(low)) == len(opened.lookup(low)) == 1


def test_tables_in_the_docstrings_are_the_structs() -> None:
    assert (HEADER_BYTES, CoverRecord(0, 1, 1, 2, 2).encode().__len__(), TRAILER_BYTES) == (28, 32, 80)
    assert (ROCKETMQ.chained_bytes, ROCKETMQ.compacted_bytes) == (32, 28)
    assert (TIERLOG.chained_bytes, TIERLOG.compacted_bytes) == (36, 32)
    assert chained_bytes(ROCKETMQ, 5_000_000, 20_000_000) == 680_000_028


def test_layout_with_unknown_or_missing_fields_is_refused() -> None:
    for fields in (
        ("hash",),
        ("hash", "offset", "seconds", "previous", "colour"),
        ("hash", "hash", "offset"),
    ):
        with pytest.raises(InvalidRequestError):
            ItemLayout("bad", 9, fields, covered=False)
    with pytest.raises(InvalidRequestError):
        ItemLayout("small", 9, ("hash", "offset", "seconds", "previous"), covered=True)
