"""The first start of a store: refused early, with a way out, and without a trace that would bind the next one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import small_settings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import CorruptionError, DiskFullError, StoreMismatchError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.consumer_groups import GroupOffsets
from tierlog.tiering.hot.identity import is_made
from tierlog.tiering.message.batch import Message

ROOT = Path("/volume/store")
PATHS = StorePaths(ROOT)


class Volume(CrashFileSystem):
    """A disk of a given size, on which ``used`` bytes are somebody else's."""

    def __init__(self, size_bytes: int, used: int = 0) -> None:
        super().__init__()
        self.size_bytes, self.used = size_bytes, used

    def free_bytes(self, path: Path) -> int:
        return self.size_bytes - self.used

    def total_bytes(self, path: Path) -> int:
        return self.size_bytes


def open_store(fs: FileSystem, **overrides: object) -> Store:
    return Store.open(ROOT, fs=fs, settings=small_settings(**overrides))


def test_a_volume_too_small_is_refused_at_once_with_settings_that_fit() -> None:
    fs = Volume(100_000_000)
    with pytest.raises(DiskFullError, match="too small for a new store") as refused:
        Store.open(ROOT, fs=fs, settings=Settings.load())
    assert not fs.exists(ROOT), "nothing was made"
    assert refused.value.hint is not None
    advised = dict(re.findall(r"([a-z.]+_?[a-z]+)=(\d+)", refused.value.hint))
    assert set(advised) == {"hot.segment_bytes", "index.items", "index.slots"}
    Store.open(ROOT, fs=fs, settings=Settings.load(overrides=advised)).close()
    with pytest.raises(StoreMismatchError, match="was made with segment size"):
        open_store(fs)


def test_only_what_is_too_large_is_to_be_changed() -> None:
    fs = Volume(100_000_000)
    with pytest.raises(DiskFullError) as refused:
        open_store(fs, index__slots=5_000_000, index__items=20_000_000)
    assert refused.value.hint is not None
    assert "hot.segment_bytes" not in refused.value.hint


def test_a_volume_that_others_have_filled_is_refused_by_what_is_left_below_the_limit() -> None:
    fs = Volume(100_000_000, used=89_990_000)
    limits = {"hot__disk_max_used_percent": 85, "hot__disk_full_percent": 90}
    with pytest.raises(DiskFullError, match=r"10000 of 100000000 are left below 90 %"):
        open_store(fs, **limits)
    fs.used = 0
    open_store(fs, **limits).close()
    fs.used = 99_999_999
    open_store(fs, **limits).close()  # the store is there: it is opened, however full its volume


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("create", "*/tmp/0*"), ("rename", "*/commitlog/*"), ("flush_dir", "*/commitlog"), ("flush", "*/commitlog/*"),
        ("write_at", "*/tmp/abort"), ("write_at", "*/tmp/checkpoint"), ("rename", "*/checkpoint"),
    ],
)  # fmt: skip
def test_a_first_start_that_fails_leaves_nothing_that_binds_the_next(operation: str, pattern: str) -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    fs.refuse(operation, pattern, times=1, error=DiskFullError("full"))
    with pytest.raises(DiskFullError, match="full"):
        open_store(fs)
    assert fs.list_dir(ROOT) == []
    engine = open_store(fs, hot__segment_bytes=16384, hot__queue_file_units=77)
    engine.append([Message("a", bytes(10_000))])
    engine.close()


def test_a_first_start_killed_at_any_call_binds_nobody_before_it_is_done() -> None:
    fs = CrashFileSystem()
    fs.make_dirs(ROOT.parent)
    wrecks: list[CrashFileSystem] = []
    fs.on_call = lambda number, operation, path: wrecks.extend(
        (fs.after_kill(), fs.crash(number), fs.crash(number, lose_everything=True))
    )
    engine = open_store(fs)
    fs.on_call = None
    engine.append([Message("a", b"first")])
    done = 0
    for wreck in wrecks:
        wreck.kill()
        if is_made(wreck, PATHS):
            done += 1
            with pytest.raises(StoreMismatchError, match="was made with segment size"):
                open_store(wreck, hot__segment_bytes=16384)
            again = open_store(wreck)
        else:
            again = open_store(wreck, hot__segment_bytes=16384)
            again.append([Message("a", bytes(10_000))])
        again.append([Message("a", b"x")])
        again.close()
    assert 0 < done < len(wrecks)


def test_a_log_that_lost_everything_beside_it_is_never_taken_for_a_first_start() -> None:
    fs = CrashFileSystem()
    fs.make_dirs(ROOT.parent)
    engine = open_store(fs)
    engine.append([Message("a", b"first")])
    engine.close()
    for path in PATHS.files[:-1]:
        fs.unlink(path)
    before = fs.read(PATHS.segment(0))
    with pytest.raises(StoreMismatchError, match="was made with segment size"):
        open_store(fs, hot__segment_bytes=16384)
    fs.unlink(PATHS.store_json)
    with pytest.raises((StoreMismatchError, CorruptionError)):
        open_store(fs, hot__segment_bytes=16384)
    assert fs.read(PATHS.segment(0)) == before


def test_a_store_that_was_opened_loses_nothing_by_a_failure_while_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C a second time, or a cache that cannot be closed, in the process that made the store."""
    fs = CrashFileSystem()
    with monkeypatch.context() as patched:
        patched.setattr(GroupOffsets, "close", _interrupted)
        made = open_store(fs)
        made.append([Message("orders", b"paid")])
        with pytest.raises(KeyboardInterrupt):
            made.close()
    again = open_store(fs)
    assert [message.record.body for message in again.pull("orders", 0, 0, 10).messages] == [b"paid"]
    again.close()


def _interrupted(offsets: GroupOffsets) -> NoReturn:
    raise KeyboardInterrupt


def test_traces_are_every_file_that_a_store_has_once() -> None:
    in_files = {path for path in vars(PATHS).values() if path.suffix == ".json"} | {PATHS.checkpoint, PATHS.abort}
    assert in_files == set(PATHS.files)
    assert PATHS.files[-1] == PATHS.store_json
