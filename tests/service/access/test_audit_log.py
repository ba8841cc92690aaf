"""The log of admin calls: on record before anything is done, through crashes and full disks, within its size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.fs.faulty_fs import FaultyFileSystem
from tierlog.service.access.audit import AuditLog
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFullError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.randomness import SystemRandomness

FOLDER = Path("/store/tierlog/audit")
WHO, WHAT = {"caller": "ops"}, {"method": "POST", "path": "/v1/admin/flush"}


def make(fs: FileSystem, max_bytes: int = 1 << 20) -> AuditLog:
    return AuditLog(fs, FOLDER, ManualClock(), SystemRandomness(), max_bytes)


def lines(fs: FileSystem) -> list[dict[str, Any]]:
    found = []
    for name in fs.list_dir(FOLDER):
        *whole, _ = fs.read(FOLDER / name).split(b"\n")
        found += [json.loads(line) for line in whole]
    return found


def test_a_call_has_a_line_before_the_act_and_one_after_it() -> None:
    fs = CrashFileSystem()
    log = make(fs)
    with log.call(WHO, WHAT) as act:
        (begun,) = lines(fs)
        assert (begun["state"], begun["caller"], begun["path"]) == ("begun", "ops", "/v1/admin/flush")
        act.outcome["tombstone_id"] = "x"
    begun, ended = lines(fs)
    assert (ended["state"], ended["call"], ended["ok"], ended["tombstone_id"]) == ("ended", begun["call"], True, "x")
    with pytest.raises(ZeroDivisionError), log.call(WHO, WHAT):
        raise ZeroDivisionError("no")
    assert (lines(fs)[-1]["ok"], lines(fs)[-1]["error"], lines(fs)[-1]["detail"]) == (False, "ZeroDivisionError", "no")


def surviving(fs: FileSystem) -> list[dict[str, Any]]:
    """What a reader makes of the folder: a last line that is cut is passed over."""
    found = []
    for name in fs.list_dir(FOLDER):
        for text in fs.read(FOLDER / name).split(b"\n"):
            try:
                found.append(json.loads(text))
            except ValueError:
                continue
    return found


def test_whatever_moment_power_goes_every_act_that_was_done_is_on_record() -> None:
    def work(fs: FileSystem, done: list[int]) -> None:
        log = make(fs, 4096 * 8)
        for number in range(12):
            with log.call(WHO, {**WHAT, "number": number, "filler": "x" * 700}):
                done.append(number)

    whole = CrashFileSystem()
    work(whole, [])
    cut_at = 0
    while True:
        cut_at += 1
        fs, done = CrashFileSystem(cut_at=cut_at), list[int]()
        try:
            work(fs, done)
        except PowerCut:
            pass
        else:
            break
        after = fs.crash(cut_at)
        begun = {line["number"] for line in surviving(after) if line["state"] == "begun"}
        assert begun >= set(done), cut_at
        log = make(after)  # and the next process goes on behind it
        with log.call(WHO, {**WHAT, "number": 99}):
            pass
        assert {line["number"] for line in surviving(after) if line["state"] == "begun"} >= {*done, 99}
    assert cut_at > 40


@pytest.mark.parametrize("operation", ["open", "write_at", "flush", "flush_dir"])
def test_what_cannot_be_put_on_record_does_not_happen_unless_it_changes_nothing(
    operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    fs.make_dirs(FOLDER)
    log = make(fs)
    fs.refuse(operation, error=DiskFullError("no space"), times=1)
    done = []
    with pytest.raises(DiskFullError), log.call(WHO, WHAT):
        done.append("changed")
    assert not done
    fs.refuse(operation, error=DiskFullError("no space"), times=2)
    with log.call(WHO, WHAT, must=False):
        done.append("looked")
    assert done == ["looked"]
    assert "an admin call is not on record" in caplog.text
    with log.call(WHO, WHAT):
        done.append("changed")
    assert surviving(fs)[-1]["ok"]


def test_an_end_that_cannot_be_written_is_logged_and_the_act_counts(caplog: pytest.LogCaptureFixture) -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    log = make(fs)
    with log.call(WHO, WHAT):
        fs.refuse("write_at", after_bytes=10, times=1)
    assert "is not on record" in caplog.text
    with log.call(WHO, WHAT):
        pass
    assert [line["state"] for line in surviving(fs)] == ["begun", "begun", "ended"]


def test_the_log_keeps_the_newest_within_its_size_over_calls_and_restarts() -> None:
    fs, most = CrashFileSystem(), 1 << 17
    for number in range(60):
        log = make(fs, most)
        for part in range(20 if number % 2 else 1):
            with log.call(WHO, {**WHAT, "number": number, "part": part, "filler": "x" * 500}):
                pass
        log.close()
        sizes = [fs.size(FOLDER / name) for name in fs.list_dir(FOLDER)]
        assert sum(sizes) <= most
        assert len(sizes) <= most // 4096
    kept = [line["number"] for line in lines(fs) if line["state"] == "begun"]
    assert kept == sorted(kept)
    assert kept[-1] == 59
    assert 20 < len(kept) < 630
