"""The jobs ``erase`` and ``expire`` in a real session, beside a store that is open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.pipeline.jobs import erase, expire
from tierlog.pipeline.jobs.job import FAILED, FINDINGS, WRONG_USE
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Order
from tierlog.tiering.message.batch import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [f"k{number}" for number in range(11)]
TOPICS = ("orders", "pays", "pays")


def messages(start: int, end: int) -> list[Message]:
    return [Message(TOPICS[at % 3], b"<%d>" % at * 20, [KEYS[at % 11]]) for at in range(start, end)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    """A store whose 2,000 messages are archived and gone from the volume; it goes on."""
    url = f"file://{tmp_path}/cold"
    opened = Store.open(tmp_path / "store", settings=tiny_settings(), cold_url=url, store_id="one")
    with closing(opened):
        for start in range(0, 2000, 500):
            opened.append(messages(start, start + 500))
        opened.archive(everything=True, drop_hot=True)
        opened.archive()  # the archive is told where the log begins now
        yield opened


def bodies(engine: StoreReader, topic: str, key: str | None = None) -> list[bytes]:
    answer = engine.query(Query(topic, key, limit=5000, order=Order.OLDEST))
    assert answer.coverage.complete
    return [message.record.body for message in answer.messages]


def expected(topic: str, *gone: str, start: int = 0) -> list[bytes]:
    return [each.body for each in messages(start, 2000) if each.topic == topic and each.keys[0] not in gone]


def run(job: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    capfd.readouterr()
    assert job.JOB.main(["--cold", f"file://{tmp_path}/cold", *argv]) == 0
    summary: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return summary


def test_erased_by_executors_and_closed_by_the_store(
    spark: SparkSession, engine: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text("k1\nk2\n\nnobody's\n")
    receipt = run(erase, tmp_path, capfd, "orders", "--keys-file", str(tmp_path / "keys"), "--key", "k3")
    gone = len(expected("orders")) - len(expected("orders", "k1", "k2", "k3"))
    assert receipt["matched"] == {"hot": 0, "cold": gone, "complete": True}
    assert sum(row["records"] for row in receipt["segments_rewritten"]) == gone
    assert [row["segment"] for row in receipt["segments_rewritten"]] == receipt["segments_to_rewrite"]
    assert (receipt["state"], receipt["findings"]) == ("hidden", 0)
    with closing(Archive.open(f"file://{tmp_path}/cold", settings=tiny_settings())) as cold:
        assert bodies(cold, "orders") == expected("orders", "k1", "k2", "k3")
        assert bodies(cold, "orders", "k2") == []
        assert bodies(cold, "pays", "k2") == [each for each in bodies(engine, "pays", "k2") if each]
    assert engine._manifest is not None
    engine._manifest.refresh()
    while engine.removal.run_once():
        pass
    assert engine.removal.receipt(receipt["tombstone_id"])["state"] == "rewritten"
    assert bodies(engine, "orders") == expected("orders", "k1", "k2", "k3")
    assert bodies(engine, "pays") == expected("pays")
    assert engine.check(deep=True) == []


@pytest.mark.slow
def test_expired_by_executors(
    spark: SparkSession, engine: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.removal.configure("pays", cold_retention_ms=1)
    planned = run(expire, tmp_path, capfd, "--dry-run")
    assert engine._manifest is not None
    assert engine._manifest.refresh().expired == ()
    done = run(expire, tmp_path, capfd)
    assert done["topics"].keys() == planned["topics"].keys() == {"pays"}
    assert done["segments_rewritten"] == planned["segments_rewritten"] > 3
    assert done["messages_overwritten"] == planned["messages_overwritten"] == len(expected("pays"))
    assert run(expire, tmp_path, capfd)["messages_overwritten"] == 0
    engine._manifest.refresh()
    assert (bodies(engine, "pays"), bodies(engine, "orders")) == ([], expected("orders"))
    assert engine.check(deep=True) == []


@pytest.mark.slow
def test_whole_segments_expire_and_what_is_asked_for_again_goes_on(
    spark: SparkSession, engine: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert engine._manifest is not None
    head = engine._manifest.refresh()
    entries = list(engine._manifest.log_entries(engine._manifest.reader(), head))
    assert entries[1].bounds is not None
    engine.append(messages(2000, 2001))
    done = run(expire, tmp_path, capfd, "--before", str(entries[1].bounds.max_store_ms + 1))
    assert done["cold_min"] == engine._manifest.refresh().cold_min >= entries[1].next
    assert done["segments_dropped"] >= 2
    assert engine.check(deep=True) == []
    kept = [one for one in messages(0, 2001) if one.topic == "orders"]
    assert bodies(engine, "orders") == [one.body for one in kept][-len(bodies(engine, "orders")) :]


@pytest.mark.slow
def test_what_cannot_be_done_is_one_line(
    spark: SparkSession, engine: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.removal.configure("pays", hold=True)
    for job, argv, code, words in [
        (erase, ["nothing", "--all"], FINDINGS, "no such topic"),
        (erase, [], WRONG_USE, "no topic"),
        (erase, ["--resume", "0123"], FINDINGS, "there is no receipt"),
        (erase, ["orders", "--keys-file", "/nowhere"], WRONG_USE, "cannot read the keys"),
        (erase, ["orders", "--resume", "0123"], WRONG_USE, "stands alone"),
        (erase, ["pays", "--all"], FAILED, "is on hold"),
        (erase, ["orders"], WRONG_USE, "--all"),
        (erase, ["orders", "--from", "0"], WRONG_USE, "--all"),
        (erase, ["orders", "--key", "k1", "--all"], WRONG_USE, "give one of them"),
        (expire, ["--older-than", "soon"], WRONG_USE, "cannot read the duration"),
        (expire, ["--before", "9000-01-01"], WRONG_USE, "still to come"),
        (expire, ["--topic", "orders"], WRONG_USE, "without a time"),
    ]:
        assert job.JOB.main(["--cold", f"file://{tmp_path}/cold", *argv]) == code
        assert words in capfd.readouterr().err.strip().splitlines()[-1]
