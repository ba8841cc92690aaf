"""A broker's log becomes the archive of a store: every message as RocketMQ said it is, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.pipeline.new_stores import pulled, reader_of
from tests.support.rocketmq.golden import STORES, expected, unpack
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import record
from tests.support.stores.irregular import compare, irregular_log, random_records
from tierlog.index.new_store.adoption import adopt_log
from tierlog.index.new_store.broker_log import BrokerLog, LogPlan, survey_segment
from tierlog.index.new_store.commit import publish
from tierlog.index.new_store.part import NewStore
from tierlog.index.objects.derivation import IndexSizes
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, NotFoundError
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.properties import KEYS, UNIQ_KEY, split_keys
from tierlog.tiering.format.record import decode_record, encode_record

SEGMENT = 262_144


def planned(root: Path) -> LogPlan:
    log = BrokerLog.find(root)
    return LogPlan.of(log, [survey_segment(segment) for segment in log.segments])


def archived(root: Path, folder: Path) -> NewStore:
    plan = planned(root)
    store = NewStore(f"file://{folder}/cold", "broker", SEGMENT, IndexSizes(500, 600))
    topics = plan.new_topics()
    parts = [task.run() for task in plan.tasks(store)]
    publish(
        store, parts, topics, SystemRandomness(), volume_id=plan.fingerprint, log_begin=plan.begin, groups=plan.groups
    )
    return store


def records_of(store: NewStore) -> dict[int, bytes]:
    """Every archived record by its physical offset."""
    manifest = store.manifest
    head, reader = manifest.refresh(), manifest.reader(scan=True)
    return {
        entry.base + position: bytes(item)
        for entry in manifest.log_entries(reader, head)
        for position, item in SegmentReader(reader, entry).raw_items()
    }


def by_key(engine: Archive, topic: str, key: str) -> list[int]:
    answer = engine.query(Query(topic, key, limit=10_000, to_ms=1 << 62))
    assert answer.coverage.complete
    return sorted(message.record.physical_offset for message in answer.messages)


@pytest.mark.parametrize("name", STORES)
def test_every_message_is_what_rocketmq_said_it_is(tmp_path: Path, name: str) -> None:
    store, messages = archived(unpack(name, tmp_path / "broker"), tmp_path), expected(name)["messages"]
    found = records_of(store)
    assert sorted(found) == [each["physicalOffset"] for each in messages]
    for each in messages:
        data = found[each["physicalOffset"]]
        assert hashlib.sha256(data).hexdigest() == each["recordSha256"]
        got = decode_record(data, 0, physical_offset=each["physicalOffset"])
        assert (got.topic, got.queue_id, got.queue_offset) == (each["topic"], each["queueId"], each["queueOffset"])
    with reader_of(store) as engine:
        in_queues = [each for each in messages if each["sysFlag"] & 12 in (0, 8)]  # no prepared, no rolled back one
        wanted: dict[tuple[str, int], list[int]] = {}
        for each in in_queues:
            wanted.setdefault((each["topic"], each["queueId"]), []).append(each["physicalOffset"])
        queues = pulled(engine)
        assert {key: [m.record.physical_offset for m in found] for key, found in queues.items()} == wanted
        for each in in_queues[::13]:
            properties = each["properties"] or {}
            for key in {*split_keys(properties.get(KEYS, "")), properties.get(UNIQ_KEY, "")} - {""}:
                assert each["physicalOffset"] in by_key(engine, each["topic"], key)
        findings = engine.check_report(deep=True)
        assert (findings.lines(), findings.notes) == ([], [])


def test_a_volume_restored_from_it_serves_the_brokers_topics_and_groups(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path / "broker")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable": {"TopicTest@billing": {0: 17, 1: 3}}}')
    store = archived(root, tmp_path)
    engine = Store.open(
        tmp_path / "volume", cold_url=store.url, store_id=store.store_id, settings=tiny_settings(), restore=True
    )
    try:
        assert engine.groups.committed("billing").offsets == {
            ("TopicTest", engine.store_id, 0): 17,
            ("TopicTest", engine.store_id, 1): 3,
        }
        wanted = [m for m in expected("clean")["messages"] if (m["topic"], m["queueId"]) == ("TopicTest", 0)]
        found = engine.pull("TopicTest", 0, 0, 1000).messages
        assert [each.record.message_id for each in found] == [m["msgId"] for m in wanted][: len(found)]
        assert engine.check(deep=True) == []
    finally:
        engine.close()


def test_equal_logs_have_equal_fingerprints_and_others_have_not(tmp_path: Path) -> None:
    one, same = (unpack("upgrade/5.5.0", tmp_path / name) for name in ("one", "same"))
    other = unpack("upgrade/5.3.3", tmp_path / "other")
    assert planned(one).fingerprint == planned(same).fingerprint
    assert planned(one).fingerprint != planned(other).fingerprint


def overwrite(root: Path, base: int, position: int, data: bytes) -> None:
    with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_log_that_goes_on_behind_damage_is_refused(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path / "broker")
    overwrite(root, SEGMENT, 5_000, bytes(50))
    with pytest.raises(CorruptionError, match="the log is damaged, and goes on behind the damage"):
        planned(root)


def test_a_hole_between_segments_is_refused(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path / "broker")
    (root / "commitlog" / f"{SEGMENT:020d}").unlink()
    with pytest.raises(CorruptionError, match="a segment is missing after this one"):
        planned(root)


def test_a_log_whose_first_segments_are_gone_keeps_its_offsets(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path / "broker")
    (root / "commitlog" / f"{0:020d}").unlink()
    store = archived(root, tmp_path)
    head = store.manifest.refresh()
    assert (head.cold_min, head.log_gaps) == (SEGMENT, ())
    wanted = [m for m in expected("clean")["messages"] if m["physicalOffset"] >= SEGMENT]
    assert sorted(records_of(store)) == [m["physicalOffset"] for m in wanted]
    with reader_of(store) as engine:
        assert engine.check_report(deep=True).lines() == []


def written(root: Path, *queue_offsets: int) -> Path:
    """A log of one queue whose records say these offsets."""
    position, pieces = 0, []
    for offset in queue_offsets:
        pieces.append(encode_record(record(topic="orders", queue_offset=offset, physical_offset=position)))
        position += len(pieces[-1])
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(b"".join(pieces).ljust(SEGMENT, b"\0"))
    return root


def test_offsets_that_were_left_out_are_a_declared_gap(tmp_path: Path) -> None:
    store = archived(written(tmp_path / "broker", 2, 3, 7, 8), tmp_path)
    with reader_of(store) as engine:
        assert engine.topic("orders").queues[0].gaps == [(0, 2), (4, 7)]
        assert [each.record.queue_offset for each in pulled(engine)["orders", 0]] == [2, 3, 7, 8]
        assert engine.check_report(deep=True).lines() == []


def test_a_repeated_offset_has_no_place_in_its_queue(tmp_path: Path) -> None:
    store = archived(written(tmp_path / "broker", 0, 1, 2, 1, 2, 3), tmp_path)
    with reader_of(store) as engine:
        assert [each.record.queue_offset for each in pulled(engine)["orders", 0]] == [0, 1, 2, 3]
        assert len(records_of(store)) == 6
        assert engine.check_report(deep=True).lines() == []


@pytest.mark.parametrize("seed", range(200, 208))
def test_jumps_repeats_and_topics_made_again_are_what_plain_python_makes_of_them(tmp_path: Path, seed: int) -> None:
    log = irregular_log(random_records(Random(seed), 150))
    size = log.log.segment_bytes
    (tmp_path / "broker" / "commitlog").mkdir(parents=True)
    for base in range(0, log.log.end, size):
        (tmp_path / "broker" / "commitlog" / f"{base:020d}").write_bytes(log.log.read(base, size).ljust(size, b"\0"))
    store = NewStore(f"file://{tmp_path}/cold", "broker", size, IndexSizes(500, 600))
    assert adopt_log(store, BrokerLog.find(tmp_path / "broker"), SystemRandomness(), lambda done, of: None).is_new
    with reader_of(store) as engine:
        compare(engine, log)
        assert engine.check_report(deep=True).lines() == []


def test_a_file_that_changes_between_the_look_and_the_task_is_refused(tmp_path: Path) -> None:
    root = unpack("upgrade/5.5.0", tmp_path / "broker")
    plan = planned(root)
    store = NewStore(f"file://{tmp_path}/cold", "broker", SEGMENT, IndexSizes(500, 600))
    overwrite(root, 0, 200, b"\xff")
    with pytest.raises(CorruptionError, match="the file changed since it was looked at"):
        plan.tasks(store)[0].run()


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_what_is_no_brokers_directory_is_said(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "broker")
    with pytest.raises(NotFoundError, match="no store of a RocketMQ broker here"):
        BrokerLog.find(tmp_path / "broker")


def test_a_store_of_our_own_archives_itself(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", settings=tiny_settings()).close()
    with pytest.raises(InvalidRequestError, match="this is a store of tierlog"):
        BrokerLog.find(tmp_path / "store")
