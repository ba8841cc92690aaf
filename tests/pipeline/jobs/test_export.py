"""Folders and files of an exported table, and JSON bodies in typed columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.pipeline.archive_copies import put_on_disk
from tests.support.stores.hot_stores import record
from tests.support.stores.removal_world import RemovalWorld
from tierlog.pipeline.base.archive import ArchiveSnapshot
from tierlog.pipeline.jobs.export import summary_of, tasks_of, write_task
from tierlog.pipeline.jobs.export_table import (
    COLUMNS,
    ExportPlan,
    ExportRequest,
    TableWriter,
    day_folder,
    parse_bodies,
    topic_folder,
)
from tierlog.pipeline.read.views import message_batch
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import CorruptionError, ObjectStoreUnavailableError
from tierlog.tiering.base.types import Tier
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.urls import open_object_store

DAY_MS = 86_400_000
TOPICS = ["orders", "%RETRY%group", "a/b", "..", "ünï cödé", "x=1", "~"]


def batch_of(*places: tuple[str, int]) -> pa.RecordBatch:
    records = [record(topic=topic, store_ms=ms, queue_offset=number) for number, (topic, ms) in enumerate(places)]
    return message_batch([StoredMessage(each, "store", Tier.COLD) for each in records])


@pytest.mark.parametrize("held_bytes", [1, 1 << 30])
def test_every_topic_and_day_has_a_folder_from_which_readers_get_both_back(tmp_path: Path, held_bytes: int) -> None:
    places = [(topic, day * DAY_MS + ms) for topic in TOPICS for day in (0, 20_000) for ms in (0, DAY_MS - 1)]
    places += [("orders", -1), ("orders", DAY_MS)]
    writer = TableWriter(open_object_store(f"file://{tmp_path}", clock=ManualClock()), "table", 7, held_bytes)
    writer.add(batch_of(*places[:9]))
    writer.add(batch_of(*places[9:]))
    files = writer.finish()
    assert len({file.key for file in files}) == len(files)
    assert sum(file.rows for file in files) == len(places)
    partitions = ds.partitioning(pa.schema([("topic", pa.string()), ("day", pa.string())]), flavor="hive")
    table = ds.dataset(tmp_path / "table", partitioning=partitions).to_table()
    assert set(table.column_names) == {*COLUMNS.names, "topic", "day"}
    found = list(zip(table["topic"].to_pylist(), table["day"].to_pylist(), strict=True))
    stored = [int(time.timestamp() * 1000) for time in table["store_time"].to_pylist()]
    assert sorted((topic, ms) for (topic, _), ms in zip(found, stored, strict=True)) == sorted(places)
    for (_, day), ms in zip(found, stored, strict=True):
        assert f"day={day}" == day_folder(ms // DAY_MS)
    assert table.schema.field("keys").type.value_type == pa.string()
    assert table.schema.field("store_time").type == pa.timestamp("us", tz="UTC")


def test_names_too_long_for_a_folder_stay_apart() -> None:
    long = [topic_folder("%" * 200 + end) for end in ("a", "b")]
    assert long[0] != long[1]
    assert all(len(folder) < 240 for folder in long)
    assert topic_folder("ab~c").endswith("ab%7Ec")  # no topic can be taken for the digest of another


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("inner", pa.struct([("x", pa.float64())]))])


def test_bodies_that_fit_the_schema_are_typed_and_all_others_are_null() -> None:
    bodies: list[tuple[bytes, dict[str, object] | None]] = [
        (b'{"id": 1, "name": "a", "inner": {"x": 0.5}}', {"id": 1, "name": "a", "inner": {"x": 0.5}}),
        (b"", None),
        (b'{"id": 2}{"id": 3}', None),
        (b'\n{"id":\n4,\r\n"name": "\xc3\xbc", "more": [1]}\n', {"id": 4, "name": "ü", "inner": None}),
        (b'{"id": "5"}', None),
        (b'{"id": 99999999999999999999}', None),
        (b"[1]", None),
        (b"{not json}", None),
        (b"\xff\xfe", None),
        (b"{}", {"id": None, "name": None, "inner": None}),
        (b'{"name": null}', {"id": None, "name": None, "inner": None}),
        (b'{"inner": 7}', None),
        (b'{"id": 6}', {"id": 6, "name": None, "inner": None}),
    ]
    found = parse_bodies(pa.array([body for body, _ in bodies], pa.binary()), SCHEMA)
    assert found.to_pylist() == [value for _, value in bodies]
    assert parse_bodies(pa.array([b"x", b""], pa.binary()), SCHEMA).to_pylist() == [None, None]
    assert parse_bodies(pa.array([], pa.binary()), SCHEMA).to_pylist() == []


def test_a_body_that_is_not_utf_8_makes_no_text_that_readers_break_off_at() -> None:
    schema = pa.schema([pa.field("name", pa.string()), pa.field("tags", pa.list_(pa.string()))])
    bodies = [
        b'{"name": "\xff"}',
        b'{"name": "x"}',
        b'{"tags": ["\xc3"]}',
        b'{"other": "\xff"}',
        '{"name": "ä"}'.encode(),
    ]
    structs = parse_bodies(pa.array(bodies, pa.binary()), schema)
    structs.validate(full=True)
    assert [one and one["name"] for one in structs.to_pylist()] == [None, "x", None, None, "ä"]


def test_a_plan_is_read_back_and_damage_is_named() -> None:
    request = ExportRequest("file:///a", ("s",), ("t", "u"), None, 7, "id long", 64)
    plan = ExportPlan(request, "table-1", {"s": b"\x00\xff"})
    assert ExportPlan.decode(plan.encode(), path="x") == plan
    for data in (b"{}", b"nothing", b"[]", plan.encode().replace(b"task_bytes", b"unknown")):
        with pytest.raises(CorruptionError, match="not the plan of an export"):
            ExportPlan.decode(data, path="x")


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("where", ["*/topic=t/*", "*/topic=u/*", "_tasks/*"])
def test_a_task_that_dies_in_the_middle_of_its_writing_is_done_again_and_doubles_nothing(
    tmp_path: Path, where: str, is_done: bool
) -> None:
    world = RemovalWorld(hot__segment_bytes=65_536)
    engine = world.open()
    for _ in range(3):
        world.append(engine, 20)
        world.clock.advance(DAY_MS)
    engine.archive(everything=True)
    cold = put_on_disk(world.objects, tmp_path / "cold")
    plan = ExportPlan.make(
        ExportRequest(cold, (), (), None, None, None, 1 << 20), ArchiveSnapshot.take(cold), "x"
    )  # fmt: skip
    (task,) = tasks_of(plan)
    objects = FaultyObjectStore(open_object_store(f"file://{tmp_path}/out", clock=ManualClock()))
    (objects.fail_after if is_done else objects.fail_before)("*", where)
    with pytest.raises(ObjectStoreUnavailableError):
        write_task(objects, task, plan, None)
    write_task(objects, task, plan, None)
    summary = summary_of(objects, plan, "file:///out", 1)
    assert (summary["rows"], summary["files"]) == (60, 6)
    table = ds.dataset(tmp_path / "out/table-x", partitioning="hive").to_table()
    assert sorted(table["physical_offset"].to_pylist()) == [one.offset for one in world.sent]
