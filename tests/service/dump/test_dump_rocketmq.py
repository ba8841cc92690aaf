"""Dumps of files that RocketMQ wrote say what RocketMQ said of them."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import Any

import pytest

from tests.support.index.index_puts import Put, T, batch_of
from tests.support.rocketmq.golden import STORES, expected, unpack
from tests.support.stores.dumps import BROKER_JSON, column, dumped
from tierlog.index.format.layout import ROCKETMQ
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.service.dump.records import flag_names
from tierlog.service.dump.result import Json
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.format.properties import OWN_FIELDS, split_keys
from tierlog.tiering.format.queue_unit import PREFILL, UNIT_BYTES, QueueUnit
from tierlog.tiering.format.record import encode_host, host_text

#: Java's hash of its key is -2^31, which RocketMQ does not store as we do.
LEAST_HASH = "TopicTest#tbaekxa"
WITH_A_NEGATIVE_SLOT = "tiered-minhash-7slots"


def shown_host(text: str) -> str:
    """The expected form of a host, IPv6 shortened."""
    host, _, port = text.rpartition(":")
    ip = ipaddress.ip_address(host.strip("[]"))
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def wanted(message: dict[str, Any]) -> Json:
    properties = message["properties"] or {}
    return {
        "physical_offset": message["physicalOffset"], "size_bytes": message["size"], "version": message["version"],
        "topic": message["topic"], "queue_id": message["queueId"], "queue_offset": message["queueOffset"],
        "flag": message["flag"], "sys_flag": message["sysFlag"], "born_ms": message["bornTimestamp"],
        "born_host": shown_host(message["bornHost"]), "store_ms": message["storeTimestamp"],
        "store_host": shown_host(message["storeHost"]), "reconsume_times": message["reconsumeTimes"],
        "prepared_offset": message["preparedTransactionOffset"], "body_bytes": message["bodyLength"],
        "properties": {name: value for name, value in properties.items() if name not in OWN_FIELDS},
        "keys": split_keys(properties.get("KEYS", "")), "tag": properties.get("TAGS", ""),
        "message_id": message["msgId"],
    }  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_records_of_a_log_are_those_that_rocketmq_reads(tmp_path: Path, name: str) -> None:
    root = unpack(name, tmp_path)
    files = [dumped(path) for path in sorted((root / "commitlog").iterdir())]
    assert {file.dump.kind for file in files} == {"commit-log"}
    end = expected(name)["state"]["maxPhyOffset"]
    rows = [row for file in files for row in file.rows if row["physical_offset"] < end]
    records = [row for row in rows if row["kind"] == "record"]
    messages = [wanted(message) for message in expected(name)["messages"]]
    assert [{key: row[key] for key in messages[0]} for row in records] == messages
    assert {row["place"] for row in rows} == {"ok"}
    assert {row["body_crc"] for row in records} == {"ok"}
    assert {row["record_checksum"] for row in records} == ({"ok"} if name == "propcrc" else {"none"})
    blanks = [[row["physical_offset"], row["size_bytes"]] for row in rows if row["kind"] == "blank"]
    assert blanks == expected(name)["blanks"]
    log_end = next((file.head["log_end"] for file in files if "blank" not in file.head["after_log_end"]), None)
    assert log_end == end
    assert [bool(file.findings) for file in files].count(True) == (name in DAMAGED)


#: What stands behind the end of the log.
DAMAGED = {
    "crashed-torn": "record size differs from its parts",
    "crashed-flip": "body_crc is bad",
    "crashed-stale": "records stand again",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_ended_the_log_is_found(tmp_path: Path, name: str) -> None:
    root = unpack(name, tmp_path)
    (finding,) = [line for path in sorted((root / "commitlog").iterdir()) for line in dumped(path).findings]
    assert DAMAGED[name] in finding
    assert str(expected(name)["state"]["maxPhyOffset"]) in finding


def test_records_behind_a_truncation_are_shown_as_such(tmp_path: Path) -> None:
    root = unpack("crashed-stale", tmp_path)
    found = dumped(sorted((root / "commitlog").iterdir())[2])
    end = expected("crashed-stale")["state"]["maxPhyOffset"]
    for row in found.rows:
        assert (row["place"] == "ok") == (row["physical_offset"] < end)
    assert found.rows[-1]["place"] == "behind the log's end"


@pytest.mark.parametrize("name", ["clean", "upgrade/5.1.4"])
def test_units_of_queues_are_those_that_rocketmq_reads(tmp_path: Path, name: str) -> None:
    root = unpack(name, tmp_path)
    for queue in expected(name)["queues"]:
        folder = root / "consumequeue" / queue["topic"] / str(queue["queueId"])
        files = [dumped(path) for path in sorted(folder.iterdir())]
        assert not [finding for file in files for finding in file.findings]
        assert {(file.head["topic"], file.head["queue_id"]) for file in files} == {
            (queue["topic"], str(queue["queueId"]))
        }
        rows = [row for file in files for row in file.rows if row["queue_offset"] >= queue["minOffset"]]
        assert [[row["physical_offset"], row["size_bytes"], row["tag_hash"]] for row in rows] == queue["entries"]
        assert [row["queue_offset"] for row in rows] == list(range(queue["minOffset"], queue["maxOffset"]))


def test_prefill_extended_bad_and_unwritten_units_are_named(tmp_path: Path) -> None:
    path = tmp_path / "consumequeue" / "t" / "3" / f"{40:020d}"
    path.parent.mkdir(parents=True)
    units = [QueueUnit(9, 100, -(1 << 40)), QueueUnit(109, 100, 5), QueueUnit(-1, 3, 0)]
    path.write_bytes(PREFILL + b"".join(unit.encode() for unit in units) + bytes(2 * UNIT_BYTES))
    found = dumped(path)
    assert column(found, "queue_offset", "kind") == [
        (2, "pre-fill"), (3, "unit, extended"), (4, "unit"), (5, "bad"),
    ]  # fmt: skip
    assert found.head["never_written_from"] == 6
    assert found.findings == ["unit 5 has offset -1 and size 3"]
    assert column(dumped(path, start=4, limit=1), "queue_offset") == [(4,)]


@pytest.mark.parametrize(
    "place", [f"batchconsumequeue/t/0/{0:020d}", f"consumequeue_ext/t/0/{0:020d}", "tiered_index_file/0000"]
)
def test_formats_that_are_not_supported_are_refused_by_name(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes.fromhex("bcc50289") + bytes(460))
    with pytest.raises(InvalidRequestError, match="not supported"):
        dumped(path)


CLASSIC = expected("indexfiles")["classic"]


@pytest.mark.parametrize("case", CLASSIC, ids=lambda case: case["file"])
def test_items_of_a_classic_index_file_are_its_puts(tmp_path: Path, case: dict[str, Any]) -> None:
    folder = unpack("indexfiles", tmp_path, archive="files.tar.xz")
    found = dumped(folder / case["file"], slots=case["slots"])
    assert found.dump.kind == "index-classic"
    assert found.head["items"] == case["items"]
    assert not found.findings
    puts = [put for put in case["puts"] if put["ok"]]
    hashes = [key_hash(*put["keyString"].split("#", 1)) for put in puts]
    assert column(found, "hash", "physical_offset") == [
        (hash_low, put["offset"]) for hash_low, put in zip(hashes, puts, strict=True)
    ]
    assert [row["item"] for row in found.rows] == list(range(1, len(puts) + 1))
    newest = {hash_low % case["slots"]: number for number, hash_low in enumerate(hashes, 1)}
    assert {row["slot"]: row["item"] for row in found.rows if row["is_newest"]} == newest
    for row in found.rows[1:]:  # the first of a second file reads back too late, as RocketMQ reads it
        assert row["store_ms"] // 1000 <= puts[row["item"] - 1]["storeTime"] // 1000 <= row["store_ms"] // 1000 + 1


def test_capacity_follows_from_the_length_where_it_can_and_is_asked_for_where_not(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path / "store")
    for path in sorted((root / "index").iterdir()):
        assert (dumped(path).head["slots"], dumped(path).head["items"]) == (500, 2000)
    folder = unpack("indexfiles", tmp_path / "single", archive="files.tar.xz")
    with pytest.raises(InvalidRequestError, match="--slots or --items"):
        dumped(folder / "tiered-unsealed")
    with pytest.raises(InvalidRequestError, match="51 slots do not make a file of"):
        dumped(folder / "tiered-unsealed", slots=51)
    with pytest.raises(InvalidRequestError, match="do not make a file of"):
        dumped(folder / "tiered-unsealed", slots=1 << 40)
    assert dumped(folder / "tiered-unsealed", items=300).head["slots"] == 50
    with pytest.raises(InvalidRequestError, match="give --slots"):
        dumped(folder / "tiered-sealed.compacted", slots=1 << 40)


def test_a_capacity_that_is_not_asked_for_is_never_a_wrong_one(tmp_path: Path) -> None:
    folder = unpack("indexfiles", tmp_path, archive="files.tar.xz")
    told = 0
    for case in [*CLASSIC, *expected("indexfiles")["tiered"]]:
        with contextlib.suppress(InvalidRequestError):
            head = dumped(folder / case["file"]).head
            assert (head["slots"], head["items"]) == (case["slots"], case["items"]), case["file"]
            told += 1
    assert told >= 4


def test_a_guess_whose_items_are_in_other_slots_is_not_believed(tmp_path: Path) -> None:
    slots, items = 18, 38  # as long as 10 slots and 40 items, the usual proportion
    keys = [key for key in map(str, range(100)) if key_hash("t", key) % slots < 10][:5]
    puts: list[Put] = [("t", 1, 0, key, 100 * number, 100, T) for number, key in enumerate(keys)]
    file = ChainedIndexFile.create(
        LocalFileSystem(), tmp_path / "x", ROCKETMQ, slots=slots, items=items, begin_ms=T, first_physical=0
    )
    file.put(batch_of(puts), 0, len(puts))
    with pytest.raises(InvalidRequestError, match="--slots"):
        dumped(tmp_path / "x")
    assert len(dumped(tmp_path / "x", slots=slots).rows) == 5


TIERED = [case for case in expected("indexfiles")["tiered"] if case["case"] != WITH_A_NEGATIVE_SLOT]


def items_put(case: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (key_hash(put["topic"], key), put["topicId"], put["queueId"], put["offset"], put["size"])
        for put in case["puts"]
        if put["result"] == "SUCCESS"
        for key in put["keys"]
    ]


@pytest.mark.parametrize("case", TIERED, ids=lambda case: case["case"])
def test_items_of_tiered_index_files_are_their_puts(tmp_path: Path, case: dict[str, Any]) -> None:
    folder = unpack("indexfiles", tmp_path, archive="files.tar.xz")
    names = ("hash", "topic_id", "queue_id", "offset", "size")
    # RocketMQ keeps -2^31 where we have 0
    least = {-(1 << 31): 0}
    chained = dumped(folder / case["file"], slots=case["slots"])
    assert (chained.dump.kind, chained.head["layout"]) == ("index-chained", "rocketmq")
    assert (chained.head["slots"], chained.head["items"]) == (case["slots"], case["items"])
    shown = [(least.get(row[0], row[0]), *row[1:]) for row in column(chained, *names)]  # type: ignore[call-overload]
    assert shown == items_put(case)
    compacted = dumped(folder / case["compactedFile"])
    assert (compacted.dump.kind, compacted.head["slots"]) == ("index-compacted", case["slots"])
    shown = [(least.get(row[0], row[0]), *row[1:]) for row in column(compacted, *names)]  # type: ignore[call-overload]
    newest_first = items_put(case)[::-1]
    by_slot = sorted(newest_first, key=lambda item: int(str(item[0])) % case["slots"])
    assert shown == by_slot
    least_hash = any(f"{put['topic']}#{key}" == LEAST_HASH for put in case["puts"] for key in put["keys"])
    assert bool(chained.findings) == least_hash
    assert not compacted.findings or least_hash


def test_a_file_whose_header_rocketmq_overwrote_is_shown_with_findings(tmp_path: Path) -> None:
    folder = unpack("indexfiles", tmp_path, archive="files.tar.xz")
    assert dumped(folder / WITH_A_NEGATIVE_SLOT, slots=7).findings
    assert dumped(folder / f"{WITH_A_NEGATIVE_SLOT}.compacted").findings


def test_tiered_copy(tmp_path: Path) -> None:
    root = unpack("tiered", tmp_path)
    for queue in expected("tiered")["queues"]:
        (folder,) = (root / "cold").glob(f"*/*/{queue['topic']}/{queue['queueId']}")
        logs = [dumped(path) for path in sorted((folder / "COMMIT_LOG").iterdir(), key=lambda path: path.name[8:])]
        assert {(log.dump.kind, len(log.findings)) for log in logs} == {("tiered-log", 0)}
        records = [row for log in logs for row in log.rows]
        assert [
            [row[name] for name in ("physical_offset", "queue_offset", "store_ms", "size_bytes")] for row in records
        ] == [message[:4] for message in queue["messages"]]
        queues = sorted((folder / "CONSUME_QUEUE").iterdir(), key=lambda path: path.name[8:])
        units = [row for path in queues for row in dumped(path).rows]
        assert [[row["physical_offset"], row["size_bytes"], row["tag_hash"]] for row in units] == queue["entries"]
        assert {dumped(path).dump.kind for path in queues} == {"tiered-queue"}


def test_coda_of_old_brokers_stands_between_records(tmp_path: Path) -> None:
    root = unpack("tiered", tmp_path)
    (path,) = (root / "cold").glob("*/*/TxTopic/0/COMMIT_LOG/*")
    whole = path.read_bytes()
    path.write_bytes(whole + bytes.fromhex("00000010cbd431940000018bcfe5687b"))
    found = dumped(path)
    assert (found.rows[-1]["kind"], found.rows[-1]["store_ms"]) == ("coda", 1_700_000_000_123)
    assert not found.findings
    assert found.head["log_end"] == len(whole) + 16


@pytest.mark.parametrize("name", STORES)
def test_checkpoint(tmp_path: Path, name: str) -> None:
    found = dumped(unpack(name, tmp_path) / "checkpoint")
    fields = ("physic_ms", "logics_ms", "index_ms", "master_flushed", "confirm_offset")
    assert [found.head[field] for field in fields] == list(expected(name)["checkpointBefore"].values())
    assert not found.findings
    assert ("further_fields" in found.head) == (name == "upgrade/5.5.0")


def test_config_files_with_unquoted_keys(tmp_path: Path) -> None:
    for name, text in BROKER_JSON.items():
        (tmp_path / name).write_text(text)
    topics = dumped(tmp_path / "topics.json")
    assert column(topics, "topic", "read_queues", "write_queues", "perm") == [("TopicTest", 8, 4, 6)]
    assert topics.head["dataVersion"] == {"counter": 3}
    offsets = dumped(tmp_path / "consumerOffset.json")
    assert column(offsets, "topic", "group", "queue_id", "offset") == [
        ("TopicTest@group", "1", "0", 12), ("TopicTest@group", "1", "1", 7),
    ]  # fmt: skip
    assert column(dumped(tmp_path / "delayOffset.json"), "level", "offset") == [("3", 5), ("14", 1)]
    assert column(dumped(tmp_path / "delayOffset.json", limit=1, start=1), "level") == [("14",)]


def test_any_other_json_is_shown_value_by_value(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": {"b/c": [1, {}, "\\ud800"]}, "n": null, "far": 1e999}')
    assert column(dumped(tmp_path / "x.json"), "place", "value") == [
        ("/a/b~1c/0", 1), ("/a/b~1c/1", {}), ("/a/b~1c/2", "?"), ("/n", None), ("/far", "Infinity"),
    ]  # fmt: skip


def test_metadata_of_the_tiered_store(tmp_path: Path) -> None:
    found = dumped(unpack("tiered", tmp_path) / "config" / "tieredStoreMetadata.json")
    assert found.head["topicSerialNumber"] == 6
    for row in found.rows:
        if row["table"] == "indexFileSegmentTable":
            assert row["path"] == "broker-a/rmq_sys_INDEX/0"
    sizes = {(row["path"], row["base_offset"]): row["size_bytes"] for row in found.rows if row["table"][0] == "i"}
    assert sorted(base for _, base in sizes) == [0, 8772, 17572, 26372, 35172]


def test_hosts_are_readable() -> None:
    assert host_text(encode_host(bytes([10, 1, 2, 3]), 54321)) == "10.1.2.3:54321"
    assert host_text(encode_host(bytes.fromhex("20010db8") + bytes(11) + b"\1", 7)) == "[2001:db8::1]:7"


@pytest.mark.parametrize(
    ("sys_flag", "names"),
    [
        (0, []),
        (0x201, ["compressed", "zstd"]),
        (0x3C, ["born_host_v6", "store_host_v6", "rollback"]),
        (0xC4, ["need_unwrap", "inner_batch", "prepared"]),
        (0x1002, ["multi_tags", "0x1000"]),
        (0x709, ["compressed", "commit", "0x700"]),
        (-(1 << 31), ["0x80000000"]),
    ],
)
def test_flags_by_name(sys_flag: int, names: list[str]) -> None:
    assert flag_names(sys_flag) == names
