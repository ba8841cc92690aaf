"""The cold copy that a RocketMQ broker made: everything it answered about it, and what it should have answered."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracles.tiered_copy import TieredCopy, TieredQueue, hash8, segment_name
from tests.support.oracles.tiered_index import TieredIndex
from tests.support.rocketmq.golden import expected, unpack
from tierlog.index.format.errors import CorruptIndexError
from tierlog.tiering.base.errors import CorruptionError, NotFoundError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import Boundary, TimeRange
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.record import Record, SysFlag, encode_record
from tierlog.tiering.rocketmq.fastjson import parse_json

EXPECTED = expected("tiered")
SLOTS = EXPECTED["settings"]["tieredStoreIndexFileMaxHashSlotNum"]
MOST_BYTES = 262_144


def open_copy(root: Path) -> TieredCopy:
    return TieredCopy.open(LocalFileSystem(), root / "config" / "tieredStoreMetadata.json", root / "cold")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("tiered", tmp_path_factory.mktemp("tiered"))


@pytest.fixture(scope="module")
def copy(root: Path) -> TieredCopy:
    return open_copy(root)


@pytest.fixture(scope="module")
def index(copy: TieredCopy) -> TieredIndex:
    return TieredIndex(LocalFileSystem(), copy, slots=SLOTS)


def java_store_ms(queue: TieredQueue) -> Callable[[int], int]:
    """Store times as RocketMQ's cold store reads them: where they lie if the born host is IPv4."""

    @cache
    def read(queue_offset: int) -> int:
        return int.from_bytes(queue.bytes_of(queue_offset)[56:64], "big", signed=True)

    return read


def all_records(copy: TieredCopy) -> list[tuple[TieredQueue, Record]]:
    return [(queue, queue.record(at)) for queue in copy.queues.values() for at in range(queue.first, queue.next)]


def test_queues_entries_and_messages(copy: TieredCopy) -> None:
    assert sorted(copy.queues) == [(queue["topic"], queue["queueId"]) for queue in EXPECTED["queues"]]
    count = 0
    for wanted in EXPECTED["queues"]:
        queue = copy.queues[wanted["topic"], wanted["queueId"]]
        assert (queue.topic_id, queue.log_begin, queue.log_end, queue.first, queue.next) == (
            wanted["topicId"], wanted["commitLogMinOffset"], wanted["commitLogCommitOffset"],
            wanted["consumeQueueMinOffset"], wanted["consumeQueueCommitOffset"],
        )  # fmt: skip
        assert [list(unit) for unit in queue.units(0, 1 << 40).tolist()] == wanted["entries"]
        for at, (offset, queue_offset, store_ms, size, sha256) in zip(
            range(queue.first, queue.next), wanted["messages"], strict=True
        ):
            record = queue.record(at)
            assert (record.physical_offset, record.queue_offset) == (offset, queue_offset)
            assert (record.store_ms, record.size, record.topic) == (store_ms, size, queue.topic)
            assert hashlib.sha256(queue.bytes_of(at)).hexdigest() == sha256
            assert encode_record(record) == queue.bytes_of(at)
            count += 1
    assert count == 666


def test_pull_statuses_and_offsets(copy: TieredCopy) -> None:
    for get in EXPECTED["getMessage"]:
        queue, offset = copy.queues[get["topic"], get["queueId"]], get["offset"]
        assert (queue.first, queue.next) == (get["minOffset"], get["maxOffset"])
        sizes = queue.units(offset, offset + get["maxNums"])["size"].cumsum()
        found = [offset + at for at, size in enumerate(sizes) if size <= MOST_BYTES or at == 0]
        status = "FOUND"
        if offset < queue.first:
            status, found = "OFFSET_TOO_SMALL", []
        elif offset >= queue.next:
            status = "OFFSET_OVERFLOW_ONE" if offset == queue.next else "OFFSET_OVERFLOW_BADLY"
        assert status == get["status"]
        # RocketMQ's answer ends where the messages end that it has read ahead before
        assert found[: len(get["queueOffsets"])] == get["queueOffsets"]
        assert bool(found) == bool(get["queueOffsets"])
        nearest = min(max(offset, queue.first), queue.next)
        assert get["nextBeginOffset"] == (offset + len(get["queueOffsets"]) if found else nearest)


def java_offset_by_time(root: Path, queue: TieredQueue, time_ms: int, boundary: Boundary) -> int:
    """As RocketMQ 5.4.0: it searches one segment of the queue, which it picks by the times in its metadata."""
    read, first, last = java_store_ms(queue), queue.first, queue.next - 1
    if read(last) < time_ms:
        return last + 1
    if read(first) > time_ms:
        return first
    low, high = 0, len(queue_segments(root, queue)) - 1
    middle = high // 2
    while low <= high:
        begin_ms, end_ms, _, _ = queue_segments(root, queue)[middle]
        if begin_ms <= time_ms <= end_ms:
            break
        if time_ms < begin_ms:
            high = middle - 1
        else:
            low = middle + 1
        middle = (low + high) // 2 if low <= high else low
    _, _, base, size = queue_segments(root, queue)[middle]
    low, high = base // 20, (base + size) // 20 - 1
    while low < high:
        middle = (low + high) // 2
        if read(middle) < time_ms:
            low = middle + 1
        else:
            high = middle
    while boundary is Boundary.UPPER and low < last and read(low + 1) == time_ms:
        low += 1
    return low


@cache
def queue_segments(root: Path, queue: TieredQueue) -> list[tuple[int, int, int, int]]:
    """(begin time, end time, base offset, size) of the segments of a consume queue in the broker's metadata."""
    document: Any = parse_json((root / "config" / "tieredStoreMetadata.json").read_bytes(), path="metadata")
    table = document["consumeQueueFileSegmentTable"][f"broker-a/{queue.topic}/{queue.queue_id}"]
    names = ("beginTimestamp", "endTimestamp", "baseOffset", "size")
    found = [tuple(entry[name] for name in names) for entry in table.values()]
    return sorted(found, key=lambda entry: entry[2])


def test_offset_by_time_is_right_and_rocketmqs_where_that_is(root: Path, copy: TieredCopy) -> None:
    assert len(EXPECTED["offsetByTime"]) == 252
    right = 0
    for query in EXPECTED["offsetByTime"]:
        queue = copy.queues[query["topic"], query["queueId"]]
        boundary, time_ms = Boundary(query["boundary"].lower()), query["timestamp"]
        assert java_offset_by_time(root, queue, time_ms, boundary) == query["offset"]
        times = [queue.record(at).store_ms for at in range(queue.first, queue.next)]
        assert times == sorted(times)
        lower, equal = sum(time < time_ms for time in times), times.count(time_ms)
        wanted = lower + equal - 1 if boundary is Boundary.UPPER and equal else lower
        assert queue.offset_by_time(time_ms, boundary) == wanted
        has_v6 = any(queue.record(at).sys_flag & SysFlag.BORN_HOST_V6 for at in range(queue.first, queue.next))
        assert wanted == query["offset"] or has_v6
        right += wanted == query["offset"]
    print(f"{252 - right} of 252 answers of RocketMQ are wrong, all in queues with IPv6 born hosts")


def query_items(index: TieredIndex, query: dict[str, Any]) -> list[list[int]]:
    """As RocketMQ's index service: files created in the range, items by their seconds, one a queue id and offset."""
    found: dict[tuple[int, int], list[int]] = {}
    for file in index.items(query["topic"], query["key"]):
        if not query["begin"] <= file.segment.begin_ms <= query["end"]:
            continue
        for item in file.items:
            time = file.begin_ms + int(item["seconds"]) * 1000
            if query["begin"] <= time <= query["end"]:
                fields = ("hash", "topic_id", "queue_id", "offset", "size", "seconds")
                found[int(item["queue_id"]), int(item["offset"])] = [int(item[field]) for field in fields]
    return sorted(found.values(), key=lambda item: (item[1], item[2], item[3]))


def test_index_items_are_those_of_rocketmq(index: TieredIndex) -> None:
    assert len(EXPECTED["indexQuery"]) == 297
    for query in EXPECTED["indexQuery"]:
        assert query_items(index, query) == query["items"]


def test_index_table_is_that_of_rocketmq(copy: TieredCopy) -> None:
    uploaded = [entry[:3] for entry in EXPECTED["indexTable"] if entry[3] == "UPLOAD"]
    assert [[each.begin_ms, each.begin_ms, each.end_ms] for each in copy.index_segments] == uploaded


def test_query_finds_what_rocketmq_found_and_what_it_missed(copy: TieredCopy, index: TieredIndex) -> None:
    by_key: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for queue, record in all_records(copy):
        for key in indexed_keys(record.properties):
            by_key[queue.topic, key].append(record)
    more = collided = 0
    for query in EXPECTED["queryMessage"]:
        topic, key = query["topic"], query["key"]
        end = min(query["end"], 1 << 61)
        wanted = [record for record in by_key[topic, key] if query["begin"] <= record.store_ms <= end]
        found = index.find(topic, key, TimeRange(query["begin"], end + 1))
        places = {(record.queue_id, record.queue_offset, record.physical_offset) for record in found}
        assert places == {(record.queue_id, record.queue_offset, record.physical_offset) for record in wanted}
        assert len(places) == len(found)
        assert found == sorted(found, key=lambda record: -record.store_ms)
        ids = copy.topic_ids()
        items = [item for item in query_items(index, query) if item[1] == ids[topic]]
        theirs = {(topic, item[2], record_at(copy, topic, item).queue_offset, item[3]) for item in items}
        assert theirs == {tuple(place) for place in query["found"]}
        more += len(places - {place[1:] for place in theirs})
        collided += len({place[1:] for place in theirs} - places)
    assert more > 0
    print(f"{more} messages that RocketMQ did not find, {collided} of other keys or times that it did")


def record_at(copy: TieredCopy, topic: str, item: list[int]) -> Record:
    return copy.queues[topic, item[2]].record_at(item[3], item[4])


def test_outside_a_queue_nothing_is_read(copy: TieredCopy) -> None:
    queue = copy.queues["TopicTest", 3]
    for queue_offset in (-1, queue.next):
        with pytest.raises(NotFoundError):
            queue.record(queue_offset)
    for offset, size in ((queue.log_end, 100), (-1, 100), (queue.log_end - 5, 10), (0, -1)):
        with pytest.raises(CorruptionError):
            queue.record_at(offset, size)
    assert len(queue.units(5, 5)) == 0


def test_names_are_those_rocketmq_gives() -> None:
    assert segment_name(0) == "cfcd208400000000000000000000"
    assert segment_name(4_294_937_144) == "b10da56800000000004294937144"
    assert hash8("TieredStorageDailyTest") == "161c08ff"


def test_damaged_copies_are_refused_with_a_path(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "c")
    with pytest.raises(CorruptIndexError):
        TieredIndex(LocalFileSystem(), open_copy(tmp_path / "c"), slots=SLOTS + 1)
    metadata = tmp_path / "c" / "config" / "tieredStoreMetadata.json"
    good = metadata.read_text()
    for old, new in (
        ('"brokerName":"broker-a"', '"brokerName":"../broker-a"'),
        ('"topicId":5', '"topicId":"five"'),
        ('"size":69858', '"size":69859'),
        ('"queue":{', '"queue":7,"other":{'),
        ("{", "["),
    ):
        assert old in good
        metadata.write_text(good.replace(old, new))
        with pytest.raises(CorruptionError):
            open_copy(tmp_path / "c")
    metadata.write_text(good)
    next((tmp_path / "c" / "cold").glob("*/broker-a/TopicTest/3/COMMIT_LOG/*59683")).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        open_copy(tmp_path / "c")


def test_last_segment_is_as_long_as_its_file(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "c")
    metadata = tmp_path / "c" / "config" / "tieredStoreMetadata.json"
    metadata.write_text(metadata.read_text().replace('"size":6911', '"size":100'))
    assert open_copy(tmp_path / "c").queues["AaTopic", 0].log_end == 6911


def test_bytes_between_records_of_a_log_do_no_harm(root: Path, tmp_path: Path) -> None:
    """Old brokers ended a commit-log segment with 16 bytes: length, blank magic, greatest store time."""
    shutil.copytree(root, tmp_path / "c")
    log = next((tmp_path / "c" / "cold").glob("*/broker-a/AaTopic/0/COMMIT_LOG/*"))
    log.write_bytes(log.read_bytes() + bytes.fromhex("00000010cbd431940000018bcfe5687b"))
    queue = open_copy(tmp_path / "c").queues["AaTopic", 0]
    assert queue.log_end == 6911 + 16
    assert [queue.record(at).queue_offset for at in range(queue.first, queue.next)] == list(range(14))
