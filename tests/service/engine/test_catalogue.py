"""The list of files names every file of a store, whoever's index it is."""

from __future__ import annotations

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import ROOT
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.message.batch import Message


def test_classic_files_are_listed_beside_ours() -> None:
    fs = CrashFileSystem()
    settings = tiny_settings(index__classic=True, index__classic_slots=10, index__classic_items=6)
    engine = Store.open(ROOT, settings=settings, fs=fs, clock=ManualClock())
    appended = engine.append([Message("orders", b"x", [f"k{number}"]) for number in range(8)])
    engine.flush()
    files = [file for file in engine.files() if file.kind == "classic index"]
    assert [file.name for file in files] == [name for name in fs.list_dir(StorePaths(ROOT).index) if name.isdigit()]
    assert [(file.state, file.records) for file in files] == [("full", 5), ("writing", 3)]
    assert files[0].first_offset == 0
    assert files[-1].next_offset == int(appended[-1].message_id[-16:], 16) + 1
    assert all(file.bytes == fs.size(StorePaths(ROOT).index / file.name) for file in files)
    assert {file.kind for file in engine.files()} == {"segment", "index", "classic index"}
