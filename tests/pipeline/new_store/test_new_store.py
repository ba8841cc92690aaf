"""An archive written by tasks that do not know of each other, and the one commit that makes it visible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipeline.new_stores import (
    BEGIN_MS,
    Row,
    batches_of,
    build,
    everything,
    expected,
    new_store,
    pulled,
    reader_of,
    rows_of,
    shown,
)
from tests.support.stores.engines import tiny_settings
from tierlog.index.new_store.commit import NewTopics, discard, find_head, publish, topic_id_of
from tierlog.index.new_store.part import BuiltPart, NewStore, PartQueue
from tierlog.index.search.query import Query
from tierlog.pipeline.new_store.writer import QueuePlan
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, StoreMismatchError
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.topics import Topic


def commit(store: NewStore, parts: list[BuiltPart]) -> Head:
    runs = [run for part in sorted(parts, key=lambda each: each.first) for run in part.runs]
    topics = [Topic(topic_id_of(name), name, 1) for name in sorted({run.topic for run in runs})]
    return publish(store, parts, NewTopics.of(topics, runs), SystemRandomness(), volume_id="made")


def objects_of(store: NewStore) -> set[str]:
    return {info.key for info in store.manifest.objects.list("")}


def compare(store: NewStore, rows: list[Row]) -> None:
    with reader_of(store) as engine:
        by_time = everything(engine)
        assert sorted(map(repr, map(shown, by_time))) == sorted(map(repr, map(expected, rows)))
        queues = pulled(engine)
        assert sorted(m.record.physical_offset for each in queues.values() for m in each) == [
            message.record.physical_offset for message in by_time
        ]
        for row in rows[::9]:
            for key in row["keys"] or ():
                wanted = [each for each in rows if each["topic"] == row["topic"] and key in (each["keys"] or ())]
                answer = engine.query(Query(row["topic"], key, limit=1000))
                assert answer.coverage.complete
                assert sorted(m.record.body for m in answer.messages) == sorted(each["body"] for each in wanted)
        findings = engine.check_report(deep=True)
        assert (findings.lines(), findings.notes) == ([], [])


def test_every_row_is_found_by_time_key_and_offset_and_nothing_is_wrong_with_the_archive(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(700)
    parts = [build(store, number, rows[start : start + 250]) for number, start in enumerate((0, 250, 500))]
    assert find_head(store) is None
    head = commit(store, parts)
    assert min(len(part.log) for part in parts) > 2
    assert min(len(part.index) for part in parts) > 1
    assert (head.version, head.archived_to) == (1, head.indexed_to)
    compare(store, rows)


def test_a_partition_is_a_queue_dense_from_0_in_the_order_of_its_rows(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(300)
    commit(store, [build(store, 0, rows[:200]), build(store, 1, []), build(store, 2, rows[200:])])
    with reader_of(store) as engine:
        queues = pulled(engine)
        assert sorted(queues) == sorted((f"topic-{number}", queue) for number in range(3) for queue in (0, 2))
        for (topic, queue), messages in queues.items():
            mine = [row for row in (rows[:200] if queue == 0 else rows[200:]) if row["topic"] == topic]
            assert [message.record.queue_offset for message in messages] == [*range(len(mine))]
            assert [message.record.body for message in messages] == [row["body"] for row in mine]
        assert all(not queue.gaps for topic in engine.topics() for queue in topic.queues)


def test_rows_that_name_their_queues_go_on_behind_a_declared_gap(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(300, queues=4)
    plans = [QueuePlan((number,), other_start=number << 32) for number in range(2)]
    commit(store, [build(store, number, rows[150 * number :][:150], plans[number]) for number in range(2)])
    compare(store, rows)
    with reader_of(store) as engine:
        for (topic, queue), messages in pulled(engine).items():
            mine = [row for row in rows if row["topic"] == topic and row["queue_id"] == queue]
            assert [message.record.body for message in messages] == [row["body"] for row in mine]
            first = sum(row in rows[:150] for row in mine)
            assert engine.topic(topic).queues[queue].gaps == [(first, 1 << 32)]


def test_a_store_without_a_row_is_a_store(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    head = commit(store, [build(store, 0, []), build(store, 1, [])])
    assert (head.archived_to, head.indexed_to) == (0, 0)
    with reader_of(store) as engine:
        assert engine.check_report(deep=True).lines() == []


def test_a_volume_restored_from_it_goes_on_behind_it(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(300, topics=1)
    commit(store, [build(store, number, rows[100 * number :][:100]) for number in range(3)])
    engine = Store.open(
        tmp_path / "volume", cold_url=store.url, store_id=store.store_id, settings=tiny_settings(), restore=True
    )
    try:
        sizes = {path.stat().st_size for path in (tmp_path / "volume" / "commitlog").iterdir()}
        assert sizes == {store.segment_bytes}
        found = engine.query(Query("topic-0", limit=1000))
        assert found.coverage.complete
        assert len(found.messages) == 300
        assert [m.record.body for m in engine.pull("topic-0", 1, 0, 5).messages] == [r["body"] for r in rows[100:105]]
        assert engine.check(deep=True) == []
    finally:
        engine.close()


@pytest.mark.slow
def test_more_segments_than_the_head_holds_go_to_pages_by_the_same_commit(tmp_path: Path) -> None:
    store = replace(new_store(tmp_path), segment_bytes=4096)
    rows = [{**row, "body": row["body"].ljust(1800, b".")} for row in rows_of(404, topics=1)]
    head = commit(store, [build(store, number, rows[202 * number :][:202]) for number in range(2)])
    assert head.log_tree
    compare(store, rows)


def test_of_two_writers_of_one_store_the_second_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(200)
    first, second = build(store, 0, rows), build(store, 1, rows)
    head = commit(store, [first])
    before = objects_of(store)
    with pytest.raises(StoreMismatchError, match="has an archive here already"):
        commit(store, [second])
    assert store.manifest.refresh() == head
    assert objects_of(store) <= before
    assert objects_of(store).isdisjoint(second.names)
    compare(store, rows)


def test_what_a_killed_write_left_is_gone_once_another_has_succeeded(tmp_path: Path) -> None:
    store, rows = new_store(tmp_path), rows_of(200)
    killed = build(store, 0, rows[:120])
    other = build(new_store(tmp_path, "other"), 0, rows)
    assert find_head(store) is None
    commit(store, [build(store, 1, rows)])
    assert objects_of(store).isdisjoint(killed.names)
    assert objects_of(store) >= set(other.names), "those of another store stay"
    compare(store, rows)


def test_a_write_that_is_given_up_deletes_what_it_stored(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    part = build(store, 0, rows_of(200))
    assert objects_of(store) == set(part.names)
    discard(store, part.names)
    assert objects_of(store) == set()


def test_store_times_that_step_back_are_refused_with_the_row(tmp_path: Path) -> None:
    rows = rows_of(200)
    rows[150]["store_time"] = 1000 * BEGIN_MS
    with pytest.raises(InvalidRequestError, match=r"row 150 of partition 0: .*never step back.*sort within partitions"):
        build(new_store(tmp_path), 0, rows)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("topic", None, "row 7 of partition 0: topic is null"),
        ("topic", "no such/name", "row 7 of partition 0: bad topic name"),
        ("body", None, "row 7 of partition 0: empty body"),
        ("body", b"", "row 7 of partition 0: empty body"),
        ("body", bytes(20_000), "row 7 of partition 0: record of .* bytes does not fit a segment"),
        ("keys", ["two words"], "row 7 of partition 0: bad key 'two words'"),
        ("properties", [("KEYS", "x")], "row 7 of partition 0: property 'KEYS' has a field of its own"),
        ("store_time", None, "row 7 of partition 0: store_time is null"),
        ("store_time", 1000 * END_OF_TIME_MS, "row 7 of partition 0: store_time is not between 1970 and 9999"),
        ("store_time", -1, "row 7 of partition 0: store_time is not between 1970 and 9999"),
        ("born_time", 1000 * END_OF_TIME_MS, "row 7 of partition 0: bad born time"),
    ],
)
def test_a_row_that_is_no_message_is_named(tmp_path: Path, name: str, value: Any, words: str) -> None:
    rows = rows_of(20)
    rows[7][name] = value
    with pytest.raises(InvalidRequestError, match=words):
        build(new_store(tmp_path), 0, rows)


def test_a_queue_that_steps_back_is_no_queue() -> None:
    topic = Topic(1, "orders", 1)
    with pytest.raises(CorruptionError, match="queue orders/3 steps back from offset 9 to 4"):
        NewTopics.of([topic], [PartQueue("orders", 3, 0, 9), PartQueue("orders", 3, 4, 12)])


def test_gaps_and_ends_follow_from_the_runs() -> None:
    topics = [Topic(2, "b", 5), Topic(1, "a", 1, {0: 40})]
    found = NewTopics.of(topics, [PartQueue("b", 1, 3, 9), PartQueue("b", 1, 12, 20), PartQueue("b", 7, 0, 2)])
    assert [(each.name, each.queues, each.ends) for each in found.topics] == [
        ("a", 1, (40,)),
        ("b", 8, (0, 20, 0, 0, 0, 0, 0, 2)),
    ]
    assert [tuple(gap) for gap in found.gaps] == [(2, 1, 0, 3), (2, 1, 9, 12)]
    assert NewTopics.of(topics, [PartQueue("b", 1, 3, 9)], whole_log=False).gaps == ()


def test_batches_have_the_columns_of_the_view() -> None:
    (batch,) = batches_of(rows_of(3))
    assert batch.schema.names == ["topic", "keys", "tag", "properties", "born_time", "store_time", "body"]
