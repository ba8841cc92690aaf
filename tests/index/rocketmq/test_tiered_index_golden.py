"""Tiered index files that RocketMQ wrote: same bytes before and after compaction, same answers in both states.

Where RocketMQ is wrong we differ, and these tests say where: a hash of -2^31 (it becomes 0 here), seconds beyond
32 bits (they saturate here), one answer too many from a file that was not compacted, and no more than 512 items
walked there (here: as many as asked for, and all).
"""

from __future__ import annotations

import copy
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.index.index_puts import Put, batch_of
from tests.support.oracles.plain_index import PlainChainedFile
from tests.support.rocketmq.golden import expected, unpack
from tierlog.index.format.header import HEADER_BYTES, SLOT_BYTES
from tierlog.index.format.layout import ROCKETMQ, IndexItem, Items, seconds_after
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.tiering.base.errors import CapacityError, InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import key_hash

#: RocketMQ's limits on what it reads for one query: items of a chain, items of a slot.
MOST_WALKED, MOST_OF_A_SLOT = 512, 1024
#: Java's hash of its key is -2^31. With 8 slots only the hash in the item differs from ours, with 7 RocketMQ writes
#: the slot over its own header and loses the item.
LEAST_HASH = "TopicTest#tbaekxa"
#: Seconds that Java cuts to their low 32 bits.
WRAPPED_SECONDS = "tiered-odd"
SAME = ("tiered-unsealed", "tiered-sealed", "tiered-one-slot", "tiered-same-key", "tiered-collision")


def case_of(name: str) -> dict[str, Any]:
    (found,) = [case for case in expected("indexfiles")["tiered"] if case["case"] == name]
    mine: dict[str, Any] = copy.deepcopy(found)
    return mine


def test_no_case_is_left_out() -> None:
    special = {"tiered-minhash-7slots", "tiered-minhash-8slots", "tiered-odd", "tiered-empty"}
    assert {case["case"] for case in expected("indexfiles")["tiered"]} == special | set(SAME)


class Made:
    """The file of a case, made by our code from the same puts."""

    def __init__(self, case: dict[str, Any], folder: Path) -> None:
        self.case = case
        self.fs = LocalFileSystem()
        self.path = folder / "ours"
        slots, items, begin = case["slots"], case["items"], case["timestamp"]
        self.file = ChainedIndexFile.create(
            self.fs, self.path, ROCKETMQ, slots=slots, items=items, begin_ms=begin, first_physical=0
        )
        self.plain = PlainChainedFile(ROCKETMQ, slots, items, begin)
        self._refused = False
        self.results = [self._put(put) for put in case["puts"]]
        self.bytes = self.path.read_bytes()
        self.state = "SEALED" if self._refused else "UNSEALED"

    def _put(self, put: dict[str, Any]) -> str:
        if not put["topic"].strip():
            return "UNKNOWN_ERROR"
        puts: list[Put] = [
            (put["topic"], put["topicId"], put["queueId"], key, put["offset"], put["size"], put["storeTime"])
            for key in put["keys"]
        ]
        if puts and self._refused:  # RocketMQ's file takes nothing more, even what would fit
            return "FILE_FULL"
        try:
            self.file.put(batch_of(puts), 0, len(puts))
        except CapacityError:
            self._refused = True
            return "FILE_FULL"
        for topic, topic_id, queue_id, key, offset, size, store_ms in puts:
            seconds = seconds_after(self.case["timestamp"], store_ms)
            assert self.plain.put(IndexItem(key_hash(topic, key), topic_id, queue_id, offset, size, seconds), store_ms)
        return "SUCCESS"

    def compacted(self) -> CompactedIndexFile:
        self.file.seal(1 << 40)
        target = self.path.with_name("ours.compacted")
        compact(self.fs, self.file, target, self.path.parent / "tmp")
        return CompactedIndexFile.open_bare(self.fs, target, ROCKETMQ, self.case["slots"])


def told(items: Items, query: dict[str, Any], begin_ms: int) -> list[tuple[int, ...]]:
    """Items in the time range as a query of ``expected.json`` lists them."""
    times = begin_ms + items["seconds"].astype(np.int64) * 1000
    kept = items[(query["begin"] <= times) & (times <= query["end"])]
    fields = ("hash", "topic_id", "queue_id", "offset", "size", "seconds")
    return [tuple(int(item[name]) for name in fields) for item in kept]


def wanted(query: dict[str, Any]) -> list[tuple[int, ...]]:
    fields = ("hash", "topicId", "queueId", "offset", "size", "timeDiff")
    return [tuple(item[name] for name in fields) for item in query["items"]]


def compare_queries(made: Made) -> int:
    """Every query of the case against the chained file, then the compacted one."""
    case, begin = made.case, made.case["timestamp"]
    for query in case["queriesBefore"]:
        found = made.file.lookup(key_hash(query["topic"], query["key"]))[:MOST_WALKED]
        assert told(found, query, begin)[: query["maxCount"] + 1] == wanted(query), query
    compacted = made.compacted()
    for query in case["queriesAfter"]:
        found = compacted.lookup(key_hash(query["topic"], query["key"]))[:MOST_OF_A_SLOT]
        assert told(found, query, begin)[: query["maxCount"]] == wanted(query), query
    return len(case["queriesBefore"]) + len(case["queriesAfter"])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", SAME)
def test_same_bytes_and_answers_chained_and_compacted(tmp_path: Path, name: str) -> None:
    case = case_of(name)
    made = Made(case, tmp_path)
    assert made.results == [put["result"] for put in case["puts"]]
    state = case["stateBefore"]
    header = made.file.header
    assert (header.begin_ms, header.end_ms) == (state["timestamp"], state["endTimestamp"])
    assert (header.used_slots, header.item_count) == (state["hashSlotCount"], state["indexItemCount"])
    assert made.state == state["status"]
    assert sha256(made.bytes) == sha256(bytes(made.plain.data)) == case["sha256"]
    assert compare_queries(made) >= 40
    data = made.path.with_name("ours.compacted").read_bytes()
    assert (len(data), sha256(data)) == (case["compactedSize"], case["compactedSha256"])


def test_least_hash_becomes_0_and_is_found_where_java_kept_it(tmp_path: Path) -> None:
    case = case_of("tiered-minhash-8slots")
    assert expected("indexfiles")["minHashKey"] == LEAST_HASH
    theirs = (unpack("indexfiles", tmp_path / "theirs", archive="files.tar.xz") / case["file"]).read_bytes()
    assert sha256(theirs) == case["sha256"]
    made = Made(case, tmp_path)
    changed = bytearray(theirs)
    first = HEADER_BYTES + SLOT_BYTES * case["slots"]
    least = [at for at in range(first, len(theirs), ROCKETMQ.chained_bytes) if theirs[at : at + 4] == b"\x80\0\0\0"]
    for at in least:
        changed[at : at + 4] = bytes(4)
    assert len(least) == sum("tbaekxa" in put["keys"] for put in case["puts"])
    assert made.bytes == bytes(changed)
    for query in [*case["queriesBefore"], *case["queriesAfter"]]:
        for item in query["items"]:
            item["hash"] = max(item["hash"], 0)
    assert compare_queries(made) == 100


def test_least_hash_that_java_loses_with_7_slots_is_found(tmp_path: Path) -> None:
    case = case_of("tiered-minhash-7slots")
    made = Made(case, tmp_path)
    lost = [put["offset"] for put in case["puts"] if "tbaekxa" in put["keys"]]
    assert lost
    assert not any(query["items"] for query in case["queriesBefore"] if query["key"] == "tbaekxa")
    least = key_hash("TopicTest", "tbaekxa")
    assert made.file.lookup(least)["offset"].tolist() == lost[::-1]
    others = 0
    for query in case["queriesBefore"]:
        if query["key"] != "tbaekxa":
            found = made.file.lookup(key_hash(query["topic"], query["key"]))
            assert told(found, query, case["timestamp"])[: query["maxCount"] + 1] == wanted(query)
            others += 1
    assert others >= 10
    assert made.compacted().lookup(least)["offset"].tolist() == lost[::-1]


def test_seconds_that_java_wraps_are_saturated(tmp_path: Path) -> None:
    case = case_of(WRAPPED_SECONDS)
    made = Made(case, tmp_path)
    assert made.results == [put["result"] for put in case["puts"]]
    theirs = (unpack("indexfiles", tmp_path / "theirs", archive="files.tar.xz") / case["file"]).read_bytes()
    assert sha256(theirs) == case["sha256"]
    different = [at for at in range(len(theirs)) if theirs[at] != made.bytes[at]]
    first = HEADER_BYTES + SLOT_BYTES * case["slots"]
    items = {(at - first) // ROCKETMQ.chained_bytes for at in different}
    for number in items:
        at = first + ROCKETMQ.chained_bytes * number + 24
        java, ours = (struct.unpack_from(">i", data, at)[0] for data in (theirs, made.bytes))
        assert (java, ours) == (3_000_000_000 - (1 << 32), (1 << 31) - 1)
    assert len(items) == 1
    assert {(at - first) % ROCKETMQ.chained_bytes for at in different} <= {24, 25, 26, 27}
    for query in case["queriesBefore"]:
        if (query["begin"], query["end"]) == (0, (1 << 63) - 1):
            found = made.file.lookup(key_hash(query["topic"], query["key"]))["offset"].tolist()
            assert found[: query["maxCount"] + 1] == [item["offset"] for item in query["items"]]


def test_file_without_items_is_never_sealed_nor_compacted(tmp_path: Path) -> None:
    case = case_of("tiered-empty")
    made = Made(case, tmp_path)
    assert sha256(made.bytes) == case["sha256"]
    assert not any(query["items"] for query in [*case["queriesBefore"], *case["queriesAfter"]])
    with pytest.raises(InvalidRequestError):
        made.compacted()
