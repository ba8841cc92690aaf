"""One contract for file systems: the machine's own and the one that forgets at a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.fs.crash_fs import SECTOR_BYTES, CrashFileSystem, PowerCut
from tests.support.fs.empty_disk import measured_free_bytes
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError, NotFoundError, StoreLockedError
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem, forget_code, replace_file


@pytest.fixture(params=["local", "crash"])
def fs(request: pytest.FixtureRequest) -> FileSystem:
    return LocalFileSystem() if request.param == "local" else CrashFileSystem()


@pytest.fixture
def root(fs: FileSystem, tmp_path: Path) -> Path:
    fs.make_dirs(tmp_path / "root")
    return tmp_path / "root"


def write(fs: FileSystem, path: Path, data: bytes, *, flush: bool = True) -> None:
    file = fs.open(path)
    file.write_at(0, data)
    if flush:
        file.flush()
    file.close()


def test_positional_reads_and_writes(fs: FileSystem, root: Path) -> None:
    file = fs.open(root / "file")
    file.write_at(5, b"hello")
    file.write_at(0, np.frombuffer(b"12345", np.uint8))
    file.write_at(12, bytearray(b"x"))
    assert file.read_at(0, 100) == b"12345hello\0\0x"
    assert file.read_at(3, 4) == b"45he"
    assert file.read_at(50, 4) == b""
    file.flush()
    file.close()
    file.close()
    assert fs.read(root / "file") == b"12345hello\0\0x"
    assert fs.size(root / "file") == 13


def test_zeroed_ranges(fs: FileSystem, root: Path) -> None:
    fs.create(root / "file", 20_000, prewrite=True)
    file = fs.open(root / "file")
    file.write_at(0, b"x" * 20_000)
    file.zero(100, 16_000)
    file.zero(7, 7)
    assert fs.read(root / "file") == b"x" * 100 + bytes(15_900) + b"x" * 4_000
    assert fs.size(root / "file") == 20_000
    file.close()


@pytest.mark.parametrize("prewrite", [True, False])
def test_created_files_are_zeros_of_full_length(fs: FileSystem, root: Path, prewrite: bool) -> None:
    write(fs, root / "file", b"old content")
    fs.create(root / "file", 5000, prewrite=prewrite)
    assert fs.read(root / "file") == bytes(5000)
    fs.create(root / "empty", 0, prewrite=prewrite)
    assert fs.size(root / "empty") == 0
    assert len(fs.map_read(root / "empty")) == 0


def test_maps(fs: FileSystem, root: Path) -> None:
    fs.create(root / "file", 5000, prewrite=True)
    read, private = fs.map_read(root / "file"), fs.map_private(root / "file")
    file = fs.open(root / "file")
    file.write_at(10, b"abc")
    assert bytes(read[10:13]) == b"abc"
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
    private[20] = 9
    assert read[20] == 0
    shared = fs.map_write(root / "file")
    shared[30] = 8
    assert (read[30], fs.read(root / "file")[30]) == (8, 8)
    fs.unlink(root / "file")
    assert bytes(read[10:13]) == b"abc", "a map outlives its name"
    file.write_at(10, b"xyz")
    assert bytes(read[10:13]) == b"xyz"
    file.close()


def test_names(fs: FileSystem, root: Path) -> None:
    assert fs.list_dir(root / "missing") == []
    fs.make_dirs(root / "a" / "b")
    fs.make_dirs(root / "a" / "b")
    write(fs, root / "a" / "two", b"2")
    write(fs, root / "a" / "one", b"1")
    assert fs.list_dir(root / "a") == ["b", "one", "two"]
    assert (fs.is_dir(root / "a"), fs.is_dir(root / "a" / "one")) == (True, False)
    fs.rename(root / "a" / "one", root / "a" / "two")
    assert fs.read(root / "a" / "two") == b"1"
    assert not fs.exists(root / "a" / "one")
    fs.unlink(root / "a" / "two")
    fs.unlink(root / "a" / "two")
    fs.flush_dir(root / "a")
    fs.remove_dir(root / "a" / "b")
    fs.remove_dir(root / "a" / "b")
    assert fs.list_dir(root / "a") == []
    assert 0 < fs.free_bytes(root) <= fs.total_bytes(root)


def test_what_is_free_is_part_of_the_volume(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    assert 0 <= measured_free_bytes(fs, tmp_path) < fs.total_bytes(tmp_path)


def test_a_second_name_keeps_the_bytes_and_takes_no_other_files_name(fs: FileSystem, root: Path) -> None:
    write(fs, root / "one", b"1")
    write(fs, root / "taken", b"2")
    fs.link(root / "one", root / "two")
    fs.link(root / "one", root / "taken")
    fs.unlink(root / "one")
    assert (fs.read(root / "two"), fs.read(root / "taken")) == (b"1", b"2")
    with pytest.raises(NotFoundError):
        fs.link(root / "one", root / "three")


def test_a_file_that_is_only_read_is_not_made_and_outlives_its_name(fs: FileSystem, root: Path) -> None:
    with pytest.raises(NotFoundError):
        fs.open_read(root / "file")
    assert not fs.exists(root / "file")
    write(fs, root / "file", b"abc")
    file = fs.open_read(root / "file")
    fs.unlink(root / "file")
    assert file.read_at(1, 10) == b"bc"
    file.flush()
    file.close()


def test_a_stamp_tells_one_file_from_another_of_its_name(fs: FileSystem, root: Path) -> None:
    assert fs.stamp(root / "file") is None
    write(fs, root / "file", b"a")
    first = fs.stamp(root / "file")
    assert first == fs.stamp(root / "file")
    write(fs, root / "other", b"b")
    fs.rename(root / "other", root / "file")
    assert fs.stamp(root / "file") != first


def test_missing_is_not_found(fs: FileSystem, root: Path) -> None:
    for call in (fs.read, fs.size, fs.map_read, fs.map_write, fs.map_private):
        with pytest.raises(NotFoundError):
            call(root / "missing")
    with pytest.raises(NotFoundError):
        fs.rename(root / "missing", root / "target")
    with pytest.raises(NotFoundError):
        fs.open(root / "no folder" / "file")
    with pytest.raises(NotFoundError):
        fs.create(root / "no folder" / "file", 10, prewrite=True)
    with pytest.raises(NotFoundError):
        fs.flush_dir(root / "no folder")


def test_a_folder_that_is_not_empty_stays(fs: FileSystem, root: Path) -> None:
    write(fs, root / "file", b"x")
    with pytest.raises(DiskFailedError):
        fs.remove_dir(root)


def test_a_lock_is_seen_without_touching_it(fs: FileSystem, root: Path) -> None:
    assert not fs.is_locked(root / "lock")
    assert not fs.exists(root / "lock")
    with fs.lock(root / "lock"):
        assert fs.is_locked(root / "lock")
    assert not fs.is_locked(root / "lock")


def test_lock_excludes(fs: FileSystem, root: Path) -> None:
    with fs.lock(root / "lock"), pytest.raises(StoreLockedError), fs.lock(root / "lock"):
        pass
    with fs.lock(root / "lock"):
        pass


def test_replace_file(fs: FileSystem, root: Path) -> None:
    fs.make_dirs(root / "tmp")
    write(fs, root / "tmp" / "file", b"longer garbage of an earlier try")
    for data in (b"first", b"second and longer", b"3"):
        replace_file(fs, root / "file", data, root / "tmp")
        assert fs.read(root / "file") == data
    assert fs.list_dir(root / "tmp") == []


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, DiskFailedError),
     (errno.EACCES, DiskFailedError), (errno.ENOENT, NotFoundError)],
)  # fmt: skip
def test_errors_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    file = LocalFileSystem().open(tmp_path / "file")

    def refuse(*_: object) -> int:
        raise OSError(number, "scripted")

    monkeypatch.setattr("tierlog.tiering.base.fs.os.pwrite", refuse)
    monkeypatch.setattr("tierlog.tiering.base.fs.os.fdatasync", refuse)
    with pytest.raises(error):
        file.write_at(0, b"x")
    with pytest.raises(error):
        file.flush()
    file.close()


def test_unreadable_is_not_taken_for_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise OSError(errno.EIO, "scripted")

    with monkeypatch.context() as patched:
        patched.setattr("tierlog.tiering.base.fs.os.stat", refuse)
        patched.setattr("tierlog.tiering.base.fs.os.listdir", refuse)
        for call in (LocalFileSystem().exists, LocalFileSystem().list_dir, LocalFileSystem().size):
            with pytest.raises(DiskFailedError):
                call(tmp_path)


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr("tierlog.tiering.base.fs.os.pwrite", lambda fd, data, at: whole(fd, data[:3], at))
    file = LocalFileSystem().open(tmp_path / "file")
    file.write_at(2, b"0123456789")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"\0\x000123456789"


# ---- what a power cut leaves


ROOT = Path("/root")


@pytest.fixture
def disk() -> CrashFileSystem:
    made = CrashFileSystem()
    made.make_dirs(ROOT)
    return made


def outcomes(disk: CrashFileSystem, path: Path, count: int = 60) -> set[bytes | None]:
    found: set[bytes | None] = set()
    for seed in range(count):
        after = disk.crash(seed)
        found.add(after.read(path) if after.exists(path) else None)
    return found


def test_flushed_bytes_and_names_stay(disk: CrashFileSystem) -> None:
    write(disk, ROOT / "file", b"kept")
    disk.flush_dir(ROOT)
    assert outcomes(disk, ROOT / "file") == {b"kept"}
    assert disk.crash(0, lose_everything=True).read(ROOT / "file") == b"kept"


def test_a_new_name_may_be_lost(disk: CrashFileSystem) -> None:
    write(disk, ROOT / "file", b"kept")
    assert outcomes(disk, ROOT / "file") == {b"kept", None}
    assert not disk.crash(0, lose_everything=True).exists(ROOT / "file")


def test_bytes_are_lost_by_the_sector(disk: CrashFileSystem) -> None:
    disk.create(ROOT / "file", 3 * SECTOR_BYTES, prewrite=True)
    disk.flush_dir(ROOT)
    file = disk.open(ROOT / "file")
    file.write_at(0, b"x" * 3 * SECTOR_BYTES)
    found = outcomes(disk, ROOT / "file", 200)
    sectors = {tuple(data[at] for at in range(0, len(data), SECTOR_BYTES)) for data in found if data is not None}
    assert len(sectors) == 8
    assert all(
        len(set(data[at : at + SECTOR_BYTES])) == 1
        for data in found if data is not None for at in range(0, len(data), SECTOR_BYTES)
    )  # fmt: skip
    file.flush()
    assert outcomes(disk, ROOT / "file") == {b"x" * 3 * SECTOR_BYTES}


def test_what_a_map_wrote_is_not_flushed(disk: CrashFileSystem) -> None:
    disk.create(ROOT / "file", 10, prewrite=False)
    disk.flush_dir(ROOT)
    disk.map_write(ROOT / "file")[:] = 1
    assert outcomes(disk, ROOT / "file") == {bytes(10), b"\1" * 10}
    disk.open(ROOT / "file").flush()
    assert outcomes(disk, ROOT / "file") == {b"\1" * 10}


def test_a_rename_is_done_or_undone(disk: CrashFileSystem) -> None:
    for name in ("a", "b"):
        write(disk, ROOT / name, name.encode())
    disk.flush_dir(ROOT)
    disk.rename(ROOT / "a", ROOT / "b")
    seen = set()
    for seed in range(60):
        after = disk.crash(seed)
        seen.add(tuple(after.read(ROOT / name) if after.exists(ROOT / name) else None for name in ("a", "b")))
    assert seen == {(b"a", b"b"), (b"a", b"a"), (None, b"a")}
    disk.flush_dir(ROOT)
    assert outcomes(disk, ROOT / "b") == {b"a"}
    assert outcomes(disk, ROOT / "a") == {None}


def test_a_second_name_is_there_or_not_until_its_folder_is_flushed(disk: CrashFileSystem) -> None:
    write(disk, ROOT / "a", b"a")
    disk.flush_dir(ROOT)
    disk.link(ROOT / "a", ROOT / "b")
    assert outcomes(disk, ROOT / "b") == {None, b"a"}
    assert outcomes(disk, ROOT / "a") == {b"a"}
    disk.flush_dir(ROOT)
    assert outcomes(disk, ROOT / "b") == {b"a"}


def test_an_unlink_may_be_undone(disk: CrashFileSystem) -> None:
    write(disk, ROOT / "file", b"old")
    disk.flush_dir(ROOT)
    disk.unlink(ROOT / "file")
    assert outcomes(disk, ROOT / "file") == {b"old", None}
    disk.flush_dir(ROOT)
    assert outcomes(disk, ROOT / "file") == {None}


@pytest.mark.parametrize("call", range(1, 7))
def test_replaced_files_are_old_or_new_whatever_is_lost(disk: CrashFileSystem, call: int) -> None:
    disk.make_dirs(ROOT / "tmp")
    old, new = b"old" * 500, b"newer" * 500
    replace_file(disk, ROOT / "file", old, ROOT / "tmp")
    disk.cut_at = disk.calls + call
    try:
        replace_file(disk, ROOT / "file", new, ROOT / "tmp")
    except PowerCut:
        assert outcomes(disk, ROOT / "file") <= {old, new}
    else:
        assert outcomes(disk.crash(0), ROOT / "file") == {new}


def test_the_cut_comes_at_the_call_asked_for(disk: CrashFileSystem) -> None:
    disk.cut_at = disk.calls + 2
    file = disk.open(ROOT / "file")
    with pytest.raises(PowerCut):
        file.write_at(0, b"begun")
    calls = disk.calls
    for refused in (file.flush, lambda: disk.read(ROOT / "file"), lambda: disk.unlink(ROOT / "file")):
        with pytest.raises(PowerCut):
            refused()
    assert disk.calls == calls
    assert outcomes(disk, ROOT / "file") == {None, b"", b"begun"}


def test_a_crash_leaves_the_running_machine_alone(disk: CrashFileSystem) -> None:
    write(disk, ROOT / "file", b"volatile", flush=False)
    after = disk.crash(0, lose_everything=True)
    write(after, ROOT / "other", b"x")
    assert disk.read(ROOT / "file") == b"volatile"
    assert not disk.exists(ROOT / "other")


def test_code_that_is_let_go_of_comes_back_when_it_is_run() -> None:
    """Sorting is in numpy's library."""
    numbers = np.random.default_rng(1).integers(0, 1000, 5000)
    before = np.sort(numbers)
    with_code = _file_pages()
    forget_code("_multiarray_umath")
    assert _file_pages() < with_code
    assert (np.sort(numbers) == before).all()
    forget_code("a library that nobody loaded")


def _file_pages() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


def test_a_hole_gets_its_blocks_and_what_was_written_there_stays(fs: FileSystem, root: Path) -> None:
    fs.make_dirs(root)
    fs.create(root / "file", 1 << 20, prewrite=True, first_bytes=8192)
    assert fs.size(root / "file") == 1 << 20
    file = fs.open(root / "file")
    assert file.first_hole(0) == file.first_hole(100) == 8192
    file.write_at(8192, b"x" * 4096)
    assert file.first_hole(0) == 12_288
    fs.allocate(root / "file", 0, 65_536)
    assert file.first_hole(0) == 12_288, "reserved is not written"
    assert file.read_at(8192, 4097) == b"x" * 4096 + b"\0"
    assert fs.size(root / "file") == 1 << 20
    fs.allocate(root / "file", 5, 5)
    assert file.first_hole(1 << 20) == 1 << 20
    file.close()
