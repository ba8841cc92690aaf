"""A store that follows a broker whose queue offsets jump, come again, and begin again with their topic."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support.stores.followed import FollowedWorld
from tests.support.stores.irregular import (
    Sent,
    compare,
    irregular_log,
    message_id_of,
    numbers,
    pulled,
    random_records,
    record_bytes,
    sent,
)
from tests.support.world import STORE_ID
from tierlog.index.search.query import Query
from tierlog.service.engine.followed.store import CopiedGroup
from tierlog.tiering.base.errors import InvalidRequestError, MessageNotFoundError, TopicNotFoundError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.message.batch import Message


def test_a_jump_is_a_gap_that_a_pull_passes() -> None:
    log, world = irregular_log(sent("orders", 0, (0, 1, 5, 6, 200_000))), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    compare(store.store, log)
    gap = store.store.pull("orders", 0, 3, 10)
    assert (gap.status, gap.next_offset, gap.max_offset) == (PullStatus.NO_MATCHED_MESSAGE, 5, 200_001)
    assert store.store.check() == []


def test_a_repeated_offset_has_no_place_in_the_queue_and_is_found_by_key() -> None:
    log, world = irregular_log(sent("orders", 0, (0, 1, 2, 1, 2, 3))), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    assert pulled(store.store, "orders", 0) == {0: 0, 1: 1, 2: 2, 3: 5}
    for number in range(6):
        (message,) = store.store.query(Query(topic="orders", key=f"key-{number}")).messages
        assert message.record.body.startswith(b"message %d." % number)
    assert store.store.check() == []


def test_a_topic_that_begins_again_is_another_generation() -> None:
    records = [*sent("orders", 0, (0, 1, 2)), *sent("orders", 1, (0, 1), 3), *sent("orders", 0, (0, 1), 5)]
    log, world = irregular_log(records), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    compare(store.store, log)
    assert pulled(store.store, "orders@1", 1) == {0: 3, 1: 4}
    assert store.store.check() == []


def test_a_generation_that_the_disk_forgot_is_forgotten() -> None:
    first, again = sent("orders", 0, range(9)), sent("orders", 0, (0, 1), 9)
    log, world = irregular_log([*first, *again]), FollowedWorld()
    store = world.open()
    log.log.feed(store, end=log.records[9].at)
    store.flush()
    store._hot.topics.begin_generation("orders", log.records[9].at)  # killed before the log is durable there
    store = world.open()
    assert [topic.name for topic in store._hot.topics.all()] == ["orders"]
    other = irregular_log([*first, *sent("orders", 0, (9, 10), 9)])
    other.log.feed(store)
    store.flush()
    compare(store.store, other)


def test_an_erasure_by_name_is_of_all_generations() -> None:
    records = [*sent("orders", 0, (0, 1, 2)), *sent("orders", 0, (0, 1), 3)]
    log, world = irregular_log(records), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.archive_all()
    for number in (1, 4):
        store.store.removal.erase(Query("orders", f"key-{number}"))
    assert numbers(store.store.query(Query("orders"))) == [0, 2, 3]
    assert pulled(store.store, "orders@1", 0) == {0: 0, 2: 2}
    assert pulled(store.store, "orders", 0) == {0: 3}


def test_a_generation_is_not_deleted_alone() -> None:
    records = [*sent("orders", 0, (0, 1, 2)), *sent("orders", 0, (0, 1), 3)]
    log, world = irregular_log(records), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    store.promote()
    with pytest.raises(InvalidRequestError, match="deleted together"):
        store.store.removal.delete_topic("orders@1")
    store.store.removal.delete_topic("orders")
    for name in ("orders", "orders@1", "orders@2"):
        with pytest.raises(TopicNotFoundError):
            store.store.pull(name, 0, 0, 1)
    assert store.store.topics() == []


def test_a_promoted_store_goes_on_in_the_current_generation() -> None:
    records = [*sent("orders", 0, (0, 1, 5)), *sent("orders", 0, (0, 3), 3)]
    log, world = irregular_log(records), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    store.promote()
    (appended,) = store.store.append([Message("orders", b"message 9", queue_id=0)])
    assert appended.queue_offset == 4
    store.close()
    ordinary = world.ordinary().open()
    assert pulled(ordinary, "orders", 0) == {0: 3, 3: 4, 4: 9}
    assert pulled(ordinary, "orders@1", 0) == {0: 0, 1: 1, 5: 2}
    assert ordinary.check() == []


def test_options_of_a_topic_are_those_of_all_generations() -> None:
    records = [*sent("orders", 0, (0, 1, 2)), *sent("orders", 0, (0, 1), 3)]
    log, world = irregular_log(records), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    store._hot.dispatch()
    store.store.removal.configure("orders", hold=True)
    assert {topic.name: topic.hold for topic in store.store.topics()} == {"orders@1": True, "orders": True}


@pytest.mark.parametrize("seed", range(12))
def test_random_logs_are_what_plain_python_makes_of_them(seed: int) -> None:
    random = Random(seed)
    log, world = irregular_log(random_records(random, 150)), FollowedWorld()
    store = world.open()
    cuts = sorted(random.randrange(log.log.end) for _ in range(3))
    for cut in cuts:
        log.log.feed(store, most=random.randrange(100, 5000), end=max(cut, store.end))
        if random.random() < 0.5:
            store.flush()
        if random.random() < 0.3:
            store.close()
        store = world.open()
    log.log.feed(store)
    store.flush()
    compare(store.store, log)
    store = world.open() if random.random() < 0.5 else store
    log.log.feed(store)
    store.flush()
    compare(store.store, log)
    assert store.store.check() == []


@pytest.mark.parametrize("seed", range(100, 108))
def test_random_logs_are_the_same_once_they_are_archived_removed_and_restored(seed: int) -> None:
    random = Random(seed)
    log, world = irregular_log(random_records(random, 150)), FollowedWorld()
    store = world.open()
    cuts = sorted(random.randrange(log.log.end) for _ in range(2))
    for cut in [*cuts, log.log.end]:
        log.log.feed(store, end=max(cut, store.end))
        store.flush()
        store.publish_below = store.end
        store.store.archive(drop_hot=random.random() < 0.5)
        if random.random() < 0.5:
            store = world.open()
    compare(store.store, log)
    store.archive_all()
    store.store.archive(drop_hot=True)
    compare(store.store, log)
    assert store.store.check(deep=True) == []
    store.close()
    restored = FollowedWorld(Path("/restored"), objects=world.objects, clock=world.clock)
    store = restored.open(restore=True)
    log.log.feed(store)
    store.flush()
    compare(store.store, log)
    assert store.store.check(deep=True) == []


def test_what_the_oracle_is_given_is_irregular() -> None:
    log = irregular_log(random_records(Random(1), 300))
    assert max(len(each) for each in log.told.values()) > 2
    assert Sent("topic0", 0, 0, 0)._fields[:3] == ("topic", "queue_id", "queue_offset")


def test_what_looks_like_a_repeated_record_inside_another_one_is_none() -> None:
    (first,) = sent("orders", 0, (0,))
    inner_at = len(record_bytes(first, 0, b"x\1"))
    inner = record_bytes(Sent("orders", 0, 0, 7), inner_at)
    log, world = irregular_log(sent("orders", 0, (0, 1, 1, 2)), more={0: b"x\1" + inner + b"\2"}), FollowedWorld()
    store = world.open()
    log.log.feed(store)
    store.flush()
    assert log.log.data[inner_at : inner_at + len(inner)] == inner
    for record in log.records:
        assert store.store.message(message_id_of(record)).record.physical_offset == record.at
    for offset in (inner_at, log.records[2].at + 1, log.records[2].at - 1):
        with pytest.raises(MessageNotFoundError):
            store.store.message(message_id_of(first._replace(at=offset)))


def test_offsets_of_groups_that_the_broker_forgot_with_the_topic_are_not_those_of_the_next_generation() -> None:
    log = irregular_log([*sent("orders", 0, range(9)), *sent("pays", 0, range(9), 9), *sent("orders", 0, (0, 1), 18)])
    world = FollowedWorld()
    store = world.open()
    log.log.feed(store, end=log.records[18].at)
    store.flush()
    store._hot.dispatch()
    whole = CopiedGroup("shop", {("orders", 0): 7, ("pays", 0): 3})
    store.copy_groups([whole, CopiedGroup("late", {("orders", 0): 2})])
    store.store.groups.copy({"archive%shop": {("orders@1", 0): 5}})
    store.copy_groups([CopiedGroup("shop", {})])  # the topic is deleted, and not made again yet
    assert store.store.groups.committed("shop").offsets["orders", STORE_ID, 0] == 7
    log.log.feed(store)
    store.flush()
    store._hot.dispatch()
    store.copy_groups([CopiedGroup("shop", {("pays", 0): 4}), CopiedGroup("late", {("orders", 0): 1})])
    offsets = {name: group.offsets for name, group in store.store.groups.all_committed().items()}
    assert offsets == {
        "shop": {("pays", STORE_ID, 0): 4}, "late": {("orders", STORE_ID, 0): 1},
        "archive%shop": {("orders@1", STORE_ID, 0): 5},
    }  # fmt: skip
