"""The put that makes a store's head meets a bucket that fails, and rows are counted before they are written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.pipeline.new_stores import build, everything, input_rows, new_store, pulled, reader_of, rows_of
from tierlog.index.new_store import commit
from tierlog.index.new_store.commit import NewTopics, find_head, publish
from tierlog.index.new_store.part import BuiltPart, NewStore, PartQueue
from tierlog.pipeline.new_store.two_pass import CountedPlan
from tierlog.tiering.base.errors import InvalidRequestError, ObjectStoreUnavailableError, StoreError
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.topics import Topic


def faulty(store: NewStore) -> FaultyObjectStore:
    """The bucket as this process's manifest of the store sees it."""
    store.manifest.objects = FaultyObjectStore(store.manifest.objects)
    return store.manifest.objects


def planned(store: NewStore, rows: list[dict[str, object]], cut: int) -> CountedPlan:
    counts: dict[tuple[int, str], int] = {}
    for place, row in enumerate(rows):
        key = int(place >= cut), str(row["topic"])
        counts[key] = counts.get(key, 0) + 1
    return CountedPlan.of(store, input_rows(rows), [(*key, None, count) for key, count in counts.items()], 3)


def commit_all(store: NewStore, plan: CountedPlan, parts: list[BuiltPart]) -> Head:
    return publish(store, parts, plan.new_topics(parts), SystemRandomness(), volume_id="made")


def build_planned(store: NewStore, plan: CountedPlan, rows: list[dict[str, object]], cut: int) -> list[BuiltPart]:
    return [
        build(store, number, mine, plan.plan(number), plan.topic_id)
        for number, mine in enumerate((rows[:cut], rows[cut:]))
    ]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_answer_to_the_put_of_the_head_is_recognised(tmp_path: Path, lost: int) -> None:
    store, rows = new_store(tmp_path), rows_of(120)
    plan = planned(store, rows, 70)
    parts = build_planned(store, plan, rows, 70)
    bucket = faulty(store)
    bucket.fail_after("put", "*/head", times=lost)
    head = commit_all(store, plan, parts)
    assert store.manifest.refresh() == head
    with reader_of(store) as engine:
        assert len(everything(engine)) == 120
        assert engine.check_report(deep=True).lines() == []


def test_a_bucket_that_is_away_at_the_commit_leaves_no_store_and_every_object(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(120)
    plan = planned(store, rows, 70)
    parts = build_planned(store, plan, rows, 70)
    bucket = faulty(store)
    bucket.fail_before("put", "*/head", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        commit_all(store, plan, parts)
    bucket.heal()
    assert find_head(store) is None
    names = {info.key for info in bucket.list("")}
    assert names >= {name for part in parts for name in part.names}, "the put may have come through unheard"
    commit_all(store, plan, parts)
    with reader_of(store) as engine:
        findings = engine.check_report(deep=True)
        assert (findings.lines(), findings.notes) == ([], [])


def test_counted_rows_have_dense_offsets_over_all_partitions(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(200)
    plan = planned(store, rows, 77)
    commit_all(store, plan, build_planned(store, plan, rows, 77))
    with reader_of(store) as engine:
        queues = pulled(engine)
        assert sorted(queues) == [(f"topic-{number}", queue) for number in range(3) for queue in range(3)]
        for found in queues.values():
            assert [each.record.queue_offset for each in found] == [*range(len(found))]
            assert [each.record.store_ms for each in found] == sorted(each.record.store_ms for each in found)
        assert [topic.topic_id for topic in engine.topics()] == [1, 2, 3]
        assert engine.check_report(deep=True).lines() == []


@pytest.mark.parametrize("cut", [76, 78])
def test_rows_that_moved_after_they_were_counted_are_refused(tmp_path: Path, cut: int) -> None:
    store, rows = new_store(tmp_path), rows_of(200)
    plan = planned(store, rows, 77)
    parts = build_planned(store, plan, rows, cut)
    with pytest.raises(StoreError, match=r"rows are not those that were counted|steps back"):
        plan.new_topics(parts)


def test_a_queue_or_topic_that_was_not_counted_is_refused(tmp_path: Path) -> None:
    plan = CountedPlan.of(new_store(tmp_path), input_rows(rows_of(1)), [(0, "orders", 0, 5), (1, "orders", 0, 2)], 8)
    assert plan.plan(1).start("orders", 0) == 5
    with pytest.raises(StoreError, match="rows of queue orders/1 came up"):
        plan.plan(0).start("orders", 1)
    with pytest.raises(StoreError, match="rows of queue orders/0 came up"):
        plan.plan(2).start("orders", 0)
    with pytest.raises(StoreError, match="topic 'pays' came up"):
        plan.topic_id("pays")


@pytest.mark.parametrize("seed", range(20))
def test_starts_are_what_counting_one_by_one_gives(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    queues = chance.randrange(1, 5)
    rows = [
        (chance.randrange(4), chance.choice("ab"), chance.choice([None, None, 0, 2]))
        for _ in range(chance.randrange(60))
    ]
    rows.sort(key=lambda row: row[0])
    counts = {key: rows.count(key) for key in rows}
    plan = CountedPlan.of(
        new_store(tmp_path), input_rows(rows_of(1)), [(*key, count) for key, count in counts.items()], queues
    )
    reached: dict[tuple[str, int], int] = {}
    turns: dict[tuple[int, str], int] = {}
    first: dict[tuple[int, str, int], int] = {}
    for number, topic, queue in rows:
        if queue is None:
            turn = turns.get((number, topic), 0)
            turns[number, topic], queue = turn + 1, turn % queues
        first.setdefault((number, topic, queue), reached.get((topic, queue), 0))
        reached[topic, queue] = reached.get((topic, queue), 0) + 1
    for (number, topic, queue), start in first.items():
        assert plan.plan(number).start(topic, queue) == start
    assert plan.messages == len(rows)


def test_two_topics_of_one_id_are_refused() -> None:
    seen: dict[int, str] = {}
    for number in range(200_000):
        name = f"topic-{number}"
        other = seen.setdefault(commit.topic_id_of(name), name)
        if other != name:
            with pytest.raises(InvalidRequestError, match="have the same id"):
                commit.check_ids([other, name, "unlike"])
            commit.check_ids([name, "unlike"])
            return
    pytest.fail("no two names of one id")


def test_topics_that_nobody_sent_to_are_kept_with_their_floors() -> None:
    found = NewTopics.of([Topic(1, "a", 2, {1: 9})], list[PartQueue]())
    assert [(each.queues, each.ends) for each in found.topics] == [(2, (0, 9))]
