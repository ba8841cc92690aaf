"""What the small JSON files of a store are laid out like, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tierlog.index.format.checkpoint import IndexCheckpoint
from tierlog.tiering.base.errors import CorruptionError, UnsupportedFormatError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.consumer_groups import GroupState, groups_file
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.topics import TOPICS_FILE, KnownTopics, Topic, TopicRegistry
from tierlog.tiering.lifecycle.last_head import read_last_head
from tierlog.tiering.lifecycle.tail_store import TailMark

NUMBERS = JsonFile[list[int]](lambda document: list(map(int, document["numbers"])), lambda found: {"numbers": found})


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    found = StorePaths(tmp_path)
    for folder in (found.tmp, found.tierlog):
        folder.mkdir()
    return found


def with_checksum(text: str) -> bytes:
    """The object with its checksum as the last member."""
    body = text.removesuffix("}").encode()
    return body + b', "crc32": %d}\n' % zlib.crc32(body)


def test_members_stand_between_the_format_and_the_checksum(paths: StorePaths) -> None:
    NUMBERS.replace(LocalFileSystem(), paths.index_json, [1, 2], paths.tmp)
    assert paths.index_json.read_bytes() == with_checksum('{"format": 1, "numbers": [1, 2]}')
    assert NUMBERS.read(LocalFileSystem(), paths.index_json) == [1, 2]


def test_a_missing_file_is_not_a_damaged_one(paths: StorePaths) -> None:
    assert NUMBERS.read(LocalFileSystem(), paths.index_json) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{", '{"numbers": []}', '{"format": 1}', '{"format": 1, "numbers": 3}']
)
def test_what_makes_no_sense_is_damage(paths: StorePaths, text: str) -> None:
    paths.index_json.write_text(text)
    with pytest.raises(CorruptionError, match="damaged"):
        NUMBERS.read(LocalFileSystem(), paths.index_json)


def test_a_newer_format_is_refused_by_name(paths: StorePaths) -> None:
    paths.index_json.write_text('{"format": 2, "numbers": []}')
    with pytest.raises(UnsupportedFormatError, match=r"index\.json is of a newer format"):
        NUMBERS.read(LocalFileSystem(), paths.index_json)


def test_a_topic_whose_name_is_none_is_damage(paths: StorePaths) -> None:
    topic: dict[str, Any] = {"id": 1, "name": [], "queues": 1, "floors": {}}
    paths.topics_json.write_text(json.dumps({"format": 1, "next_id": 2, "topics": [topic]}))
    with pytest.raises(CorruptionError, match="damaged"):
        TopicRegistry(LocalFileSystem(), paths, 8)


def test_bytes_of_the_files_of_a_store(paths: StorePaths) -> None:
    fs = LocalFileSystem()
    StoreIdentity("s", "v", "o", ("o",), None, 4096, 10).save(fs, paths)
    TailMark(fs, paths).raise_to(200, 100)
    groups_file("s").replace(fs, paths.groups_json, {"g": GroupState(3, {("t", "s", 0): 7})}, paths.tmp)
    TOPICS_FILE.replace(fs, paths.topics_json, KnownTopics([Topic(1, "t", 2)], 2), paths.tmp)
    identity = {
        "format": 1, "store_id": "s", "volume_id": "v", "open_id": "o", "head_open_ids": ["o"], "cold_url": None,
        "segment_bytes": 4096, "queue_file_units": 10, "restoring_from": None,
    }  # fmt: skip
    topic: dict[str, Any] = {
        "id": 1, "name": "t", "queues": 2, "floors": {}, "starts": {}, "archive": True, "cold_retention_ms": None,
        "hold": False, "archived_from": 0,
    }  # fmt: skip
    topics = {"format": 1, "next_id": 2, "first_offset": 0, "topics": [topic]}
    assert paths.store_json.read_bytes() == with_checksum(json.dumps(identity, indent=1).removesuffix("\n}") + "}")
    assert paths.topics_json.read_bytes() == with_checksum(json.dumps(topics, indent=1).removesuffix("\n}") + "}")
    assert paths.tails_json.read_bytes() == with_checksum('{"format": 1, "end": 200, "confirmed": 100}')
    IndexCheckpoint(3, ((0, 7),)).save(fs, paths.index_json, paths.tmp)
    index = '{"format": 1, "generation": 3, "blank": [[0, 7]], "full": [], "writing": null}'
    assert paths.index_json.read_bytes() == with_checksum(index)
    group = '{"name": "g", "generation": 3, "offsets": {"t": {"0": 7}}}'
    assert paths.groups_json.read_bytes() == with_checksum('{"format": 1, "groups": [\n' + group + "\n]}")


def test_the_head_that_was_seen_has_no_format(paths: StorePaths) -> None:
    fs = LocalFileSystem()
    assert read_last_head(fs, paths).archived_to == 0
    paths.head_json.write_bytes(with_checksum('{"version": 7, "epoch": 1, "archived_to": 40, "indexed_to": 30}'))
    seen = read_last_head(fs, paths)
    assert (seen.archived_to, seen.indexed_to, seen.tombstones) == (40, 30, ())
