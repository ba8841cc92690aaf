"""Sums of records, places where one seems to begin, and joined checksums: what archiving compares and starts from."""

from __future__ import annotations

import random
import zlib

from tests.support.stores.hot_stores import array, record
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, encode_record
from tierlog.tiering.kernels.checksum import crc32_of, joined_crc32
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.kernels.record_sums import SUM_MASK, record_sum
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, find_record, scan

BASE = 1 << 30


def log(bodies: list[bytes]) -> tuple[bytearray, list[int]]:
    """Records and where each ends."""
    data, ends = bytearray(), []
    for body in bodies:
        data += encode_record(record(topic="a", body=body, physical_offset=BASE + len(data)))
        ends.append(len(data))
    return data, ends


def sum_of(data: bytes) -> int:
    return int(record_sum(address_of(data), len(data)))


def test_any_flipped_bit_of_a_record_changes_its_sum() -> None:
    for length in range(8):
        data, _ = log([b"b" * (20 + length)])
        right = sum_of(bytes(data))
        for bit in range(8 * len(data)):
            data[bit // 8] ^= 1 << bit % 8
            assert sum_of(bytes(data)) != right, bit
            data[bit // 8] ^= 1 << bit % 8


def test_a_scan_tells_the_sum_of_the_records_that_it_took(seed: int) -> None:
    chance = random.Random(seed)
    data, ends = log([chance.randbytes(chance.randrange(200)) for _ in range(50)])
    sums = [sum_of(bytes(data[start:end])) for start, end in zip([0, *ends], ends, strict=False)]
    filled, topics = array(bytes(data + BLANK.pack(4096, MAGIC_BLANK) + bytes(4088))), TopicTable(["a"])
    for rows in (1, 20, 50, 51):
        found = scan(filled, 0, len(filled), BASE, topics, check_crc=True, is_summed=True, max_rows=rows)
        assert (found.record_sum - sum(sums[:rows])) & SUM_MASK == 0
        assert found.stop is (ScanStop.ROWS_FULL if rows <= 50 else ScanStop.BLANK)
    cut = scan(filled, 0, ends[-1] - 1, BASE, topics, check_crc=True, is_summed=True)
    assert (cut.record_sum - sum(sums[:-1])) & SUM_MASK == 0, "a record that does not end there is no part of it"
    assert scan(filled, 0, len(filled), BASE, topics, check_crc=True).record_sum == 0


def test_a_record_is_found_where_it_says_that_it_lies(seed: int) -> None:
    chance = random.Random(seed)
    data, ends = log([chance.randbytes(chance.randrange(900)) for _ in range(60)])
    filled = array(bytes(data + BLANK.pack(4096, MAGIC_BLANK) + bytes(4088)))
    for start in range(0, len(data), 37):
        behind = next((end for end in ends[:-1] if end >= start), None)
        assert find_record(filled, start, 1 << 20, BASE) == (0 if start == 0 else behind)
        if start and behind is not None:
            assert find_record(filled, start, behind - start + 1, BASE) == behind
            assert find_record(filled, start, behind - start, BASE) is None
        assert find_record(filled, start, 1 << 20, BASE + 1) is None
    assert find_record(filled[:40], 0, 100, BASE) is None
    assert find_record(filled, len(filled) + 5, 100, BASE) is None


def test_joined_checksums_are_those_of_the_joined_bytes(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        first, second = (chance.randbytes(chance.choice((0, 1, 3, 64, chance.randrange(5000)))) for _ in range(2))
        assert crc32_of(first) == zlib.crc32(first)
        assert joined_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
