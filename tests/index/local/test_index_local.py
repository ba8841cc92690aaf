"""The local index of a store: what is written is found, in every state and by any time."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.support.index.index_logs import HOST, Log, T, numbered
from tests.support.index.local_indexes import assert_all_found, found_in, hits, open_index, publish, states
from tierlog.index.format.layout import ROCKETMQ
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.states import IndexState
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import TimeAxis, TimeRange
from tierlog.tiering.format.hashing import java_hash, key_hash
from tierlog.tiering.format.properties import KEYS, UNIQ_KEY, encode_properties
from tierlog.tiering.format.record import Record, RecordVersion, SysFlag, encode_record
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.kernels.scan import TopicTable, scan


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths(tmp_path)


def test_every_key_is_found_while_writing_sealed_compacted_and_uploaded(paths: StorePaths) -> None:
    log = numbered(30, keys=2)
    index = open_index(paths)
    index.on_records(log.range())
    assert index.next_offset() == log.end
    assert states(index) == [("writing", 0, None)]
    assert_all_found(index, log, 2)
    assert index.seal()
    assert states(index) == [("sealed", 0, log.end)]
    assert_all_found(index, log, 2)
    assert index.compact_sealed() == 1
    assert states(index) == [("compacted", 0, log.end)]
    assert_all_found(index, log, 2)
    (pending,) = index.pending()
    assert (pending.first, pending.next) == (0, log.end)
    publish(index, pending)
    publish(index, pending)
    assert states(index) == [("uploaded", 0, log.end)]
    assert index.pending() == []
    assert_all_found(index, log, 2)
    assert hits(index, "none") == []
    (found,) = found_in(index.snapshot(), "k3-1")
    assert (found.topic_id, found.size) == (100, log.offsets[4] - log.offsets[3])
    assert 0 <= T + 300 - found.second_ms < 1000


@pytest.mark.parametrize(("slots", "items"), [(3, 5), (100, 400), (1, 7)])
def test_messages_cross_the_borders_of_small_files(paths: StorePaths, slots: int, items: int) -> None:
    log = numbered(450 if items == 400 else 40, keys=2)
    index = open_index(paths, slots=slots, items=items)
    middle = log.offsets[17]
    index.on_records(log.range(end=middle))
    index.on_records(log.range())
    index.on_records(log.range())
    index.seal()
    assert_all_found(index, log, 2)
    ranges = [(entry.first, entry.next) for entry in index.files()]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == log.end
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))
    index.compact_sealed()
    assert_all_found(index, log, 2)
    assert len({entry.name for entry in index.files()}) == len(ranges)
    assert all(int(entry.name) % 1000 == 0 for entry in index.files())


def test_message_with_more_keys_than_a_file_gets_a_file_of_its_own_size(paths: StorePaths) -> None:
    many = " ".join(f"m{i}" for i in range(60))
    log = Log([("t", "a", T), ("t", many, T + 1), ("t", "b", T + 2)])
    index = open_index(paths, slots=3, items=5)
    index.on_records(log.range())
    index.seal()
    assert [entry.items for entry in index.files()] == [1, 60, 1]
    for i in range(60):
        assert hits(index, f"m{i}") == [log.offsets[1]]
    assert hits(index, "b") == [log.offsets[2]]
    index.compact_sealed()
    index = open_index(paths)
    assert hits(index, "m59") == [log.offsets[1]]


def test_key_whose_java_hash_has_no_positive_counterpart_is_found(paths: StorePaths) -> None:
    key = minimum_hash_key("t#")
    assert java_hash(f"t#{key}") == -(1 << 31)
    assert key_hash("t", key) == 0
    log = Log([("t", f"{key} other", T)])
    index = open_index(paths, slots=7)
    index.on_records(log.range())
    assert hits(index, key) == [0]
    index.seal()
    index.compact_sealed()
    assert hits(index, key) == [0]


def minimum_hash_key(prefix: str) -> str:
    """A key of printable characters with which Java's hash becomes -2^31."""
    seed = 0
    for char in prefix:
        seed = (31 * seed + ord(char)) & 0xFFFFFFFF
    target = (0x80000000 - seed * pow(31, 8, 1 << 32)) % (1 << 32)
    low, high, width = 48, 122, 8
    for extra in range(1 << 12):
        rest, digits = target + (extra << 32), []
        for place in range(width - 1, -1, -1):
            power = 31**place
            spread = sum(31**lower for lower in range(place))
            digit = (rest - low * spread) // power
            digit = max(low, min(high, digit))
            digits.append(digit)
            rest -= digit * power
        if rest == 0:
            return "".join(map(chr, digits))
    raise AssertionError("no such key")


def test_rolled_back_transactions_are_not_indexed_and_equal_keys_once(paths: StorePaths) -> None:
    log = Log([("t", "a", T)], sys_flag=int(SysFlag.TRANSACTION_ROLLBACK))
    index = open_index(paths)
    index.on_records(log.range())
    assert index.files() == []
    assert not index.seal()
    assert index.covered_to() == log.end
    twice = Log([("t", "a b a", T)], base=log.end, sys_flag=int(SysFlag.TRANSACTION_PREPARED))
    index.on_records(twice.range())
    assert hits(index, "a") == [log.end]
    assert index.files()[0].items == 2


def test_snapshot_is_immutable_while_files_move_on(paths: StorePaths) -> None:
    log = numbered(10)
    index = open_index(paths)
    index.on_records(log.range())
    before = index.snapshot()
    index.seal()
    index.compact_sealed()
    assert [entry.state for entry in before.select()] == [IndexState.WRITING]
    assert [hit.offset for hit in found_in(before, "k3-0")] == [log.offsets[3]]


def test_file_created_before_from_that_holds_later_messages_is_found(paths: StorePaths) -> None:
    log = Log([("t", "old", T), ("t", "late", T + 90_000_000)])
    index = open_index(paths)
    index.on_records(log.range())
    for _ in range(3):
        assert hits(index, "late", TimeRange(T + 80_000_000, T + 100_000_000)) == [log.offsets[1]]
        assert hits(index, "old", TimeRange(T + 80_000_000, T + 100_000_000)) == []
        assert hits(index, "late", TimeRange(T + 89_999_995, T + 89_999_996), TimeAxis.BORN) == [log.offsets[1]]
        assert hits(index, "late", TimeRange(T + 91_000_000, T + 92_000_000), TimeAxis.BORN) == []
        index.seal()
        index.compact_sealed()


def test_exact_millisecond_is_found_in_spite_of_whole_seconds(paths: StorePaths) -> None:
    log = Log([("t", "k", T + 1_500 + i) for i in range(0, 3000, 250)])
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    for i, offset in enumerate(log.offsets):
        time_ms = T + 1_500 + 250 * i
        assert offset in hits(index, "k", TimeRange(time_ms, time_ms + 1))


def test_selection_by_overlap_equals_looking_at_every_file(paths: StorePaths) -> None:
    times = [T + 7_000 * ((i * 37) % 50) for i in range(60)]
    log = Log([("t", f"k{i}-0", time_ms) for i, time_ms in enumerate(times)])
    index = open_index(paths, slots=3, items=4)
    index.on_records(log.range())
    index.seal()
    snapshot = index.snapshot()
    for from_ms in range(T - 10_000, T + 360_000, 13_000):
        for width in (1, 5_000, 100_000):
            chosen = {entry.name for entry in snapshot.select(TimeRange(from_ms, from_ms + width))}
            expected = {
                entry.name
                for entry in snapshot.files
                if entry.bounds is not None
                and entry.bounds.min_store_ms < from_ms + width + 1000
                and entry.bounds.max_store_ms >= from_ms - 1000
            }
            assert chosen == expected


def test_layout_for_export_cannot_be_a_stores_own(paths: StorePaths) -> None:
    with pytest.raises(InvalidRequestError):
        LocalIndex.open(
            LocalFileSystem(), paths, slots=4, items=8, layout=ROCKETMQ, border=0, indexed_to=0, log_start=0
        )


def test_capacity_that_no_file_can_have_is_refused_at_open(paths: StorePaths) -> None:
    with pytest.raises(InvalidRequestError):
        open_index(paths, slots=5_000_000, items=500_000_000)


def test_unique_key_is_indexed_first(paths: StorePaths) -> None:
    text = encode_properties({KEYS: "a b", UNIQ_KEY: "u 1"})
    record = Record(0, RecordVersion.V2, 0, 0, 0, 0, 0, 0, T, HOST, T, HOST, 0, 0, b"x", "t", text)
    data = np.frombuffer(encode_record(record), np.uint8)
    rows = scan(data, 0, len(data), 0, TopicTable(["t"]), check_crc=True).rows
    index = open_index(paths)
    index.on_records(LogRange(data, 0, 0, len(data), rows, np.array([7], np.int32)))
    assert hits(index, "u 1") == hits(index, "a") == hits(index, "b") == [0]
