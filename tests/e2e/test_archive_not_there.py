"""Commands that only look make no archive, and say what they could not ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes.shell import Shell
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import INCOMPLETE, WRONG_USE
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.message.batch import Message


def archived(tmp_path: Path) -> Path:
    """A store whose archive's directory has gone, as that of a disk that is not mounted."""
    settings = Settings.load(None, {"hot": {"segment_bytes": 4096, "queue_file_units": 60}})
    engine = Store.open(tmp_path / "s", settings=settings, cold_url=f"file://{tmp_path / 'cold'}")
    for number in range(40):
        engine.append([Message("t", f"line {number} {'x' * 60}".encode())])
    engine.archive(everything=True)
    engine.append([Message("t", b"hot")])
    engine.close()
    (tmp_path / "cold").rename(tmp_path / "elsewhere")
    return tmp_path / "s"


@pytest.mark.parametrize("deep", [[], ["--deep"]], ids=["quick", "deep"])
def test_check_says_that_the_archive_was_not_asked_and_checks_the_rest(
    tmp_path: Path, shell: Shell, deep: list[str]
) -> None:
    root = archived(tmp_path)
    report = json.loads(shell("check", "--root", str(root), "--format", "json", *deep, code=INCOMPLETE))
    assert report["findings"] == []
    assert "the archive was not checked" in report["unasked"][0]
    assert not (tmp_path / "cold").exists()
    shell("check", "--root", str(root), *deep, code=INCOMPLETE)
    assert "the archive was not checked" in shell.err
    (tmp_path / "elsewhere").rename(tmp_path / "cold")
    shell("check", "--root", str(root), *deep)


def test_doctor_makes_no_directory(tmp_path: Path, shell: Shell) -> None:
    shell("doctor", "--cold", f"file://{tmp_path / 'typo'}", code=WRONG_USE)
    assert list(tmp_path.iterdir()) == []


def test_reading_an_archive_makes_no_directory(tmp_path: Path, shell: Shell) -> None:
    url = f"file://{tmp_path / 'typo'}"
    shell("topics", "--cold", url, code=WRONG_USE)
    with pytest.raises(ObjectStoreUnavailableError):
        Archive.open(url, settings=Settings.load())
    assert list(tmp_path.iterdir()) == []


def test_a_store_opened_for_reading_does_not_make_its_archive_anew(tmp_path: Path, shell: Shell) -> None:
    root = archived(tmp_path)
    shell("stats", "--root", str(root), "--read-only")
    assert not (tmp_path / "cold").exists()
