"""System calls that fail: the append is refused, the store turns read-only and reads on, a restart finds everything.

strace makes the kernel refuse the n-th call of a kind in a real process: EIO, ENOSPC, EROFS, once or for good, one
thread or several beside the store's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.oracles.ledger import Ledger, compare
from tests.support.processes.fault_worker import worker_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

pytestmark = pytest.mark.slow

BATCHES = 60
#: Which of a thread's calls is refused: at opening, early, in the middle, late.
OCCURRENCES = {
    "fdatasync": (1, 5, 23, 61, 110),
    "pwrite64": (1, 2, 9, 40, 71, 130),
    "fsync": (1, 9, 31, 60),
    "rename": (1, 3, 8, 16, 30),
    "fallocate": (1, 2, 3),
    "ftruncate": (1,),
}


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("no strace: install the package of that name")
    probe = subprocess.run([found, "-qq", "-o", os.devnull, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("strace may not trace here (ptrace is forbidden)")
    return found


def run_refused(strace: str, folder: Path, seed: int, call: str, how: str, writers: int = 0) -> tuple[Any, int]:
    """Run the worker with refused calls; what it says, and how many calls were refused."""
    trace = folder / "trace"
    command = [strace, "-f", "-qq", "-o", str(trace), "-e", f"trace={call}", "-e", f"inject={call}:{how}"]
    worker = [
        sys.executable,
        "-m",
        "tests.support.processes.fault_worker",
        str(folder),
        str(seed),
        str(BATCHES),
        str(writers),
    ]
    done = subprocess.run(command + worker, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    outcome["told"] = "cannot follow the log" in done.stderr
    return outcome, trace.read_text().count("(INJECTED)")


def examine(outcome: Any, folder: Path, writers: int) -> None:
    """What a store that met a refusal must have done, and what the next open must find."""
    if outcome["stage"] == "write":
        assert outcome["reason"]
        assert outcome["refused"]
    if outcome["stage"] != "open":
        # what cannot be dispatched is in the log and is named; it is never silently missing
        assert outcome["unread"] == 0 or outcome["undispatched"]
    for number in range(2):
        engine = Store.open(folder / "store", settings=worker_settings())
        compare(engine, folder, writers, deep=True)
        ledger = Ledger(folder, 0)
        start = ledger.sent.last()
        ledger.sent.add(start + 1)
        engine.append([Message("log", b"0:%d:" % start, ["writer-0"], queue_id=number)])
        ledger.acknowledged.add((start, start + 1))
        compare(engine, folder, writers)
        engine.close()


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("call", OCCURRENCES)
def test_a_refused_call_loses_nothing(
    strace: str, tmp_path: Path, seed: int, call: str, error: str, record_property: Callable[[str, object], None]
) -> None:
    stages: Counter[str] = Counter()
    for at in OCCURRENCES[call]:
        # after a refused flush or a file that could not be made the store asks no more, so "+" would be the same run
        for for_good in ("", "+") if call in ("pwrite64", "rename") else ("",):
            folder = tmp_path / f"{at}{for_good}"
            folder.mkdir()
            outcome, injected = run_refused(strace, folder, seed, call, f"error={error}:when={at}{for_good}")
            assert injected, f"call {at} was never made"
            # where no hole can be made, zeros are written instead; what is derived is told and tried again
            is_seen = outcome["stage"] != "none" or outcome["told"]
            assert is_seen or call == "fallocate", "a refused call went unnoticed"
            examine(outcome, folder, 1)
            stages[outcome["stage"]] += 1
            stages["injected"] += injected
    record_property("injected", stages["injected"])
    print(f"{call} {error}: {dict(stages)}; nothing lost, nothing twice")


@pytest.mark.parametrize("call", ["pwrite64", "rename"])
def test_a_disk_that_turns_read_only_under_a_writer_loses_nothing(
    strace: str, tmp_path: Path, seed: int, call: str
) -> None:
    """The kernel remounts a failing disk read-only while files are open; mount refuses to do so for a test."""
    for at in OCCURRENCES[call][2:]:
        folder = tmp_path / str(at)
        folder.mkdir()
        outcome, injected = run_refused(strace, folder, seed, call, f"error=EROFS:when={at}+")
        assert injected
        assert "Read-only file system" in outcome["error"], outcome
        examine(outcome, folder, 1)


@pytest.mark.parametrize(("call", "error"), [("fdatasync", "EIO"), ("pwrite64", "ENOSPC"), ("rename", "EIO")])
def test_a_refused_call_among_several_writers_loses_nothing(
    strace: str, tmp_path: Path, seed: int, call: str, error: str, record_property: Callable[[str, object], None]
) -> None:
    total = 0
    for at in (2, 6, 14):
        folder = tmp_path / str(at)
        folder.mkdir()
        outcome, injected = run_refused(strace, folder, seed, call, f"error={error}:when={at}", writers=3)
        assert injected, f"no thread made call {at}"
        assert outcome["stage"] != "none" or outcome["told"], "a refused call went unnoticed"
        examine(outcome, folder, 3)
        total += injected
    record_property("injected", total)
    print(f"{call} {error} among 3 writers: {total} injected; nothing lost, nothing twice")


def test_a_full_disk_while_a_file_is_made_leaves_no_stump(strace: str, tmp_path: Path, seed: int) -> None:
    """Files are made under a temporary name: what a full disk cut short is not found by the next open."""
    outcome, _ = run_refused(strace, tmp_path, seed, "fallocate", "error=ENOSPC:when=2+")
    assert outcome["stage"] == "none"  # appends go on without a queue file
    assert outcome["undispatched"]
    examine(outcome, tmp_path, 1)
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
