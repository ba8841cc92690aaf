"""SIGKILL while several threads append: acknowledged messages are there once, others at most once, queues in order."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.oracles.ledger import compare
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store

KILLS = 30
WRITERS = 4


def kill_writers(folder: Path, seed: int, rounds: int) -> str:
    """Kill the process in each round, look at the store after each; what was found."""
    chance = random.Random(seed)
    found = ""
    command = [sys.executable, "-m", "tests.support.processes.kill_worker"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for number in range(rounds):
            # short rounds as well, so that opening and the first appends are cut
            kill_at = chance.choice([chance.randrange(1, 60), chance.randrange(60, 1500)])
            request = {"folder": str(folder), "seed": chance.randrange(1 << 30), "kill_at": kill_at, "writers": WRITERS}
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            assert int(worker.stdout.readline()) == -signal.SIGKILL, f"the worker failed with {request}"
            found = assert_store_is_right(folder, deep=number == rounds - 1)
        worker.stdin.close()
    return f"seed {seed}: {rounds} kills of {WRITERS} writers; {found}"


def assert_store_is_right(folder: Path, *, deep: bool) -> str:
    engine = Store.open(folder / "store", settings=tiny_settings(), cold_url=f"file://{folder}/cold")
    try:
        acknowledged, found = compare(engine, folder, WRITERS, deep=deep)
    finally:
        engine.close()
    return f"{acknowledged} messages acknowledged, {found} found, 0 lost, 0 twice"


@pytest.mark.slow
def test_kills_of_concurrent_writers(tmp_path: Path, seed: int, record_property: Callable[[str, object], None]) -> None:
    record_property("kills", KILLS)
    print(kill_writers(tmp_path, seed, KILLS))
