"""Symptom: killed while it opened a cleanly stopped store, RocketMQ took the half linked index file for a whole one."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.hot_stores import ROOT
from tierlog.index.rocketmq import classic_index
from tierlog.index.rocketmq.classic_format import FILE_NAME
from tierlog.index.rocketmq.classic_index import ClassicIndexFile
from tierlog.service.config.settings import HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.message.batch import Message

SLOTS, ITEMS = 40, 30
SETTINGS = Settings(
    advertise="10.0.0.1:7777", hot=HotSettings(segment_bytes=65_536, queue_file_units=60),
    index=IndexSettings(classic=True, classic_slots=SLOTS, classic_items=ITEMS),
)  # fmt: skip


def open_engine(fs: CrashFileSystem, clock: ManualClock) -> Store:
    return Store.open(ROOT, settings=SETTINGS, clock=clock, fs=fs, randomness=SeededRandomness(1))


def files_that_rocketmq_keeps(fs: CrashFileSystem) -> list[ClassicIndexFile]:
    """As its IndexService loads them: all after a clean stop, else those that end at the checkpoint at the latest."""
    paths = StorePaths(ROOT)
    index_ms = Checkpoint.decode(fs.read(paths.checkpoint)).index_ms if fs.exists(paths.abort) else 1 << 62
    names = [name for name in fs.list_dir(paths.index) if FILE_NAME.fullmatch(name)]
    files = [ClassicIndexFile.open(fs, paths.index / name, SLOTS, ITEMS) for name in names]
    return [file for file in files if file.header.end_ms <= index_ms]


def test_rocketmq_keeps_no_file_that_a_kill_left_half_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, fs = ManualClock(), CrashFileSystem()
    fs.make_dirs(ROOT.parent)
    engine = open_engine(fs, clock)
    for number in range(100):  # three full files and the beginning of a fourth
        engine.append([Message("t", b"x", [f"k{number}"], queue_id=0)])
        clock.advance(10)
    engine.close()
    assert len(files_that_rocketmq_keeps(fs)) == 4

    def killed(*arguments: object) -> None:
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(classic_index, "relink_classic", killed)
        with pytest.raises(PowerCut):
            open_engine(fs, clock)
    kept = files_that_rocketmq_keeps(fs)
    assert len(kept) == 2  # a full one that nothing durable follows goes as well, as after any kill
    for file in kept:
        for item in file.all_items():
            assert int(item["offset"]) in file.query(int(item["hash"]), ITEMS, 0, 1 << 62)
    fs.kill()
    engine = open_engine(fs, clock)
    assert engine.check() == []
    assert len(files_that_rocketmq_keeps(fs)) >= 2
    engine.close()
    assert len(files_that_rocketmq_keeps(fs)) == 4
    assert sum(bool(file.query(key_hash("t", "k99"), 1, 0, 1 << 62)) for file in files_that_rocketmq_keeps(fs)) == 1
