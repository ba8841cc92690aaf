"""The dispatcher hands every record on once, whole segments at a time, and recovery ends where the log is torn."""

from __future__ import annotations

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.hot_stores import Collector, HotWorld, append, fill, queue_offsets, sized_body
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.hot.dispatch import Dispatcher
from tierlog.tiering.message.batch import Message


def test_every_record_once_and_ranges_abut() -> None:
    hot = HotWorld().open()
    late = Collector()
    dispatcher = Dispatcher(hot.log, hot.topics, [hot.queues, late])
    offsets = []
    for number in range(60):
        message = Message("a" if number % 3 else "b", b"x" * (1 + number * 7))
        offsets += append(hot, message).physical_offset.tolist()
        if number % 7 == 0:
            dispatcher.run(hot.log.flushed)
    dispatcher.run(hot.log.flushed)
    assert late.offsets == offsets
    assert late.ranges[0][0] == 0
    assert all(before[1] == after[0] for before, after in zip(late.ranges, late.ranges[1:], strict=False))
    assert late.position == hot.log.flushed == dispatcher.position()
    assert all(start // 4096 == (end - 1) // 4096 for start, end in late.ranges)


def test_a_late_subscriber_alone_sees_what_others_know() -> None:
    hot = HotWorld().open()
    fill(hot, "a", 50)
    hot.dispatch()
    late, known = Collector(), Collector(hot.log.flushed)
    Dispatcher(hot.log, hot.topics, [known, late]).run(hot.log.flushed)
    assert len(late.offsets) == 50
    assert known.ranges == []


def test_derive_covers_just_the_range() -> None:
    hot = HotWorld().open()
    fill(hot, "a", 50)
    part = Collector(4096)
    hot.derive(part, 4096, 8192)
    assert min(part.offsets) == 4096
    assert max(part.offsets) < 8192
    assert part.position == 8192


def test_damage_below_the_flushed_position_is_corruption_and_reading_goes_on() -> None:
    world = HotWorld()
    hot = world.open()
    fill(hot, "a", 3)
    hot.dispatch()
    fill(hot, "a", 1)
    damage(world, 600, b"\xff" * 8)
    reader = Dispatcher(hot.log, hot.topics, [Collector()])
    with pytest.raises(CorruptionError, match="below its visible end"):
        reader.run(hot.log.flushed)
    assert hot.dispatch() == 600
    assert hot.guard.read_only_reason is not None
    assert queue_offsets(hot, "a") == [0, 1, 2]


def damage(world: HotWorld, offset: int, data: bytes) -> None:
    file = world.fs.open(world.paths.segment(offset - offset % world.segment_bytes))
    file.write_at(offset % world.segment_bytes, data)
    file.close()


def torn_store(message: Message, lost: range) -> HotWorld:
    """A store whose only record was not flushed and lost some bytes at a power cut."""
    world = HotWorld()
    hot = world.open()
    append(hot, message, durability=Durability.ASYNC)
    damage(world, lost.start, bytes(len(lost)))
    assert isinstance(world.fs, CrashFileSystem)
    world.fs.kill()
    return world


def test_recovery_ends_at_a_torn_topic_name() -> None:
    topic = "a-topic-with-a-name"
    world = torn_store(Message(topic, sized_body(512 + 8, topic)), range(512, 1024))
    hot = world.open()
    assert hot.log.end == 0
    assert [each.name for each in hot.topics.all()] == [topic]
    append(hot, Message(topic, b"next"))
    assert queue_offsets(hot, topic) == [0]


def test_recovery_ends_at_torn_property_text() -> None:
    message = Message("orders", b"x" * 400, ["key"], properties={"name": "value" * 10})
    hot = torn_store(message, range(512, 1024)).open()
    assert hot.log.end == 0


def test_recovery_knows_topics_that_a_foreign_log_brings() -> None:
    world = HotWorld()
    fill(world.open(), "orders", 3)
    assert isinstance(world.fs, CrashFileSystem)
    world.fs.kill()
    world.fs.unlink(world.paths.topics_json)
    hot = world.open()
    assert queue_offsets(hot, "orders") == [0, 1, 2]
    assert hot.topics.get("orders").topic_id == 1
