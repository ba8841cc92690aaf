"""A store opened through the overlay recovers in memory and changes no byte of the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.hot_stores import HotWorld, append, fill, queue_offsets
from tierlog.tiering.base.errors import NotFoundError
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.message.batch import Message


def listing(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(root.rglob("*")) if path.is_file()
    }


def test_recovery_in_memory_changes_nothing(tmp_path: Path) -> None:
    world = HotWorld(fs=LocalFileSystem(), root=tmp_path / "store")
    hot = world.open()
    fill(hot, "a", 70)
    hot.log.close()  # killed: nothing of it was derived yet
    with open(world.paths.segment(hot.log.last_base), "r+b") as torn:
        torn.seek(hot.log.end - hot.log.last_base)
        torn.write(b"\0\0\0\xa8\xda\xa3\x20\xa7torn")
    before = listing(tmp_path)
    overlay = HotWorld(fs=OverlayFileSystem(LocalFileSystem()), root=tmp_path / "store").open()
    assert queue_offsets(overlay, "a") == list(range(70))
    append(overlay, Message("new", b"only in memory"))
    overlay.roll()
    overlay.dispatch()
    overlay.remove_below(overlay.log.last_base, forget=lambda _: None)
    overlay.close()
    assert listing(tmp_path) == before


@pytest.fixture
def base(tmp_path: Path) -> LocalFileSystem:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"0123456789")
    return LocalFileSystem()


def test_files(base: FileSystem, tmp_path: Path) -> None:
    fs, path = OverlayFileSystem(base), tmp_path / "folder" / "file"
    assert fs.read(path) == b"0123456789"
    assert fs.size(path) == 10
    shared = fs.map_read(path)
    file = fs.open(path)
    file.write_at(2, b"ab")
    file.write_at(10, np.frombuffer(b"longer", np.uint8))
    file.zero(0, 2)
    file.flush()
    file.close()
    assert fs.read(path) == b"\0\0ab456789longer"
    assert file.read_at(2, 3) == b"ab4"
    assert bytes(shared[2:4]) == b"ab", "a map follows what is written while the file keeps its length"
    assert path.read_bytes() == b"0123456789"
    fs.map_write(path)[0] = 7
    assert fs.read(path)[0] == 7
    assert path.read_bytes()[0] == ord("0")


def test_names(base: FileSystem, tmp_path: Path) -> None:
    fs, folder = OverlayFileSystem(base), tmp_path / "folder"
    fs.make_dirs(folder / "new" / "deep")
    fs.create(folder / "new" / "made", 5, prewrite=True)
    assert fs.list_dir(folder) == ["file", "new"]
    assert fs.list_dir(folder / "new") == ["deep", "made"]
    assert fs.is_dir(folder / "new" / "deep")
    fs.rename(folder / "file", folder / "moved")
    assert fs.list_dir(folder) == ["moved", "new"]
    assert fs.read(folder / "moved") == b"0123456789"
    assert not fs.exists(folder / "file")
    with pytest.raises(NotFoundError):
        fs.read(folder / "file")
    with pytest.raises(NotFoundError):
        fs.size(folder / "file")
    fs.open(folder / "file").write_at(0, b"again")
    assert fs.read(folder / "file") == b"again"
    fs.unlink(folder / "file")
    fs.unlink(folder / "file")
    fs.remove_dir(folder / "new" / "deep")
    assert not fs.exists(folder / "new" / "deep")
    assert sorted(path.name for path in folder.iterdir()) == ["file"]


def test_no_lock_is_taken(base: FileSystem, tmp_path: Path) -> None:
    fs = OverlayFileSystem(base)
    with base.lock(tmp_path / "lock"), fs.lock(tmp_path / "lock"):
        assert 0 < fs.free_bytes(tmp_path) <= fs.total_bytes(tmp_path)


def test_second_names_stamps_and_files_that_are_read_are_those_of_the_overlay(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    overlay = OverlayFileSystem(LocalFileSystem())
    overlay.link(tmp_path / "file", tmp_path / "name")
    assert not (tmp_path / "name").exists()
    overlay.open(tmp_path / "file").write_at(0, b"x")
    assert overlay.open_read(tmp_path / "file").read_at(0, 3) == b"xbc"
    assert overlay.open_read(tmp_path / "name").read_at(0, 3) == b"xbc"
    assert overlay.stamp(tmp_path / "file") == LocalFileSystem().stamp(tmp_path / "file")
    overlay.unlink(tmp_path / "file")
    assert overlay.stamp(tmp_path / "file") is None
    with pytest.raises(NotFoundError):
        overlay.open_read(tmp_path / "file")
