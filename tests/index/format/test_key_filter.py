"""The key filter: Parquet's definition bit for bit, no key it holds is ever ruled out, damage is told."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracles.plain_objects import plain_block_and_mask
from tierlog.index.format.errors import DamagedFilterError
from tierlog.index.format.key_filter import _TABLE as TABLE
from tierlog.index.format.key_filter import BLOCK_BYTES, KeyFilter
from tierlog.index.format.layout import TIERLOG
from tierlog.index.format.object_sections import FILTER, encode_section
from tierlog.index.objects.builder import KeyCount
from tierlog.tiering.base.errors import InvalidRequestError, UnsupportedFormatError

halves = st.integers(0, 2**32 - 1)
lows = st.integers(0, 2**31 - 1) | st.sampled_from([0, 1, 2**31 - 1])
keys_of = st.lists(st.tuples(lows, halves), min_size=1, max_size=200)


def bits_of(found: KeyFilter) -> bytes:
    """The bit set, which ends the section."""
    return found.encode()[-found.size_bytes :]


def parquets_filter(path: Path, values: list[int]) -> bytes:
    """The bit set of the filter that Arrow's Parquet writer makes of 64-bit integers."""
    table = pa.table({"value": pa.array(values, pa.int64())})
    options = {"value": {"ndv": len(values), "fpp": 0.01}}
    pq.write_table(table, path, use_dictionary=False, bloom_filter_options=options)
    raw = path.read_bytes()
    # Thrift: field 1 is the number of bytes, then three unions (split block, XXH64, not compressed) and a stop.
    head = re.search(rb"\x15([\x80-\xff]*[\x00-\x7f])\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00", raw)
    assert head is not None
    number = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(head[1])) >> 1
    return raw[head.end() : head.end() + number]


@pytest.mark.parametrize("count", [1, 40, 5000])
def test_bit_set_is_the_one_that_parquet_writes(tmp_path: Path, count: int) -> None:
    values = [at * 0x1234567 - 5 for at in range(count)]
    theirs = parquets_filter(tmp_path / "filter.parquet", values)
    hashes = [xxhash.xxh64_intdigest(value.to_bytes(8, "little", signed=True)) for value in values]
    ours = KeyFilter(np.zeros(len(theirs) // 4, "<u4"), count)
    ours.add(np.array([each & 0xFFFFFFFF for each in hashes]), np.array([each >> 32 for each in hashes]))
    assert bits_of(ours) == theirs
    assert any(theirs)


@settings(max_examples=60, deadline=None)
@given(keys_of, st.integers(1, 40))
def test_build_equals_the_plain_definition(keys: list[tuple[int, int]], bits: int) -> None:
    found = KeyFilter.build([low for low, _ in keys], [high for _, high in keys], bits)
    distinct = len(set(keys))
    assert found.keys == distinct
    assert found.size_bytes == BLOCK_BYTES * -(-distinct * bits // 256)
    expected = [[0] * 8 for _ in range(found.blocks)]
    for key in keys:
        block, mask = plain_block_and_mask(*key, found.blocks)
        for number, bit in enumerate(mask):
            expected[block][number] |= bit
    assert bits_of(found) == b"".join(word.to_bytes(4, "little") for block in expected for word in block)
    decoded = KeyFilter.decode(found.encode())
    assert (decoded.keys, bits_of(decoded)) == (distinct, bits_of(found))
    assert all(decoded.may_contain(*key) for key in keys)


@settings(max_examples=60, deadline=None)
@given(keys_of, keys_of)
def test_many_keys_are_asked_as_one_is(keys: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    found = KeyFilter.build([low for low, _ in keys], [high for _, high in keys], 8)
    asked = [*keys, *others]
    each = found.may_contain_each(np.array([low for low, _ in asked]), np.array([high for _, high in asked]))
    assert each.tolist() == [found.may_contain(*key) for key in asked]


def test_random_keys_that_are_not_there_pass_as_often_as_the_fill_says() -> None:
    chance = np.random.Generator(np.random.PCG64(3))
    low, high = chance.integers(0, 1 << 31, 400_000), chance.integers(0, 1 << 32, 400_000)
    found = KeyFilter.build(low[:200_000], high[:200_000], 16)
    share = found.may_contain_each(low[200_000:], high[200_000:]).mean()
    assert 0.0005 < found.false_positive_rate() < 0.002
    assert abs(share - found.false_positive_rate()) < 0.0005
    assert found.may_contain_each(low[:200_000], high[:200_000]).all()


def test_every_flipped_bit_and_every_cut_is_damage() -> None:
    data = KeyFilter.build([1, 2, 3], [4, 5, 6], 200).encode()
    for place in range(8 * len(data)):
        bad = bytearray(data)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedFilterError):
            KeyFilter.decode(bytes(bad))
    for length in range(len(data)):
        with pytest.raises(DamagedFilterError):
            KeyFilter.decode(data[:length])
    with pytest.raises(DamagedFilterError):
        KeyFilter.decode(data + b"\0")


@pytest.mark.parametrize(
    ("table", "bits"),
    [
        (b"", 32),
        (TABLE.pack(0, 1, 0), 0),
        (TABLE.pack(1, 1, zlib.crc32(bytes(31))), 31),
        (TABLE.pack(2, 1, zlib.crc32(bytes(32))), 32),
        (TABLE.pack(1, 0, zlib.crc32(bytes(32))), 32),
        (TABLE.pack(1, 1, 7), 32),
    ],
    ids=["no table", "no block", "half a block", "too few blocks", "no key", "other bits"],
)
def test_section_that_contradicts_itself_is_damage(table: bytes, bits: int) -> None:
    with pytest.raises(DamagedFilterError):
        KeyFilter.decode(encode_section(FILTER, table, bits) + bytes(bits))


def test_later_version_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("tierlog.index.format.object_sections.VERSION", 2)
        data = KeyFilter.build([1], [2], 16).encode()
    with pytest.raises(UnsupportedFormatError):
        KeyFilter.decode(data)


def test_filter_of_no_key_is_refused() -> None:
    for keys, bits in ((0, 16), (1, 0), (1 << 40, 16)):
        with pytest.raises(InvalidRequestError):
            KeyFilter.sized(keys, bits)


@given(keys_of)
def test_keys_of_items_are_those_of_arrays_and_are_counted_across_pieces(keys: list[tuple[int, int]]) -> None:
    items = np.zeros(len(keys), TIERLOG.compacted)
    items["hash"], items["hash_high"] = zip(*sorted(keys), strict=True)
    found, wanted = KeyFilter.sized(len(keys), 10), KeyFilter.sized(len(keys), 10)
    found.add_items(items)
    wanted.add(items["hash"], items["hash_high"])
    assert found.has_same_bits(wanted)
    count = KeyCount(TIERLOG)
    for piece in (items[: len(items) // 2], items[len(items) // 2 :]):
        count.add(piece)
    assert count.count == len(set(keys))
