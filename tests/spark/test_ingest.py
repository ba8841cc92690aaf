"""The job ingest: a broker's directory, JSON lines and Parquet become archives, once."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pipeline.new_stores import BEGIN_MS, everything, pulled, reader_of
from tests.support.rocketmq.golden import expected, unpack
from tierlog.index.new_store.part import NewStore
from tierlog.index.objects.derivation import IndexSizes
from tierlog.index.search.query import Query
from tierlog.pipeline.jobs.ingest import main
from tierlog.pipeline.jobs.job import DONE, FAILED, FINDINGS, WRONG_USE, task_progress
from tierlog.service.main import main as command
from tierlog.tiering.base.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = ["--index-slots", "500", "--index-items", "600"]
SMALL = [*SIZES, "--segment-bytes", "16384"]


class Ingest:
    """The job on an archive of this test."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.cold = f"file://{folder}/cold"
        self.folder = folder / "cold"
        self.error = ""
        self._capfd = capfd

    def __call__(self, *argv: str, code: int = DONE, store: str = "history") -> dict[str, Any]:
        self._capfd.readouterr()
        assert main(["--cold", self.cold, "--store", store, *argv]) == code
        captured = self._capfd.readouterr()
        self.error = captured.err
        return json.loads(captured.out.splitlines()[-1]) if code in (DONE, FINDINGS) else {}

    def store(self, store_id: str = "history") -> NewStore:
        return NewStore(self.cold, store_id, 262_144, IndexSizes(500, 600))

    def objects(self) -> dict[str, int]:
        """Every object and when it was written."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.stat().st_mtime_ns for path in files}


@pytest.fixture
def ingest(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Ingest:
    return Ingest(tmp_path, capfd)


def test_a_brokers_log_is_there_message_by_message_and_is_not_ingested_twice(ingest: Ingest, tmp_path: Path) -> None:
    root, messages = unpack("crashed-plain", tmp_path / "broker"), expected("crashed-plain")["messages"]
    summary = ingest("--rocketmq", str(root), *SIZES)
    assert (summary["messages"], summary["segments"], summary["already_there"]) == (len(messages), 3, False)
    by_offset = {each["physicalOffset"]: each for each in messages}
    with reader_of(ingest.store()) as engine:
        found = [message for queue in pulled(engine).values() for message in queue]
        assert len(found) == sum(each["sysFlag"] & 12 in (0, 8) for each in messages)
        for message in found:
            wanted = by_offset[message.record.physical_offset]
            assert message.record.message_id == wanted["msgId"]
            assert hashlib.sha256(message.record.body).hexdigest() == wanted["bodySha256"]
            assert message.record.properties == (wanted["properties"] or {})
        findings = engine.check_report(deep=True)
        assert (findings.lines(), findings.notes) == ([], [])
    before = ingest.objects()
    again = ingest("--rocketmq", str(root), *SIZES)
    assert (again["already_there"], again["messages"]) == (True, len(messages))
    assert ingest.objects() == before


def test_the_command_adopt_makes_the_archive_that_the_job_makes(ingest: Ingest, tmp_path: Path) -> None:
    root, cold = str(unpack("crashed-plain", tmp_path / "broker")), f"file://{tmp_path}/adopted"
    ingest("--rocketmq", root)
    assert command(["adopt", root, "--cold", cold, "--store-id", "history"]) == DONE
    found = []
    for url in (ingest.cold, cold):
        store = NewStore(url, "history", 262_144)
        head, reader = store.manifest.refresh(), store.manifest.reader()
        log = [(entry.base, entry.crc32, entry.records) for entry in store.manifest.log_entries(reader, head)]
        state = store.manifest.state(reader, head)
        with reader_of(store) as engine:
            found.append((head.volume_id, head.archived_to, log, state.topics, state.groups, pulled(engine)))
    assert found[0] == found[1]
    again = ingest("--rocketmq", root)  # each knows what the other has made
    assert again["already_there"] is True


@pytest.mark.slow
def test_several_logs_become_a_store_each_and_an_id_that_is_taken_is_refused(ingest: Ingest, tmp_path: Path) -> None:
    names = ("upgrade/5.5.0", "upgrade/5.3.3")
    roots = [str(unpack(name, tmp_path / name)) for name in names]
    summary = ingest("--rocketmq", roots[0], "--rocketmq", roots[1], "--store", "other", *SIZES)
    assert summary["messages"] == sum(len(expected(name)["messages"]) for name in names)
    with reader_of(ingest.store("other")) as engine:
        assert engine.check_report(deep=True).lines() == []
    before = ingest.objects()
    ingest("--rocketmq", roots[1], *SIZES, code=FAILED)
    assert "store 'history' has an archive here already" in ingest.error
    assert ingest.objects() == before


@pytest.mark.slow
def test_messages_that_damage_cut_off_are_counted_and_the_job_does_not_end_well(ingest: Ingest, tmp_path: Path) -> None:
    """The broker was halted and its log has a flipped byte; its queues lead on to seven of the messages behind that."""
    root, messages = unpack("crashed-flip", tmp_path / "broker"), expected("crashed-flip")["messages"]
    sound = str(unpack("upgrade/5.5.0", tmp_path / "sound"))
    first = ingest("--rocketmq", str(root), *SIZES, code=FINDINGS)
    assert (first["messages"], first["cut_off"], first["findings"]) == (len(messages), 7, 7)
    assert f"damaged at {first['log_end']}: 7 whole messages behind the damage are not archived" in ingest.error
    again = ingest("--rocketmq", str(root), "--rocketmq", sound, "--store", "other", *SIZES, code=FINDINGS)
    assert ([each["already_there"] for each in again["stores"]], again["findings"]) == ([True, False], 7)


@pytest.mark.slow
def test_a_log_that_cannot_be_ingested_leaves_nothing_and_can_be_once_it_is_repaired(
    ingest: Ingest, tmp_path: Path
) -> None:
    root = unpack("crashed-plain", tmp_path / "broker")
    path = root / "commitlog" / f"{262_144:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[:5_000] + bytes(50) + whole[5_050:])
    ingest("--rocketmq", str(root), *SIZES, code=FAILED)
    assert "the log is damaged, and goes on behind the damage" in ingest.error
    assert ingest.objects() == {}
    path.write_bytes(whole)
    assert ingest("--rocketmq", str(root), *SIZES)["messages"] == len(expected("crashed-plain")["messages"])


def lines_of(count: int) -> list[dict[str, object]]:
    """JSON documents, not in the order of their times."""
    return [
        {
            "at": BEGIN_MS + 1000 * (number * 37 % count),
            "kind": "even" if number % 2 == 0 else "odd",
            "order": f"o{number % 50}",
            "refs": [f"r{number}", f"r{number % 10}"] if number % 3 else [],
            "colour": "grün" if number % 4 else None,
            "nested": {"a": number},
        }
        for number in range(count)
    ]


@pytest.mark.slow
def test_json_lines_are_in_the_order_of_their_times_with_dense_offsets(
    ingest: Ingest, tmp_path: Path, spark: SparkSession
) -> None:
    documents = lines_of(600)
    texts = [json.dumps(each) for each in documents]
    for number in range(3):
        (tmp_path / f"part-{number}.json").write_text("\n".join(texts[200 * number :][:200]) + "\n")
    arguments = [
        "--json", str(tmp_path / "part-*.json"), "--topic-column", "kind", "--key-column", "order", "--key-column",
        "refs", "--tag-column", "colour", "--property-column", "colour", "--time-column", "at", "--time-format",
        "epoch_ms", "--queues", "3", "--partitions", "3", *SMALL,
    ]  # fmt: skip
    assert ingest(*arguments)["messages"] == 600
    with reader_of(ingest.store()) as engine:
        queues = pulled(engine)
        assert sorted(queues) == [(kind, queue) for kind in ("even", "odd") for queue in range(3)]
        for found in queues.values():
            assert [each.record.queue_offset for each in found] == [*range(len(found))]
            assert [each.record.store_ms for each in found] == sorted(each.record.store_ms for each in found)
        assert all(not queue.gaps for topic in engine.topics() for queue in topic.queues)
        by_time = everything(engine)
        assert [each.record.store_ms for each in by_time] == [BEGIN_MS + 1000 * number for number in range(600)]
        by_text = {each.record.body.decode(): each for each in by_time}
        assert sorted(by_text) == sorted(texts)
        for text, document in zip(texts, documents, strict=True):
            refs = document["refs"]
            assert isinstance(refs, list)
            assert by_text[text].keys == list(dict.fromkeys([document["order"], *refs]))
            assert by_text[text].record.topic == document["kind"]
            assert by_text[text].properties == ({"colour": "grün"} if document["colour"] else {})
            assert by_text[text].tag == (document["colour"] or "")
        answer = engine.query(Query("odd", "o7", limit=1000))
        wanted = [text for text, each in zip(texts, documents, strict=True) if each["order"] == "o7"]
        assert sorted(message.record.body.decode() for message in answer.messages) == sorted(wanted)
        findings = engine.check_report(deep=True)
        assert (findings.lines(), findings.notes) == ([], [])
    before = ingest.objects()
    assert ingest(*arguments)["already_there"]
    assert ingest.objects() == before


@pytest.mark.slow
def test_parquet_with_typed_columns_and_what_is_wrong_with_a_description(
    ingest: Ingest, tmp_path: Path, spark: SparkSession
) -> None:
    path = str(tmp_path / "rows")
    spark.range(300, numPartitions=2).selectExpr(
        "cast(concat('body ', id) as binary) body", "array(concat('k', id), null) names", "int(id % 4) shard",
        "timestamp_millis(1600000000000 + id * 1000) at", "id number",
    ).write.parquet(path)  # fmt: skip
    columns = ["--parquet", path, "--topic", "rows", "--key-column", "names", "--key-column", "number"]
    ingest(*columns, code=WRONG_USE)
    assert "the body of a row of Parquet comes from --body-column" in ingest.error
    ingest(*columns, "--body-column", "bodies", code=WRONG_USE)
    assert "there is no column 'bodies'; there are at, body, names, number, shard" in ingest.error
    ingest("--parquet", str(tmp_path / "none"), "--topic", "rows", "--body-column", "b", code=WRONG_USE)
    assert "no such files" in ingest.error
    ingest(*columns, "--body-column", "body", "--time-column", "number", code=WRONG_USE)
    assert "give --time-format epoch_s or epoch_ms" in ingest.error
    assert not ingest.folder.exists() or ingest.objects() == {}
    summary = ingest(*columns, "--body-column", "body", "--queue-column", "shard", "--time-column", "at", *SMALL)
    assert summary["messages"] == 300
    with reader_of(ingest.store()) as engine:
        queues = pulled(engine)
        assert {key: [each.record.body.decode() for each in found] for key, found in queues.items()} == {
            ("rows", queue): [f"body {number}" for number in range(queue, 300, 4)] for queue in range(4)
        }
        assert [m.record.queue_offset for m in engine.query(Query("rows", "k123")).messages] == [30]
        assert [m.record.queue_offset for m in engine.query(Query("rows", "123")).messages] == [30]
        assert engine.check_report(deep=True).lines() == []


@pytest.mark.slow
def test_a_bad_row_is_named_and_nothing_stays(ingest: Ingest, tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    path.write_text("".join(json.dumps({"key": "two words" if number == 70 else "k"}) + "\n" for number in range(100)))
    ingest("--json", str(path), "--topic", "t", "--key-column", "key", *SMALL, code=WRONG_USE)
    assert "row 70 of partition 0: bad key 'two words'" in ingest.error
    assert ingest.objects() == {}
    path.write_text('{"key": "k"}\nnot json\n')
    ingest("--json", str(path), "--topic", "t", "--key-column", "key", *SMALL, code=FAILED)
    assert "Spark failed" in ingest.error
    assert ingest.objects() == {}


@pytest.mark.slow
def test_a_key_that_begins_like_a_list_and_is_none_is_a_key(ingest: Ingest, tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    path.write_text("".join(json.dumps({"key": key}) + "\n" for key in ("[urgent]", "[1", "plain", ["a", "b"])))
    ingest("--json", str(path), "--topic", "t", "--key-column", "key", *SMALL)
    with reader_of(ingest.store()) as engine:
        assert [each.keys for each in everything(engine)] == [["[urgent]"], ["[1"], ["plain"], ["a", "b"]]


@pytest.mark.slow
def test_a_file_cut_short_ends_the_job_also_where_the_session_would_pass_over_it(
    ingest: Ingest, tmp_path: Path, spark: SparkSession
) -> None:
    whole = gzip.compress("".join(json.dumps({"number": number}) + "\n" for number in range(50_000)).encode())
    (tmp_path / "lines.json.gz").write_bytes(whole[: len(whole) // 2])
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        ingest("--json", str(tmp_path / "lines.json.gz"), "--topic", "t", *SMALL, code=FAILED)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert ingest.objects() == {}


@pytest.mark.slow
def test_progress_counts_the_tasks_of_all_stages(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    with task_progress(spark, SystemClock(), lambda done, of: told.append((done, of)), "counted"):
        assert spark.range(100, numPartitions=5).rdd.count() == 100
    assert told[-1] == (5, 5)
    assert spark.range(10).rdd.count() == 10  # outside: nobody is told
    assert told[-1] == (5, 5)
