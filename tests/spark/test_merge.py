"""The job merge in a real session: answers before and after, what is asked for, damage, and wrong use."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.pipeline.base.archive import ArchiveSnapshot
from tierlog.pipeline.jobs import merge
from tierlog.pipeline.jobs.job import FINDINGS, WRONG_USE
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import TimeAxis
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.message.batch import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARCH = parse_time("2024-03-30")
DAY_MS = 86_400_000
SETTINGS = tiny_settings(index__items=40, index__slots=16, hot__segment_bytes=16_384)
DAYS = 4


class MadeArchive:
    """Some days of messages, two months of them, wholly archived."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}/cold"
        self.folder = folder
        clock = ManualClock(MARCH)
        with contextlib.closing(
            Store.open(folder / "store", cold_url=self.url, store_id="s", settings=SETTINGS, clock=clock)
        ) as engine:
            for number in range(DAYS * 6):
                messages = [
                    Message("orders", b"%d %d" % (number, at), [f"k{(number + at) % 9}", "all"], born_ms=MARCH + at)
                    for at in range(20)
                ]
                engine.append(messages)
                clock.advance(DAY_MS // 6)
            engine.archive(everything=True, drop_hot=True)

    def answers(self) -> list[list[tuple[int, bytes]]]:
        """Pages of several queries, by a reader that was just started."""
        with contextlib.closing(Archive.open(self.url, settings=SETTINGS)) as engine:
            found = []
            for key in ("all", "k3", "none"):
                for axis in TimeAxis:
                    answer = engine.query(Query("orders", key, MARCH, MARCH + 3 * DAY_MS, limit=50, axis=axis))
                    assert answer.coverage.complete
                    found.append([(each.record.physical_offset, each.record.body) for each in answer.messages])
            return found

    def index(self) -> list[IndexEntry]:
        """What the manifest names."""
        store = ArchiveSnapshot.take(self.url).only()
        return list(store.manifest.all_index_entries(store.manifest.reader(), store.manifest.refresh()))

    def findings(self) -> list[str]:
        """What ``check --deep`` has to say, but for what nobody has swept since March."""
        with contextlib.closing(Archive.open(self.url, settings=SETTINGS)) as engine:
            return [finding for finding in engine.check(deep=True) if "the sweep should" not in finding]


@pytest.fixture
def archive(tmp_path: Path) -> MadeArchive:
    return MadeArchive(tmp_path)


def run(capfd: pytest.CaptureFixture[str], archive: MadeArchive, *arguments: str, code: int = 0) -> dict[str, object]:
    assert merge.main(["--cold", archive.url, *arguments]) == code
    summary: dict[str, object] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return summary


def test_days_months_and_years_are_merged_and_every_answer_stays(
    spark: SparkSession, archive: MadeArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    before, answers = archive.index(), archive.answers()
    due = run(capfd, archive, "--dry-run")
    assert archive.index() == before
    assert {each["level"] for each in due["due"]} == {1}  # type: ignore[attr-defined]
    summary = run(capfd, archive)
    after = archive.index()
    assert {entry.level for entry in after} == {3}
    assert summary["failed"] == summary["refused"] == []
    assert sum(entry.items for entry in after) == sum(entry.items for entry in before)
    assert archive.answers() == answers
    assert archive.findings() == []
    assert run(capfd, archive)["groups"] == 0


@pytest.mark.slow
def test_levels_times_and_sizes_are_as_asked_for(
    spark: SparkSession, archive: MadeArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = archive.answers()
    run(capfd, archive, "--level", "day", "--until", "2024-03-31", "--max-part-bytes", "4000")
    days = [entry for entry in archive.index() if entry.level == 1]
    assert len(days) > 1  # one day in parts
    assert len({(entry.first, entry.next) for entry in days}) == 1
    assert all(entry.size_bytes <= 4000 for entry in days)
    assert {entry.level for entry in archive.index()} == {0, 1}
    run(capfd, archive, "--level", "day", "--level", "month", "--store", "s")
    assert {entry.level for entry in archive.index()} == {2}
    assert archive.answers() == answers
    assert archive.findings() == []


@pytest.mark.slow
def test_damage_is_a_finding_and_the_rest_is_merged(
    spark: SparkSession, archive: MadeArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = archive.index()[0]
    path = archive.folder / "cold" / victim.key
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(bytes(data))
    summary = run(capfd, archive, code=FINDINGS)
    assert [failed["object"] for failed in summary["failed"]] == [victim.key]  # type: ignore[attr-defined]
    assert summary["groups"] >= DAYS - 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--max-part-bytes", "0"], WRONG_USE, "at least one byte"),
        (["--until", "soon"], WRONG_USE, "cannot read the time 'soon'"),
        (["--store", "other"], FINDINGS, "no archive of store 'other' here"),
    ],
)
def test_wrong_use_is_one_line(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert merge.main(["--cold", f"file://{tmp_path}", *arguments]) == code
    assert words in capfd.readouterr().err
