"""Bytes of classic index files: golden vectors, RocketMQ's own assertions, damage."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.oracles.plain_classic import PlainClassicFile, plain_items
from tests.support.stores.hot_stores import NOW_MS, array, record
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.kernels.classic import ITEM_ROW, hash_classic_items
from tierlog.index.rocketmq.classic_format import (
    HEADER_BYTES,
    ITEM_BYTES,
    ClassicCheckpoint,
    ClassicHeader,
    Position,
    WrittenFile,
    file_bytes,
)
from tierlog.index.rocketmq.classic_index import ClassicIndexFile, query_files
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.format.record import Record, encode_record
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows, TopicTable, scan

T = 1_700_000_000_000
LONG_MAX = (1 << 63) - 1
#: Key, offset, store time.
Put = tuple[str, int, int]
PUTS_A10: list[Put] = [
    ("k1", 0, T + 123),
    ("k2", 169, T + 999),
    ("k1", 338, T + 1500),
    ("polygen", 507, T + 3123),
    ("k3", 676, T + 9000),
]
FIRST_A10 = bytes.fromhex(
    "0000018bcfe5687b0000018bcfe58b28000000000000000000000000000002a40000000300000006"
    "0000000300000002000000050000000000000000000000000000000000000000000000000029e6a8"
    "000000000000000000000000000000000029e6a900000000000000a900000000000000000029e6a8"
    "000000000000015200000001000000013cc5e43e00000000000001fb00000003000000000029e6aa"
    "00000000000002a40000000800000004"
)
SECOND_A10 = bytes.fromhex(
    "0000018bcfe596e00000018bcfe596e0000000000000034d000000000000034d0000000100000002"
    "0000000100000000000000000000000000000000000000000000000000000000000000000029e6b0"
    "000000000000034d00000003" + "00" * 84
)


def scanned(records: Sequence[Record]) -> tuple[ByteArray, ScanRows]:
    raw = b""
    for one in records:
        raw += encode_record(replace(one, physical_offset=len(raw)))
    data = array(raw)
    return data, scan(data, 0, len(raw), 0, TopicTable(["orders", "主题"]), check_crc=True).rows


class Both:
    """One file by the kernels and the same by the plain codec; they are compared after every put."""

    def __init__(self, path: Path, slots: int, items: int, after: ClassicHeader | None = None) -> None:
        self.file = ClassicIndexFile.create(LocalFileSystem(), path, slots, items, after=after)
        self.plain = PlainClassicFile(slots, items, after=after)
        self.path = path

    def put(self, *puts: Put, topic: str = "TopicTest") -> list[bool]:
        rows = np.zeros(len(puts), SCAN_ROW)
        keys = np.zeros(len(puts), ITEM_ROW)
        for at, (key, offset, store_ms) in enumerate(puts):
            rows["physical_offset"][at], rows["store_ms"][at] = offset, store_ms
            keys[at] = (at, key_hash(topic, key))
        done = self.file.put(rows, keys, 0, len(keys))
        wanted = [self.plain.put(key_hash(topic, key), offset, ms) for key, offset, ms in puts]
        assert [at < done for at in range(len(puts))] == wanted
        assert self.path.read_bytes() == bytes(self.plain.data)
        return wanted

    def query(self, key: str, limit: int = 10, begin: int = 0, end: int = LONG_MAX) -> list[int]:
        hash = key_hash("TopicTest", key)
        found = self.file.query(hash, limit, begin, end)
        assert found == self.plain.query(hash, limit, begin, end)
        return found


def test_first_file_is_the_golden_one(tmp_path: Path) -> None:
    both = Both(tmp_path / "f", 4, 6)
    assert both.path.read_bytes() == bytes(176)
    assert both.put(*PUTS_A10, ("k1", 845, T + 9001)) == [True] * 5 + [False]
    assert both.path.read_bytes() == FIRST_A10
    assert both.query("k1") == [338, 0]
    assert both.query("k1", begin=T + 200) == [338]
    assert both.query("k1", begin=T + 1500, end=T + 1500) == []
    assert both.query("k1", limit=1) == [338]


def test_second_file_is_the_golden_one_with_its_first_item_too_late(tmp_path: Path) -> None:
    first = ClassicHeader.decode(FIRST_A10)
    both = Both(tmp_path / "f", 4, 6, after=first)
    both.put(("k9", 845, T + 12_000))
    assert both.path.read_bytes() == SECOND_A10
    assert both.query("k9", begin=T + 12_000, end=T + 12_999) == []
    assert both.query("k9", begin=T + 15_000, end=T + 15_000) == [845]


def test_400_items_take_399_keys_as_rocketmqs_test_put_key_asserts(tmp_path: Path) -> None:
    both = Both(tmp_path / "f", 100, 400)
    assert both.put(*((str(i), i, T) for i in range(399))) == [True] * 399
    assert both.put(("400", 400, T)) == [False]
    assert both.file.is_full
    assert both.file.item_count == 399


def test_one_key_is_found_once_as_rocketmqs_test_select_phy_offset_asserts(tmp_path: Path) -> None:
    both = Both(tmp_path / "f", 100, 400)
    both.put(*((str(i), i, T) for i in range(399)))
    assert both.query("60") == [60]


def test_query_without_files_finds_nothing_as_rocketmqs_test_query_offset_throw_asserts() -> None:
    found = query_files([], "test", "", limit=(1 << 31) - 1, begin_ms=10, end_ms=100)
    assert (found.offsets, found.last_update_ms, found.last_update_offset) == ([], 0, 0)


@pytest.mark.parametrize("seed", range(6))
def test_kernels_equal_the_plain_codec(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    slots, items = draw.choice([(1, 40), (7, 300), (500, 300)])
    after = ClassicHeader(T - 5_000, T - draw.choice([0, 2_500]), 3, 77) if seed % 2 else None
    both = Both(tmp_path / "f", slots, items, after)
    now = T
    for number in range(items + 3):
        now += draw.choice([0, 0, 1, 700, -900, 61_000, 1 << 33])
        both.put((f"k{draw.randrange(12)}", 100 * number, now))
    for _ in range(200):
        begin = draw.choice([0, T, T + draw.randrange(100_000), now])
        end = draw.choice([begin, begin + draw.randrange(50_000), LONG_MAX])
        both.query(f"k{draw.randrange(14)}", draw.choice([0, 1, 5, 1000]), begin, end)


def test_nonsense_times_give_saturated_seconds(tmp_path: Path) -> None:
    both = Both(tmp_path / "f", 4, 9)
    both.put(("k", 0, 1), ("k", 1, LONG_MAX), ("k", 2, -LONG_MAX), ("k", 3, 0))
    at = HEADER_BYTES + 16 + ITEM_BYTES + 12
    seconds = [int.from_bytes(both.plain.data[at + 20 * i : at + 20 * i + 4], "big", signed=True) for i in range(4)]
    assert seconds == [0, (1 << 31) - 1, 0, 0]


def test_items_of_a_message_are_unique_key_then_keys_then_tags() -> None:
    text = b"KEYS\x01 b  a a \x02UNIQ_KEY\x01u\x02TAGS\x01x y\x02"
    records = [
        record(properties_text=text),
        record(properties_text=text, sys_flag=0xC),
        record(),
        record(topic="主题", properties_text="KEYS\x01😀 订单\x02TAGS\x01é\x02".encode()),
        record(topic="主题", properties_text=b"KEYS\x01 \x02", sys_flag=0x8),
    ]
    data, rows = scanned(records)
    found = [(int(row), int(hash)) for row, hash in hash_classic_items(data, rows).tolist()]
    wanted = [(0, key_hash("orders", key)) for key in ("u", "b", "a", "a", "T#x y")]
    wanted += [(3, key_hash("主题", key)) for key in ("😀", "订单", "T#é")]
    assert found == wanted == plain_items(records)


def test_more_items_than_guessed_are_all_found() -> None:
    keys = " ".join(f"k{i}" for i in range(3_000))
    records = [record(properties_text=f"KEYS\x01{keys}\x02".encode())]
    data, rows = scanned(records)
    assert hash_classic_items(data, rows).tolist() == plain_items(records)


def test_rows_of_other_bytes_are_refused() -> None:
    _, rows = scanned([record(properties_text=b"TAGS\x01abc\x02")])
    with pytest.raises(InvalidRequestError):
        hash_classic_items(array(bytes(60)), rows)


def test_chains_of_a_damaged_file_end(tmp_path: Path) -> None:
    both = Both(tmp_path / "f", 4, 6)
    both.put(*PUTS_A10)
    good = both.path.read_bytes()
    k1 = key_hash("TopicTest", "k1")
    for at in range(HEADER_BYTES, len(good), 4):
        for value in (-1, 3, 5, 6, 7, (1 << 31) - 1):
            (tmp_path / "bad").write_bytes(good[:at] + value.to_bytes(4, "big", signed=True) + good[at + 4 :])
            file = ClassicIndexFile.open(LocalFileSystem(), tmp_path / "bad", 4, 6)
            assert len(file.query(k1, 100, 0, LONG_MAX)) <= 5


def test_counter_or_length_that_no_such_file_has_is_refused(tmp_path: Path) -> None:
    for data in (FIRST_A10[:36] + (7).to_bytes(4, "big") + FIRST_A10[40:], FIRST_A10[:-1], b""):
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(CorruptIndexError):
            ClassicIndexFile.open(LocalFileSystem(), tmp_path / "f", 4, 6)


def test_capacity_that_java_cannot_map_is_refused(tmp_path: Path) -> None:
    for slots, items in ((0, 6), (4, 1), (5_000_000, 107_000_000)):
        with pytest.raises(InvalidRequestError):
            ClassicIndexFile.create(LocalFileSystem(), tmp_path / "f", slots, items, after=None)
    assert file_bytes(5_000_000, 20_000_000) == 420_000_040


def test_file_is_as_good_as_its_first_items(tmp_path: Path) -> None:
    puts = [(f"k{number % 7}", 100 * number, T + 400 * number) for number in range(30)]
    for count in (1, 2, 13, 30):
        whole, part = Both(tmp_path / "whole", 5, 40), Both(tmp_path / "part", 5, 40)
        whole.put(*puts)
        part.put(*puts[:count])
        data = bytearray((tmp_path / "whole").read_bytes())
        items_at = HEADER_BYTES + 4 * 5
        data[:items_at] = random.Random(count).randbytes(items_at)
        (tmp_path / "torn").write_bytes(data)
        torn = ClassicIndexFile.open(LocalFileSystem(), tmp_path / "torn", 5, 40, writable=True, check=False)
        torn.truncate(count, T, puts[count - 1][2])
        assert (tmp_path / "torn").read_bytes() == (tmp_path / "part").read_bytes()
        for at in (items_at + ITEM_BYTES, items_at + ITEM_BYTES * (count + 1) - 1):
            bad = bytearray((tmp_path / "part").read_bytes())
            bad[at] ^= 0x80
            (tmp_path / "torn").write_bytes(bad)
            with pytest.raises(CorruptIndexError):
                ClassicIndexFile.open(LocalFileSystem(), tmp_path / "torn", 5, 40, writable=True, check=False).truncate(
                    count, T, T
                )
    for count in (0, 40, -1):
        with pytest.raises(CorruptIndexError):
            whole.file.truncate(count, T, T)


def test_header_comes_back() -> None:
    header = ClassicHeader(1, 2, 3, 4, 5, 6)
    assert ClassicHeader.decode(header.encode()) == header
    assert len(header.encode()) == HEADER_BYTES


def test_progress_comes_back_and_anything_else_is_no_progress() -> None:
    position = Position(NOW_MS, 3)
    for written in (
        None,
        WrittenFile(None, 0, 0, 0, Position(9)),
        WrittenFile("20231114221320123", 7, T, T + 1, position),
    ):
        progress = ClassicCheckpoint(4, 6, ("20231114221320122",), position, written)
        assert ClassicCheckpoint.decode(progress.encode()) == progress
    assert ClassicCheckpoint.decode(progress.encode().replace(b"20231114221320122", b"../../checkpoint7")) is None
    for data in (b"", b"{}", b"[]", b'{"version": 2}', progress.encode()[:-9], progress.encode().replace(b"7", b'"x"')):
        assert ClassicCheckpoint.decode(data) is None
