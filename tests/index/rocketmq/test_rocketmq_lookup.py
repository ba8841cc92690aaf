"""What counts RocketMQ's requests answers as RocketMQ did: else the counts would be of something else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.support.oracles.tiered_copy import TieredCopy
from tests.support.rocketmq.golden import expected, unpack
from tests.support.rocketmq.rocketmq_lookup import RocketMqAnswer, RocketMqLookup, UploadedFile, rocketmq_form
from tierlog.index.format.header import HEADER_BYTES
from tierlog.index.format.layout import ROCKETMQ, seconds_after
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.objects.memory import MemoryObjectStore

CASES = ("tiered-unsealed", "tiered-sealed", "tiered-one-slot", "tiered-same-key", "tiered-collision")
BEGIN = 1_700_000_000_000


@pytest.mark.parametrize("name", CASES)
def test_same_file_and_same_answers_of_one_file(name: str) -> None:
    (case,) = [case for case in expected("indexfiles")["tiered"] if case["case"] == name]
    puts = [
        (key_hash(put["topic"], key), put["topicId"], put["queueId"], put["offset"], put["size"],
         seconds_after(case["timestamp"], put["storeTime"]))
        for put in case["puts"] if put["result"] == "SUCCESS" for key in put["keys"]
    ]  # fmt: skip
    items = np.array(puts, ROCKETMQ.compacted)
    data = rocketmq_form(items, case["slots"], case["timestamp"], case["stateBefore"]["endTimestamp"])
    assert hashlib.sha256(data).hexdigest() == case["compactedSha256"]
    objects = MemoryObjectStore(ManualClock())
    objects.put("f", data)
    file = UploadedFile("f", case["timestamp"], len(data))
    lookup = RocketMqLookup(objects, [file], case["slots"])
    for query in case["queriesAfter"]:
        asked = key_hash(query["topic"], query["key"]), query["maxCount"], query["begin"], query["end"]
        found = lookup.query_file(file, *asked, RocketMqAnswer())
        fields = ("hash", "topicId", "queueId", "offset", "size", "timeDiff")
        assert found == [tuple(item[field] for field in fields) for item in query["items"]]


def test_same_answers_of_a_whole_cold_copy(tmp_path: Path) -> None:
    root, said = unpack("tiered", tmp_path), expected("tiered")
    copy = TieredCopy.open(LocalFileSystem(), root / "config" / "tieredStoreMetadata.json", root / "cold")
    objects, files = MemoryObjectStore(ManualClock()), []
    for segment in copy.index_segments:
        objects.put(segment.path.name, segment.path.read_bytes())
        files.append(UploadedFile(segment.path.name, segment.begin_ms, segment.size))
    lookup = RocketMqLookup(objects, files, said["settings"]["tieredStoreIndexFileMaxHashSlotNum"])
    for query in said["indexQuery"]:
        answer = lookup.query(
            query["topic"], query["key"], query.get("maxCount", 1 << 30), query["begin"], query["end"]
        )
        theirs = sorted(map(tuple, query["items"]), key=lambda item: (item[1], item[2], item[3]))
        assert sorted(answer.items, key=lambda item: (item[1], item[2], item[3])) == theirs


def test_requests_of_a_miss_are_one_or_two_a_file() -> None:
    slots, objects, files = 7, MemoryObjectStore(ManualClock()), []
    hashes = np.arange(0, 28, dtype=np.int64)
    for number in range(10):
        items = np.zeros(28 if number % 2 else 1, ROCKETMQ.compacted)
        items["hash"] = hashes[: len(items)]
        data = rocketmq_form(items, slots, BEGIN + number * 1000, BEGIN)
        objects.put(str(number), data)
        files.append(UploadedFile(str(number), BEGIN + number * 1000, len(data)))
    objects.put("none", bytes(HEADER_BYTES))
    lookup = RocketMqLookup(objects, [*files, UploadedFile("none", BEGIN, HEADER_BYTES)], slots)
    key = next(f"k{number}" for number in range(1000) if key_hash("t", f"k{number}") % slots and number % 7)
    answer = lookup.query("t", key, 32, BEGIN, BEGIN + 10_000)
    assert answer.items == []
    assert sorted(answer.chains) == [1] * 5 + [2] * 5
    assert answer.requests == 15
    assert lookup.query("t", key, 32, BEGIN + 1, BEGIN + 2000).requests == 3, "files are chosen by creation time"
