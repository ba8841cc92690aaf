"""Classic index files that RocketMQ wrote: our puts give the same bytes, our queries the same answers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.oracles.plain_classic import PlainClassicFile
from tests.support.rocketmq.classic import Found, LogReader, log_ranges, open_files, query_message
from tests.support.rocketmq.golden import STORES, expected, unpack
from tierlog.index.kernels.classic import ITEM_ROW
from tierlog.index.rocketmq.classic_format import ClassicHeader
from tierlog.index.rocketmq.classic_index import ClassicIndex, ClassicIndexFile
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.kernels.scan import SCAN_ROW

#: Tag items exist since 5.4.0: files of these brokers hold fewer items than ours.
WITHOUT_TAGS = ("upgrade/5.1.4", "upgrade/5.3.3")
#: Left by a crash behind or ahead of the log: RocketMQ made them again, and so do we.
UNUSABLE = ("crashed-torn", "crashed-flip")
SINGLE = [case["file"] for case in expected("indexfiles")["classic"]]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_of(key_string: str) -> int:
    topic, _, key = key_string.partition("#")
    return key_hash(topic, key)


@pytest.mark.parametrize("file", SINGLE)
def test_single_file_has_the_same_bytes_and_answers(tmp_path: Path, file: str) -> None:
    (case,) = [case for case in expected("indexfiles")["classic"] if case["file"] == file]
    slots, items, puts = case["slots"], case["items"], case["puts"]
    after = ClassicHeader(0, case["previousEndTimestamp"], 0, case["previousEndOffset"])
    ours = ClassicIndexFile.create(LocalFileSystem(), tmp_path / "ours", slots, items, after=after)
    plain = PlainClassicFile(slots, items, after=after)
    rows, keys = np.zeros(len(puts), SCAN_ROW), np.zeros(len(puts), ITEM_ROW)
    for at, put in enumerate(puts):
        rows["physical_offset"][at], rows["store_ms"][at] = put["offset"], put["storeTime"]
        keys[at] = (at, hash_of(put["keyString"]))
        assert plain.put(hash_of(put["keyString"]), put["offset"], put["storeTime"]) == put["ok"]
    assert ours.put(rows, keys, 0, len(keys)) == sum(put["ok"] for put in puts)
    assert sha256(tmp_path / "ours") == hashlib.sha256(plain.data).hexdigest() == case["sha256"]
    shipped = unpack("indexfiles", tmp_path / "shipped", archive="files.tar.xz") / file
    assert sha256(shipped) == case["sha256"]
    opened = ClassicIndexFile.open(LocalFileSystem(), shipped, slots, items)
    for query in case["queries"]:
        asked = hash_of(query["keyString"]), query["maxNum"], query["begin"], query["end"]
        assert opened.header.may_hold(*asked[2:]) == query["isTimeMatched"]
        assert opened.query(*asked) == plain.query(*asked) == query["offsets"], query


class Golden:
    """A store that RocketMQ wrote, with its own classic files and with ours derived from its log."""

    def __init__(self, name: str, folder: Path) -> None:
        self.expected = expected(name)
        settings = self.expected["settings"]
        slots, items = settings["maxHashSlotNum"], settings["maxIndexNum"]
        segment_bytes = settings["mappedFileSizeCommitLog"]
        root = unpack(name, folder / "rocketmq")
        self.log = LogReader(root, segment_bytes)
        self.shipped = open_files(root, slots, items)
        paths, fs = StorePaths(folder / "ours"), LocalFileSystem()
        for path in (paths.index, paths.tierlog, paths.tmp):
            fs.make_dirs(path)
        index = ClassicIndex.open(fs, paths, ManualClock(), slots=slots, items=items, log_begin=0)
        self.records = 0
        for records in log_ranges(root, sorted({m["topic"] for m in self.expected["messages"]}), segment_bytes):
            index.on_records(records)
            self.records += len(records.rows)
        self.derived = index.files()

    def answers(self, files: list[ClassicIndexFile]) -> list[Found]:
        return [query_message(files, self.log, query) for query in self.expected["queryMessage"]]


def wanted(query: dict[str, Any]) -> Found:
    return Found(query["physicalOffsets"], query["indexLastUpdateTimestamp"], query["indexLastUpdatePhyoffset"])


@pytest.mark.parametrize("name", STORES)
def test_index_derived_from_a_golden_log_is_the_one_rocketmq_has_after_recovery(tmp_path: Path, name: str) -> None:
    golden = Golden(name, tmp_path)
    assert golden.records == len(golden.expected["messages"])
    theirs = [file["sha256"] for file in golden.expected["filesAfter"] if file["path"].startswith("index/")]
    ours = [sha256(file.path) for file in golden.derived]
    assert (ours == theirs) == (name not in WITHOUT_TAGS)
    assert golden.answers(golden.derived) == [wanted(query) for query in golden.expected["queryMessage"]]


@pytest.mark.parametrize("name", [name for name in STORES if name not in UNUSABLE])
def test_rocketmqs_own_files_answer_as_rocketmq_did(tmp_path: Path, name: str) -> None:
    golden = Golden(name, tmp_path)
    assert golden.answers(golden.shipped) == [wanted(query) for query in golden.expected["queryMessage"]]
