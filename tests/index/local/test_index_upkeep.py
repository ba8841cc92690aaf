"""What happens to index files beside their writer: sealing, compaction, removal, and what goes wrong there."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.index.index_logs import Log, T, numbered
from tests.support.index.local_indexes import (
    assert_all_found,
    derive_all,
    found_in,
    hits,
    names,
    open_index,
    publish,
    states,
)
from tests.support.stores.hot_stores import ROOT
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.states import IndexState
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError, StoreError
from tierlog.tiering.base.fs import File, FileSystem, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import TimeRange
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem

STORE = StorePaths(ROOT)


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths(tmp_path)


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
    assert [hit.offset for hit in found_in(snapshot, "k3-0")] == [log.offsets[3]]
    assert index.covered_to() == log.end
    index.maintain()
    assert [len(files) for files in names(paths).values()] == [0, 0, 1, 0]
    assert len(index.pending()) == 1


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

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        if self.full:
            raise DiskFullError("no space left for the write", path=str(path))
        super().create(path, size_bytes, prewrite=prewrite, first_bytes=first_bytes)


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

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        self._count()
        super().create(path, size_bytes, prewrite=prewrite, first_bytes=first_bytes)

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


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_no_key_is_lost_or_doubled_whichever_step_a_crash_interrupts(tmp_path: Path, stride: int) -> None:
    log = numbered(12)
    crashes = 0
    for steps in range(0, 1000, stride):
        paths = StorePaths(tmp_path / str(steps))
        open_index(paths)
        try:
            index = open_index(paths, slots=3, items=6, fs=CrashingDisk(steps))
            index.on_records(log.range(end=log.offsets[8]))
            index.seal()
            index.compact_sealed()
            index.on_records(log.range())
            for entry in index.pending():
                publish(index, entry)
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
    assert crashes > 45 // stride


def tiny(paths: StorePaths, fs: FileSystem | None = None) -> LocalIndex:
    """Files of four keys."""
    return open_index(paths, slots=3, items=5, fs=fs)


def test_full_files_wait_to_be_sealed_and_are_found_meanwhile(paths: StorePaths) -> None:
    log = numbered(14)
    index = tiny(paths)
    index.on_records(log.range())
    assert states(index) == [
        ("writing", 0, log.offsets[4]), ("writing", log.offsets[4], log.offsets[8]),
        ("writing", log.offsets[8], log.offsets[12]), ("writing", log.offsets[12], None),
    ]  # fmt: skip
    assert_all_found(index, log)
    assert (index.covered_to(), index.open_from, index.waiting()) == (0, log.offsets[12], 3)
    assert index.gaps(0, log.end) == []
    assert index.searchable(0, log.end)[1] == []
    assert (index.pending(), index.published_to()) == ([], 0)
    assert index.seal_full() == 3
    assert (index.covered_to(), index.waiting()) == (log.offsets[12], 3)
    assert_all_found(index, log)
    index.maintain()
    assert (index.waiting(), len(index.pending())) == (0, 3)
    assert_all_found(index, log)


def test_an_empty_file_is_never_sealed(paths: StorePaths) -> None:
    index = open_index(paths)
    index.on_records(Log([("t", "", T)]).range())
    assert not index.put_aside(T + 1)
    assert not index.seal()
    assert [*paths.index.rglob("*0")] == []


def test_only_a_file_with_an_old_item_is_put_aside_by_age(paths: StorePaths) -> None:
    log = numbered(3)
    index = open_index(paths)
    index.on_records(log.range())
    assert not index.put_aside(T)
    assert states(index) == [("writing", 0, None)]
    assert index.put_aside(T + 1)
    assert states(index) == [("writing", 0, log.end)]
    assert not index.put_aside(T + 1)


def test_file_whose_flush_failed_while_it_was_sealed_is_derived_again(paths: StorePaths) -> None:
    """What the disk holds of it nobody knows: it is out of sight at once, and queries can tell what they lack."""
    log = numbered(10)
    fs = FaultyFileSystem(LocalFileSystem())
    index = tiny(paths, fs)
    index.on_records(log.range())
    fs.refuse("flush", "*/index/writing/*", times=1)
    with pytest.raises(DiskFailedError):
        index.seal_full()
    lost = [(0, log.offsets[4])]
    assert index.gaps(0, log.end) == lost
    assert index.searchable(0, log.end)[1] == lost
    assert hits(index, "k1-0") == []
    derive_all(index, log, log.end)
    assert index.covered_to() == log.offsets[8]
    assert_all_found(index, log)
    index.maintain()
    again = tiny(paths)
    derive_all(again, log, log.end)
    assert_all_found(again, log)
    assert len({entry.name for entry in again.files()}) == 3


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("rename", "*/sealed/*"), ("flush_dir", "*/sealed"), ("flush_dir", "*/writing"), ("rename", "*/index.json"),
        ("create", "*/tmp/compact-*"), ("rename", "*/compacted/*"), ("flush_dir", "*/compacted"),
        ("unlink", "*/sealed/*"), ("rename", "*/uploaded/*"), ("flush_dir", "*/uploaded"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("error", [DiskFullError("no space left"), DiskFailedError("EIO")])
def test_a_step_that_failed_is_taken_again_and_loses_nothing(
    paths: StorePaths, operation: str, pattern: str, error: StoreError
) -> None:
    log = numbered(10)
    fs = FaultyFileSystem(LocalFileSystem())
    index = tiny(paths, fs)
    index.on_records(log.range())
    index.set_indexed_to(log.offsets[4])
    if pattern == "*/writing":  # after a checkpoint, whose flush of the folder is one of the file
        index.checkpoint()
    fs.refuse(operation, pattern, error=error, times=1)
    with pytest.raises(type(error)):
        index.maintain()
    assert index.gaps(0, log.end) == []
    assert_all_found(index, log)
    index.maintain()
    assert states(index) == [
        ("uploaded", 0, log.offsets[4]), ("compacted", log.offsets[4], log.offsets[8]),
        ("writing", log.offsets[8], None),
    ]  # fmt: skip
    assert_all_found(index, log)
    again = tiny(paths)
    derive_all(again, log, log.end)
    assert_all_found(again, log)


@pytest.mark.parametrize("operation", ["sealing", "compacting"])
def test_a_file_that_is_removed_while_it_is_moved_on_does_not_come_back(paths: StorePaths, operation: str) -> None:
    log = numbered(10)
    fs = FaultyFileSystem(LocalFileSystem())
    index = tiny(paths, fs)
    index.on_records(log.range())
    if operation == "sealing":
        hold = fs.hold("flush", "*/index/writing/*")
    else:
        index.seal_full()
        hold = fs.hold("flush", "*/tmp/compact-*")
    keeping = threading.Thread(target=index.maintain)
    keeping.start()
    hold.wait_until_reached()
    assert index.remove_below(log.offsets[4]) == 1
    assert hits(index, "k1-0") == []
    hold.release()
    keeping.join()
    index.maintain()
    assert states(index) == [("compacted", log.offsets[4], log.offsets[8]), ("writing", log.offsets[8], None)]
    assert [len(files) for files in names(paths).values()] == [1, 0, 1, 0]


def test_what_was_removed_and_not_unlinked_is_so_at_the_next_open(paths: StorePaths) -> None:
    log = numbered(10)
    index = tiny(paths)
    index.on_records(log.range())
    index.maintain()
    index.remove_below(log.offsets[4])
    again = open_index(paths, border=log.offsets[4])
    assert names(paths)["compacted"] == [str(T + 1000)]
    assert again.files()[0].first == log.offsets[4]


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("flush", "*/index/writing/*"), ("rename", "*/sealed/*"), ("flush_dir", "*/sealed"),
        ("write_at", "*/tmp/compact-*"), ("flush", "*/tmp/compact-*"), ("rename", "*/compacted/*"),
        ("unlink", "*/sealed/*"), ("rename", "*/uploaded/*"), ("unlink", "*/index/writing/*"),
    ],
)  # fmt: skip
def test_writer_and_readers_go_on_while_the_disk_hangs_beside_them(
    paths: StorePaths, operation: str, pattern: str
) -> None:
    log = numbered(40)
    fs = FaultyFileSystem(LocalFileSystem())
    index = tiny(paths, fs)
    index.on_records(log.range(end=log.offsets[10]))
    index.set_indexed_to(log.offsets[4])
    if operation == "unlink" and "writing" in pattern:
        index.remove_below(log.offsets[4])
    hold = fs.hold(operation, pattern)
    keeping = threading.Thread(target=index.maintain)
    keeping.start()
    hold.wait_until_reached()
    seen = 4 if "writing" in pattern and operation == "unlink" else 0
    for count in range(11, 40):
        index.on_records(log.range(end=log.offsets[count]))
        for number in (seen, count // 2, count - 1):
            assert hits(index, f"k{number}-0") == [log.offsets[number]]
    assert index.put_aside()
    assert index.searchable(log.offsets[seen], log.offsets[39])[1] == []
    assert index.gaps(log.offsets[seen], log.offsets[39]) == []
    index.covered_to()
    index.published_to()
    index.checkpoint()
    index.remove_below(log.offsets[8])
    assert keeping.is_alive()
    hold.release()
    keeping.join()
    index.on_records(log.range())
    index.maintain()
    for number in range(8, 40):
        assert hits(index, f"k{number}-0") == [log.offsets[number]]


@pytest.mark.parametrize("count", [300, pytest.param(3_000, marks=pytest.mark.slow)])
def test_files_that_begin_in_one_millisecond_have_names_of_their_own(paths: StorePaths, count: int) -> None:
    log = Log([("t", f"k{number}-0", T) for number in range(count)])
    fs = OverlayFileSystem(LocalFileSystem())
    index = open_index(paths, slots=1, items=2, fs=fs)
    index.on_records(log.range(end=log.offsets[count // 2]))
    index.seal()
    index.on_records(log.range())
    index.checkpoint()
    found = index.files()
    assert sorted(int(entry.name) for entry in found) == [T + 1000 * number for number in range(count)]
    again = open_index(paths, slots=1, items=2, fs=fs)
    assert again.gaps(0, log.end) == []
    assert again.next_offset() == log.end
    for number in range(0, count, 97):
        time_range = TimeRange(T, T + 1)
        assert hits(again, f"k{number}-0", time_range) == [log.offsets[number]]


class TestKilledBetweenFullAndSealed:
    """The machine stops at each call of the disk, before and after what it had not flushed got lost."""

    log = numbered(14)

    def run(self, fs: CrashFileSystem) -> LocalIndex:
        index = tiny(STORE, fs)
        index.on_records(self.log.range())
        index.checkpoint()
        return index

    @pytest.mark.parametrize("seed", range(4))
    def test_nothing_is_derived_again(self, seed: int) -> None:
        fs = CrashFileSystem(seed=seed)
        index = self.run(fs)
        wrecks: list[CrashFileSystem] = []

        def on_call(number: int, operation: str, path: Path) -> None:
            wrecks.append(fs.crash(seed * 1000 + number, lose_everything=number % 4 == 0))

        fs.on_call = on_call
        index.maintain()
        assert len(wrecks) > 40
        for wreck in wrecks:
            again = tiny(STORE, wreck)
            assert again.next_offset() == self.log.end
            assert again.gaps(0, self.log.end) == []
            assert_all_found(again, self.log)
            again.maintain()
            assert [state for state, *_ in states(again)] == ["compacted"] * 3 + ["writing"]
            assert_all_found(again, self.log)
            assert again.discard_damaged() == 0

    def test_a_second_stop_while_it_is_sealed_again_changes_nothing(self) -> None:
        fs = CrashFileSystem()
        index = self.run(fs)
        first = fs.calls
        index.seal_full()
        calls = fs.calls - first
        for cut in range(1, calls):
            fs = CrashFileSystem()
            index = self.run(fs)
            fs.cut_at = fs.calls + cut
            with pytest.raises(PowerCut):
                index.seal_full()
            wreck = fs.crash(cut)
            second = tiny(STORE, wreck)
            wreck.cut_at = wreck.calls + 2
            with contextlib.suppress(PowerCut):
                second.seal_full()
            again = tiny(STORE, wreck.crash(cut + 1))
            assert again.gaps(0, self.log.end) == []
            assert_all_found(again, self.log)
            assert again.discard_damaged() == 0
