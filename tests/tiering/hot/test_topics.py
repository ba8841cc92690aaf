"""Topics: ids never reused, queues never fewer, floors only rise, each change durable when the call returns."""

from __future__ import annotations

import json

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.tiering.base.errors import DiskFailedError, InvalidRequestError, TopicNotFoundError, UnsupportedFormatError
from tierlog.tiering.base.fs import replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.topics import TopicRegistry

PATHS = StorePaths(ROOT)


@pytest.fixture
def fs() -> CrashFileSystem:
    made = CrashFileSystem()
    for folder in (PATHS.tmp, PATHS.tierlog):
        made.make_dirs(folder)
    return made


def test_every_change_survives_a_power_cut(fs: CrashFileSystem) -> None:
    topics = TopicRegistry(fs, PATHS, 8)
    orders = topics.create("orders")
    topics.create("pays", 2)
    topics.ensure_queues(orders, 9)
    topics.ensure_queues(orders, 3)
    topics.raise_floors({(1, 0): 5, (1, 7): 1, (2, 1): 3})
    topics.raise_floors({(1, 0): 4})
    again = TopicRegistry(fs.crash(0, lose_everything=True), PATHS, 8)
    assert [(each.topic_id, each.name, each.queues, each.floors) for each in again.all()] == [
        (1, "orders", 9, {0: 5, 7: 1}),
        (2, "pays", 2, {1: 3}),
    ]
    assert again.create("third").topic_id == 3


def test_an_existing_topic_is_returned_as_it_is(fs: CrashFileSystem) -> None:
    topics = TopicRegistry(fs, PATHS, 8)
    first = topics.create("orders", 4)
    version, calls = topics.version, fs.calls
    assert topics.create("orders", 2) is first
    assert topics.create("orders") is first
    assert (topics.version, fs.calls, first.queues) == (version, calls, 4)


def test_nothing_is_written_where_nothing_changes(fs: CrashFileSystem) -> None:
    topics = TopicRegistry(fs, PATHS, 8)
    topic = topics.create("orders", 4)
    topics.raise_floors({(1, 0): 5})
    calls = fs.calls
    topics.raise_floors({(1, 0): 5})
    topics.ensure_queues(topic, 4)
    assert fs.calls == calls


def test_unknown_and_bad_names(fs: CrashFileSystem) -> None:
    topics = TopicRegistry(fs, PATHS, 8)
    assert topics.find("nobody") is None
    with pytest.raises(TopicNotFoundError):
        topics.get("nobody")
    with pytest.raises(InvalidRequestError):
        topics.create("../etc")
    assert topics.all() == []


def test_a_change_that_the_disk_refuses_is_not_made(fs: CrashFileSystem) -> None:
    faulty = FaultyFileSystem(fs)
    topics = TopicRegistry(faulty, PATHS, 8)
    topic = topics.create("orders", 1)
    faulty.refuse("rename")
    with pytest.raises(DiskFailedError):
        topics.create("pays")
    with pytest.raises(DiskFailedError):
        topics.ensure_queues(topic, 5)
    assert (topic.queues, topics.find("pays"), topics.version) == (1, None, 1)
    faulty.heal()
    assert topics.create("pays").topic_id == 2


def test_unknown_keys_are_ignored_and_a_newer_format_is_not(fs: CrashFileSystem) -> None:
    topics = TopicRegistry(fs, PATHS, 8)
    topics.create("orders", 4)
    document = json.loads(fs.read(PATHS.topics_json))
    document["new"] = 1
    document["topics"][0]["compression"] = "zstd"
    replace_file(fs, PATHS.topics_json, json.dumps(document).encode(), PATHS.tmp)
    assert TopicRegistry(fs, PATHS, 8).get("orders").queues == 4
    document["format"] = 4
    replace_file(fs, PATHS.topics_json, json.dumps(document).encode(), PATHS.tmp)
    with pytest.raises(UnsupportedFormatError):
        TopicRegistry(fs, PATHS, 8)


def test_a_registry_opened_for_reading_writes_nothing(fs: CrashFileSystem) -> None:
    topics = TopicRegistry(fs, PATHS, 8, read_only=True)
    topics.create("orders")
    assert not fs.exists(PATHS.topics_json)
