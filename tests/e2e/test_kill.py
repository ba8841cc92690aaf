"""SIGKILL during load, archive and removal: acknowledged lines are there once, all others at most once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, shared_data_folder
from tests.support.oracles.ledger import TOPIC
from tests.support.oracles.logs import PlainScan, real_log, real_log_names, rules_for, scan_plainly, write_sample
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Order

KILLS, QUICK_KILLS = 25, 5


def kill_again_and_again(scan: PlainScan, folder: Path, seed: int, kills: int) -> str:
    """Run the worker until it was killed ``kills`` times, look at the store in between, and check it at the end."""
    chance = random.Random(seed)
    folder.mkdir(exist_ok=True)
    lines_file = folder / "lines"
    lines_file.write_text("".join(json.dumps([line.body.hex(), line.keys]) + "\n" for line in scan.lines))
    killed = 0
    command = [sys.executable, "-m", "tests.support.processes.kill_worker"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        while killed < kills:
            request = {
                "folder": str(folder),
                "lines": str(lines_file),
                "seed": chance.randrange(1 << 30),
                # many calls as well as few, so that opening, archiving and removing are all cut
                "kill_at": chance.choice([chance.randrange(1, 60), chance.randrange(1, 240)]),
            }
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            code = int(worker.stdout.readline())
            assert code in (0, -signal.SIGKILL), f"the worker failed with {request}"
            assert code != 0, f"all lines were sent after {killed} kills: give the test more lines"
            killed += 1
            if killed % 10 == 0:
                assert_store_is_right(scan, folder, deep=False)
        worker.stdin.close()
    return f"{killed} kills; " + assert_store_is_right(scan, folder, deep=True)


def assert_store_is_right(scan: PlainScan, folder: Path, *, deep: bool) -> str:
    """Open, check, and compare every line and every key with what was acknowledged."""
    acknowledged = [json.loads(line) for line in _lines(folder / "acknowledged")]
    sent = int(_lines(folder / "sent")[-1]) if _lines(folder / "sent") else 0
    engine = Store.open(folder / "store", settings=tiny_settings(), cold_url=f"file://{folder}/cold")
    try:
        assert engine.check(deep=deep) == []
        found = _bodies(engine, None)
        numbers = _numbers_of(scan, found, sent)
        missing = [n for start, end in acknowledged for n in range(start, end) if n not in numbers]
        assert missing == []
        wrong = []
        for key, places in scan.by_key.items() if deep else ():
            expected = [scan.lines[n].body for n in places if n in numbers]
            if _bodies(engine, key) != expected:
                wrong.append(key)
        assert wrong == []
        if deep:
            engine.archive(everything=True, drop_hot=True)
            assert _bodies(engine, None) == found
            assert engine.check(deep=True) == []
    finally:
        engine.close()
    promised = sum(end - start for start, end in acknowledged)
    return f"{promised} lines acknowledged, {len(found)} found, {len(scan.by_key)} keys, 0 wrong"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _bodies(engine: Store, key: str | None) -> list[bytes]:
    found: list[bytes] = []
    cursor = None
    try:
        while True:
            answer = engine.query(Query(TOPIC, key, limit=10_000, order=Order.OLDEST, cursor=cursor))
            assert answer.coverage.complete
            found += [message.record.body for message in answer.messages]
            cursor = answer.next_cursor
            if cursor is None:
                return found
    except LookupError:  # killed before the topic was made
        return []


def _numbers_of(scan: PlainScan, found: list[bytes], sent: int) -> set[int]:
    """Which lines the bodies found are: they must be a subsequence of those sent, so none is there twice."""
    numbers: set[int] = set()
    at = 0
    for body in found:
        while at < sent and scan.lines[at].body != body:
            at += 1
        assert at < sent, "a line is there twice, out of order, or was never sent"
        numbers.add(at)
        at += 1
    return numbers


def numbered(scan: PlainScan) -> PlainScan:
    """The same lines made distinct by their number, so that a double one cannot pass for its twin."""
    lines = [
        type(line)(b"%06d " % number + line.body, line.keys, line.born_ms) for number, line in enumerate(scan.lines)
    ]
    return PlainScan(lines, scan.by_key)


@pytest.mark.parametrize("kills", [QUICK_KILLS, pytest.param(20, marks=pytest.mark.slow)])
def test_sample_survives_seeded_kills(tmp_path: Path, seed: int, kills: int) -> None:
    path = write_sample(tmp_path, 2_000)
    print(kill_again_and_again(numbered(scan_plainly(path, rules_for(path))), tmp_path / "job", seed, kills))


@pytest.mark.slow
@pytest.mark.parametrize("name", real_log_names(shared_data_folder()))
def test_real_log_survives_seeded_kills(name: str, shared_data: Path, tmp_path: Path, seed: int) -> None:
    path = real_log(shared_data, name)
    scan = numbered(scan_plainly(path, rules_for(path)))
    print(name, kill_again_and_again(scan, tmp_path / "job", seed, KILLS))
