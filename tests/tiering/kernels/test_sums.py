"""Sums of records and joined checksums: what archiving compares."""

from __future__ import annotations

import random
import zlib

import numpy as np

from tests.support.stores.hot_stores import array, record
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, encode_record
from tierlog.tiering.kernels.checksum import crc32_of, joined_crc32
from tierlog.tiering.kernels.record_sums import SUM_MASK, RecordRange, stretches, sum_of


def log(bodies: list[bytes]) -> tuple[bytearray, list[int]]:
    """Records and where each ends."""
    data, ends = bytearray(), []
    for body in bodies:
        data += encode_record(record(topic="a", body=body, physical_offset=len(data)))
        ends.append(len(data))
    return data, ends


def test_any_flipped_bit_of_a_record_but_its_size_changes_its_sum() -> None:
    for length in range(8):
        data, (end,) = log([b"b" * (20 + length)])
        whole = RecordRange(0, end, 1)
        right = sum_of(array(bytes(data)), whole)
        for bit in range(32, 8 * end):
            data[bit // 8] ^= 1 << bit % 8
            assert sum_of(array(bytes(data)), whole) != right, bit
            data[bit // 8] ^= 1 << bit % 8


def test_sums_of_parts_add_up_whatever_their_order(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.randrange(200)) for _ in range(50)]
    (data, ends), (turned, _) = log(bodies), log(bodies)
    whole = sum_of(array(bytes(data)), RecordRange(0, len(data), 50))
    cut = ends[20]
    parts = [RecordRange(0, cut, 21), RecordRange(cut, len(data), 29)]
    assert (sum(sum_of(array(bytes(data)), part) for part in parts) - whole) & SUM_MASK == 0
    turned = data[cut:] + data[:cut]
    assert sum_of(array(bytes(turned)), RecordRange(0, len(turned), 50)) == whole


def test_stretches_cover_all_records_up_to_the_blank_one(seed: int) -> None:
    chance = random.Random(seed)
    data, ends = log([chance.randbytes(chance.randrange(2000)) for _ in range(200)])
    filled = array(bytes(data + BLANK.pack(4096, MAGIC_BLANK) + bytes(4088)))
    for most_bytes in (1, 3000, 1 << 30):
        found = list(stretches(filled, most_bytes))
        assert [found[0].start, *(each.end for each in found)] == [0, *(each.start for each in found[1:]), len(data)]
        assert sum(each.records for each in found) == len(ends)
        assert {each.end for each in found} <= set(ends)


def test_stretches_end_before_a_size_that_cannot_be() -> None:
    data, ends = log([b"b" * 40] * 3)
    for size in (0, 90, 1 << 30, 0x80000000):
        damaged = bytearray(data)
        damaged[ends[0] : ends[0] + 4] = size.to_bytes(4, "big")
        assert list(stretches(array(bytes(damaged)), 1 << 20)) == [RecordRange(0, ends[0], 1)]
    assert list(stretches(np.empty(0, np.uint8), 1 << 20)) == []


def test_joined_checksums_are_those_of_the_joined_bytes(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        first, second = (chance.randbytes(chance.choice((0, 1, 3, 64, chance.randrange(5000)))) for _ in range(2))
        assert crc32_of(first) == zlib.crc32(first)
        assert joined_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
