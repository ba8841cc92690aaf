"""Symptom: after a failed commit the old offset was committed again, and a restart began behind it all the same."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.consumer_groups import GroupOffsets


def test_commit_of_what_stands_is_written_if_the_one_before_may_have_reached_the_disk() -> None:
    disk, paths = CrashFileSystem(), StorePaths(ROOT)
    for folder in (paths.tierlog, paths.tmp):
        disk.make_dirs(folder)
    fs = FaultyFileSystem(disk)
    offsets = GroupOffsets(fs, paths, "s", lambda: None)
    offsets.commit("g", {("t", "s", 0): 10}, generation=0)
    fs.refuse("flush_dir", times=1)
    with pytest.raises(StoreError):
        offsets.commit("g", {("t", "s", 0): 20}, generation=0)
    offsets.commit("g", {("t", "s", 0): 10}, generation=0)
    assert GroupOffsets(disk, paths, "s", lambda: None).get("g").offsets == {("t", "s", 0): 10}
