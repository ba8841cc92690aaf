"""What has expired is gone for readers, exactly; holds, hot copies and what is not indexed stay."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stores.engines import small_settings
from tests.support.stores.removal_world import RemovalWorld, WatchedStore, bodies, by_queue, pulled
from tests.support.threads import wait_for_threads
from tests.support.world import URL
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import MessageNotFoundError
from tierlog.tiering.base.types import Boundary, PullStatus
from tierlog.tiering.format.manifest import Head


def archived(count: int = 90, **cold: Any) -> tuple[RemovalWorld, Store]:
    """Messages of two topics a second apart, archived in several segments and gone from the volume."""
    world = RemovalWorld(**{f"cold__{name}": value for name, value in cold.items()})
    engine = world.open()
    world.append(engine, count)
    engine.archive(everything=True, drop_hot=True)
    return world, engine


def head_of(engine: Store) -> Head:
    assert engine._manifest is not None
    assert engine._manifest.head is not None
    return engine._manifest.head


def expire(world: RemovalWorld, engine: Store) -> None:
    """The next turn of expiry, and all that follows from it."""
    world.clock.advance(60_000)
    for _ in range(100):
        if not engine.removal.run_once():
            return
    raise AssertionError("expiry does not end")


def what_was_read_is_on_disk() -> None:
    """The cache of the volume, which outlives the process, is written by a thread of its own."""
    wait_for_threads("tierlog-disk-cache")


def newest_ms(world: RemovalWorld, base: int) -> int:
    return max(one.store_ms for one in world.sent if base <= one.offset < base + world.segment_bytes)


def test_nothing_expires_unless_somebody_says_so() -> None:
    world, engine = archived()
    world.clock.advance(100 * 365 * 86_400_000)
    version = head_of(engine).version
    expire(world, engine)
    assert head_of(engine).version == version
    world.verify(engine)


@pytest.mark.parametrize(("late_ms", "cold_min"), [(0, 4096), (1, 8192)])
def test_a_segment_goes_when_its_newest_message_is_older_than_the_retention_to_the_millisecond(
    late_ms: int, cold_min: int
) -> None:
    retention_ms = 3_600_000
    world, engine = archived(retention_ms=retention_ms)
    world.clock.advance(newest_ms(world, 4096) + retention_ms + late_ms - world.clock.now_ms() - 60_000)
    expire(world, engine)
    assert head_of(engine).cold_min == cold_min
    assert engine.stats()["cold_min"] == cold_min
    world.verify(engine)
    assert engine.check(deep=True) == []
    world.verify(world.open())


def test_the_archive_shrinks_to_its_greatest_size_from_the_oldest_segment_on() -> None:
    world, engine = archived()
    assert engine._manifest is not None
    manifest, head = engine._manifest, head_of(engine)
    entries = list(manifest.log_entries(manifest.reader(), head))
    index = sum(entry.size_bytes for entry in manifest.all_index_entries(manifest.reader(), head))
    total = sum(entry.size_bytes for entry in entries) + index
    world.settings = small_settings(cold__max_bytes=total)
    engine = world.open()
    expire(world, engine)
    assert head_of(engine).cold_min == 0
    world.settings = small_settings(cold__max_bytes=total - 1)
    engine = world.open()
    expire(world, engine)
    assert head_of(engine).cold_min == 4096
    world.verify(engine)


def test_what_is_still_hot_does_not_leave_the_archive() -> None:
    world = RemovalWorld(cold__retention_ms=1000)
    engine = world.open()
    world.append(engine, 60)
    engine.archive(everything=True)
    world.clock.advance(10_000_000)
    expire(world, engine)
    assert head_of(engine).cold_min == 0
    engine.archive(drop_hot=True)
    expire(world, engine)
    assert head_of(engine).cold_min == engine._hot.border > 0
    world.verify(engine)


def test_messages_of_a_topic_expire_to_the_millisecond_and_others_stay() -> None:
    world, engine = archived()
    engine.removal.configure("t", cold_retention_ms=3_600_000)
    middle = world.sent[40]
    assert middle.message.topic == "t"
    world.clock.advance(middle.store_ms + 3_600_000 - world.clock.now_ms() - 60_000)
    expire(world, engine)
    (expiry,) = head_of(engine).expired
    assert expiry.below_ms == middle.store_ms
    world.verify(engine)
    assert engine.message(middle.message_id).record.body == middle.message.body
    with pytest.raises(MessageNotFoundError):
        engine.message(world.sent[38].message_id)
    assert engine.message(world.sent[39].message_id).record.topic == "u"
    world.verify(world.open())


def test_a_pull_of_an_expired_offset_says_where_the_queue_begins_and_an_offset_by_time_agrees() -> None:
    world, engine = archived()
    engine.removal.configure("t", cold_retention_ms=1_000_000)
    kept = next(one for one in world.sent[50:] if one.message.topic == "t" and one.queue_id == 0)
    world.clock.advance(kept.store_ms + 1_000_000 - world.clock.now_ms() - 60_000)
    before = engine.pull("t", 0, 0, 1)
    assert (before.status, before.min_offset) == (PullStatus.FOUND, 0)
    expire(world, engine)
    for reader in (engine, world.open(), world.cold()):
        result = reader.pull("t", 0, 0, 5)
        assert (result.status, result.next_offset, result.min_offset) == (
            PullStatus.OFFSET_TOO_SMALL, kept.queue_offset, kept.queue_offset,
        )  # fmt: skip
        assert reader.pull("t", 0, result.next_offset, 1).messages[0].record.body == kept.message.body
        assert reader.offset_by_time("t", 0, 0, Boundary.LOWER) == kept.queue_offset
        assert reader.offset_by_time("t", 0, kept.store_ms - 1, Boundary.UPPER) == 0
    assert [queue.min_offset for queue in engine.topic("t").queues if queue.queue_id == 0] == [kept.queue_offset]


def test_a_cursor_into_what_has_expired_goes_on_behind_it() -> None:
    world, engine = archived()
    page = engine.query(Query("t", "k0", limit=3))
    assert page.next_cursor is not None
    engine.removal.configure("t", cold_retention_ms=60_000)
    world.clock.advance(10_000_000)
    expire(world, engine)
    rest = engine.query(Query("t", "k0", limit=3, cursor=page.next_cursor))
    assert (rest.messages, rest.next_cursor, rest.coverage.complete) == ([], None, True)


def test_hits_that_have_expired_are_counted_and_are_no_error() -> None:
    world, engine = archived(retention_ms=3_600_000)
    world.clock.advance(newest_ms(world, 4096) + 3_600_000 + 1 - world.clock.now_ms() - 60_000)
    expire(world, engine)
    coverage = engine.query(Query("t", "k0", limit=1000)).coverage
    assert (coverage.complete, coverage.failures, coverage.segments_expired) == (True, [], 2)


@pytest.mark.parametrize("key", [None, "k0"])
def test_what_has_expired_of_a_topic_is_counted_without_being_read(key: str | None) -> None:
    world, engine = archived()
    engine.removal.configure("u", cold_retention_ms=1000)
    world.clock.advance(10_000_000)
    expire(world, engine)
    answer = world.open().query(Query("u", key, limit=1000))
    coverage = answer.coverage
    assert (answer.messages, coverage.complete, coverage.segments_read) == ([], True, 0)
    assert coverage.index_expired + coverage.segments_expired > 0


def test_half_of_a_segment_that_has_expired_is_overwritten_and_a_segment_of_which_all_has_goes() -> None:
    world, engine = archived()
    engine.removal.configure("t", cold_retention_ms=60_000)
    world.clock.advance(10_000_000)
    expire(world, engine)
    kept = [one for one in world.sent if world.bucket_holds(one.message.body)]
    dropped = head_of(engine).cold_min
    assert dropped == 0
    assert {one.message.topic for one in kept if one.message.topic == "u"} == {"u"}
    assert len([one for one in kept if one.message.topic == "t"]) < 45 / 2
    version = head_of(engine).version
    expire(world, engine)
    what_was_read_is_on_disk()
    watched = WatchedStore(world.objects)
    engine = world.open(objects=watched)
    asked = watched.requests
    expire(world, engine)
    assert (head_of(engine).version, watched.requests) == (version, asked), "nothing that was looked at is read again"
    engine.removal.configure("u", cold_retention_ms=60_000)
    world.clock.advance(10_000_000)
    expire(world, engine)
    assert head_of(engine).cold_min == head_of(engine).archived_to
    world.verify(engine)
    world.append(engine, 8)
    engine.archive(everything=True, drop_hot=True)
    world.verify(engine)
    assert engine.check(deep=True) == []


def test_a_hold_stops_expiry_of_its_topic_and_dropping_at_the_first_segment_that_has_it() -> None:
    world = RemovalWorld(cold__retention_ms=60_000)
    engine = world.open()
    world.append(engine, 40, ("t",))
    world.append(engine, 40, ("t", "u"))
    engine.archive(everything=True, drop_hot=True)
    engine.removal.configure("u", hold=True, cold_retention_ms=60_000)
    world.clock.advance(10_000_000)
    expire(world, engine)
    first = next(one.offset for one in world.sent if one.message.topic == "u")
    assert engine.stats()["cold_held_at"] == head_of(engine).cold_min == first - first % 4096 > 0
    assert head_of(engine).expired == ()
    world.verify(engine)
    engine.removal.configure("u", hold=False)
    expire(world, engine)
    assert engine.stats()["cold_held_at"] is None
    assert head_of(engine).cold_min == head_of(engine).archived_to
    world.verify(engine)


def test_a_clock_that_is_far_ahead_of_the_bucket_lets_nothing_expire() -> None:
    world, engine = archived(retention_ms=3_600_000)
    engine.removal.configure("t", cold_retention_ms=3_600_000)
    assert engine._manifest is not None
    now_ms = world.clock.now_ms()
    engine._manifest.objects.now_ms = lambda: now_ms  # type: ignore[method-assign]
    world.clock.advance(10 * 365 * 86_400_000)
    expire(world, engine)
    assert (head_of(engine).cold_min, head_of(engine).expired) == (0, ())


def test_expiry_never_goes_back_when_a_retention_is_made_longer() -> None:
    world, engine = archived()
    engine.removal.configure("t", cold_retention_ms=60_000)
    world.clock.advance(10_000_000)
    expire(world, engine)
    before = head_of(engine).expired
    for longer in (None, 50_000_000):
        engine.removal.configure("t", cold_retention_ms=longer)
        expire(world, engine)
        assert head_of(engine).expired == before
        world.verify(engine)


def test_erasures_and_expiry_of_the_same_messages_do_not_hinder_each_other() -> None:
    world, engine = archived()
    world.erase(engine, "t", "k0")
    engine.removal.configure("t", cold_retention_ms=60_000)
    world.clock.advance(30_000)
    expire(world, engine)
    world.verify(engine)
    world.settings = small_settings(cold__retention_ms=1000)
    engine = world.open()
    world.erase(engine, "u", "k1")
    world.clock.advance(10_000_000)
    expire(world, engine)
    world.verify(engine)
    assert head_of(engine).cold_min == head_of(engine).archived_to
    assert all(receipt["state"] == "rewritten" for receipt in engine.removal.receipts())


@pytest.mark.parametrize("has_archive", [False, True])
def test_hot_copies_of_a_topic_on_hold_stay_where_they_are_the_only_ones(has_archive: bool) -> None:
    world = RemovalWorld(hot__retention_ms=1000, url=URL if has_archive else None)
    engine = world.open()
    engine.create_topic("t", 2)
    engine.removal.configure("t", archive=False)
    world.append(engine, 40, ("u",))
    world.append(engine, 40, ("t", "u"))
    engine.removal.configure("t", hold=True)
    if has_archive:
        engine.archive(everything=True)
    world.clock.advance(10_000_000)
    engine.run_tiers()
    first = next(one.offset for one in world.sent if one.message.topic == "t")
    assert engine._hot.border == first - first % 4096 > 0
    engine.removal.configure("t", hold=False)
    engine.run_tiers()
    assert engine._hot.border == engine._hot.log.last_base


@pytest.mark.parametrize("is_held_first", [False, True])
def test_hot_copies_on_hold_stay_after_their_topic_is_archived_again(is_held_first: bool) -> None:
    world = RemovalWorld(hot__retention_ms=1000)
    engine = world.open()
    engine.create_topic("t", 2)
    engine.removal.configure("t", archive=False)
    world.append(engine, 60)
    engine.archive(everything=True)
    engine.removal.configure("t", hold=is_held_first)
    engine.removal.configure("t", archive=True)
    engine.removal.configure("t", hold=True)
    world.append(engine, 20)
    engine = world.open()
    engine.archive(everything=True, drop_hot=True)
    assert engine._hot.border == 0
    world.append(engine, 60)
    engine.archive(everything=True, drop_hot=True)
    assert bodies(pulled(engine, "t")) == by_queue([one for one in world.sent if one.message.topic == "t"])
    engine.removal.configure("t", hold=False)
    engine.archive(everything=True, drop_hot=True)
    assert engine._hot.border == engine._hot.log.last_base


def test_a_queue_of_which_the_archive_has_nothing_left_ends_where_it_did() -> None:
    world, engine = archived(retention_ms=1000)
    engine.removal.configure("t", cold_retention_ms=1000)
    ends = {queue.queue_id: queue.max_offset for queue in engine.topic("t").queues}
    world.clock.advance(60_000)
    world.append(engine, 3, ("u",))
    engine.archive(everything=True, drop_hot=True)
    expire(world, engine)
    cold = world.cold()
    assert {queue.queue_id: (queue.min_offset, queue.max_offset) for queue in cold.topic("t").queues} == {
        queue_id: (end, end) for queue_id, end in ends.items()
    }
    page = cold.pull("t", 0, ends[0], 10)
    assert (page.status, page.next_offset) == (PullStatus.NO_NEW_MESSAGE, ends[0])
    assert cold.pull("t", 0, 0, 10).status is PullStatus.OFFSET_TOO_SMALL


def test_nobody_is_led_past_what_is_hot_in_a_queue_of_which_the_archive_has_nothing_left() -> None:
    world, engine = archived(retention_ms=1000)
    (end,) = {queue.max_offset for queue in engine.topic("t").queues if queue.queue_id == 0}
    expire(world, engine)
    world.append(engine, 6, ("t",))
    engine.groups.commit("g", {("t", engine.store_id, 0): end})
    engine.run_tiers()  # the state object counts what is hot
    cold = world.cold()
    assert cold.topic("t").queues[0].max_offset == engine.topic("t").queues[0].max_offset
    for offset in (0, end):
        page = cold.pull("t", 0, offset, 10)
        assert (page.status, page.next_offset) == (PullStatus.NO_NEW_MESSAGE, offset)
    assert cold.offset_by_time("t", 0, world.clock.now_ms(), Boundary.LOWER) == 0
