"""The offset of a time and the message with an id are the same wherever the border is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import pytest

from tests.support.stores.hot_stores import record
from tests.support.stores.power_world import tiny_settings
from tests.support.world import World
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    ObjectStoreUnavailableError,
    TopicNotFoundError,
)
from tierlog.tiering.base.types import Boundary, Tier
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import offset_in_message_id
from tierlog.tiering.read.fetcher import Fetcher

# Runs of equal times, long enough to cross segments of 4 KiB, with steps of one ms and of a minute.
RUNS = ((1, 3), (1, 90), (5, 1), (60_000, 70), (1, 1), (1, 55), (7, 2))


class TimedWorld(World):
    """An engine with one queue of known times, another topic and another queue between its messages."""

    def __init__(self) -> None:
        super().__init__(settings=tiny_settings(4096))
        self.times: list[int] = []
        self.ids: list[str] = []
        self.open()

    def run(self, runs: Sequence[tuple[int, int]] = RUNS) -> None:
        for step, count in runs:
            self.clock.advance(step)
            for _ in range(count):
                (mine, *_) = self.engine.append(
                    [
                        Message("orders", b"%04d" % len(self.times) + b"x" * 60, queue_id=0),
                        Message("orders", b"beside", queue_id=1),
                        Message("other", b"beside", queue_id=0),
                    ]
                )
                self.times.append(mine.store_ms)
                self.ids.append(mine.message_id)

    def cold_only(self) -> Fetcher:
        return Fetcher("store", None, self.manifest())


@pytest.fixture
def world() -> TimedWorld:
    made = TimedWorld()
    made.run()
    return made


def compare(find: Callable[[str, int, int, Boundary], int], times: list[int]) -> None:
    """Every time at which an answer may change, against the list."""
    for time_ms in sorted({time + shift for time in times for shift in (-1, 0, 1)}):
        assert find("orders", 0, time_ms, Boundary.LOWER) == bisect_left(times, time_ms), time_ms
        assert find("orders", 0, time_ms, Boundary.UPPER) == max(0, bisect_right(times, time_ms) - 1), time_ms


@pytest.mark.parametrize("archives", range(4), ids=["hot", "one half cold", "most cold", "in a page tree"])
def test_an_offset_by_time_is_that_of_one_list_in_all_states_of_the_tiers(world: TimedWorld, archives: int) -> None:
    for _ in range(archives):
        world.archive()
        world.run(RUNS[:4])
    if archives == 3:
        assert world.engine._manifest is not None
        assert world.engine._manifest.head is not None
        assert world.engine._manifest.head.log_tree, "few entries are kept in the head"
    compare(world.engine.offset_by_time, world.times)


def test_a_run_of_equal_times_over_the_border_is_followed_into_the_archive(world: TimedWorld) -> None:
    world.archive()
    world.run([(0, 5)])
    last, same = world.times[-1], world.times.count(world.times[-1])
    assert same == 7
    assert world.engine.offset_by_time("orders", 0, last, Boundary.LOWER) == len(world.times) - same
    assert world.engine.offset_by_time("orders", 0, last, Boundary.UPPER) == len(world.times) - 1
    compare(world.engine.offset_by_time, world.times)


def test_the_archive_alone_gives_the_same_answers(world: TimedWorld) -> None:
    world.archive()
    compare(world.cold_only().offset_by_time, world.times)
    with pytest.raises(TopicNotFoundError):
        world.cold_only().offset_by_time("nobody", 0, 0, Boundary.LOWER)


def test_with_all_of_a_queue_in_the_archive(world: TimedWorld) -> None:
    world.archive()
    compare(world.engine.offset_by_time, world.times)


def test_what_the_hot_messages_decide_asks_no_archive(world: TimedWorld) -> None:
    world.archive()
    archived = len(world.times)
    world.run([(1_000, 5)])
    world.bucket.die()
    first_ms = world.times[archived]
    for time_ms, boundary, offset in (
        (first_ms + 1, Boundary.LOWER, archived + 5),
        (first_ms, Boundary.UPPER, archived + 4),
        (first_ms + 1, Boundary.UPPER, archived + 4),
    ):
        assert world.engine.offset_by_time("orders", 0, time_ms, boundary) == offset
    for boundary, time_ms in ((Boundary.LOWER, world.times[5]), (Boundary.UPPER, first_ms - 1)):
        with pytest.raises(ObjectStoreUnavailableError):
            world.engine.offset_by_time("orders", 0, time_ms, boundary)


def test_an_empty_queue_and_an_unknown_one() -> None:
    world = TimedWorld()
    world.run([(1, 1)])
    assert world.engine.offset_by_time("orders", 2 - 1, 1 << 50, Boundary.LOWER) == 1
    world.engine.create_topic("empty", 1)
    for boundary in Boundary:
        assert world.engine.offset_by_time("empty", 0, 5, boundary) == 0
    for topic, queue_id in (("nobody", 0), ("empty", 1), ("empty", -1)):
        with pytest.raises(TopicNotFoundError):
            world.engine.offset_by_time(topic, queue_id, 5, Boundary.LOWER)


def test_what_lies_below_a_border_that_rose_without_an_archive_is_not_found(world: TimedWorld) -> None:
    hot = world.engine._hot
    hot.roll()
    hot.dispatch()
    fetcher = Fetcher("store", hot, world.cold_only()._manifest)
    border = hot.log.segments()[2].base_offset
    hot.remove_below(border, forget=lambda _: None)
    first = fetcher.offsets("orders", 0)[0]
    assert 0 < first < len(world.times)
    assert fetcher.offset_by_time("orders", 0, 0, Boundary.LOWER) == first
    assert fetcher.offset_by_time("orders", 0, 0, Boundary.UPPER) == 0
    with pytest.raises(MessageNotFoundError):
        fetcher.message(world.ids[0])
    assert fetcher.message(world.ids[-1]).record.queue_offset == len(world.ids) - 1


@pytest.mark.parametrize("archives", range(4))
def test_every_id_leads_to_its_message_in_whichever_tier(world: TimedWorld, archives: int) -> None:
    for _ in range(archives):
        world.archive()
        world.run(RUNS[3:5])
    tiers = set()
    for number, message_id in enumerate(world.ids):
        found = world.engine.message(message_id if number % 2 else message_id.lower())
        assert (found.record.message_id, int(found.record.body[:4])) == (message_id, number)
        tiers.add(found.tier)
    assert tiers == {Tier.HOT} | ({Tier.COLD} if archives else set())


def test_an_id_that_no_message_has_is_not_found(world: TimedWorld) -> None:
    first, last = world.ids[0], world.ids[-1]
    other_host = f"{int(first[:8], 16) ^ 1:08X}" + first[8:]
    inside = first[:-16] + f"{offset_in_message_id(first) + 4:016X}"
    behind = last[:-16] + f"{offset_in_message_id(last) + (1 << 20):016X}"
    ipv6 = "0" * 24 + first
    for _ in range(2):
        for message_id in (other_host, inside, behind, ipv6):
            with pytest.raises(MessageNotFoundError):
                world.engine.message(message_id)
        with pytest.raises(MessageNotFoundError):
            world.engine.message(first, store_id="another")
        assert world.engine.message(first, store_id="store").record.message_id == first
        world.archive()


@pytest.mark.parametrize("wrong", ["", "0", "0" * 31, "0" * 33, "g" * 32, "F" * 32, "0" * 55, " " * 32, "é" * 32])
def test_a_malformed_id_is_refused(world: TimedWorld, wrong: str) -> None:
    with pytest.raises(InvalidRequestError):
        world.engine.message(wrong)


def test_a_body_that_looks_like_a_record_is_no_message() -> None:
    world = TimedWorld()
    world.run([(1, 1)])
    ours = world.engine.message(world.ids[0]).record
    body_at = world.engine._hot.log.end + 88  # of the next record, which has IPv4 hosts
    forged = encode_record(
        record(topic="orders", queue_id=0, queue_offset=0, physical_offset=body_at, store_host=ours.store_host)
    )
    world.engine.append([Message("orders", forged, queue_id=0)])
    forged_id = ours.message_id[:-16] + f"{body_at:016X}"
    with world.engine._hot.snapshot() as snapshot:
        assert snapshot.record(body_at).message_id == forged_id, "the forgery is where it should be"
    for _ in range(2):
        with pytest.raises(MessageNotFoundError):
            world.engine.message(forged_id)
        world.archive()


def test_a_dead_archive_is_not_taken_for_nothing_there(world: TimedWorld) -> None:
    world.archive()
    world.run([(1, 1)])
    world.bucket.die()
    with pytest.raises(ObjectStoreUnavailableError):
        world.engine.message(world.ids[0])
    assert world.engine.message(world.ids[-1]).tier is Tier.HOT
    world.engine.close()
    world.open()
    with pytest.raises(ObjectStoreUnavailableError):
        world.engine.message(world.ids[0])
    world.bucket.revive()
    assert world.engine.message(world.ids[0]).tier is Tier.COLD
    assert world.cold_only().message(world.ids[0]).record == world.engine.message(world.ids[0]).record
    with pytest.raises(MessageNotFoundError):
        world.cold_only().message(world.ids[-1])
