"""What a queue unit carries: the tag's hash, or for delayed messages when they are due (RocketMQ's default levels)."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import NOW_MS, ROOT, HotWorld, append, array, record
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.kernels.scan import TopicTable, scan
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.tags import tag_codes
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC
from tierlog.tiering.objects.memory import MemoryObjectStore

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


def code(topic: str, **properties: str) -> int:
    data = array(encode_record(record(topic=topic, properties_text=encode_properties(properties))))
    rows = scan(data, 0, len(data), 0, TopicTable([topic]), check_crc=True).rows
    return int(tag_codes(topic, data, rows)[0])


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [
        ("1", SECOND), ("2", 5 * SECOND), ("3", 10 * SECOND), ("4", 30 * SECOND), ("5", MINUTE), ("14", 10 * MINUTE),
        ("15", 20 * MINUTE), ("16", 30 * MINUTE), ("17", HOUR), ("18", 2 * HOUR), ("19", 2 * HOUR), ("999", 2 * HOUR),
    ],
)  # fmt: skip
def test_delayed(level: str, delay_ms: int) -> None:
    assert code(SCHEDULE_TOPIC, DELAY=level, TAGS="TagA") == NOW_MS + delay_ms


@pytest.mark.parametrize("level", ["0", "-1", "x", "1.5", "9" * 30])
def test_a_level_that_is_none_leaves_the_tag(level: str) -> None:
    assert code(SCHEDULE_TOPIC, DELAY=level, TAGS="TagA") == tag_hash("TagA")


def test_only_the_schedule_topic_has_it() -> None:
    assert code("orders", DELAY="1", TAGS="TagA") == tag_hash("TagA")
    assert code("orders", DELAY="1") == 0
    assert code(SCHEDULE_TOPIC, TAGS="TagA") == tag_hash("TagA")


def test_units_and_check_agree() -> None:
    world = HotWorld()
    hot = world.open()
    hot.create_topic(SCHEDULE_TOPIC, 3)
    append(hot, Message(SCHEDULE_TOPIC, b"x", tag="TagA", properties={"DELAY": "3"}, queue_id=2))
    append(hot, Message("orders", b"x", tag="TagA", queue_id=0))
    hot.dispatch()
    (unit,) = hot.queue_views(hot.topics.get(SCHEDULE_TOPIC))[2].units(0, 1)
    assert unit["tag_hash"] == NOW_MS + 10 * SECOND
    assert check_store(hot) == []
    assert check_store(world.open_again(hot)) == []


def test_both_tiers_answer_a_tag_filter_on_delayed_messages_alike() -> None:
    engine = Store.open(
        ROOT, settings=tiny_settings(), cold_url="memory://archive", fs=CrashFileSystem(), clock=ManualClock(),
        objects=MemoryObjectStore(ManualClock()),
    )  # fmt: skip
    engine.append([Message(SCHEDULE_TOPIC, b"waits", tag="TagA", properties={"DELAY": "3"}, queue_id=0)])
    engine.append([Message(SCHEDULE_TOPIC, b"does not", tag="TagA", queue_id=0)])
    for _ in range(2):
        pulled = engine.pull(SCHEDULE_TOPIC, 0, 0, 10, "TagA")
        assert [message.record.body for message in pulled.messages] == [b"does not"]
        assert len(engine.pull(SCHEDULE_TOPIC, 0, 0, 10).messages) == 2
        engine.archive(everything=True, drop_hot=True)
