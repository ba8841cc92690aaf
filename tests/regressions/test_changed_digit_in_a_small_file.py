"""A turned bit in a small JSON file made another number of one, and was believed: a group went on at another offset."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from service.seen_head import read_seen_head
from tests.support.crash_fs import CrashFileSystem
from tests.support.hot_stores import ROOT
from tiering.errors import ChecksumMismatchError, CorruptionError
from tiering.format.hashing import key_hash
from tiering.fs import FileSystem
from tiering.group_offsets import GroupOffsets
from tiering.hot.identity import StoreIdentity
from tiering.hot.topics import TopicRegistry
from tiering.json_file import read_json, replace_json
from tiering.paths import StorePaths

PATHS = StorePaths(ROOT)
DOCUMENT = {"format": 1, "next_id": 2, "groups": [], "topics": [], "archived_to": 4096}
READERS: dict[str, Callable[[FileSystem], object]] = {
    "groups.json": lambda fs: GroupOffsets(fs, PATHS, "s", lambda: None),
    "topics.json": lambda fs: TopicRegistry(fs, PATHS, 8),
    "store.json": lambda fs: StoreIdentity.read(fs, PATHS),
    "head.json": lambda fs: read_seen_head(fs, PATHS),
}


def put(fs: FileSystem, name: str, data: bytes) -> None:
    fs.unlink(PATHS.tierlog / name)
    fs.open(PATHS.tierlog / name).write_at(0, data)


@pytest.fixture
def fs() -> CrashFileSystem:
    found = CrashFileSystem()
    for folder in (PATHS.tmp, PATHS.tierlog):
        found.make_dirs(folder)
    return found


@pytest.mark.parametrize("name", READERS)
def test_a_changed_digit_is_damage(fs: CrashFileSystem, name: str) -> None:
    replace_json(fs, PATHS.tierlog / name, json.dumps(DOCUMENT).encode(), PATHS.tmp)
    data = fs.read(PATHS.tierlog / name)
    put(fs, name, data.replace(b'"next_id": 2', b'"next_id": 3'))
    with pytest.raises(ChecksumMismatchError, match=name):
        READERS[name](fs)


def test_no_turned_bit_gives_another_document(fs: CrashFileSystem) -> None:
    path = PATHS.index_json
    for indent in (None, 1):
        document = {**DOCUMENT, "name": 'caf\u00e9 "crc32": 1}', "at": key_hash("t", "k")}
        replace_json(fs, path, json.dumps(document, indent=indent).encode() + b"\n", PATHS.tmp)
        data = fs.read(path)
        assert read_json(fs, path, dict) == document
        assert {**document, "crc32": json.loads(data)["crc32"]} == json.loads(data)
        for position in random.Random(1).sample(range(len(data)), 120):
            for bit in range(8):
                put(fs, path.name, data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :])
                try:
                    found = read_json(fs, path, dict)
                except CorruptionError:
                    continue
                assert {name: found.get(name) for name in document} == document


def test_a_file_without_a_checksum_is_read(fs: CrashFileSystem) -> None:
    put(fs, PATHS.index_json.name, json.dumps(DOCUMENT, indent=1).encode())
    assert read_json(fs, PATHS.index_json, dict) == DOCUMENT
