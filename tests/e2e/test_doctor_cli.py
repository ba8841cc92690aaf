"""``tierlog doctor`` on a directory: what it prints, how it ends, and that nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.objects.broken_cas import IgnoresIfMatch
from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.service.main import main
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.objects.memory import MemoryObjectStore

Captured = pytest.CaptureFixture[str]
_SHORT = ("--writers", "6", "--processes", "2", "--rounds", "3")


def test_a_directory_is_safe(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "cold").mkdir()
    url = f"file://{tmp_path}/cold"
    assert main(["doctor", "--cold", url, *_SHORT, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["url"] == url
    assert found["safe"] is True
    assert [(race["writers"], race["rounds"]) for race in found["races"]] == [(6, 3), (6, 3)]
    assert set(found["latency_ms"]["put 1 KiB"]) == {"p50", "p99"}
    assert [path for path in (tmp_path / "cold").rglob("*") if path.is_file() and path.name != "lock"] == []


def test_the_table_ends_with_a_verdict(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "cold").mkdir()
    assert main(["doctor", "--cold", f"file://{tmp_path}/cold", *_SHORT, "--format", "table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    assert lines[0].split(None, 1) == ["ok", lines[0].split(None, 1)[1]]
    assert lines[-1].startswith("safe: ")


def test_findings_are_exit_code_one(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    store = IgnoresIfMatch(ManualClock())
    monkeypatch.setattr("tierlog.service.engine.opening.open_archive", lambda *_: store)
    assert main(["doctor", "--cold", "memory://broken", *_SHORT, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["safe"] is False
    assert "put if match" in found["verdict"]
    assert store._objects == {}


def test_a_store_that_does_not_answer_is_told_of_once(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    dead = FaultyObjectStore(MemoryObjectStore(ManualClock()))
    dead.die()
    monkeypatch.setattr("tierlog.service.engine.opening.open_archive", lambda *_: dead)
    assert main(["doctor", "--cold", "memory://dead", *_SHORT]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--writers", "0"), ("--rounds", "0"), ("--processes", "7", "--writers", "6")])
def test_a_race_without_writers_or_rounds_is_wrong_use(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert main(["doctor", "--cold", f"file://{tmp_path}/cold", *arguments]) == 2
