"""The job ``rebuild`` in a real session: an index lost, of another shape, or changed by others meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline.folder_archive import SEGMENT, FolderArchive
from tierlog.index.maintenance.rebuild import replace_stretch
from tierlog.pipeline.jobs import rebuild
from tierlog.tiering.cold.manifest.change import ManifestChange
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.message.stored_message import StoredMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[FolderArchive, list[list[StoredMessage]]]:
    archive = FolderArchive(tmp_path_factory.mktemp("rebuild"))
    return archive, archive.answers()


@pytest.fixture
def archive(made: tuple[FolderArchive, list[list[StoredMessage]]]) -> Iterator[FolderArchive]:
    """One after the other uses the same archive: whatever is done to it, the job mends."""
    yield made[0]
    assert made[0].answers() == made[1]
    assert made[0].problems() == []


def run(archive: FolderArchive, capfd: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, object]:
    capfd.readouterr()
    assert rebuild.main(["--cold", archive.url, *argv]) == code
    out, error = capfd.readouterr()
    return dict(json.loads(out.splitlines()[-1])) if code < 2 else {"error": error.strip().splitlines()[-1]}


def test_a_lost_index_is_made_again_and_a_second_run_has_nothing_to_do(
    spark: SparkSession, archive: FolderArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    items = sum(entry.items for entry in archive.entries())
    archive.forget_index()
    said = run(archive, capfd, "--slots", "100", "--items", "400", "--part-bytes", str(2 * SEGMENT))
    assert (said["items"], said["findings"], said["objects_removed"]) == (items, 0, 0)
    assert said["commits"] == 1
    again = run(archive, capfd)
    assert (again["commits"], again["objects_kept"]) == (0, said["objects_added"])


@pytest.mark.slow
def test_the_number_of_slots_is_changed_in_commits_of_bounded_size(
    spark: SparkSession, archive: FolderArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    before = len(archive.entries())
    planned = run(archive, capfd, "--slots", "37", "--part-bytes", str(2 * SEGMENT), "--dry-run")
    assert planned["objects_to_replace"] == before
    assert {entry.slots for entry in archive.entries()} == {100}, "a dry run changes nothing"
    said = run(archive, capfd, "--slots", "37", "--part-bytes", str(2 * SEGMENT))
    assert isinstance(said["commits"], int)
    assert said["commits"] > 2
    assert said["objects_removed"] == before
    assert {entry.slots for entry in archive.entries()} == {37}
    run(archive, capfd, "--slots", "100", "--items", "400")


@pytest.mark.slow
def test_what_took_longer_than_the_stores_grace_period_allows_is_not_named(
    spark: SparkSession, archive: FolderArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    before = archive.entries()
    said = run(archive, capfd, "--all", "--part-bytes", str(1 << 30), "--grace-hours", "0.000001", code=1)
    assert "quarter of the grace period" in str(said["failed"])
    assert archive.entries() == before


@pytest.mark.slow
def test_one_damaged_object_is_replaced_alone(
    spark: SparkSession, archive: FolderArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = archive.entries()[2]
    archive.damage(entry.key)
    assert archive.problems()
    assert run(archive, capfd)["commits"] == 0, "of the right size: only reading it tells"
    said = run(archive, capfd, "--all", "--from", str(entry.first), "--to", str(entry.next))
    assert (said["commits"], said["objects_removed"]) == (1, 1)


@pytest.mark.slow
def test_an_expiry_meanwhile_plans_the_range_again(
    spark: SparkSession, archive: FolderArchive, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It takes the first segments after the tasks were done and before their objects are named."""
    other = FolderArchive(tmp_path)
    wanted, raced = other.answers(), list[Head]()

    def racing(manifest: ManifestStore, stretch: object, *rest: object) -> object:
        if not raced:
            expiring = other.manifest()
            expiring.refresh()
            raced.append(expiring.commit_other(ManifestChange(cold_min=2 * SEGMENT)))
        return replace_stretch(manifest, stretch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(rebuild, "replace_stretch", racing)
    said = run(other, capfd, "--all")
    assert (said["planned_again"], said["findings"]) == (1, 0)
    assert min(entry.first for entry in other.entries()) >= 2 * SEGMENT
    assert other.problems() == []
    left = [[each for each in found if each.record.physical_offset >= 2 * SEGMENT] for found in wanted]
    assert other.answers() == left
    assert left != wanted


@pytest.mark.slow
def test_a_segment_that_cannot_be_read_is_a_finding_and_the_rest_is_done(
    spark: SparkSession, archive: FolderArchive, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = FolderArchive(tmp_path)
    log = other.segments()
    path = other.folder / log[1].key
    path.write_bytes(path.read_bytes()[:-50])
    said = run(other, capfd, "--slots", "37", "--part-bytes", "1", code=1)
    (failed,) = {each["why"] for each in said["failed"]}  # type: ignore[attr-defined]
    assert log[1].key in failed
    old = {(entry.first, entry.next) for entry in other.entries() if entry.slots == 100}
    assert old
    assert all(first < log[1].next and log[1].base < end for first, end in old), "theirs stay as they were"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--layout", "rocketmq"], "for import and export only"),
        (["--layout", "other"], "no item layout is named 'other'"),
        (["--slots", "-1"], "at least 1 slot"),
        (["--from", "7", "--to", "7"], "--from lies below --to"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    spark: SparkSession, archive: FolderArchive, capfd: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert words in str(run(archive, capfd, *argv, code=2)["error"])
