"""The job ``verify`` in a real session: its counts, its report, and the findings of the deep check in one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.support.pipeline.folder_archive import FolderArchive
from tierlog.pipeline.jobs import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> FolderArchive:
    return FolderArchive(tmp_path_factory.mktemp("verify"))


@pytest.fixture
def damaged(archive: FolderArchive, tmp_path: Path) -> FolderArchive:
    """A copy with a bit turned in a segment and in an index object, and another index object gone."""
    shutil.copytree(archive.folder, tmp_path / "cold")
    copy = FolderArchive.at(tmp_path)
    copy.damage(copy.segments()[1].key)
    entries = copy.entries()
    copy.damage(entries[0].key)
    (copy.folder / entries[-1].key).unlink()
    return copy


def run(archive: FolderArchive, capfd: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    capfd.readouterr()
    assert verify.main(["--cold", archive.url, *argv]) == code
    found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return found


def test_a_sound_archive_is_read_and_nothing_found(
    spark: SparkSession, archive: FolderArchive, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in archive.folder.rglob("*")}
    said = run(archive, capfd, "--task-bytes", "20000", "--out", str(tmp_path / "report"))
    assert (said["findings"], said["first"]) == (0, [])
    assert (said["segments"], said["records"]) == (len(archive.segments()), 2000)
    assert (said["objects"], said["items"]) == (len(archive.entries()), 4000)
    assert pq.read_table(tmp_path / "report" / "parquet").num_rows == said["notes"]
    assert {path: path.stat().st_mtime_ns for path in archive.folder.rglob("*")} == before, "nothing is written"


@pytest.mark.slow
def test_findings_are_rows_and_those_of_the_deep_check(
    spark: SparkSession, damaged: FolderArchive, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = damaged.problems()
    out = tmp_path / "report"
    said = run(damaged, capfd, "--task-bytes", "20000", "--out", str(out), code=1)
    rows = pq.read_table(out / "parquet").to_pylist()
    errors = [row for row in rows if row["severity"] == "error"]
    assert sorted(f"{row['object']}: {row['text']}" for row in errors) == sorted(wanted)
    assert said["findings"] == len(wanted)
    assert {row["kind"] for row in errors} == {"segment", "index"}
    firsts = {each.key: each.first for each in damaged.segments()}
    firsts |= {each.key: each.first for each in damaged.entries()}
    assert all(row["offset"] == firsts[row["object"]] and row["store"] == "one" for row in errors)
    (path,) = (out / "json").glob("*.json")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row["text"] for row in lines) == sorted(row["text"] for row in rows)
    again = run(damaged, capfd, "--out", str(out), code=1)
    assert again["findings"] == said["findings"], "a second report takes the place of the first"
    assert pq.read_table(out / "parquet").num_rows == len(rows)


@pytest.mark.slow
def test_a_head_that_cannot_be_read_is_a_finding(
    spark: SparkSession, damaged: FolderArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    (damaged.folder / "one" / "head").write_bytes(b"nothing")
    said = run(damaged, capfd, code=1)
    assert said["findings"] == 1
    assert said["first"][0].startswith("one/head: ")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--store", "two"], 1, "no archive of store 'two' here"),
        (["--task-bytes", "0"], 2, "--task-bytes lies above 0"),
    ],
)
def test_what_is_not_there(
    spark: SparkSession,
    archive: FolderArchive,
    capfd: pytest.CaptureFixture[str],
    argv: list[str],
    code: int,
    words: str,
) -> None:  # fmt: skip
    assert verify.main(["--cold", archive.url, *argv]) == code
    assert words in capfd.readouterr().err
