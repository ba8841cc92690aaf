"""A store that follows a broker whose queue offsets jump, come again, and begin again with their topic."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support.stores.followed import FollowedWorld
from tests.support.stores.irregular import Sent, compare, irregular_log, pulled, random_records, sent
from tierlog.index.search.query import Query
from tierlog.tiering.base.types import PullStatus


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
