"""Erased messages are hidden from every reader at once, and their archived bytes are overwritten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.removal_world import RemovalWorld, asked, filled
from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import (
    ConflictError,
    CorruptionError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
    TopicNotFoundError,
)
from tierlog.tiering.base.types import Boundary, PullStatus


@pytest.mark.parametrize(("key", "span"), [(None, None), ("k1", None), (None, (20, 60)), ("k2", (0, 50))])
def test_every_way_of_reading_obeys_an_erasure_at_once_and_after_each_step(
    key: str | None, span: tuple[int, int] | None
) -> None:
    world = filled()
    engine = world.open()
    times = [one.store_ms for one in world.sent]
    bounds = (times[span[0]], times[span[1]]) if span else ()
    receipt = world.erase(engine, "t", key, *bounds)
    gone = len(world.sent) - len(world.visible())
    assert receipt["matched"] == {"hot": receipt["matched"]["hot"], "cold": gone - receipt["matched"]["hot"],
                                  "complete": True}  # fmt: skip
    world.verify(engine)
    world.append(engine, 6)
    world.verify(engine)
    world.finish(engine)
    world.verify(engine)
    assert engine._manifest is not None
    assert engine._manifest.head is not None
    assert engine._manifest.head.tombstones == ()
    engine.archive(everything=True, drop_hot=True)
    world.verify(engine)
    assert engine.check(deep=True) == []


def test_the_bytes_go_from_the_archive_and_everything_else_stays() -> None:
    world = filled()
    engine = world.open()
    world.erase(engine, "t", "k0")
    assert world.bucket_holds(b"<body 0>")
    world.finish(engine)
    for number, one in enumerate(world.sent):
        assert world.bucket_holds(one.message.body) != world.is_erased(number)


def test_coverage_counts_segments_with_erased_messages_and_stays_complete() -> None:
    world = filled()
    engine = world.open()
    before = engine.query(Query("t", "k0", limit=1000)).coverage
    assert (before.segments_erased, before.complete) == (0, True)
    world.erase(engine, "t", "k0")
    hidden = engine.query(Query("t", "k0", limit=1000))
    assert (hidden.messages, hidden.coverage.complete) == ([], True)
    world.finish(engine)
    filler = engine.query(Query("t", "k0", limit=1000))
    assert (filler.messages, filler.coverage.complete) == ([], True)
    assert hidden.coverage.segments_erased == filler.coverage.segments_erased > 1


def test_offsets_of_a_queue_do_not_move() -> None:
    world = filled()
    engine = world.open()
    before = [(queue.min_offset, queue.max_offset) for queue in engine.topic("t").queues]
    time_ms = world.sent[50].store_ms
    at = engine.offset_by_time("u", 0, time_ms, Boundary.LOWER)
    world.erase(engine, "t")
    world.finish(engine)
    engine.archive(everything=True, drop_hot=True)
    assert [(queue.min_offset, queue.max_offset) for queue in engine.topic("t").queues] == before
    assert engine.offset_by_time("u", 0, time_ms, Boundary.LOWER) == at


def test_topics_count_erased_messages_as_the_document_says() -> None:
    world = filled()
    engine = world.open()
    (before,) = (topic.messages for topic in engine.topics() if topic.name == "t")
    world.erase(engine, "t", "k0")
    world.finish(engine)
    assert any(world.is_erased(number) for number in range(len(world.sent)))
    assert [topic.messages for topic in engine.topics() if topic.name == "t"] == [before]


def test_a_pull_passes_over_erased_messages() -> None:
    world = filled()
    engine = world.open()
    world.erase(engine, "t")
    result = engine.pull("t", 0, 0, 1000)
    assert (result.status, result.messages) == (PullStatus.NO_MATCHED_MESSAGE, [])
    assert result.next_offset > 1
    (end,) = [queue.max_offset for queue in engine.topic("t").queues if queue.queue_id == 0]
    assert engine.pull("t", 0, end, 1).status is PullStatus.NO_NEW_MESSAGE


def test_a_dry_run_counts_and_changes_nothing() -> None:
    world = filled()
    engine = world.open()
    counted = engine.removal.erase(Query("t", "k0"), dry_run=True)
    assert engine._manifest is not None
    assert engine._manifest.head is not None
    assert (engine._manifest.head.tombstones, engine.removal.receipts()) == ((), [])
    world.verify(engine)
    receipt = world.erase(engine, "t", "k0")
    same = ("matched", "segments_to_rewrite", "topic", "by_key", "below_offset")
    assert {name: counted[name] for name in same} == {name: receipt[name] for name in same}
    assert (counted["state"], counted["tombstone_id"]) == ("dry run", None)


def test_the_receipt_tells_the_way_from_hidden_to_complete() -> None:
    world = filled()
    engine = world.open()
    receipt = world.erase(engine, "t", "k0")
    assert (receipt["state"], receipt["segments_rewritten"]) == ("hidden", [])
    assert "<body" not in str(receipt)
    assert "k0" not in str(receipt)
    assert any("hot volume" in place for place in receipt["may_still_hold_bytes"])
    world.finish(engine)
    receipt = engine.removal.receipt(receipt["tombstone_id"])
    assert receipt["state"] == "rewritten"
    assert {row["segment"] for row in receipt["segments_rewritten"]} >= set(receipt["segments_to_rewrite"])
    assert not any(row["deleted"] for row in receipt["segments_rewritten"])
    engine.archive(everything=True, drop_hot=True)
    for row in receipt["segments_rewritten"]:
        assert row["delete_after_ms"] == row["replaced_ms"] + 24 * 3_600_000
        world.objects.delete(row["replaced_object"])
    engine = world.open()
    (receipt,) = engine.removal.receipts()
    assert (receipt["state"], all(row["deleted"] for row in receipt["segments_rewritten"])) == ("complete", True)
    assert not any("hot volume" in place for place in receipt["may_still_hold_bytes"])


def test_what_is_hidden_stays_hidden_after_a_restart_with_a_dead_bucket() -> None:
    world = filled()
    engine = world.open()
    world.erase(engine, "u", "k0")
    engine.close()
    faulty = FaultyObjectStore(world.objects)
    faulty.fail_before("*", times=None)
    engine = world.open(objects=faulty)
    answer = engine.query(Query("u", "k0", limit=1000))
    assert (answer.messages, answer.coverage.complete) == ([], False)
    hot = [one for number, one in enumerate(world.sent) if one.offset >= engine._hot.border and world.is_erased(number)]
    assert hot
    for one in hot:
        with pytest.raises(NotFoundError):
            engine.message(one.message_id)


def test_hot_copies_stay_hidden_after_the_tombstone_is_closed_and_the_store_restarted() -> None:
    world = filled()
    engine = world.open()
    world.erase(engine, "t")
    world.finish(engine)
    assert engine._manifest is not None
    assert engine._manifest.head is not None
    assert engine._manifest.head.tombstones == ()
    for _ in range(2):
        engine = world.open()
        assert engine._hot.border < world.sent[60].offset
        world.verify(engine)
        world.append(engine, 3)


def test_an_erasure_that_the_bucket_did_not_answer_is_not_acknowledged_and_may_be_asked_again() -> None:
    world = filled()
    faulty = FaultyObjectStore(world.objects)
    engine = world.open(objects=faulty)
    engine.archive()
    faulty.fail_before("*", times=None)
    with pytest.raises(StoreError):
        engine.removal.erase(Query("t", "k0"))
    engine = world.open()
    world.erase(engine, "t", "k0")
    world.verify(engine)


def test_what_an_erasure_cannot_be() -> None:
    world = filled()
    engine = world.open()
    with pytest.raises(TopicNotFoundError):
        engine.removal.erase(Query("nobody"))
    with pytest.raises(InvalidRequestError, match="not before"):
        engine.removal.erase(Query("t", None, 5, 5))
    with pytest.raises(NotFoundError, match="no receipt"):
        engine.removal.receipt("0123")


@pytest.mark.parametrize("filters", [{"tag": "paid"}, {"contains": ("x",)}, {"where": (("region", "eu"),)}])
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_erasure_by_what_no_tombstone_can_say_is_refused_and_erases_nothing(
    filters: dict[str, Any], dry_run: bool
) -> None:
    world = filled()
    engine = world.open()
    with pytest.raises(InvalidRequestError, match="by topic, key and store time"):
        engine.removal.erase(Query("t", **filters), dry_run=dry_run)
    assert engine.removal.receipts() == []
    world.verify(engine)


def test_a_topic_on_hold_cannot_be_erased_and_keeps_the_bytes_of_earlier_erasures() -> None:
    world = filled()
    engine = world.open()
    receipt = world.erase(engine, "t", "k0")
    engine.removal.configure("t", hold=True)
    for dry_run in (False, True):
        with pytest.raises(ConflictError, match="on hold"):
            engine.removal.erase(Query("t", "k1"), dry_run=dry_run)
    world.finish(engine)
    assert engine.removal.receipt(receipt["tombstone_id"])["state"] == "held"
    world.verify(engine)
    engine = world.open()
    assert engine.topic("t").hold
    world.finish(engine)
    assert world.bucket_holds(world.sent[0].message.body)
    world.erase(engine, "u", "k0")
    world.finish(engine)
    assert not world.bucket_holds(world.sent[3].message.body)
    engine.removal.configure("t", hold=False)
    world.finish(engine)
    assert not world.bucket_holds(world.sent[0].message.body)
    world.verify(engine)


def test_messages_with_an_erased_key_that_are_written_later_are_seen() -> None:
    world = filled()
    engine = world.open()
    world.erase(engine, "t", "k0")
    world.append(engine, 12)
    assert asked(engine, Query("t", "k0"))
    world.finish(engine)
    world.verify(engine)


def test_messages_erased_before_they_are_archived_never_reach_the_archive() -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 30)
    world.erase(engine, "t", "k0")
    engine.removal.configure("u", hold=True)
    engine.archive(everything=True)
    for number, one in enumerate(world.sent):
        assert world.bucket_holds(one.message.body) != world.is_erased(number)
    world.verify(engine)
    assert engine.check(deep=True) == []
    world.finish(engine)
    (receipt,) = engine.removal.receipts()
    assert (receipt["segments_rewritten"], receipt["state"]) == ([], "rewritten")


def test_what_a_hold_protects_is_archived_although_it_was_erased_before() -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 30)
    world.erase(engine, "t")
    engine.removal.configure("t", hold=True)
    engine.archive(everything=True, drop_hot=True)
    assert all(world.bucket_holds(one.message.body) for one in world.sent)
    world.verify(engine)
    engine.removal.configure("t", hold=False)
    world.finish(engine)
    assert not any(world.bucket_holds(one.message.body) for one in world.sent if one.message.topic == "t")


def test_tails_in_the_bucket_keep_a_receipt_from_being_complete() -> None:
    world = filled()
    engine = world.open()
    receipt = world.erase(engine, "t")
    for first in (0, 4096, receipt["below_offset"]):
        world.objects.put(f"store/tail/{first:020d}", b"records")
    places = engine.removal.receipt(receipt["tombstone_id"])["may_still_hold_bytes"]
    assert any(place.startswith("2 tails") for place in places)


def test_caches_forget_what_was_replaced_and_again_when_the_tombstone_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = filled()
    engine = world.open()
    assert engine._manifest is not None
    forgotten: list[str] = []
    monkeypatch.setattr(engine._manifest.cache, "forget", forgotten.append)
    receipt = world.erase(engine, "t", "k0")
    world.finish(engine)
    replaced = [row["replaced_object"] for row in engine.removal.receipt(receipt["tombstone_id"])["segments_rewritten"]]
    assert replaced
    assert {key: forgotten.count(key) for key in replaced} == dict.fromkeys(replaced, 2)


def test_a_damaged_receipt_is_named_and_hides_no_other() -> None:
    world = filled()
    engine = world.open()
    first, second = (world.erase(engine, "t", key)["tombstone_id"] for key in ("k0", "k1"))
    assert not [note for note in engine.check_report(deep=True).notes if "receipts" in str(note)]
    key = f"store/receipts/{first}.json"
    world.objects.put(key, world.objects.get(key)[0][:-9])
    assert [(row["tombstone_id"], row["state"]) for row in engine.removal.receipts()] == [
        (second, "hidden"), (first, "damaged"),
    ]  # fmt: skip
    assert [line for line in engine.check(deep=True) if line.startswith(f"{key}: the receipt is damaged")]


def test_a_damaged_receipt_does_not_stop_an_erasure() -> None:
    world = filled()
    engine = world.open()
    receipt = world.erase(engine, "t", "k0")
    world.objects.put(f"store/receipts/{receipt['tombstone_id']}.json", b"{")
    engine = world.open()
    with pytest.raises(CorruptionError, match="damaged"):
        engine.removal.receipt(receipt["tombstone_id"])
    world.finish(engine)
    assert not world.bucket_holds(world.sent[0].message.body)
    (again,) = engine.removal.receipts()
    assert (again["state"], again["matched"]) == ("rewritten", None)
    assert again["segments_rewritten"]
