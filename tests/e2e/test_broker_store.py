"""A broker's directory read in place: every command that looks, nothing on the disk changed, damage named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.rocketmq.golden import STORES, expected, unpack
from tests.support.stores.hot_stores import record
from tierlog.index.search.query import Query
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, FAILED, NOTHING, WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import encode_record

UNIT = 20
SEGMENT = 262_144


class Broker:
    """An unpacked store, and commands on it."""

    def __init__(self, root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = unpack(name, root)
        self.wanted = expected(name)
        self.err = ""
        self._capsys = capsys

    def __call__(self, command: str, *argv: str, code: int = DONE) -> str:
        ended = main([command, *argv, "--root", str(self.root)])
        captured = self._capsys.readouterr()
        self.err = captured.err
        assert ended == code, (command, captured)
        return captured.out

    def rows(self, command: str, *argv: str) -> list[dict[str, Any]]:
        out = self(command, *argv, "--read-only", "--format", "ndjson")
        return [json.loads(line) for line in out.splitlines()]

    def check(self, code: int = NOTHING) -> list[str]:
        return self("check", "--read-only", code=code).splitlines()

    def segment(self, base: int) -> Path:
        return self.root / "commitlog" / f"{base:020d}"

    def queue_file(self, topic: str, queue_id: int, unit: int = 0) -> Path:
        return self.root / "consumequeue" / topic / str(queue_id) / f"{unit * UNIT:020d}"

    def offsets(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (topic["topic"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
            for topic in self.rows("topics")
            for queue in topic["offsets"]
        }


@pytest.fixture
def broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Broker]:
    return lambda name: Broker(tmp_path / "broker", name, capsys)


def everything_below(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_every_command_that_looks_while_the_broker_runs(broker: Callable[[str], Broker]) -> None:
    store = broker("crashed-plain")  # with an abort file, as while it runs
    before = everything_below(store.root)
    with LocalFileSystem().lock(store.root / "lock"):
        locked = everything_below(store.root)
        queues = {(each["topic"], each["queueId"]): each for each in store.wanted["queues"]}
        offsets = store.offsets()
        for name, queue in queues.items():
            assert offsets[name] == (queue["minOffset"], queue["maxOffset"])
        messages = [each for each in store.wanted["messages"] if each["topic"] == "TopicTest" and each["queueId"] == 0]
        read = store.rows("tail", "TopicTest", "--queue", "0", "--limit", "1000")
        assert [each["message_id"] for each in read] == [each["msgId"] for each in messages]
        (found,) = store.rows("query", "TopicTest", "--key", messages[5]["properties"]["UNIQ_KEY"])
        assert found["message_id"] == messages[5]["msgId"]
        assert {file["kind"] for file in store.rows("files")} == {"segment"}
        (stats,) = store.rows("stats")
        assert (stats["log_begin"], stats["log_end"]) == (0, store.wanted["state"]["maxPhyOffset"])
        assert store.check(DONE) == []
        assert everything_below(store.root) == locked
    changed = {name for name, content in everything_below(store.root).items() if content != before[name]}
    assert changed == {"lock"}  # by the holder of the lock, in this test


def test_what_the_broker_writes_meanwhile_is_seen_by_the_next_opening(broker: Callable[[str], Broker]) -> None:
    store = broker("upgrade/5.5.0")
    end, key = store.wanted["state"]["maxPhyOffset"], "written-meanwhile"
    text = encode_properties({"KEYS": key, "TAGS": "TagA"})
    data = encode_record(record(topic="BBTopic", queue_offset=1000, physical_offset=end, properties_text=text))
    query, pull = Query("BBTopic", key), ("BBTopic", 0, store.offsets()["BBTopic", 0][1], 10)
    engine = Store.open(store.root, settings=Settings(), read_only=True)
    try:
        for copied in (50, len(data) - 3, len(data)):  # as far as the broker has copied the record
            overwrite(store.segment(end // SEGMENT * SEGMENT), end % SEGMENT, data[:copied])
            assert engine.query(query).messages == []
            assert engine.pull(*pull).status is PullStatus.NO_NEW_MESSAGE
            (stats,) = store.rows("stats")
            assert stats["log_end"] == (end if copied < len(data) else end + len(data))
    finally:
        engine.close()
    (found,) = store.rows("query", "BBTopic", "--key", key)
    assert found["physical_offset"] == end


@pytest.mark.parametrize(
    "command",
    [("load", "/dev/null", "--topic", "a"), ("archive", "--all"), ("flush",), ("serve",), ("topics",), ("query", "a")],
)
def test_writing_is_refused_and_leaves_no_trace(broker: Callable[[str], Broker], command: tuple[str, ...]) -> None:
    store = broker("upgrade/5.5.0")
    before = everything_below(store.root)
    store(*command, code=WRONG_USE)
    assert "store directory of a RocketMQ broker" in store.err
    assert "--read-only" in store.err
    assert everything_below(store.root) == before


def test_an_archive_of_ours_cannot_belong_to_it(broker: Callable[[str], Broker], tmp_path: Path) -> None:
    store = broker("upgrade/5.5.0")
    store("topics", "--read-only", "--cold", f"file://{tmp_path}/cold", code=WRONG_USE)
    assert "no archive" in store.err


def test_a_name_given_to_it_is_a_store_id(broker: Callable[[str], Broker]) -> None:
    store = broker("upgrade/5.5.0")
    store("topics", "--read-only", "--store-id", "Not an id", code=WRONG_USE)
    assert "bad store id" in store.err


def test_sizes_are_those_of_the_files(broker: Callable[[str], Broker]) -> None:
    store = broker("clean")
    assert {file["bytes"] for file in store.rows("files")} == {262_144}
    assert len(store.rows("topics", "--segment-bytes", "262144")) == 8
    store("topics", "--read-only", "--segment-bytes", "65536", code=WRONG_USE)
    assert "made with segment size 262144" in store.err


def test_a_log_that_no_longer_begins_at_0(broker: Callable[[str], Broker]) -> None:
    store = broker("clean")
    border = 3 * 262_144
    for base in range(0, border, 262_144):
        store.segment(base).unlink()
    offsets = store.offsets()
    emptied = 0
    for queue in store.wanted["queues"]:
        gone = sum(entry[0] < border for entry in queue["entries"])
        assert offsets[queue["topic"], queue["queueId"]] == (gone, queue["maxOffset"])
        emptied += gone == queue["maxOffset"]
    assert emptied > 0  # where such a queue goes on, only its own files know
    left = [
        each for each in store.wanted["messages"] if each["topic"] == "BBTopic" and each["physicalOffset"] >= border
    ]
    read = store.rows("tail", "BBTopic", "--limit", "100")
    assert [(each["message_id"], each["queue_offset"]) for each in read] == [
        (each["msgId"], each["queueOffset"]) for each in left
    ]
    assert store.check(DONE) == []


def test_queue_files_do_not_matter_for_what_is_read(broker: Callable[[str], Broker]) -> None:
    store = broker("clean")
    whole = store.offsets()
    names = {(each["topic"], each["queueId"]) for each in store.wanted["queues"]}
    shutil.rmtree(store.root / "consumequeue" / "TopicTest" / "1")
    store.queue_file("TopicTest", 2, 200).unlink()
    overwrite(store.queue_file("BBTopic", 0), 0, bytes(2000))
    overwrite(store.queue_file("TxTopic", 0), 12 * UNIT, (1 << 40).to_bytes(8) + bytes.fromhex("000000ff") + bytes(8))
    assert {name: store.offsets()[name] for name in names} == {name: whole[name] for name in names}
    findings = store.check()
    assert len(findings) == 4
    for place in (
        "TopicTest/1: has no files",
        "TopicTest/2: 54 messages",
        "BBTopic/0: 21 messages",
        "TxTopic/0: 1 units",
    ):
        assert any(place in finding for finding in findings), place


@pytest.mark.parametrize("length", [0, 262_144])
def test_the_next_segment_made_in_advance(broker: Callable[[str], Broker], length: int) -> None:
    store = broker("clean")
    store.segment(5 * 262_144).write_bytes(bytes(length))
    (stats,) = store.rows("stats")
    assert stats["log_end"] == store.wanted["state"]["maxPhyOffset"]
    assert store.check(DONE) == []


def test_a_broker_that_has_no_message_yet(broker: Callable[[str], Broker]) -> None:
    store = broker("clean")
    shutil.rmtree(store.root / "consumequeue")
    for path in (store.root / "commitlog").iterdir():
        path.unlink()
    (store.root / "checkpoint").write_bytes(bytes(4096))
    assert store.rows("topics") == []
    store.segment(0).write_bytes(b"")
    assert store.rows("topics", "--segment-bytes", "262144") == []
    assert store.check(DONE) == []


def test_topics_and_consumer_offsets_of_the_configuration(broker: Callable[[str], Broker]) -> None:
    store = broker("upgrade/5.5.0")
    (store.root / "config").mkdir()
    (store.root / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"NoMessageYet":{"readQueueNums":3,"writeQueueNums":2},"AaTopic":{"writeQueueNums":4}}}'
    )
    (store.root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"TopicTest@g":{0:12,1:7}}}')
    queues = {topic["topic"]: len(topic["offsets"]) for topic in store.rows("topics")}
    assert (queues["NoMessageYet"], queues["AaTopic"], queues["TopicTest"]) == (3, 4, 8)
    assert store.rows("stats")[0]["consumer_offsets"] == {"TopicTest@g": {"0": 12, "1": 7}}
    assert store.check(DONE) == []
    (store.root / "config" / "topics.json").write_text("{")
    assert any(finding.startswith("config: ") for finding in store.check())
    assert "TopicTest" in {topic["topic"] for topic in store.rows("topics")}


# check


@pytest.mark.parametrize("name", [*STORES, "tiered"])
def test_check_of_the_stores_as_they_are(broker: Callable[[str], Broker], name: str) -> None:
    damaged = name in ("crashed-torn", "crashed-flip", "crashed-stale")
    store = broker(name)
    findings = store.check(NOTHING if damaged else DONE)
    if damaged:
        end = store.wanted["state"]["maxPhyOffset"]
        assert any(finding.startswith(f"log: bytes from {end} to ") for finding in findings)
    else:
        assert findings == []


def flip_body(store: Broker) -> str:
    message = next(m for m in store.wanted["messages"][400:] if m["bodyLength"] > 9 and not m["sysFlag"] & 0x30)
    base = message["physicalOffset"] // 262_144 * 262_144
    overwrite(store.segment(base), message["physicalOffset"] - base + 90, b"\xff")
    return f"log: damaged at {message['physicalOffset']}; nothing behind it in segment {base:020d}"


def lose_a_segment(store: Broker) -> str:
    store.segment(262_144).unlink()
    return f"log: 262144 bytes are missing before segment {524_288:020d}"


def change_unit(store: Broker, field: int, width: int, said: str) -> str:
    overwrite(store.queue_file("TopicTest", 0), 7 * UNIT + field, (77).to_bytes(width))
    return f"queue TopicTest/0: {said}"


def swap_units(store: Broker) -> str:
    data = store.queue_file("TopicTest", 0).read_bytes()
    overwrite(store.queue_file("TopicTest", 0), 5 * UNIT, data[6 * UNIT : 7 * UNIT] + data[5 * UNIT : 6 * UNIT])
    return "queue TopicTest/0: unit 6 leads to an earlier record"


def foreign_tail(store: Broker) -> str:
    end = store.wanted["state"]["maxPhyOffset"]
    overwrite(store.segment(4 * 262_144), end - 4 * 262_144 + 100, b"x")
    return f"log: bytes from {end} to {end + 101} follow"


def checkpoint(store: Broker, checkpoint: Checkpoint, said: str) -> str:
    (store.root / "checkpoint").write_bytes(checkpoint.encode())
    return f"checkpoint: {said}"


def short_checkpoint(store: Broker) -> str:
    (store.root / "checkpoint").write_bytes(bytes(24))
    return "checkpoint: 24 bytes"


@pytest.mark.parametrize(
    "damage",
    [
        flip_body,
        lose_a_segment,
        foreign_tail,
        swap_units,
        short_checkpoint,
        lambda store: change_unit(store, 0, 8, "unit 7 leads to an earlier record"),
        lambda store: change_unit(store, 8, 4, "size of unit 7 is 77"),
        lambda store: change_unit(store, 12, 8, "tag_code of unit 7 is 77"),
        lambda store: checkpoint(store, Checkpoint(physic_ms=1 << 42), "physic_ms"),
        lambda store: checkpoint(store, Checkpoint(logics_ms=1 << 42), "logics_ms"),
        lambda store: checkpoint(store, Checkpoint(confirm_offset=1_105_386), "confirm_offset 1105386 lies behind"),
    ],
)
def test_damage_is_named(broker: Callable[[str], Broker], damage: Callable[[Broker], str]) -> None:
    store = broker("clean")
    said = damage(store)
    findings = store.check()
    assert any(finding.startswith(said) for finding in findings), (said, findings)


def test_a_log_that_goes_on_behind_damage_is_refused_by_all_but_check(broker: Callable[[str], Broker]) -> None:
    store = broker("clean")
    said = flip_body(store)
    assert any(finding.startswith(said) for finding in store.check())
    store("query", "TopicTest", "--read-only", code=FAILED)
    assert "goes on behind the damage" in store.err


def test_a_topic_that_was_deleted_and_made_again_misses_nothing(broker: Callable[[str], Broker]) -> None:
    """Records of before it have no unit and need none; the queue shows what the broker shows."""
    store = broker("clean")
    mine = [each for each in store.wanted["messages"] if each["topic"] == "AaTopic"]
    again = mine[20:]
    units = []
    for offset, message in enumerate(again):
        at = message["physicalOffset"]
        base = at // 262_144 * 262_144
        overwrite(store.segment(base), at - base + 20, offset.to_bytes(8))
        (entry,) = [
            entry for queue in store.wanted["queues"] if queue["topic"] == "AaTopic" for entry in queue["entries"]
            if entry[0] == at
        ]  # fmt: skip
        units.append(entry[0].to_bytes(8) + entry[1].to_bytes(4) + entry[2].to_bytes(8, signed=True))
    store.queue_file("AaTopic", 0).write_bytes(b"".join(units).ljust(2000, b"\0"))
    assert store.check(DONE) == []
    assert store.offsets()["AaTopic", 0] == (0, 7)
    read = store.rows("tail", "AaTopic", "--limit", "100")
    assert [each["message_id"] for each in read] == [each["msgId"] for each in again]
    old = mine[0]["properties"]["UNIQ_KEY"]
    assert [each["message_id"] for each in store.rows("query", "AaTopic", "--key", old)] == [mine[0]["msgId"]]
