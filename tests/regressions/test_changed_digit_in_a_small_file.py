"""A turned bit in a small JSON file made another number of one, and was believed: a group went on at another offset."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.hot.consumer_groups import GroupOffsets
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.topics import TopicRegistry
from tierlog.tiering.lifecycle.last_head import read_last_head

PATHS = StorePaths(ROOT)
DOCUMENT = {"format": 1, "next_id": 2, "groups": [], "topics": [], "archived_to": 4096}
READERS: dict[str, Callable[[FileSystem], object]] = {
    "groups.json": lambda fs: GroupOffsets(fs, PATHS, "s", lambda: None),
    "topics.json": lambda fs: TopicRegistry(fs, PATHS, 8),
    "store.json": lambda fs: StoreIdentity.read(fs, PATHS),
    "head.json": lambda fs: read_last_head(fs, PATHS),
}
#: Any of them, as text.
FILE = JsonFile[Any](dict, lambda text: text, formats=())


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
    FILE.replace(fs, PATHS.tierlog / name, json.dumps(DOCUMENT).encode(), PATHS.tmp)
    data = fs.read(PATHS.tierlog / name)
    put(fs, name, data.replace(b'"next_id": 2', b'"next_id": 3'))
    with pytest.raises(ChecksumMismatchError, match=name):
        READERS[name](fs)


def test_no_turned_bit_gives_another_document(fs: CrashFileSystem) -> None:
    path = PATHS.index_json
    for indent in (None, 1):
        document = {**DOCUMENT, "name": 'caf\u00e9 "crc32": 1}', "at": key_hash("t", "k")}
        FILE.replace(fs, path, json.dumps(document, indent=indent).encode() + b"\n", PATHS.tmp)
        data = fs.read(path)
        assert FILE.read(fs, path) == document
        assert {**document, "crc32": json.loads(data)["crc32"]} == json.loads(data)
        for position in random.Random(1).sample(range(len(data)), 120):
            for bit in range(8):
                put(fs, path.name, data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :])
                try:
                    found = FILE.read(fs, path) or {}
                except CorruptionError:
                    continue
                assert {name: found.get(name) for name in document} == document


def test_a_file_without_a_checksum_is_read(fs: CrashFileSystem) -> None:
    put(fs, PATHS.index_json.name, json.dumps(DOCUMENT, indent=1).encode())
    assert FILE.read(fs, PATHS.index_json) == DOCUMENT
