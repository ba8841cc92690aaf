"""A store that follows a broker whose queue offsets jump, come again, and begin again with their topic."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.stores.followed import FollowedWorld
from tests.support.stores.irregular import IrregularLog, Sent, irregular_log, random_records, sent
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.types import PullStatus


def pulled(store: Store, topic: str, queue_id: int, limit: int = 7) -> dict[int, int]:
    """Numbers by queue offset, as pulls from 0 on tell them."""
    found, offset = {}, 0
    for _ in range(10_000):
        answer = store.pull(topic, queue_id, offset, limit)
        for message in answer.messages:
            found[message.record.queue_offset] = int(message.record.body.split(b".")[0].removeprefix(b"message "))
        if answer.status is PullStatus.NO_NEW_MESSAGE:
            return found
        assert answer.next_offset > offset
        offset = answer.next_offset
    raise AssertionError("the queue has no end")


def compare(store: Store, log: IrregularLog) -> None:
    """A store answers by queue, key and generation what the log tells."""
    for topic, generations in log.told.items():
        names = [f"{topic}@{number}" for number in range(1, len(generations) + 1)]
        for name, told in [*zip(names, generations, strict=True), (topic, generations[-1])]:
            queues = {queue_id: pulled(store, name, queue_id) for queue_id in told.queues}
            assert queues == told.queues, name
        with pytest.raises(TopicNotFoundError):
            store.pull(f"{topic}@{len(generations) + 1}", 0, 0, 1)


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


def test_what_the_oracle_is_given_is_irregular() -> None:
    log = irregular_log(random_records(Random(1), 300))
    assert max(len(each) for each in log.told.values()) > 2
    assert Sent("topic0", 0, 0, 0)._fields[:3] == ("topic", "queue_id", "queue_offset")
