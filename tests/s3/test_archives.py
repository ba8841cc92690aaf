"""The main job on real servers: archive, be killed in the middle, go on, find everything; and who may take over."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.s3.archive_worker import TOPIC, opened
from tests.support.objects.s3_server import S3Server
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader

_REPOSITORY = Path(__file__).parents[2]
_KILLS = 4
_RACES = 3


def _worker(mode: str, root: Path, url: str, first: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.s3.archive_worker", mode, str(root), url, str(first)],
        cwd=_REPOSITORY, env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def _acknowledged(lines: list[str]) -> set[int]:
    found: set[int] = set()
    for line in lines:
        if line.startswith("acknowledged ") and line.endswith("\n"):
            first, end = map(int, line.split()[1:])
            found |= set(range(first, end))
    return found


def assert_finds(source: StoreReader, numbers: set[int]) -> None:
    for number in sorted(numbers):
        answer = source.query(Query(TOPIC, f"k{number}"))
        assert answer.coverage.complete
        assert [message.record.body for message in answer.messages] == [b"%d " % number * 200]


def test_killed_while_archiving_it_goes_on_and_loses_nothing(
    real_server: S3Server, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", real_server.endpoint_url)
    url, chance = f"s3://{real_server.new_bucket()}/archive", random.Random(seed)
    acknowledged: set[int] = set()
    for turn in range(_KILLS):
        with _worker("loop", tmp_path / "store", url, turn * 100_000) as worker:
            assert worker.stdout is not None
            lines = [worker.stdout.readline()]
            time.sleep(chance.uniform(0.0, 2.0))
            worker.kill()
            lines += worker.stdout.readlines()
        acknowledged |= _acknowledged(lines)
    engine = opened(tmp_path / "store", url)
    try:
        report = engine.archive(everything=True, drop_hot=True)
        assert report.border == report.archived_to == report.indexed_to >= 3 * 65_536
        assert_finds(engine, acknowledged)
        assert engine.check(deep=True) == []
    finally:
        engine.close()
    cold = Archive.open(url, settings=tiny_settings(cold__s3_endpoint=real_server.endpoint_url))
    try:
        assert_finds(cold, acknowledged)
    finally:
        cold.close()
    print(f"{_KILLS} kills, {len(acknowledged)} acknowledged messages, {report.archived_to >> 16} segments, 0 lost")


def test_of_two_copies_of_a_volume_only_one_ever_commits(
    real_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", real_server.endpoint_url)
    url = f"s3://{real_server.new_bucket()}/archive"
    root, copy = tmp_path / "0", tmp_path / "copy"
    with _worker("claim", root, url, 0) as worker:
        assert worker.communicate("go\n", timeout=60)[0].endswith("won\n")
    acknowledged = set(range(30))
    for turn in range(1, _RACES + 1):
        shutil.copytree(root, copy)
        first = turn * 1000
        racers = [(_worker("claim", place, url, number), place, number)
                  for place, number in ((root, first), (copy, first + 500))]  # fmt: skip
        try:
            for racer, _, _ in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline().startswith("acknowledged")
                assert racer.stdout.readline() == "ready\n"
            ends = [racer.communicate("go\n", timeout=60)[0] for racer, _, _ in racers]
        finally:
            for racer, _, _ in racers:
                racer.kill()
                racer.communicate()
        won = [place for (_, place, _), end in zip(racers, ends, strict=True) if end == "won\n"]
        assert len(won) == 1, ends
        assert sorted(ends)[0].startswith("lost "), ends
        number = next(number for _, place, number in racers if place == won[0])
        acknowledged |= set(range(number, number + 30))
        winner = tmp_path / str(turn)
        won[0].rename(winner)
        for loser in (root, copy):
            shutil.rmtree(loser, ignore_errors=True)
        root = winner
    engine = opened(root, url)
    try:
        assert_finds(engine, acknowledged)
        assert engine.check(deep=True) == []
    finally:
        engine.close()
