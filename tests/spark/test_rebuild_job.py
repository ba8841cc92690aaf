"""The job ``rebuild`` in a real session: an index lost, of another shape, or changed by others meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from index.query import Query
from index.rebuild import replace_stretch
from pipeline.jobs import rebuild
from service.cold_engine import ColdEngine
from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message
from tiering.clock import SystemClock
from tiering.cold.local import LocalObjectStore
from tiering.cold.manifest_change import ManifestChange
from tiering.cold.manifest_store import ManifestStore
from tiering.format.manifest import Head, IndexEntry
from tiering.message import StoredMessage
from tiering.options import ColdOptions
from tiering.paths import ColdKeys
from tiering.randomness import SystemRandomness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT = 65_536
KEYS = [f"k{number}" for number in range(11)]


class Archive:
    """A store in a folder, wholly archived; what tests do to its objects, and what it answers."""

    def __init__(self, folder: Path) -> None:
        self.url, self.folder = f"file://{folder}/cold", folder / "cold"
        with closing(
            Engine.open(folder / "store", settings=tiny_settings(), cold_url=self.url, store_id="one")
        ) as engine:
            for start in range(0, 2000, 500):
                engine.append(
                    [
                        Message(("orders", "pays")[at % 2], b"%d-" % at * 20, [KEYS[at % 11], f"all-{at % 3}"])
                        for at in range(start, start + 500)
                    ]
                )
            engine.archive(everything=True, drop_hot=True)

    def manifest(self) -> ManifestStore:
        objects = LocalObjectStore(self.folder, SystemClock())
        return ManifestStore(objects, ColdKeys("one"), SystemRandomness(), ColdOptions())

    def entries(self) -> list[IndexEntry]:
        manifest = self.manifest()
        return list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))

    def forget_index(self) -> None:
        """No object, and no entry of one."""
        for entry in self.entries():
            (self.folder / entry.key).unlink()
        path = self.folder / "one" / "head"
        head = Head.decode(path.read_bytes(), path="head")
        path.write_bytes(replace(head, index=(), index_tree=()).encode())

    def answers(self) -> list[list[StoredMessage]]:
        cold = ColdEngine.open(self.url, settings=tiny_settings())
        with closing(cold):
            return [
                cold.query(Query(topic, key, limit=5000)).messages
                for topic in ("orders", "pays")
                for key in (*KEYS, "all-0", "all-1")
            ]

    def problems(self) -> list[str]:
        with closing(ColdEngine.open(self.url, settings=tiny_settings())) as cold:
            return cold.check(deep=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Archive, list[list[StoredMessage]]]:
    archive = Archive(tmp_path_factory.mktemp("rebuild"))
    return archive, archive.answers()


@pytest.fixture
def archive(made: tuple[Archive, list[list[StoredMessage]]]) -> Iterator[Archive]:
    """One after the other uses the same archive: whatever is done to it, the job mends."""
    yield made[0]
    assert made[0].answers() == made[1]
    assert made[0].problems() == []


def run(archive: Archive, capfd: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, object]:
    capfd.readouterr()
    assert rebuild.main(["--cold", archive.url, *argv]) == code
    out, error = capfd.readouterr()
    return dict(json.loads(out.splitlines()[-1])) if code < 2 else {"error": error.strip().splitlines()[-1]}


def test_a_lost_index_is_made_again_and_a_second_run_has_nothing_to_do(
    spark: SparkSession, archive: Archive, capfd: pytest.CaptureFixture[str]
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
    spark: SparkSession, archive: Archive, capfd: pytest.CaptureFixture[str]
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
def test_one_damaged_object_is_replaced_alone(
    spark: SparkSession, archive: Archive, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = archive.entries()[2]
    path = archive.folder / entry.key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert archive.problems()
    assert run(archive, capfd)["commits"] == 0, "of the right size: only reading it tells"
    said = run(archive, capfd, "--all", "--from", str(entry.first), "--to", str(entry.next))
    assert (said["commits"], said["objects_removed"]) == (1, 1)


@pytest.mark.slow
def test_an_expiry_meanwhile_plans_the_range_again(
    spark: SparkSession, archive: Archive, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It takes the first segments after the tasks were done and before their objects are named."""
    other = Archive(tmp_path)
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
    spark: SparkSession, archive: Archive, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Archive(tmp_path)
    manifest = other.manifest()
    log = list(manifest.log_entries(manifest.reader(), manifest.refresh()))
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
    spark: SparkSession, archive: Archive, capfd: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert words in str(run(archive, capfd, *argv, code=2)["error"])
