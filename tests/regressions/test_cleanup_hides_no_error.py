"""Symptom: a file could not be made, nor what was left of it removed, and only the second was told."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.index.rocketmq.classic_index import ClassicIndexFile
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError


def test_classic_file_without_room_says_so_though_the_disk_refuses_the_cleanup_too() -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    fs.inner.make_dirs(ROOT)
    fs.refuse("create", error=DiskFullError("no space left"))
    fs.refuse("unlink", error=DiskFailedError("input/output error"))
    with pytest.raises(DiskFullError, match="no space left"):
        ClassicIndexFile.create(fs, ROOT / "20261121000000000", 10, 20, after=None)
    assert [operation for operation, _ in fs.refused] == ["create", "unlink"]
