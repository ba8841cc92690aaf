"""Deliveries of a store to groups: acknowledged one by one, given again, given up, in order, bounded."""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.service.delivery_world import DeliveryWorld
from tests.support.world import URL
from tierlog.index.search.query import Query
from tierlog.service.delivery import deliveries as deliveries_module
from tierlog.service.delivery import queue_deliveries
from tierlog.service.delivery.copies import CopiedMessages
from tierlog.service.delivery.deliveries import Delivery, DeliveryCounts
from tierlog.service.delivery.group_topics import origin_topic, properties_of_retry
from tierlog.service.engine.groups import ResetTo
from tierlog.tiering.base.errors import (
    InFlightError,
    InvalidHandleError,
    InvalidRequestError,
    TopicNotFoundError,
    UnavailableError,
)


@pytest.fixture
def world() -> Iterator[DeliveryWorld]:
    world = DeliveryWorld()
    yield world
    world.close()


def test_each_message_is_given_once_while_it_is_invisible(world: DeliveryWorld) -> None:
    world.send(*"abcde")
    assert world.bodies(limit=3) == ["a", "b", "c"]
    assert world.bodies(limit=3) == ["d", "e"]
    assert world.bodies() == []


def test_a_message_comes_again_with_its_next_attempt_when_its_time_is_over(world: DeliveryWorld) -> None:
    world.send("a")
    (first,) = world.receive(invisible_ms=10_000)
    assert (first.attempt, first.invisible_until_ms) == (1, world.clock.now_ms() + 10_000)
    world.clock.advance(9_999)
    assert world.receive() == []
    world.clock.advance(1)
    (second,) = world.receive()
    assert second.message.record.queue_offset == first.message.record.queue_offset
    assert second.attempt == 2


def test_what_is_due_again_comes_before_what_is_new(world: DeliveryWorld) -> None:
    world.send(*"ab")
    world.receive(invisible_ms=1_000)
    world.send("c")
    world.clock.advance(1_000)
    assert world.bodies(limit=2) == ["a", "b"]
    assert world.bodies() == ["c"]


def test_an_acknowledged_message_never_comes_again(world: DeliveryWorld) -> None:
    world.send(*"abc")
    _, b, _ = world.receive(invisible_ms=1_000)
    world.deliveries.acknowledge(b.handle)
    world.clock.advance(1_000)
    assert world.bodies() == ["a", "c"]


def test_the_committed_offset_is_the_first_message_that_is_not_done(world: DeliveryWorld) -> None:
    world.send(*"abc")
    a, b, c = world.receive()
    world.deliveries.acknowledge(b.handle)
    world.deliveries.acknowledge(c.handle)
    world.deliveries.save()
    assert world.committed() == 0
    world.deliveries.acknowledge(a.handle)
    world.deliveries.save()
    assert world.committed() == 3
    (queue,) = world.engine.groups.describe("g").queues
    assert queue.lag == 0


def test_two_groups_get_every_message_each(world: DeliveryWorld) -> None:
    world.send("a")
    assert world.bodies() == world.bodies(group="h") == ["a"]


def test_the_handle_of_an_earlier_delivery_is_refused(world: DeliveryWorld) -> None:
    world.send("a")
    (first,) = world.receive(invisible_ms=1_000)
    world.clock.advance(1_000)
    (second,) = world.receive()
    for use in (world.deliveries.acknowledge, world.deliveries.nack, world.deliveries.forward_to_dead_letters):
        with pytest.raises(InvalidHandleError, match="delivered again"):
            use(first.handle)
    world.deliveries.acknowledge(second.handle)
    with pytest.raises(InvalidHandleError, match="done"):
        world.deliveries.acknowledge(second.handle)


def test_a_handle_whose_time_is_over_counts_until_the_message_is_given_again(world: DeliveryWorld) -> None:
    world.send("a")
    (only,) = world.receive(invisible_ms=1_000)
    world.clock.advance(5_000)
    world.deliveries.acknowledge(only.handle)
    assert world.receive() == []


@pytest.mark.parametrize("handle", ["", "g.t.0.0.1", "g.t.0.0.1.x", "g.t.0.0.1.1.1", "g t.t.0.0.1.1", "é.t.0.0.1.1"])
def test_a_text_that_is_no_handle_is_refused(world: DeliveryWorld, handle: str) -> None:
    with pytest.raises(InvalidHandleError):
        world.deliveries.acknowledge(handle)


def test_the_handle_of_another_group_does_nothing_to_this_one(world: DeliveryWorld) -> None:
    world.send("a")
    (of_g,) = world.receive(invisible_ms=1_000)
    (of_h,) = world.receive(group="h", invisible_ms=1_000)
    assert of_g.handle != of_h.handle
    world.deliveries.acknowledge(of_h.handle)
    world.clock.advance(1_000)
    assert world.bodies() == ["a"]
    assert world.bodies(group="h") == []


def test_more_time_gives_a_new_handle_and_ends_the_old_one(world: DeliveryWorld) -> None:
    world.send("a")
    (only,) = world.receive(invisible_ms=1_000)
    handle = world.deliveries.extend(only.handle, 5_000)
    with pytest.raises(InvalidHandleError):
        world.deliveries.acknowledge(only.handle)
    world.clock.advance(4_999)
    assert world.receive() == []
    world.deliveries.acknowledge(handle)
    world.clock.advance(1)
    assert world.receive() == []


def test_no_more_time_gives_the_message_back_at_once(world: DeliveryWorld) -> None:
    world.send("a")
    (only,) = world.receive()
    world.deliveries.extend(only.handle, 0)
    assert [one.attempt for one in world.receive()] == [2]


def test_a_message_that_was_not_done_waits_as_long_as_rocketmq_lets_it(world: DeliveryWorld) -> None:
    world.send("a")
    for attempt, wait_ms in enumerate((10_000, 30_000, 60_000, 120_000), start=1):
        (only,) = world.receive()
        assert only.attempt == attempt
        world.deliveries.nack(only.handle, reason="busy")
        world.clock.advance(wait_ms - 1)
        assert world.receive() == []
        world.clock.advance(1)
    assert len(world.receive()) == 1


def test_a_consumer_may_say_how_long_a_message_waits(world: DeliveryWorld) -> None:
    world.send("a")
    (only,) = world.receive()
    world.deliveries.nack(only.handle, delay_ms=700)
    world.clock.advance(699)
    assert world.receive() == []
    world.clock.advance(1)
    assert world.bodies() == ["a"]


def test_a_message_that_was_given_too_often_becomes_a_dead_letter_with_all_it_had(world: DeliveryWorld) -> None:
    world.send("a", keys=("k1", "k2"), tag="red", properties={"color": "blue"})
    for _ in range(3):
        (given,) = world.receive(invisible_ms=1_000, max_attempts=3)
        world.clock.advance(1_000)
    assert world.receive(max_attempts=3) == []
    world.deliveries.save()
    assert world.committed() == 1
    (letter,) = world.dead_letters()
    origin = given.message.record
    assert (letter.record.body, letter.keys, letter.tag) == (b"a", ["k1", "k2"], "red")
    assert letter.record.born_ms == origin.born_ms
    assert letter.properties == {
        "color": "blue",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": origin.message_id,
        "DLQ_ORIGIN_TOPIC": "t",
        "DLQ_ORIGIN_MESSAGE_ID": origin.message_id,
    }


def test_the_last_refusal_makes_a_dead_letter_that_says_why(world: DeliveryWorld) -> None:
    world.send("a")
    (only,) = world.receive(max_attempts=1)
    world.deliveries.nack(only.handle, reason="no such account")
    (letter,) = world.dead_letters()
    assert letter.properties["DLQ_REASON"] == "no such account"
    world.clock.advance(1 << 40)
    assert world.receive() == []


def test_a_consumer_may_give_a_message_up(world: DeliveryWorld) -> None:
    world.send(*"ab")
    a, _ = world.receive(invisible_ms=1_000)
    world.deliveries.forward_to_dead_letters(a.handle, reason="broken")
    assert [letter.record.body for letter in world.dead_letters()] == [b"a"]
    world.clock.advance(1_000)
    assert world.bodies() == ["b"]


def test_a_message_that_cannot_become_a_dead_letter_holds_up_no_other(world: DeliveryWorld) -> None:
    world.send(*"ab")
    world.receive(limit=1, invisible_ms=1_000, max_attempts=1)
    with world.full_disk():
        assert world.bodies(max_attempts=1) == ["b"]
        assert world.dead_letters() == []
    world.clock.advance(10_000)
    world.receive(max_attempts=1)
    assert [letter.record.body for letter in world.dead_letters()] == [b"a"]


# in order


def test_the_next_message_of_a_group_waits_until_the_last_one_is_done(world: DeliveryWorld) -> None:
    world.send("a1", line="A")
    world.send("b1", line="B")
    world.send("a2", line="A")
    world.send("x")
    world.send("b2", line="B")
    world.send("y")
    found = {one.message.record.body.decode(): one for one in world.receive(fifo=True)}
    assert list(found) == ["a1", "b1", "x", "y"]
    assert world.bodies(fifo=True) == []
    world.deliveries.acknowledge(found["b1"].handle)
    assert world.bodies(fifo=True) == ["b2"]
    world.deliveries.forward_to_dead_letters(found["a1"].handle)
    assert world.bodies(fifo=True) == ["a2"]


def test_a_message_that_comes_again_keeps_its_successors_waiting(world: DeliveryWorld) -> None:
    world.send("a1", line="A")
    world.send("a2", line="A")
    (first,) = world.receive(fifo=True, invisible_ms=1_000)
    world.clock.advance(1_000)
    (again,) = world.receive(fifo=True, invisible_ms=1_000)
    assert again.message.record.body == b"a1"
    world.deliveries.nack(again.handle, delay_ms=5_000)
    world.clock.advance(4_999)
    assert world.receive(fifo=True) == []
    world.clock.advance(1)
    assert world.bodies(fifo=True) == ["a1"]
    assert first.handle != again.handle


def test_one_group_that_waits_lets_others_pass_for_more_than_a_page(world: DeliveryWorld) -> None:
    for number in range(30):
        world.send(f"a{number}", line="A")
    world.send("b", line="B")
    assert world.bodies(fifo=True, limit=4) == ["a0", "b"]


# what belongs together


def test_the_same_attempt_gets_the_same_messages_again(world: DeliveryWorld) -> None:
    world.send(*"abcd")
    first = world.receive(limit=2, attempt_id="x")
    again = world.receive(limit=2, attempt_id="x")
    assert [one.message for one in again] == [one.message for one in first]
    assert [one.attempt for one in again] == [1, 1]
    world.deliveries.acknowledge(again[0].handle)
    assert [one.message for one in world.receive(limit=2, attempt_id="x")] == [first[1].message]
    assert world.bodies(limit=4, attempt_id="y") == ["c", "d"]


def test_an_attempt_whose_messages_are_done_gets_new_ones(world: DeliveryWorld) -> None:
    world.send(*"ab")
    (a,) = world.receive(limit=1, attempt_id="x")
    world.deliveries.acknowledge(a.handle)
    assert world.bodies(limit=1, attempt_id="x") == ["b"]


def test_an_attempt_does_not_get_what_another_consumer_has_by_now(world: DeliveryWorld) -> None:
    world.send("a")
    world.receive(attempt_id="x", invisible_ms=1_000)
    world.clock.advance(1_000)
    assert world.bodies() == ["a"]
    assert world.receive(attempt_id="x") == []


# where a group begins, and is set


def test_a_group_that_begins_at_the_end_gets_what_comes_after(world: DeliveryWorld) -> None:
    world.send("old")
    assert world.receive(from_latest=True) == []
    assert world.committed() == 1
    world.send("new")
    assert world.bodies(from_latest=True) == ["new"]


def test_a_group_that_begins_at_the_end_of_one_queue_does_so_in_all(world: DeliveryWorld) -> None:
    world.engine.create_topic("t", 2)
    world.send("old0", queue_id=0)
    world.send("old1", queue_id=1)
    assert world.receive(queue_id=0, from_latest=True) == []
    assert world.receive(queue_id=1, from_latest=True) == []
    world.send("new1", queue_id=1)
    assert world.bodies(queue_id=1, from_latest=True) == ["new1"]


def test_a_queue_that_is_added_later_is_read_from_its_first_message(world: DeliveryWorld) -> None:
    assert world.receive(from_latest=True) == []
    world.engine.create_topic("t", 2)
    world.send("first", queue_id=1)
    assert world.bodies(from_latest=True) == ["first"]


def test_a_group_goes_on_at_its_committed_offset(world: DeliveryWorld) -> None:
    world.send(*"abc")
    world.engine.groups.commit("g", {("t", world.engine.store_id, 0): 2})
    assert world.bodies() == ["c"]


def test_a_reset_has_messages_delivered_again_that_were_done(world: DeliveryWorld) -> None:
    world.send(*"abc")
    for one in world.receive():
        world.deliveries.acknowledge(one.handle)
    world.deliveries.save()
    world.engine.groups.reset("g", ResetTo(offset=1))
    assert world.bodies() == ["b", "c"]


def test_a_reset_to_where_the_group_is_committed_counts_too(world: DeliveryWorld) -> None:
    world.send(*"abc")
    world.deliveries.save()
    a, *_ = world.receive()
    world.deliveries.save()
    world.deliveries.acknowledge(a.handle)
    world.engine.groups.reset("g", ResetTo(offset=0))
    world.deliveries.save()
    assert world.committed() == 0
    assert world.bodies() == ["a", "b", "c"]


def test_a_handle_from_before_a_reset_is_refused(world: DeliveryWorld) -> None:
    world.send("a")
    (only,) = world.receive()
    world.deliveries.save()
    world.engine.groups.reset("g", ResetTo("first"))
    with pytest.raises(InvalidHandleError):
        world.deliveries.acknowledge(only.handle)


def test_a_reset_forward_skips_what_lies_between(world: DeliveryWorld) -> None:
    world.send(*"abcd")
    world.receive(limit=1, invisible_ms=1_000)
    world.deliveries.save()
    world.engine.groups.reset("g", ResetTo(offset=2))
    world.clock.advance(1_000)
    assert world.bodies() == ["c", "d"]


def test_a_commit_of_somebody_else_is_followed(world: DeliveryWorld) -> None:
    world.send(*"abcd")
    world.receive(limit=3, invisible_ms=1_000)
    world.deliveries.save()
    world.engine.groups.commit("g", {("t", world.engine.store_id, 0): 2})
    world.clock.advance(1_000)
    assert world.bodies() == ["c", "d"]


def test_a_group_that_was_removed_begins_anew(world: DeliveryWorld) -> None:
    world.send("a")
    (only,) = world.receive()
    world.deliveries.acknowledge(only.handle)
    world.deliveries.save()
    world.engine.groups.remove("g")
    assert world.bodies() == ["a"]


# what is not for a group


def test_messages_that_the_tag_does_not_match_are_done(world: DeliveryWorld) -> None:
    world.send("a", tag="red")
    world.send("b", tag="blue")
    world.send("c", tag="red")
    found = world.receive(tag="red")
    assert [one.message.record.body for one in found] == [b"a", b"c"]
    for one in found:
        world.deliveries.acknowledge(one.handle)
    world.deliveries.save()
    assert world.committed() == 3


def test_a_message_that_was_erased_meanwhile_is_done() -> None:
    world = DeliveryWorld(url=URL)
    world.send("a", keys=("k",))
    world.send("b")
    world.receive(invisible_ms=1_000)
    world.engine.removal.erase(Query("t", key="k"))
    world.clock.advance(1_000)
    assert world.bodies() == ["b"]


def test_a_topic_or_queue_that_is_not_there_is_named(world: DeliveryWorld) -> None:
    with pytest.raises(TopicNotFoundError):
        world.receive(topic="nothing")
    with pytest.raises(TopicNotFoundError):
        world.receive(queue_id=7)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 1025}, {"invisible_ms": 0}, {"max_attempts": 0}])
def test_a_wrong_number_is_refused(world: DeliveryWorld, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        world.receive(**wrong)


# bounds


def test_a_group_with_too_many_open_messages_gets_nothing_new_and_is_told(
    world: DeliveryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_deliveries, "MOST_OPEN", 3)
    world.send(*"abcde")
    given = world.receive()
    assert len(given) == 3
    with pytest.raises(InFlightError, match="3 messages open, 3 of them of t/0"):
        world.receive()
    world.deliveries.acknowledge(given[1].handle)
    assert world.bodies() == ["d"]


def test_the_open_messages_of_all_queues_of_a_group_are_bounded(
    world: DeliveryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries_module, "MOST_OPEN_OF_GROUP", 2)
    world.engine.create_topic("t", 2)
    for queue_id in (0, 1, 0, 1):
        world.send("m", queue_id=queue_id)
    assert len(world.receive()) == 2
    with pytest.raises(InFlightError):
        world.receive()
    assert len(world.receive(group="h")) == 2


# news


@pytest.fixture
def waits_ms(world: DeliveryWorld, monkeypatch: pytest.MonkeyPatch) -> queue.Queue[int]:
    """How long the clock was asked to wait, which does not move it here."""
    asked: queue.Queue[int] = queue.Queue()

    def wait(event: threading.Event, timeout_s: float) -> bool:
        asked.put(round(timeout_s * 1000))
        return event.wait(20)

    monkeypatch.setattr(world.clock, "wait", wait)
    return asked


@pytest.mark.usefixtures("waits_ms")
def test_who_watches_is_told_of_new_messages_and_of_those_whose_time_is_over(world: DeliveryWorld) -> None:
    assert world.receive() == []
    with world.watching() as told:
        assert not told.wait(0.05)
        world.send("a")
        assert told.wait(10)
    world.receive(invisible_ms=1_000)
    with world.watching() as told:
        world.engine.wake()
        assert not told.wait(0.05)
        world.clock.advance(1_000)
        world.engine.wake()
        assert told.wait(10)


def test_a_delivery_whose_time_is_over_is_noticed_although_nothing_comes_into_the_store(world: DeliveryWorld) -> None:
    world.send("a")
    world.receive(invisible_ms=30_000)
    over_ms = world.clock.now_ms() + 30_000
    with world.watching() as told:
        assert told.wait(10)
    assert world.clock.now_ms() == over_ms
    assert [one.attempt for one in world.receive()] == [2]


def test_who_watches_learns_that_a_delivery_ends_earlier_than_it_was_to(
    world: DeliveryWorld, waits_ms: queue.Queue[int]
) -> None:
    world.send("a")
    (one,) = world.receive(invisible_ms=60_000)
    with world.watching():
        assert waits_ms.get(timeout=10) == 60_000
        handle = world.deliveries.extend(one.handle, 20_000)
        while (waited_ms := waits_ms.get(timeout=10)) != 20_000:
            assert waited_ms == 60_000
        world.deliveries.nack(handle, delay_ms=5_000)
        while (waited_ms := waits_ms.get(timeout=10)) != 5_000:
            assert waited_ms == 20_000


@pytest.mark.usefixtures("waits_ms")
def test_who_watches_is_told_when_the_next_message_in_order_may_be_given(world: DeliveryWorld) -> None:
    world.send("a1", line="A")
    world.send("a2", line="A")
    (first,) = world.receive(fifo=True)
    with world.watching() as told:
        assert not told.wait(0.05)
        world.deliveries.acknowledge(first.handle)
        assert told.wait(10)


# what consumers sent back


def send_back(world: DeliveryWorld, one: Delivery) -> None:
    """Write a message into the group's retry topic, as the remoting door does."""
    record = one.message.record
    world.engine.make_topic("%RETRY%g", 1, may_make=True)
    batch = CopiedMessages()
    batch.add(
        "%RETRY%g", 0, record.body, properties_of_retry(record, 0), flag=record.flag, born_ms=record.born_ms,
        born_host=record.born_host, reconsume_times=record.reconsume_times + 1,
    )  # fmt: skip
    world.engine.append(batch)
    world.deliveries.acknowledge(one.handle)


def test_what_a_consumer_sent_back_comes_with_its_topic_and_counts_on(world: DeliveryWorld) -> None:
    world.send("a", tag="red")
    world.send("b", topic="u")
    for topic in ("t", "u"):
        (only,) = world.receive(topic=topic)
        send_back(world, only)
    assert [(one.message.record.body, one.attempt) for one in world.receive(topic="u", invisible_ms=1_000)] == [
        (b"b", 2)
    ]
    (again,) = world.receive(tag="red", max_attempts=2)
    assert (again.message.record.body, again.message.record.topic, again.attempt) == (b"a", "%RETRY%g", 2)
    assert origin_topic(again.message.record) == "t"
    world.clock.advance(60_000)
    assert world.receive(max_attempts=2) == []
    (letter,) = world.dead_letters()
    assert letter.properties["RETRY_TOPIC"] == letter.properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert letter.properties["ORIGIN_MESSAGE_ID"] == world.engine.pull("t", 0, 0, 1).messages[0].record.message_id
    assert letter.record.reconsume_times == 2
    assert [one.attempt for one in world.receive(topic="u")] == [3]


def test_who_asks_for_the_retries_themselves_gets_those_of_all_topics(world: DeliveryWorld) -> None:
    world.send("a")
    world.send("b", topic="u")
    for topic in ("t", "u"):
        (only,) = world.receive(topic=topic)
        send_back(world, only)
    world.receive(limit=1)
    assert [one.message.record.body for one in world.receive(topic="%RETRY%g")] == [b"b"]


def test_a_dead_letter_has_the_bytes_of_its_message(world: DeliveryWorld) -> None:
    text = b"KEYS\x01k\x02odd\x01\xff\x02TAGS\x01red\x02DELAY\x013\x02UNIQ_KEY\x01U1\x02"
    body = zlib.compress(b"hello")
    batch = world.engine.client_messages()
    batch.add("t", 0, body, text, flag=7, sys_flag=1, born_ms=1_600_000_000_000, born_host=bytes(range(8)))
    world.engine.append(batch)
    (only,) = world.receive()
    world.deliveries.forward_to_dead_letters(only.handle)
    (letter,) = world.dead_letters()
    record, origin = letter.record, only.message.record
    assert (record.body, record.flag, record.sys_flag) == (body, 7, 1)
    assert (record.born_ms, record.born_host) == (1_600_000_000_000, bytes(range(8)))
    assert record.properties_text.startswith(
        b"KEYS\x01k\x02odd\x01\xff\x02TAGS\x01red\x02UNIQ_KEY\x01U1\x02RETRY_TOPIC\x01t\x02"
        + f"ORIGIN_MESSAGE_ID\x01{origin.message_id}\x02".encode()
    )


def test_a_message_whose_properties_are_full_becomes_a_dead_letter_without_more(world: DeliveryWorld) -> None:
    world.send("a", properties={"p": "x" * (32_767 - 480)})
    (only,) = world.receive()
    world.deliveries.forward_to_dead_letters(only.handle, reason="r" * 500)
    (letter,) = world.dead_letters()
    assert letter.properties.keys() >= {"p", "RETRY_TOPIC"}
    assert "DLQ_REASON" not in letter.properties


def test_an_answer_is_bounded_in_bytes_and_the_rest_stays_to_be_given(world: DeliveryWorld) -> None:
    monster = "x" * 1_000
    world.send(*(f"{number}{monster}" for number in range(8)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries_module, "_MOST_BYTES", 2_500)
        first = world.receive(limit=1, invisible_ms=1_000)
        rest = world.receive(limit=32, invisible_ms=1_000)
        assert len(first) + len(rest) == 8  # one pull is bounded by itself
        world.clock.advance(1_000)
        world.receive(queue_id=0, limit=2, invisible_ms=1_000)
        world.deliveries.acknowledge(world.receive(limit=1, invisible_ms=1_000)[0].handle)
        again = [one for _ in range(8) for one in world.receive(limit=32, invisible_ms=1_000)]
    assert all(one.attempt == 2 for one in again)
    assert len(again) == 5


def test_deliveries_and_dead_letters_are_counted(world: DeliveryWorld) -> None:
    world.send(*"ab")
    a, _ = world.receive(invisible_ms=1_000)
    world.deliveries.forward_to_dead_letters(a.handle)
    world.clock.advance(1_000)
    world.receive()
    assert world.deliveries.counted() == DeliveryCounts(first=2, again=1, dead_letters=1, open=1)


def test_a_message_that_cannot_be_read_keeps_no_other_waiting() -> None:
    world = DeliveryWorld(url=URL)
    world.send("cold")
    world.archive()
    world.send(*"ab")
    assert world.bodies(invisible_ms=1_000) == ["cold", "a", "b"]
    world.close()
    world.bucket.die()  # and what was cached is forgotten
    world.start()
    world.clock.advance(1_000)
    with pytest.raises(UnavailableError):
        world.receive()
    assert world.bodies() == ["a", "b"]
    world.close()
