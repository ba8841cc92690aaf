"""What goes to executors with each task of a batch read, and how many tasks there are."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import tierlog.pipeline.read.partitions
from tests.support.pipeline.batch_reads import planned, read, rows_of
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.base.archive import ArchiveSnapshot
from tierlog.pipeline.jobs.export import tasks_of
from tierlog.pipeline.jobs.export_table import ExportPlan, ExportRequest
from tierlog.service.engine.store import Store
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.change import ManifestChange
from tierlog.tiering.lifecycle.tombstones import make_tombstone
from tierlog.tiering.message.batch import Message

KEYS = [f"erased-{number}" for number in range(5_000)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    settings, cold = tiny_settings(hot__segment_bytes=8192), f"file://{tmp_path}/cold"
    with contextlib.closing(Store.open(tmp_path / "s", store_id="s", settings=settings, cold_url=cold)) as engine:
        for number in range(300):
            engine.append([Message("t", b"%d" % number, [KEYS[number] if number % 3 == 0 else "kept"])])
        engine.archive(everything=True)
        yield engine


def erase_all(cold: str) -> None:
    """An erasure of all keys at once, as the bulk job commits it."""
    store = ArchiveSnapshot.take(cold).only()
    stone = make_tombstone(
        "t",
        KEYS[0],
        from_ms=None,
        to_ms=None,
        end=store.head.archived_to,
        randomness=SeededRandomness(1),
        other_keys=KEYS[1:],
    )
    store.manifest.commit_other(ManifestChange(add_tombstones=(stone,)))


@pytest.mark.parametrize("key", [None, "kept"])
def test_an_open_erasure_travels_once_for_all_tasks(engine: Store, key: str | None) -> None:
    """Five thousand keys are 100 kB of a head, and a terabyte has ten thousand tasks."""
    assert engine.cold_url is not None
    options = {"cold": engine.cold_url, "partition_bytes": "1000"} | ({} if key is None else {"key": key})
    erase_all(engine.cold_url)
    reader, partitions = planned(options)
    sizes = [len(pickle.dumps(partition)) for partition in partitions]
    assert len(sizes) > 10
    assert len(pickle.dumps(reader)) > 80_000 > 40 * max(sizes)
    assert sorted(int(row["body"]) for row in read(reader, partitions)) == [n for n in range(300) if n % 3]


def test_an_export_does_so_too(engine: Store) -> None:
    assert engine.cold_url is not None
    erase_all(engine.cold_url)
    request = ExportRequest(engine.cold_url, (), (), None, None, None, 1000)
    plan = ExportPlan.make(request, ArchiveSnapshot.take(engine.cold_url), "0")
    assert max(len(pickle.dumps(task)) for task in tasks_of(plan)) < 2_000


def test_tasks_grow_with_what_is_read(engine: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's memory and its time to plan have a bound."""
    assert engine.cold_url is not None
    monkeypatch.setattr(tierlog.pipeline.read.partitions, "PART_BYTES", 500)
    options = {"cold": engine.cold_url}
    every = rows_of(options)
    many = len(planned(options)[1])
    monkeypatch.setattr(tierlog.pipeline.read.partitions, "MOST_PARTS", 4)
    few = len(planned(options)[1])
    assert 2 <= few <= 8 < 40 < many
    assert rows_of(options) == every
    assert len(planned({**options, "partition_bytes": "500"})[1]) == many


def test_a_read_of_everything_names_the_options_and_a_narrow_one_says_nothing(
    engine: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A condition of Spark's is right whatever it costs; who did not mean to read everything learns what helps."""
    assert engine.cold_url is not None
    options = {"cold": engine.cold_url, "partition_bytes": "1000"}
    for narrow in ({"key": "kept"}, {"topic": "t"}, {"to": "9999-01-01"}, {"partition_bytes": "100000000"}):
        planned(options | narrow)
    assert not caplog.records
    _, partitions = planned(options)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{len(partitions)} tasks read everything")
    assert "options topic, key, from, to and tag" in record.getMessage()
