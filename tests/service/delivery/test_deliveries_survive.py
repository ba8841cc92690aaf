"""What deliveries promise over restarts, kills, power cuts, and the loss of the volume."""

from __future__ import annotations

import pytest

from tests.support.service.delivery_world import DeliveryWorld
from tests.support.world import URL
from tierlog.service.delivery.copies import messages_from
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.engine.groups import ResetTo
from tierlog.tiering.base.errors import ClosedError, InvalidHandleError, ReadOnlyError


def test_nothing_that_was_acknowledged_comes_again_after_a_clean_restart() -> None:
    world = DeliveryWorld()
    world.send(*"abcd")
    _, b, _, d = world.receive(invisible_ms=5_000)
    world.deliveries.acknowledge(b.handle)
    world.deliveries.acknowledge(d.handle)
    world.restart()
    assert world.receive() == []  # the others are still invisible
    world.clock.advance(5_000)
    assert [(one.message.record.body, one.attempt) for one in world.receive()] == [(b"a", 2), (b"c", 2)]


def test_a_handle_is_good_after_a_clean_restart() -> None:
    world = DeliveryWorld()
    world.send(*"ab")
    a, b = world.receive(invisible_ms=5_000)
    world.restart()
    world.deliveries.acknowledge(a.handle)
    handle = world.deliveries.extend(b.handle, 7_000)
    with pytest.raises(InvalidHandleError):
        world.deliveries.acknowledge(b.handle)
    world.deliveries.acknowledge(handle)
    world.restart()
    assert (world.committed(), world.receive()) == (2, [])


def test_after_a_power_cut_only_what_was_acknowledged_since_the_last_save_comes_again(seed: int) -> None:
    world = DeliveryWorld()
    world.send(*"abc")
    a, b, _ = world.receive(invisible_ms=1_000)
    world.deliveries.acknowledge(b.handle)
    world.deliveries.save()
    world.deliveries.acknowledge(a.handle)
    world.cut_power(seed, lose_everything=True)
    world.start()
    world.clock.advance(1_000)
    assert world.bodies() == ["a", "c"]


def test_attempts_are_counted_over_a_power_cut(seed: int) -> None:
    world = DeliveryWorld()
    world.send("a")
    world.receive(invisible_ms=1_000, max_attempts=2)
    world.deliveries.save()
    world.cut_power(seed, lose_everything=True)
    world.start()
    world.clock.advance(1_000)
    assert [one.attempt for one in world.receive(invisible_ms=1_000, max_attempts=2)] == [2]
    world.deliveries.save()
    world.cut_power(seed, lose_everything=True)
    world.start()
    world.clock.advance(1_000)
    assert world.receive(max_attempts=2) == []
    assert [letter.record.body for letter in world.dead_letters()] == [b"a"]


def test_a_group_in_order_stays_in_order_over_a_power_cut(seed: int) -> None:
    world = DeliveryWorld()
    world.send("a1", line="A")
    world.send("a2", line="A")
    world.send("b1", line="B")
    assert world.bodies(fifo=True, invisible_ms=5_000) == ["a1", "b1"]
    world.deliveries.save()
    world.cut_power(seed, lose_everything=True)
    world.start()
    assert world.bodies(fifo=True) == []
    world.clock.advance(5_000)
    assert world.bodies(fifo=True) == ["a1", "b1"]


def test_a_dead_letter_is_there_once_when_its_message_is_given_up_again_after_a_power_cut(seed: int) -> None:
    world = DeliveryWorld()
    world.send("a")
    (only,) = world.receive(invisible_ms=1_000)
    world.deliveries.save()
    world.deliveries.forward_to_dead_letters(only.handle, reason="first")
    world.cut_power(seed, lose_everything=True)
    world.start()
    assert len(world.dead_letters()) == 1
    world.clock.advance(1_000)
    (again,) = world.receive()
    world.deliveries.forward_to_dead_letters(again.handle, reason="second")
    assert [letter.properties["DLQ_REASON"] for letter in world.dead_letters()] == ["first"]
    world.restart()
    assert world.committed() == 1


def test_a_reset_while_nobody_received_holds_after_a_restart() -> None:
    world = DeliveryWorld()
    world.send(*"abc")
    a, _, c = world.receive(invisible_ms=1_000)
    for one in (a, c):
        world.deliveries.acknowledge(one.handle)
    world.deliveries.close()
    world.engine.groups.reset("g", ResetTo("first"))
    world.engine.close()
    world.start()
    assert world.bodies() == ["a", "b", "c"]


def test_a_reset_that_was_followed_holds_though_the_group_came_further_before_a_power_cut(seed: int) -> None:
    world = DeliveryWorld()
    world.send(*"abcdef")
    first = world.receive(invisible_ms=1_000)
    for one in (*first[:3], first[4]):
        world.deliveries.acknowledge(one.handle)
    world.deliveries.save()
    world.engine.groups.reset("g", ResetTo("first"))
    again = world.receive(limit=4, invisible_ms=1_000)
    world.engine.groups.commit("g", {("t", world.engine.store_id, 0): 4})
    assert len(again) == 4
    world.cut_power(seed, lose_everything=True)
    world.start()
    world.clock.advance(1_000)
    assert world.bodies() == ["e", "f"]


def test_a_group_that_was_removed_leaves_nothing_to_the_next_of_its_name() -> None:
    world = DeliveryWorld()
    world.send(*"abc")
    _, b, _ = world.receive(invisible_ms=1_000)
    world.deliveries.acknowledge(b.handle)
    world.deliveries.save()
    world.engine.groups.remove("g")
    world.restart()
    assert world.bodies() == ["a", "b", "c"]


def test_deliveries_come_back_with_a_volume_that_is_restored_from_its_archive() -> None:
    world = DeliveryWorld(url=URL)
    world.send(*"abcd")
    a, b, c, _ = world.receive(invisible_ms=5_000)
    world.deliveries.acknowledge(b.handle)
    world.deliveries.nack(c.handle, delay_ms=9_000, reason="later")
    world.deliveries.save()
    world.archive()
    world.close()
    engine = world.open("new", restore=True)
    deliveries = Deliveries(engine, world.clock, world.randomness)
    deliveries.acknowledge(a.handle)
    assert deliveries.receive("g", "t", limit=9, invisible_ms=1_000) == []
    world.clock.advance(9_000)
    given = deliveries.receive("g", "t", limit=9, invisible_ms=1_000, max_attempts=1)
    assert given == []
    letters = engine.pull("%DLQ%g", 0, 1 << 32, 9).messages
    assert [letter.record.body for letter in letters] == [b"c", b"d"]
    assert letters[0].properties["DLQ_REASON"] == "later"
    deliveries.close()
    assert engine.groups.committed("g").offsets["t", "store", 0] >= 4
    engine.close()


@pytest.mark.parametrize("is_archived", [True, False])
def test_a_restored_volume_writes_no_dead_letter_that_the_archive_has(is_archived: bool) -> None:
    """The archive has what was open before the letter was written, and the letter or not."""
    world = DeliveryWorld(url=URL)
    world.send(*"ab")
    given = world.receive(invisible_ms=5_000)
    world.deliveries.save()
    world.archive()  # with both open
    if is_archived:
        world.deliveries.forward_to_dead_letters(given[0].handle, reason="first")
        world.engine.archive(everything=True)
    engine = world.open("new", restore=True)
    deliveries = Deliveries(engine, world.clock, world.randomness)
    world.clock.advance(5_000)
    for one in deliveries.receive("g", "t", limit=9, invisible_ms=1_000):
        deliveries.forward_to_dead_letters(one.handle, reason="second")
    letters = list(messages_from(engine, "%DLQ%g", 0, 0 if is_archived else engine.start_of("%DLQ%g", 0)))
    expected = [(b"a", "first" if is_archived else "second"), (b"b", "second")]
    assert [(letter.record.body, letter.properties["DLQ_REASON"]) for letter in letters] == expected
    deliveries.close()
    engine.close()


def test_nobody_is_given_anything_after_the_end() -> None:
    world = DeliveryWorld()
    world.send("a")
    (only,) = world.receive()
    world.close()
    world.deliveries.close()
    with pytest.raises(ClosedError):
        world.receive()
    with pytest.raises(ClosedError):
        world.deliveries.acknowledge(only.handle)


def test_a_store_that_is_only_read_gives_nothing_away() -> None:
    world = DeliveryWorld()
    world.send("a")
    (only,) = world.receive(invisible_ms=1_000)
    world.close()
    world.clock.advance(1_000)
    world.open(read_only=True)
    reader = Deliveries(world.engine, world.clock, world.randomness)
    for group in ("g", "new"):
        with pytest.raises(ReadOnlyError):
            reader.receive(group, "t", limit=1, invisible_ms=1_000)
    with pytest.raises(ReadOnlyError):
        reader.acknowledge(only.handle)
    reader.close()
    world.engine.close()


def test_what_is_acknowledged_is_noted_within_a_second_by_its_own_thread() -> None:
    world = DeliveryWorld()
    world.send("a")
    world.deliveries.start()
    (only,) = world.receive()
    world.deliveries.acknowledge(only.handle)
    world.until(lambda: world.committed() == 1)
    world.close()
