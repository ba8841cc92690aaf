"""Delayed messages are delivered at their time, once, whatever happens to the process, the disk or the volume."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.support.stores.delay_world import BORN_HOST, DelayWorld
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.delivery.timer_state import PendingTimers
from tierlog.service.delivery.timers import (
    MAX_DELAY_MS,
    NOTE_TOPIC,
    RecallHandle,
    Timers,
    scheduled,
)
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.format.properties import decode_properties, encode_properties
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.waiting import TIMER_TOPIC

NOW = 1_700_000_000_000


def asked(**properties: str) -> bytes:
    return encode_properties(properties)


class TestScheduled:
    @pytest.mark.parametrize(
        ("properties", "due_ms"),
        [
            ({"DELAY": "1"}, NOW + 1_000),
            ({"DELAY": "18"}, NOW + 7_200_000),
            ({"DELAY": "99"}, NOW + 7_200_000),
            ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW + 1),
            ({"TIMER_DELAY_MS": "1500"}, NOW + 1_500),
            ({"TIMER_DELAY_SEC": "3"}, NOW + 3_000),
            ({"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "1"}, NOW + 3_000),
            ({"DELAY": "2", "TIMER_DELAY_MS": "1"}, NOW + 5_000),
        ],
    )
    def test_a_delay_goes_to_the_timer_topic_with_its_time(self, properties: dict[str, str], due_ms: int) -> None:
        found = scheduled("orders", 3, asked(A="b", **properties), NOW)
        assert found is not None
        assert found[:2] == (TIMER_TOPIC, 0)
        kept = decode_properties(found.properties)
        assert found.due_ms == due_ms
        expected = {"A": "b", "TIMER_OUT_MS": str(due_ms), "REAL_TOPIC": "orders", "REAL_QID": "3"}
        assert kept.items() >= expected.items()
        assert "DELAY" not in kept  # a broker that goes on with the store would delay it once more

    @pytest.mark.parametrize(
        "properties",
        [
            {},
            {"DELAY": "0"},
            {"TIMER_DELIVER_MS": str(NOW)},
            {"TIMER_DELIVER_MS": "0"},
            {"TIMER_DELAY_MS": "-5"},
            {"MY_DELAY": "3"},
            {"TIMER_DELAY_SEC": "3", "TIMER_OUT_MS": "5"},
        ],
    )
    def test_what_asks_for_no_delay_goes_to_its_topic(self, properties: dict[str, str]) -> None:
        assert scheduled("orders", 0, asked(**properties), NOW) is None

    @pytest.mark.parametrize("value", ["soon", "1.5", "", "9" * 40])
    def test_a_delay_that_is_no_number_is_refused(self, value: str) -> None:
        for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"):
            text = f"{name}\x01{value}\x02".encode()
            if not value:
                assert scheduled("orders", 0, text, NOW) is None  # RocketMQ reads no property there
            else:
                with pytest.raises(InvalidRequestError):
                    scheduled("orders", 0, text, NOW)

    def test_a_delay_beyond_the_limit_is_refused(self) -> None:
        assert scheduled("orders", 0, asked(TIMER_DELAY_MS=str(MAX_DELAY_MS)), NOW) is not None
        with pytest.raises(InvalidRequestError, match="over the limit"):
            scheduled("orders", 0, asked(TIMER_DELAY_MS=str(MAX_DELAY_MS + 1)), NOW)

    def test_a_text_that_would_not_fit_when_it_fires_is_refused_at_once(self) -> None:
        text = asked(A="x" * 32_600, TIMER_DELAY_MS="5")
        with pytest.raises(MessageTooLargeError):
            scheduled("orders", 0, text, NOW)


def test_a_delayed_message_arrives_at_its_time_and_not_before() -> None:
    world = DelayWorld()
    world.send("a", 1_000, queue_id=1)
    assert world.pass_time(999) == 0
    assert (world.bodies(), world.timers.pending()) == ([], 1)
    assert world.pass_time(1) == 1
    assert (world.bodies(), world.timers.pending()) == (["a"], 0)
    assert world.pass_time(10_000) == 0
    assert world.bodies() == ["a"]


def test_a_fired_copy_is_what_was_sent() -> None:
    world = DelayWorld()
    world.send("a", 1_000, queue_id=1)
    born_ms, stored_ms = world.clock.now_ms() - 5, world.clock.now_ms()
    world.pass_time(1_500)
    (message,) = world.arrived()
    record = message.record
    assert (record.queue_id, record.flag, record.born_ms, record.born_host) == (1, 7, born_ms, BORN_HOST)
    assert record.properties == {
        "UNIQ_KEY": "a", "KEYS": "key-a", "TIMER_DELAY_MS": "1000", "TIMER_OUT_MS": str(stored_ms + 1_000),
        "TIMER_ENQUEUE_MS": str(stored_ms), "TIMER_DEQUEUE_MS": str(stored_ms + 1_500),
    }  # fmt: skip
    assert message.has_key("key-a")


def test_a_copy_of_a_level_has_the_properties_that_rocketmq_leaves() -> None:
    world = DelayWorld()
    world.send("a", properties={"DELAY": "1"})
    world.pass_time(1_000)
    (message,) = world.arrived()
    assert message.record.properties == {"UNIQ_KEY": "a", "KEYS": "key-a", "REAL_TOPIC": "orders", "REAL_QID": "0"}


def test_messages_arrive_in_the_order_in_which_they_are_due() -> None:
    world = DelayWorld()
    for body, delay_ms in (("c", 300), ("a", 100), ("d", 300), ("b", 200)):
        world.send(body, delay_ms)
    world.pass_time(1_000)
    assert [message.record.body for message in world.arrived()] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("way", ["killed", "closed", "power cut"])
def test_what_is_pending_fires_after_a_restart_and_what_fired_does_not(way: str) -> None:
    world = DelayWorld()
    for number in range(40):
        world.send(f"{number:02}", 100 * (1 + number * 7 % 40))
    assert world.pass_time(1_000) == 10
    if way == "closed":
        world.engine.close()
    elif way == "power cut":
        world.cut_power()
    world.open()
    assert world.pass_time(0) == 0
    assert world.timers.pending() == 30
    world.pass_time(10_000)
    assert world.bodies() == [f"{number:02}" for number in range(40)]


def test_a_restored_volume_goes_on_with_what_is_pending() -> None:
    world = DelayWorld()
    for number in range(20):
        world.send(f"{number:02}", 100 * (1 + number))
    world.pass_time(1_000)
    world.archive()
    world.engine.close()
    world.restore("other")
    assert world.pass_time(0) == 0
    world.send("later", 500)
    world.pass_time(10_000)
    assert world.bodies() == [*(f"{number:02}" for number in range(20)), "later"]


def test_a_message_that_is_only_in_the_archive_fires() -> None:
    world = DelayWorld()
    world.send("a", 30 * 86_400_000)
    world.archive()
    assert world.pass_time(30 * 86_400_000) == 1
    assert world.bodies() == ["a"]


def fill(world: DelayWorld, messages: int = 40) -> None:
    """Append enough to roll the log a few times."""
    for _ in range(messages):
        world.engine.append([Message("noise", b"x" * 5_000)])


@pytest.mark.parametrize("limit", ["age", "size"])
def test_a_store_without_an_archive_keeps_what_is_pending_and_lets_the_rest_go(limit: str) -> None:
    sizes: dict[str, object] = {"hot__max_bytes": 131_072} if limit == "size" else {"hot__retention_ms": 3_600_000}
    world = DelayWorld(settings=tiny_settings(hot__default_queues=2, **sizes), url=None)
    world.send("a", 10 * 3_600_000)
    gone = world.send("b", 10 * 3_600_000)
    assert gone is not None
    world.recall(gone)
    for number in range(9):
        fill(world)
        world.send(f"short-{number}", 1_000)
        world.pass_time(3_600_000)
        world.engine.run_tiers()
        world.timers.run_once()
        world.engine.run_tiers()
        if number % 3 == 2:
            world.reopen()
            world.timers.run_once()
    segments = [file for file in world.engine.files() if file.kind == "segment"]
    assert len(segments) <= 8  # of about thirty that were written
    assert world.timers.pending() == 2
    world.pass_time(3_600_000)
    found = [one for one in world.arrived() if one.record.body == b"a"]
    assert [int(one.record.properties["TIMER_ROLL_TIMES"]) > 1 for one in found] == [True]
    assert "b" not in world.bodies()
    world.open()
    assert world.pass_time(86_400_000) == 0


def test_the_log_stays_until_it_is_known_what_is_pending() -> None:
    world = DelayWorld(settings=tiny_settings(hot__retention_ms=60_000), url=None)
    world.send("a", 3_600_000)
    fill(world)
    world.clock.advance(1_800_000)
    world.open()
    world.engine.run_tiers()
    world.timers.run_once()
    assert world.timers.pending() == 1
    world.pass_time(1_800_000)
    assert world.bodies() == ["a"]


def test_an_archive_that_keeps_for_less_than_a_delay_keeps_the_message() -> None:
    world = DelayWorld(settings=tiny_settings(hot__default_queues=2, cold__retention_ms=86_400_000))
    world.send("a", 5 * 86_400_000)
    for _ in range(20):
        world.send("x")
        world.archive()
        world.engine.run_tiers()
        world.pass_time(21_600_000)
    assert "a" in world.bodies()


def test_messages_fire_while_the_archive_that_holds_others_does_not_answer() -> None:
    world = DelayWorld()
    world.send("cold", 1_000)
    world.pass_time(0)
    world.archive()
    world.send("hot", 1_000)
    world.bucket.die()
    world.pass_time(1_000)
    assert (world.bodies(), world.timers.pending()) == (["hot"], 1)
    assert world.timers.lag_ms() == 0
    world.pass_time(5_000)
    assert world.timers.lag_ms() == 5_000
    world.bucket.revive()
    world.pass_time(5_000)
    assert (world.bodies(), world.timers.pending()) == (["cold", "hot"], 0)
    world.open()
    world.pass_time(5_000)
    assert world.bodies() == ["cold", "hot"]


def test_what_waited_for_the_archive_fires_after_a_restart() -> None:
    world = DelayWorld()
    world.send("cold", 1_000)
    world.pass_time(0)
    world.archive()
    world.send("hot", 1_000)
    world.bucket.die()
    world.pass_time(1_000)
    world.bucket.revive()
    world.open()
    world.pass_time(0)
    assert world.bodies() == ["cold", "hot"]


def test_a_message_whose_topic_was_deleted_is_not_delivered() -> None:
    world = DelayWorld()
    world.send("now")
    world.send("later", 1_000)
    world.engine.removal.delete_topic("orders")
    world.send("after", 1_000)
    world.pass_time(1_000)
    assert world.bodies() == ["after"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_message_whose_topic_was_deleted_is_not_delivered_after_the_log_below_has_gone(is_killed: bool) -> None:
    world = DelayWorld(settings=tiny_settings(hot__default_queues=2, hot__retention_ms=3_600_000), url=None)
    for topic in ("orders", "payments"):
        world.send("now", topic=topic)
        world.send("later", 10 * 3_600_000, topic=topic)
    world.engine.removal.delete_topic("orders")
    if is_killed:
        world.open()
    for _ in range(9):
        fill(world)
        world.pass_time(3_600_000)
        world.engine.run_tiers()
        world.timers.run_once()
        world.engine.run_tiers()
    assert world.timers.pending() == 1, "it went when the other one moved in front of the log's end"
    world.pass_time(3_600_000)
    (late,) = [one for one in world.arrived("payments") if one.record.body == b"later"]
    assert int(late.record.properties["TIMER_ROLL_TIMES"]) >= 1
    assert world.engine.find_queues("orders") is None


def test_what_cannot_be_delivered_holds_nothing_up() -> None:
    world = DelayWorld()
    due = str(world.clock.now_ms() + 10)
    for properties in (
        {"TIMER_OUT_MS": due},
        {"TIMER_OUT_MS": due, "REAL_TOPIC": "no such/topic", "REAL_QID": "0"},
        {},
    ):
        world.engine.append([Message(TIMER_TOPIC, b"x", properties=properties, queue_id=0)])
    world.send("a", 10, queue_id=77)
    world.pass_time(10)
    assert (world.bodies(), world.timers.pending(), world.timers.undeliverable) == (["a"], 0, 2)


def test_what_a_broker_has_fired_is_not_fired_again_by_who_takes_its_store_over() -> None:
    world = DelayWorld()
    now_ms = world.clock.now_ms()
    for number, delay_ms in enumerate((1_000, 500_000)):
        properties = {"TIMER_OUT_MS": str(now_ms + delay_ms), "REAL_TOPIC": "orders", "REAL_QID": "0"}
        world.engine.append([Message(TIMER_TOPIC, b"of a broker %d" % number, properties=properties, queue_id=0)])
    world.clock.advance(60_000)
    world.send("now")
    world.send("ours", 1_000)
    world.open()
    world.pass_time(10_000)
    assert world.bodies() == ["now", "ours"]
    world.open()
    world.pass_time(500_000)
    assert world.bodies() == ["now", "of a broker 1", "ours"]


def test_what_is_erased_while_it_waits_is_not_delivered() -> None:
    world = DelayWorld()
    world.send("a", 1_000)
    world.send("b", 1_000)
    world.archive()
    world.engine.removal.erase(Query(TIMER_TOPIC, "key-a"))
    world.pass_time(1_000)
    assert world.bodies() == ["b"]


def test_a_note_that_was_appended_again_elsewhere_says_nothing() -> None:
    world = DelayWorld()
    world.send("a", 1_000)
    world.send("b", 5_000)
    world.pass_time(1_000)
    (note,) = world.arrived(NOTE_TOPIC)
    world.send("c", 5_000)
    world.pass_time(5_000)
    world.engine.append([Message(NOTE_TOPIC, body, queue_id=0) for body in (note.record.body, b"{}", b"no note")])
    world.open()
    world.pass_time(5_000)
    assert world.bodies() == ["a", "b", "c"]


def test_a_client_that_calls_back_by_a_message_of_its_own_reaches_only_its_topic() -> None:
    """As clients did it before there was a call for it."""
    world = DelayWorld()
    for topic in ("orders", "payments"):
        entry = world.send("a", 1_000, topic=topic)
    assert entry is not None
    world.send("recall", topic="orders", properties={
        "TIMER_DEL_UNIQKEY": "a", "TIMER_DELIVER_MS": str(entry.due_ms),
    })  # fmt: skip
    world.pass_time(1_000)
    assert (world.bodies("orders"), world.bodies("payments")) == ([], ["a"])


def test_the_thread_fires_what_is_due(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", settings=tiny_settings())
    store.start()
    timers = Timers(store, SystemClock(), SystemRandomness())
    timers.start()
    try:
        now_ms = SystemClock().now_ms()
        due = {"TIMER_OUT_MS": str(now_ms + 50), "REAL_TOPIC": "orders", "REAL_QID": "0"}
        store.append([Message("orders", b"first", queue_id=0)])
        store.append([Message(TIMER_TOPIC, b"later", properties=due, queue_id=0)])
        store.wait_for_message("orders", 0, 1, 30)
        assert [one.record.body for one in store.pull("orders", 0, 0, 9).messages] == [b"first", b"later"]
        while store.stats()["fired_messages"] != 1:
            SystemClock().wait(threading.Event(), 0.01)
        told = store.stats()
        assert (told["delayed_messages"], told["delay_lag_ms"], told["undeliverable_messages"]) == (0, 0, 0)
    finally:
        timers.close()
        store.close()
    assert timers.error is None


class TestPendingTimers:
    def test_all_come_in_the_order_in_which_they_are_due(self, seed: int) -> None:
        chance = random.Random(seed)
        pending, known = PendingTimers(), set[tuple[int, int, int]]()
        for round_number in range(60):
            fresh = [
                (chance.randrange(500), round_number * 1_000 + number, chance.randrange(1, 99))
                for number in range(chance.randrange(900))
            ]
            pending.add(fresh)
            known |= set(fresh)
            now_ms, most = chance.randrange(300), chance.randrange(1, 700)
            due = list(pending.due(now_ms, most=most, most_bytes=20_000).rows())
            expected = sorted(row for row in known if row[0] <= now_ms)[:most]
            assert due == expected[: len(due)]
            assert sum(size for _, _, size in due[:-1]) <= 20_000
            assert due or not expected
            pending.remove([offset for _, offset, _ in due])
            known -= set(due)
            assert (len(pending), pending.first()) == (len(known), min(known)[:2] if known else None)
            assert pending.least_offset() == min(offset for _, offset, _ in known)
            below = list(pending.below(round_number * 500, most=100, most_bytes=1 << 30).rows())
            assert below == sorted((row for row in known if row[1] < round_number * 500), key=lambda row: row[1])[:100]

    def test_a_million_take_twenty_megabytes(self) -> None:
        pending = PendingTimers()
        for start in range(0, 1_000_000, 10_000):
            pending.add((offset * 7919 % 1_000_003, offset, 300) for offset in range(start, start + 10_000))
        assert len(pending) == 1_000_000
        assert pending.held_bytes() == 20_000_000


def test_a_clock_that_steps_back_fires_nothing_twice() -> None:
    world = DelayWorld()
    world.send("a", 1_000)
    world.send("b", 5_000)
    world.clock.step(3_600_000)
    assert world.timers.run_once() == 2
    world.clock.step(-3_600_000)
    world.send("c", 1_000)
    for _ in range(3):
        world.open()
        world.pass_time(500)
    assert world.bodies() == ["a", "b", "c"]


def test_a_message_that_is_called_back_never_fires() -> None:
    world = DelayWorld()
    first, _ = world.send("a", 1_000), world.send("b", 1_000)
    assert first is not None
    assert world.recall(first) == "a"
    world.open()
    world.pass_time(10_000)
    world.open()
    world.pass_time(10_000)
    assert world.bodies() == ["b"]


def test_a_message_that_has_fired_cannot_be_called_back() -> None:
    world = DelayWorld()
    entry = world.send("a", 1_000)
    assert entry is not None
    world.pass_time(1_000)
    with pytest.raises(InvalidRequestError, match="timestamp"):
        world.recall(entry)


def test_a_handle_is_what_rocketmq_makes() -> None:
    handle = RecallHandle("orders", "broker-a", 1_700_000_000_001, "AC11")
    assert handle.encode() == "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgQUMxMQ=="
    assert RecallHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize("handle", ["", "!", "djIgYSBiIDEgYw==", "djEgYSBiIHggYw==", "djEgYQ==", "é"])
def test_a_handle_that_is_none_is_refused(handle: str) -> None:
    with pytest.raises(InvalidRequestError, match="handle"):
        DelayWorld().timers.recall("a", handle)
