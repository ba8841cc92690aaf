"""Known pains of RocketMQ's classic key index (apache/rocketmq unless named): none of them is in ours, in either tier.

Each test is named for its number. Where a store also writes RocketMQ's own files (``index.classic``), what those
files hold is checked too. #8007, #3868, #4463 (a kill) and #7539 (a file that cannot be made):
``tests/index/rocketmq/test_classic_index.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.index.kernels.classic import ITEM_ROW
from tierlog.index.rocketmq.classic_index import ClassicIndexFile, query_files
from tierlog.index.search.query import Query
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import java_hash, key_hash
from tierlog.tiering.kernels.scan import SCAN_ROW
from tierlog.tiering.message.batch import Message

LONG_MAX = (1 << 63) - 1
#: Its Java hash is -2^31, which has no positive counterpart.
LEAST_HASH = ("TopicTest", "tbaekxa")
SLOTS, ITEMS = 50, 100
TIERS = pytest.mark.parametrize("is_archived", [False, True], ids=["hot", "archived"])


class TwoIndexes(World):
    """An engine that writes both indexes."""

    def __init__(self, root: Path) -> None:
        settings = tiny_settings(index__classic=True, index__classic_slots=SLOTS, index__classic_items=ITEMS)
        super().__init__(root, settings=settings)
        self.open()

    def append(self, topic: str, *bodies: str, keys: list[str], tag: str = "", unique: str = "") -> None:
        properties = {"UNIQ_KEY": unique} if unique else {}
        self.engine.append([Message(topic, body.encode(), keys, tag, properties) for body in bodies])

    def move(self, is_archived: bool) -> None:
        if is_archived:
            self.archive()

    def bodies(self, topic: str, key: str, from_ms: int = 0, to_ms: int = 1 << 53, limit: int = 1000) -> list[str]:
        answer = self.engine.query(Query(topic, key, from_ms=from_ms, to_ms=to_ms, limit=limit))
        assert answer.coverage.complete
        return [message.record.body.decode() for message in answer.messages]

    def classic(self) -> list[ClassicIndexFile]:
        self.engine.flush()
        paths = sorted(path for path in (self.root / "index").iterdir() if path.is_file())
        return [ClassicIndexFile.open(LocalFileSystem(), path, SLOTS, ITEMS) for path in paths]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TwoIndexes]:
    world = TwoIndexes(tmp_path)
    yield world
    world.engine.close()


@TIERS
def test_3613_and_1814_equal_hash_of_topic_and_key_finds_no_message_of_another_topic(
    world: TwoIndexes, is_archived: bool
) -> None:
    assert java_hash("AaTopic#BB") == java_hash("BBTopic#Aa")
    world.append("AaTopic", "mine", keys=["BB"])
    world.append("BBTopic", "theirs", keys=["Aa"])
    both = query_files(world.classic(), "AaTopic", "BB", limit=10, begin_ms=0, end_ms=LONG_MAX)
    assert len(both.offsets) == 2, "RocketMQ's file cannot tell them apart"
    world.move(is_archived)
    assert world.bodies("AaTopic", "BB") == ["mine"]
    assert world.bodies("BBTopic", "Aa") == ["theirs"]


@TIERS
def test_2735_unique_key_finds_every_message_that_was_sent_with_it(world: TwoIndexes, is_archived: bool) -> None:
    for body in ("sent", "sent again", "and again"):
        world.append("orders", body, keys=["k"], unique="U1")
        world.clock.advance(10)
    world.move(is_archived)
    assert world.bodies("orders", "U1") == ["and again", "sent again", "sent"]


@TIERS
def test_5174_exact_millisecond_is_found_though_items_know_seconds_only(world: TwoIndexes, is_archived: bool) -> None:
    times = []
    for step in (0, 123, 500, 877, 999, 1_001, 60_000):
        world.clock.advance(step)
        times.append(world.clock.now_ms())
        world.append("orders", str(times[-1]), keys=["k"])
    world.move(is_archived)
    for time in times:
        assert world.bodies("orders", "k", time, time + 1) == [str(time)]
        assert world.bodies("orders", "k", time + 1, time + 2) == []


@TIERS
def test_4280_hash_of_minus_2_to_the_31_is_found(world: TwoIndexes, is_archived: bool) -> None:
    topic, key = LEAST_HASH
    assert java_hash(f"{topic}#{key}") == -(1 << 31)
    world.append(topic, "first", "second", keys=[key])
    assert len(query_files(world.classic(), topic, key, limit=10, begin_ms=0, end_ms=LONG_MAX).offsets) == 2
    world.move(is_archived)
    assert sorted(world.bodies(topic, key)) == ["first", "second"]


@TIERS
def test_rust_10428_and_10422_key_given_twice_finds_its_message_once_and_nothing_else(
    world: TwoIndexes, is_archived: bool
) -> None:
    """mxsm/rocketmq-rust #10428, #10422: duplicates for a repeated key; an answer carried neighbours in the log."""
    world.append("orders", "before", keys=["other"])
    world.append("orders", "twice", keys=["k", "k"], unique="k")
    world.append("orders", "after", keys=["another"])
    offsets = query_files(world.classic(), "orders", "k", limit=10, begin_ms=0, end_ms=LONG_MAX).offsets
    assert set(offsets) == {offsets[0]}
    world.move(is_archived)
    assert world.bodies("orders", "k") == ["twice"]


def test_1141_and_4011_a_file_takes_one_key_less_than_it_has_items(world: TwoIndexes) -> None:
    for number in range(150):
        world.append("orders", str(number), keys=[f"k{number}"])
    assert [file.item_count for file in world.classic()] == [ITEMS - 1, 150 - (ITEMS - 1)]
    for number in range(150):
        assert world.bodies("orders", f"k{number}") == [str(number)]


def test_1919_and_1987_and_1807_used_slots_count_slots(world: TwoIndexes) -> None:
    world.append("orders", *(str(number) for number in range(30)), keys=["k"])
    (file,) = world.classic()
    assert (file.header.used_slots, file.item_count) == (1, 30)


def test_1919_file_of_an_old_broker_that_counted_every_item_answers_alike(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    file = ClassicIndexFile.create(fs, tmp_path / "f", 7, 50, after=None)
    rows, keys = np.zeros(30, SCAN_ROW), np.zeros(30, ITEM_ROW)
    rows["physical_offset"], rows["store_ms"] = np.arange(30) * 100, 1_700_000_000_000
    keys["row"], keys["hash"] = np.arange(30), [key_hash("t", f"k{number % 4}") for number in range(30)]
    assert file.put(rows, keys, 0, 20) == 20
    data = bytearray((tmp_path / "f").read_bytes())
    data[32:36] = (20).to_bytes(4, "big")
    (tmp_path / "old").write_bytes(data)
    old = ClassicIndexFile.open(fs, tmp_path / "old", 7, 50, writable=True)
    assert old.put(rows, keys, 20, 30) == file.put(rows, keys, 20, 30) == 10
    for number in range(5):
        asked = key_hash("t", f"k{number}"), 100, 0, LONG_MAX
        assert old.query(*asked) == file.query(*asked)
    assert (file.header.used_slots, old.header.used_slots) == (4, 20)


def test_10291_search_by_tags_needs_its_own_type_and_keys_need_none(world: TwoIndexes) -> None:
    world.append("orders", "one", keys=["paid"], tag="shipped")
    files = world.classic()
    (offset,) = query_files(files, "orders", "paid", limit=10, begin_ms=0, end_ms=LONG_MAX).offsets
    assert query_files(files, "orders", "T#shipped", limit=10, begin_ms=0, end_ms=LONG_MAX).offsets == [offset]
    assert query_files(files, "orders", "shipped", limit=10, begin_ms=0, end_ms=LONG_MAX).offsets == []


def test_262_and_5184_append_does_not_wait_for_the_index(tmp_path: Path) -> None:
    world = TwoIndexes(tmp_path)
    hot = world.engine._hot
    appending = threading.Thread(target=lambda: world.append("orders", "acknowledged", keys=["k"]), daemon=True)
    with hot._dispatch_lock:  # as long as somebody holds it nothing is indexed
        appending.start()
        appending.join(60)
        assert not appending.is_alive()
        assert hot.log.flushed == hot.log.end > hot.dispatched_to
    assert world.bodies("orders", "k") == ["acknowledged"]
    world.engine.close()
