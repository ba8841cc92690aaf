"""A store that follows a broker: the broker's bytes at the broker's offsets, and everything derived as always."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog, FollowedWorld, broker_log
from tests.support.stores.irregular import compare, irregular_log, sent
from tests.support.world import STORE_ID, numbers_of, read_all
from tierlog.index.search.query import Query
from tierlog.service.engine.followed.store import CopiedGroup, CopiedTopic
from tierlog.tiering.base.errors import FollowedError, InvalidRequestError, StoreMismatchError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message


def test_the_log_is_the_brokers_byte_for_byte_and_queues_and_keys_answer() -> None:
    log, world = broker_log(), FollowedWorld()
    store = world.open()
    log.feed(store, most=700)
    assert store.flush() == store.end == log.end
    assert world.log_bytes() == log.data
    found = [number for queue in range(2) for number in numbers_of(read_all(store.store, "orders", queue))]
    assert sorted(found) == [number for number in range(120) if number // 6 % 2 == 0]
    (message,) = store.store.query(Query(topic="%RETRY%shop", key="key-7")).messages
    assert numbers_of([message]) == [7]
    assert store.store.check() == []


def test_a_log_begins_where_the_brokers_does() -> None:
    log, world = broker_log(), FollowedWorld()
    store = world.open(begin=2 * SEGMENT_BYTES)
    assert store.end == 2 * SEGMENT_BYTES
    log.feed(store)
    store.flush()
    assert world.log_bytes() == log.data[2 * SEGMENT_BYTES :]
    first = read_all(store.store, "orders", 0)[0]
    assert first.record.queue_offset > 0
    store.close()
    again = world.open(begin=0)
    assert again.end == log.end
    assert read_all(again.store, "orders", 0)[0] == first


def test_a_begin_inside_a_segment_is_refused_and_leaves_nothing() -> None:
    world = FollowedWorld()
    with pytest.raises(InvalidRequestError, match="begins at a segment"):
        world.open(begin=SEGMENT_BYTES + 8)
    assert world.open(begin=SEGMENT_BYTES).end == SEGMENT_BYTES


def test_it_goes_on_where_it_was_after_a_kill() -> None:
    log, world = broker_log(), FollowedWorld()
    store = world.open()
    log.feed(store, most=500, end=log.end // 2)
    store.flush()
    end = store.end
    store = world.open()
    assert store.end == end
    log.feed(store)
    store.flush()
    assert world.log_bytes() == log.data


def test_nobody_else_appends_deletes_or_delivers() -> None:
    world = FollowedWorld()
    store = world.open().store
    for refused in (
        lambda: store.append([Message("orders", b"x")]),
        lambda: store.append([Message("orders", b"x")], Durability.ARCHIVED),
        lambda: store.create_topic("orders", 2),
        lambda: store.make_topic("orders", 2),
        lambda: store.removal.delete_topic("orders"),
    ):
        with pytest.raises(FollowedError, match="follows a RocketMQ broker") as caught:
            refused()
        assert caught.value.hint is not None


def test_only_a_follower_opens_it_and_whoever_only_reads() -> None:
    log, world = broker_log(), FollowedWorld()
    log.feed(world.open())
    world.engine.close()
    ordinary = world.ordinary()
    with pytest.raises(StoreMismatchError, match="follows a RocketMQ broker") as caught:
        ordinary.open()
    assert "tierlog follow" in str(caught.value.hint)
    with ordinary.open(read_only=True) as reader:
        assert numbers_of(reader.query(Query(topic="orders", key="key-1")).messages) == [1]


def test_an_ordinary_store_is_not_followed_into() -> None:
    world = FollowedWorld()
    ordinary = world.ordinary()
    ordinary.open().close()
    with pytest.raises(StoreMismatchError, match="takes messages itself"):
        world.open()


def test_store_json_is_of_a_format_that_older_versions_refuse() -> None:
    world = FollowedWorld()
    world.open().close()
    found = json.loads(world.fs.read(Path(world.root) / "tierlog" / "store.json"))
    assert (found["format"], found["followed"]) == (2, True)


def test_nothing_is_published_above_the_limit() -> None:
    log, world = broker_log(), FollowedWorld()
    store = world.open()
    log.feed(store)
    store.flush()
    store.store.archive()
    assert store.published == 0
    store.publish_below = 2 * SEGMENT_BYTES + 1000
    store.store.archive()
    assert store.published == 2 * SEGMENT_BYTES
    store.archive_all()
    assert store.published == log.end
    assert store.store.stats()["archived_to"] == log.end - log.end % SEGMENT_BYTES


def test_a_quiet_log_is_in_tails_within_the_interval() -> None:
    log, world = broker_log(6), FollowedWorld()
    store = world.open(tail_interval_ms=10_000)
    log.feed(store)
    store.publish_below = log.end
    store.flush()
    assert store._parts.writers is not None
    appends = store._parts.writers.appends
    wanted = []
    for _ in range(2):
        world.clock.advance(5000)
        store.store.after_flush()
        wanted.append(appends.writer.wanted)
    assert wanted == [0, log.end]
    appends.wait_for(appends.writer.wanted)
    assert store.published == log.end


def test_topics_and_groups_are_copied_and_written_once() -> None:
    log, world = broker_log(12), FollowedWorld()
    store = world.open()
    log.feed(store)
    store.flush()
    copies = [
        CopiedTopic("orders", 8),
        CopiedTopic("%DLQ%shop", 1),
        CopiedTopic("rmq_sys_wheel_timer", 1, archive=False),
    ]
    group = CopiedGroup("shop", {("orders", 0): 2, ("orders", 7): 0, ("payments", 1): 99})
    for _ in range(2):
        store.copy_topics(copies)
        store.copy_groups([group])
    assert store.store.find_queues("orders") == 8
    assert not store.store.topic("rmq_sys_wheel_timer").archive
    with pytest.raises(InvalidRequestError, match="bad topic name"):
        store.copy_topics([CopiedTopic("new", 3), CopiedTopic("../new", 1)])
    assert store.store.find_queues("new") is None
    found = store.store.groups.committed("shop").offsets
    assert found == {("orders", STORE_ID, 0): 2, ("orders", STORE_ID, 7): 0, ("payments", STORE_ID, 1): 99}
    generation = store.store.groups.committed("shop").generation
    store.copy_groups([CopiedGroup("shop", {("orders", 0): 1})])
    assert store.store.groups.committed("shop").offsets["orders", STORE_ID, 0] == 1
    assert store.store.groups.committed("shop").generation == generation


def test_promoted_it_takes_messages_behind_those_of_the_broker() -> None:
    log, world = broker_log(), FollowedWorld()
    store = world.open()
    log.feed(store)
    store.flush()
    ends = [store.store.next_offset("orders", queue, catch_up=True) for queue in range(2)]
    store.promote()
    (appended,) = store.store.append([Message("orders", b"new", queue_id=0)])
    assert appended.queue_offset == ends[0]
    assert int(appended.message_id[-16:], 16) >= log.end
    store.close()
    ordinary = world.ordinary().open()
    (appended,) = ordinary.append([Message("orders", b"new", queue_id=1)])
    assert appended.queue_offset == ends[1]
    assert ordinary.check() == []


def test_times_that_step_back_are_searched_as_they_are() -> None:
    early, late = broker_log(60), broker_log(60)
    assert early.data == late.data
    log = BrokerLog(early.data)
    world = FollowedWorld()
    store = world.open()
    log.feed(store, end=SEGMENT_BYTES)
    assert store.store._hot.times_fall_below == 0
    store.store._hot._writer.last_store_ms += 10_000_000
    log.feed(store)
    assert store.store._hot.times_fall_below == 2 * SEGMENT_BYTES or store.store._hot.times_fall_below > SEGMENT_BYTES
    noted = store.store._hot.times_fall_below
    store.close()
    assert world.open().store._hot.times_fall_below == noted


@pytest.mark.parametrize("number", [13, 57], ids=["in a closed segment", "in the open one"])
@pytest.mark.parametrize("is_archived", [False, True])
def test_a_record_whose_properties_have_a_sector_of_zeros_survives_a_kill(number: int, is_archived: bool) -> None:
    zeros = b"pad\1" + bytes(1100) + b"\2"
    log, world = irregular_log(sent("orders", 0, range(60)), more={number: zeros}), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    if is_archived:
        store.archive_all()
    store = world.open()
    # of a segment that was flushed nothing can be lost; at the log's end it looks like what a power cut leaves
    lost = log.records[number].at
    assert store.end == (log.log.end if number == 13 else lost)
    log.log.feed(store)
    store.flush()
    assert world.log_bytes() == log.log.data
    compare(store.store, log)
    assert store.store.check() == []
