"""A commit that shared a write with one that failed unforeseen was acknowledged, and the write never happened."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.consumer_groups import GroupOffsets

PATHS = StorePaths(ROOT)


class SlowDisk(CrashFileSystem):
    """Its first rename waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def rename(self, source: Any, target: Any) -> None:
        self.asked.set()
        assert self.go.wait(30)
        super().rename(source, target)


def test_what_shares_a_write_with_an_unforeseen_failure_is_durable_once_acknowledged() -> None:
    fs = SlowDisk()
    for folder in (PATHS.tmp, PATHS.tierlog):
        fs.make_dirs(folder)
    groups = GroupOffsets(fs, PATHS, "s", lambda: None)
    wrong: Any = "no number"
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(groups.commit, "a", {("t", "s", 0): 1}, generation=0)
        assert fs.asked.wait(30)
        bad = [pool.submit(groups.commit, "b", {("t", "s", 0): wrong}, generation=0) for _ in range(3)]
        good = pool.submit(groups.commit, "c", {("t", "s", 0): 3}, generation=0)
        while len(groups._changes._waiting) < 4:  # all of them wait for the first write
            threading.Event().wait(0.001)
        fs.go.set()
        assert all(isinstance(each.exception(30), TypeError) for each in bad)
        assert first.exception(30) is None
        acknowledged = good.exception(30) is None
    again = GroupOffsets(fs.crash(0, lose_everything=True), PATHS, "s", lambda: None)
    assert acknowledged
    assert again.get("c").offsets == {("t", "s", 0): 3}
