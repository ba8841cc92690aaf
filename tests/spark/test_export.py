"""The job export: the table is what the engine's own reads show, whole or told to nobody, and the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.support.pipeline.archive_copies import put_on_disk
from tests.support.stores.removal_world import RemovalWorld, Sent
from tierlog.pipeline.jobs.export import main
from tierlog.pipeline.jobs.job import FAILED, WRONG_USE
from tierlog.tiering.message.batch import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK = ("--task-bytes", "6000")


def filled(count: int = 60) -> RemovalWorld:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, count)
    world.clock.advance(86_400_000)
    world.append(engine, count)
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    return world


def read(table: str) -> pa.Table:
    partitions = ds.partitioning(pa.schema([("topic", pa.string()), ("day", pa.date32())]), flavor="hive")
    return ds.dataset(table.removeprefix("file://"), partitioning=partitions).to_table()


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = ("topic", "queue_id", "queue_offset", "body", "keys", "tag", "physical_offset")
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True), key=lambda row: row[-1])


def expected(sent: list[Sent]) -> list[tuple[Any, ...]]:
    return [
        (one.message.topic, one.queue_id, one.queue_offset, one.message.body, [*one.message.keys], one.message.tag,
         one.offset)
        for one in sent
    ]  # fmt: skip


def summary_of(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return found


def test_an_export_is_what_the_engine_shows_and_the_same_command_gives_it_again(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world = filled()
    engine = world.open()
    world.erase(engine, "t", "k1")
    cold, out = put_on_disk(world.objects, tmp_path / "cold"), f"file://{tmp_path}/out"
    command = ["--cold", cold, "--out", out, *TASK]
    assert main(command) == 0
    first = summary_of(capfd)
    table = read(first["table"])
    assert rows_of(table) == expected(world.visible())
    assert (first["rows"], first["tasks"] > 3) == (len(world.visible()), True)
    files = sorted(path for path in (tmp_path / "out").rglob("*.parquet"))
    assert (first["files"], first["bytes"]) == (len(files), sum(path.stat().st_size for path in files))
    frame = spark.read.parquet(first["table"])
    assert frame.count() == first["rows"]
    assert frame.where("topic = 't' and day = '1970-01-01'").count() <= frame.where("topic = 't'").count()
    days = {(row["topic"], str(row["day"])) for row in frame.select("topic", "day").distinct().collect()}
    assert {topic for topic, _ in days} == {"t", "u"}
    assert len(days) == 4
    assert main(command) == 0
    assert summary_of(capfd) == first
    assert sorted(path for path in (tmp_path / "out").rglob("*.parquet")) == files


@pytest.mark.slow
def test_an_export_that_was_stopped_tells_nobody_and_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world = filled()
    cold, out = put_on_disk(world.objects, tmp_path / "cold"), tmp_path / "out"
    segment = sorted((tmp_path / "cold/store/log").iterdir())[-1]
    good = segment.read_bytes()
    segment.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    command = ["--cold", cold, "--out", f"file://{out}", *TASK]
    assert main(command) == FAILED
    captured = capfd.readouterr()
    assert segment.name in captured.err
    assert captured.out == ""
    assert not (out / "_exported.json").exists()
    done = {path: path.stat().st_mtime_ns for path in (out / "_tasks").iterdir()}
    assert done
    segment.write_bytes(good)
    engine = world.open()
    world.append(engine, 20)  # what is archived later is no part of this export
    engine.archive(everything=True)
    stale = next(out.glob("table-*")) / "topic=t/day=1970-01-01/part-000000-9.parquet"
    stale.parent.mkdir(parents=True, exist_ok=True)
    stale.write_bytes(b"of an attempt that was tried again")
    assert main(command) == 0
    assert rows_of(read(summary_of(capfd)["table"])) == expected(world.sent[:120])
    assert not stale.exists()
    assert {path: path.stat().st_mtime_ns for path in done} == done


@pytest.mark.slow
def test_topics_times_and_typed_bodies(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = RemovalWorld()
    engine = world.open()
    for number in range(40):
        body = b'{"id": %d, "name": "n%d"}' % (number, number) if number % 4 else b"not JSON"
        world.clock.advance(1000)
        engine.append([Message("json" if number % 2 else "other", body)])
    engine.archive(everything=True)
    cold = put_on_disk(world.objects, tmp_path / "cold")
    start = world.clock.now_ms() - 29_000
    out = f"file://{tmp_path}/out"
    command = ["--cold", cold, "--out", out, "--from", str(start), "--topic", "other", "--topic", "json"]
    command += ["--json-schema", "id long, name string"]
    assert main(command) == 0
    summary = summary_of(capfd)
    assert (summary["rows"], summary["rows_without_json"]) == (30, 7)
    frame = spark.read.parquet(summary["table"])
    found = frame.where("json is not null").select("json.id", "json.name", "body").collect()
    assert sorted(row["id"] for row in found) == [number for number in range(10, 40) if number % 4]
    assert all(json.loads(bytes(row["body"])) == {"id": row["id"], "name": row["name"]} for row in found)
    assert main([*command[:-1], "id long"]) == WRONG_USE
    assert "holds another export" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json-schema", "id lung"], "is not a schema"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], "nothing lies between"),
        (["--out", "COLD/export"], "does not go into the archive"),
        (["--out", "FULL"], "holds something else"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").write_bytes(b"mine")
    names = {"COLD": f"file://{tmp_path}/cold", "FULL": f"file://{full}"}
    for name, url in names.items():
        arguments = [argument.replace(name, url) for argument in arguments]
    command = ["--cold", names["COLD"], "--out", f"file://{tmp_path}/out", *arguments]
    assert main(command) == WRONG_USE
    assert words in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    assert [path.name for path in full.iterdir() if path.is_file()] == ["a"]
