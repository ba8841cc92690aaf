"""The local index of a store: states, reopening, gaps, removal, selection by time."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from index.errors import CorruptIndexError
from index.layout import ROCKETMQ, TIERLOG
from index.local_index import LocalIndex
from index.states import IndexState
from tests.support.index_logs import HOST, Log, T, numbered
from tiering.errors import DiskFailedError, DiskFullError, InvalidRequestError, ReadOnlyError
from tiering.format.hashing import java_hash, key_hash
from tiering.format.properties import KEYS, UNIQ_KEY, encode_properties
from tiering.format.record import Record, RecordVersion, SysFlag, encode_record
from tiering.fs import File, LocalFileSystem
from tiering.hot.dispatch import LogRange
from tiering.kernels.scan import TopicTable, scan
from tiering.paths import StorePaths
from tiering.types import TimeAxis, TimeRange


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths(tmp_path)


def open_index(
    paths: StorePaths,
    *,
    slots: int = 100,
    items: int = 400,
    indexed_to: int = 0,
    border: int = 0,
    fs: LocalFileSystem | None = None,
) -> LocalIndex:
    return LocalIndex.open(
        fs or LocalFileSystem(), paths, slots=slots, items=items, layout=TIERLOG, border=border,
        indexed_to=indexed_to, log_start=0,
    )  # fmt: skip


def hits(
    index: LocalIndex, key: str, time_range: TimeRange | None = None, axis: TimeAxis = TimeAxis.STORE
) -> list[int]:
    found = index.snapshot().candidates("t", key, time_range, axis)
    return [int(offset) for offset in found["physical_offset"]]


def derive_all(index: LocalIndex, log: Log, end: int) -> None:
    """What the engine does after opening."""
    for first, next_offset in index.gaps(0, end):
        derived = index.derive(first, next_offset)
        derived.on_records(log.range())
        assert derived.done
    index.on_records(log.range())


def states(index: LocalIndex) -> list[tuple[str, int, int | None]]:
    return [(entry.state.value, entry.first, entry.next) for entry in index.files()]


def names(paths: StorePaths) -> dict[str, list[str]]:
    return {state.value: sorted(item.name for item in (paths.index / state).iterdir()) for state in IndexState}


def assert_all_found(index: LocalIndex, log: Log, keys: int = 1) -> None:
    for i, offset in enumerate(log.offsets):
        for k in range(keys):
            assert hits(index, f"k{i}-{k}") == [offset]


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
    index.mark_uploaded(pending)
    index.mark_uploaded(pending)
    assert states(index) == [("uploaded", 0, log.end)]
    assert index.pending() == []
    assert_all_found(index, log, 2)
    assert hits(index, "none") == []
    found = index.snapshot().candidates("t", "k3-1")[0]
    assert (int(found["topic_id"]), int(found["size"])) == (100, log.offsets[4] - log.offsets[3])
    assert 0 <= T + 300 - int(found["second_ms"]) < 1000


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


def test_writing_file_is_derived_again_after_a_stop(paths: StorePaths) -> None:
    log = numbered(20)
    index = open_index(paths)
    index.on_records(log.range(end=log.offsets[10]))
    index.seal()
    index.on_records(log.range())
    again = open_index(paths)
    assert names(paths)["writing"] == []
    assert again.next_offset() == log.offsets[10]
    assert again.gaps(0, log.end) == []
    derive_all(again, log, log.end)
    assert_all_found(again, log)


@pytest.mark.parametrize("state", [IndexState.SEALED, IndexState.COMPACTED, IndexState.UPLOADED])
def test_reopening_keeps_every_complete_state(paths: StorePaths, state: IndexState) -> None:
    log = numbered(20)
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    if state is not IndexState.SEALED:
        index.compact_sealed()
    if state is IndexState.UPLOADED:
        index.mark_uploaded(index.pending()[0])
    again = open_index(paths)
    assert [entry.state for entry in again.files()] == [state]
    assert again.next_offset() == log.end == again.covered_to()
    assert_all_found(again, log)


@pytest.mark.parametrize("state", [IndexState.SEALED, IndexState.COMPACTED, IndexState.UPLOADED])
@pytest.mark.parametrize("damage", ["cut", "magic", "empty", "renamed"])
def test_damaged_file_is_dropped_and_its_range_derived_again(paths: StorePaths, state: IndexState, damage: str) -> None:
    log = numbered(30)
    index = open_index(paths)
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    if state is not IndexState.SEALED:
        index.compact_sealed()
    if state is IndexState.UPLOADED:
        for entry in index.pending():
            index.mark_uploaded(entry)
    victim = index.files()[1].path
    raw = victim.read_bytes()
    if damage == "cut":
        victim.write_bytes(raw[:-1])
    elif damage == "magic":
        victim.write_bytes(raw[:-1] + b"?")
    elif damage == "empty":
        victim.write_bytes(b"")
    else:
        victim.rename(victim.with_name("1000"))
    again = open_index(paths)
    assert again.gaps(0, log.end) == [(log.offsets[10], log.offsets[20])]
    assert again.covered_to() == log.offsets[10]
    assert again.pending() == ([] if state is not IndexState.COMPACTED else again.files()[:1])
    derive_all(again, log, log.end)
    assert again.gaps(0, log.end) == []
    assert_all_found(again, log)
    assert len(again.files()) == 3


@pytest.mark.parametrize("complete", [True, False])
def test_latest_complete_state_of_one_begin_time_wins(paths: StorePaths, complete: bool) -> None:
    log = numbered(20)
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    (entry,) = index.files()
    sealed = entry.path.read_bytes()
    index.compact_sealed()
    entry.path.write_bytes(sealed)
    if not complete:
        compacted = index.files()[0].path
        compacted.write_bytes(compacted.read_bytes()[:-5])
    again = open_index(paths)
    state = IndexState.COMPACTED if complete else IndexState.SEALED
    assert [entry.state for entry in again.files()] == [state]
    assert names(paths) == {s.value: [entry.name] if s is state else [] for s in IndexState}
    assert_all_found(again, log)


def test_files_above_the_recovered_end_are_discarded(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    again = open_index(paths)
    again.discard_above(log.offsets[15])
    assert again.next_offset() == log.offsets[10]
    assert len(names(paths)["sealed"]) == 1
    again.on_records(log.range())
    assert_all_found(again, log)


def test_no_file_straddles_the_watermark(paths: StorePaths) -> None:
    log = numbered(30)
    cut = log.offsets[13]
    index = open_index(paths, indexed_to=cut)
    index.on_records(log.range())
    index.seal()
    assert states(index) == [("sealed", 0, cut), ("sealed", cut, log.end)]
    index.compact_sealed()
    assert [entry.state.value for entry in index.files()] == ["uploaded", "compacted"]
    assert [entry.first for entry in index.pending()] == [cut]
    assert_all_found(index, log)


def test_gap_across_the_watermark_is_derived_as_two_files(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    cut = log.offsets[13]
    again = open_index(paths, indexed_to=cut)
    assert again.files() == []
    index = open_index(paths, indexed_to=cut)
    index.on_records(log.range())
    index.seal()
    index.files()[0].path.unlink()
    index.files()[1].path.write_bytes(b"")
    later = Log([("t", "late", T)], base=log.end)
    index.on_records(later.range())
    index.seal()
    again = open_index(paths, indexed_to=cut)
    assert again.gaps(0, log.end) == [(0, log.end)]
    derived = again.derive(0, log.end)
    derived.on_records(log.range())
    assert derived.done
    assert [(entry.first, entry.next) for entry in again.files()] == [
        (0, cut), (cut, log.end), (log.end, later.end),
    ]  # fmt: skip
    assert_all_found(again, log)


def test_watermark_that_rises_to_what_is_covered_loses_nothing(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    index.on_records(log.range(end=log.offsets[10]))
    index.seal()
    index.compact_sealed()
    reached = index.covered_to()
    index.on_records(log.range())
    index.set_indexed_to(reached)
    assert [entry.state.value for entry in index.files()] == ["uploaded", "writing"]
    assert_all_found(index, log)


def test_watermark_inside_the_current_file_makes_a_gap(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    index.on_records(log.range())
    index.set_indexed_to(log.offsets[10])
    assert index.files() == []
    assert index.gaps(0, log.end) == [(0, log.end)]
    derive_all(index, log, log.end)
    assert_all_found(index, log)
    assert states(index) == [("sealed", 0, log.offsets[10]), ("sealed", log.offsets[10], log.end)]


def test_range_without_items_is_covered_without_a_file(paths: StorePaths) -> None:
    log = Log([("t", "", T + i) for i in range(10)])
    index = open_index(paths)
    index.on_records(log.range(end=log.offsets[5]))
    index.on_records(log.range())
    assert index.covered_to() == 0
    assert not index.seal()
    assert index.covered_to() == log.end
    assert index.gaps(0, log.end) == []
    more = Log([("t", "a", T + 100)], base=log.end)
    index.on_records(more.range())
    index.seal()
    index.compact_sealed()
    assert [(entry.first, entry.next) for entry in index.pending()] == [(log.end, more.end)]
    again = open_index(paths)
    assert again.gaps(0, more.end) == [(0, log.end)]
    derived = again.derive(0, log.end)
    derived.on_records(log.range())
    assert derived.done
    assert again.gaps(0, more.end) == []
    assert again.covered_to() == more.end


def test_end_above_the_last_record_is_seen(paths: StorePaths) -> None:
    log = numbered(3)
    index = open_index(paths)
    index.on_records(log.range(end=log.end + 500))
    assert index.next_offset() == log.end + 500
    index.seal()
    assert index.files()[0].next == log.end + 500


def test_watermark_never_passes_a_file_that_is_not_uploaded(paths: StorePaths) -> None:
    log = numbered(30)
    blank = Log([("t", "", T + 9_000)], base=log.end)
    index = open_index(paths)
    assert index.published_to() == 0
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    index.on_records(blank.range())
    index.seal()
    assert index.covered_to() == blank.end
    assert (index.pending(), index.published_to()) == ([], 0)
    index.compact_sealed()
    assert index.published_to() == 0
    ends = []
    for entry in index.pending():
        index.mark_uploaded(entry)
        ends.append(index.published_to())
    assert ends == [log.offsets[10], log.offsets[20], blank.end]
    index.set_indexed_to(blank.end)
    more = Log([("t", "a", T)], base=blank.end)
    index.on_records(more.range())
    assert index.published_to() == blank.end
    assert len(index.files()) == 4


def test_watermark_stops_before_a_gap(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    index.compact_sealed()
    index.discard(index.files()[1])
    index.discard(index.files()[0])
    assert index.gaps(0, log.end) == [(0, log.offsets[20])]
    assert (index.pending(), index.published_to()) == ([], 0)
    derive_all(index, log, log.end)
    index.compact_sealed()
    assert len(index.pending()) == 2
    assert_all_found(index, log)


def test_range_that_skips_records_is_refused(paths: StorePaths) -> None:
    log = numbered(5)
    index = open_index(paths)
    with pytest.raises(InvalidRequestError):
        index.on_records(log.range(start=log.offsets[2]))


def test_only_gaps_are_derived(paths: StorePaths) -> None:
    log = numbered(5)
    index = open_index(paths)
    index.on_records(log.range())
    with pytest.raises(InvalidRequestError):
        index.derive(0, log.end)


def test_removal_below_the_border_keeps_snapshots_readable(paths: StorePaths) -> None:
    log = numbered(30)
    index = open_index(paths)
    for end in (log.offsets[10], log.offsets[20], log.end):
        index.on_records(log.range(end=end))
        index.seal()
    snapshot = index.snapshot()
    assert index.remove_below(log.offsets[20]) == 2
    assert [entry.first for entry in index.files()] == [log.offsets[20]]
    assert hits(index, "k3-0") == []
    assert snapshot.candidates("t", "k3-0")["physical_offset"].tolist() == [log.offsets[3]]
    assert len(names(paths)["sealed"]) == 1
    assert index.covered_to() == log.end
    index.compact_sealed()
    assert len(index.pending()) == 1


def test_snapshot_is_immutable_while_files_move_on(paths: StorePaths) -> None:
    log = numbered(10)
    index = open_index(paths)
    index.on_records(log.range())
    before = index.snapshot()
    index.seal()
    index.compact_sealed()
    assert [entry.state for entry in before.select()] == [IndexState.WRITING]
    assert before.candidates("t", "k3-0")["physical_offset"].tolist() == [log.offsets[3]]


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


def test_damaged_bytes_of_a_sealed_file_stop_its_compaction_and_keep_it(paths: StorePaths) -> None:
    log = numbered(10)
    index = open_index(paths)
    index.on_records(log.range())
    index.seal()
    path = index.files()[0].path
    raw = bytearray(path.read_bytes())
    raw[900] ^= 1
    path.write_bytes(raw)
    again = open_index(paths)
    with pytest.raises(CorruptIndexError):
        again.compact_sealed()
    assert [entry.state for entry in again.files()] == [IndexState.SEALED]
    assert names(paths)["compacted"] == []


class FullDisk(LocalFileSystem):
    full = False

    def create(self, path: Path, size_bytes: int, *, prewrite: bool) -> None:
        if self.full:
            raise DiskFullError("no space left for the write", path=str(path))
        super().create(path, size_bytes, prewrite=prewrite)


def test_full_disk_leaves_nothing_to_be_indexed_twice(paths: StorePaths) -> None:
    fs = FullDisk()
    log = numbered(10)
    index = open_index(paths, slots=3, items=5, fs=fs)
    index.on_records(log.range(end=log.offsets[2]))
    fs.full = True
    with pytest.raises(DiskFullError):
        index.on_records(log.range())
    with pytest.raises(DiskFullError):
        index.on_records(log.range())
    assert index.next_offset() == log.offsets[4]
    fs.full = False
    index.on_records(log.range())
    assert_all_found(index, log)


class FailingFlush(LocalFileSystem):
    def open(self, path: Path) -> File:
        raise DiskFailedError("the disk refused: Input/output error", path=str(path))


def test_failed_seal_is_never_retried_as_if_nothing_happened(paths: StorePaths) -> None:
    log = numbered(5)
    index = open_index(paths, fs=FailingFlush())
    index.on_records(log.range(end=log.offsets[3]))
    with pytest.raises(DiskFailedError):
        index.seal()
    with pytest.raises(ReadOnlyError):
        index.seal()
    with pytest.raises(ReadOnlyError):
        index.on_records(log.range())
    assert hits(index, "k1-0") == [log.offsets[1]]


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


class Crash(Exception):
    """The process is gone."""


class CrashingDisk(LocalFileSystem):
    """Dies at the n-th change of the disk."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def create(self, path: Path, size_bytes: int, *, prewrite: bool) -> None:
        self._count()
        super().create(path, size_bytes, prewrite=prewrite)

    def open(self, path: Path) -> File:
        self._count()
        return super().open(path)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def flush_dir(self, path: Path) -> None:
        self._count()
        super().flush_dir(path)


def test_no_key_is_lost_or_doubled_whichever_step_a_crash_interrupts(tmp_path: Path) -> None:
    log = numbered(12)
    crashes = 0
    for steps in range(1000):
        paths = StorePaths(tmp_path / str(steps))
        open_index(paths)
        try:
            index = open_index(paths, slots=3, items=6, fs=CrashingDisk(steps))
            index.on_records(log.range(end=log.offsets[8]))
            index.seal()
            index.compact_sealed()
            index.on_records(log.range())
            for entry in index.pending():
                index.mark_uploaded(entry)
            index.seal()
            index.remove_below(log.offsets[1])
        except Crash:
            crashes += 1
        else:
            break
        again = open_index(paths, slots=3, items=6)
        derive_all(again, log, log.end)
        again.seal()
        assert again.covered_to() == log.end
        assert_all_found(again, log)
        again.compact_sealed()
        assert_all_found(again, log)
    assert crashes > 30
