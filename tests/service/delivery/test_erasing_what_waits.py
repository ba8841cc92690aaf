"""What waits for a topic is erased with it: it is never delivered, and its bytes go, wherever the record lies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.stores.delay_world import TOPIC, DelayWorld
from tests.support.stores.removal_world import Killed, WatchedStore, bucket_holds
from tierlog.index.search.query import Query
from tierlog.service.delivery.copies import messages_from
from tierlog.service.delivery.transactions import TransactionOutcome, Transactions, half_message
from tierlog.tiering.base.errors import MessageNotFoundError
from tierlog.tiering.format.properties import UNIQ_KEY, encode_properties
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.stored_message import offset_in_message_id
from tierlog.tiering.message.waiting import HALF_TOPIC, TIMER_TOPIC

LATER_MS = 3_600_000
#: What is erased, and what waits for another topic, or with another key.
GONE, OTHER = "erased", "of another topic"
WRITES = ("put", "upload", "delete")


class Way(NamedTuple):
    """How messages are erased."""

    erase: Callable[[DelayWorld], object]
    #: Whether a message of the topic with another key stays.
    is_by_key: bool


WAYS = {
    "the topic is deleted": Way(lambda world: world.engine.removal.delete_topic(TOPIC), is_by_key=False),
    "all of the topic is erased": Way(lambda world: world.engine.removal.erase(Query(TOPIC)), is_by_key=False),
    "a key is erased": Way(lambda world: world.engine.removal.erase(Query(TOPIC, f"key-{GONE}")), is_by_key=True),
    "a unique key is erased": Way(lambda world: world.engine.removal.erase(Query(TOPIC, GONE)), is_by_key=True),
}
by_each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def waiting() -> DelayWorld:
    """A world in which messages wait, for two topics, with two keys."""
    world = DelayWorld()
    world.send("now")
    world.send(GONE, LATER_MS)
    world.send("with another key", LATER_MS)
    world.send(OTHER, LATER_MS, topic="payments")
    return world


def carry_out(world: DelayWorld) -> None:
    """Overwrite what is archived, close the tombstone, and let hot copies go with all that is known of it."""
    world.archive()
    for _ in range(100):
        if not world.engine.removal.run_once():
            break
    assert not world.head().tombstones
    world.archive()
    assert not world.engine._known.saved_tombstones


def verify(world: DelayWorld, way: Way) -> None:
    """At its time, what was not erased arrives, and nothing else."""
    world.pass_time(LATER_MS)
    expected = ["now", "with another key"] if way.is_by_key else []
    assert world.bodies() == expected
    assert world.bodies("payments") == [OTHER]
    assert world.timers.pending() == 0


@by_each_way
@pytest.mark.parametrize("where", ["hot", "archived, hot copies gone", "archived after it was erased"])
@pytest.mark.parametrize("then", ["goes on", "killed", "restored"])
def test_what_waits_for_a_topic_is_erased_with_it(way: Way, where: str, then: str) -> None:
    world = waiting()
    if where == "archived, hot copies gone":
        world.archive()
    way.erase(world)
    if where != "hot":
        carry_out(world)
        assert not bucket_holds(world, GONE.encode())
        assert bucket_holds(world, OTHER.encode())
    if then == "killed":
        world.open()
    elif then == "restored":
        world.archive()
        world.engine.close()
        world.restore("other")
    verify(world, way)


@by_each_way
def test_what_had_not_been_looked_at_when_its_topic_was_erased_is_never_read(way: Way) -> None:
    world = waiting()
    assert world.pass_time(0) == 0, "all of it is loaded, and pending"
    world.archive()
    way.erase(world)
    carry_out(world)
    verify(world, way)


@by_each_way
def test_the_record_of_a_delayed_message_that_has_fired_is_erased_too(way: Way) -> None:
    world = waiting()
    world.pass_time(LATER_MS)
    world.archive()
    assert GONE in world.bodies()
    way.erase(world)
    assert GONE not in world.bodies()
    waited = [one.record.body.decode() for one in messages_from(world.engine, TIMER_TOPIC, 0, 0)]
    assert (GONE in waited, OTHER in waited) == (False, True)
    carry_out(world)
    assert not bucket_holds(world, GONE.encode())


def test_a_call_back_is_found_though_its_own_time_was_erased() -> None:
    world = DelayWorld()
    world.send("now")
    entry = world.send("called-back", LATER_MS)
    assert entry is not None
    world.clock.advance(1_000)
    world.recall(entry)
    called_ms = world.clock.now_ms()
    world.clock.advance(1_000)
    world.archive()
    world.engine.removal.erase(Query(TOPIC, from_ms=called_ms, to_ms=called_ms + 1))
    carry_out(world)
    world.open()
    world.pass_time(LATER_MS)
    assert world.bodies() == ["now"]


@by_each_way
def test_no_copy_is_appended_between_the_end_of_an_erasure_and_its_commit(way: Way) -> None:
    world = waiting()
    world.clock.advance(LATER_MS)
    world.timers.run_once()
    world.send("late " + GONE, 1, properties={"KEYS": f"key-{GONE}", UNIQ_KEY: GONE})
    world.timers._load()
    firing: list[threading.Thread] = []

    def fire_meanwhile(_: int, what: str, key: object) -> None:
        if what == "put" and str(key).endswith("/head") and not firing:
            world.clock.advance(1)
            firing.append(threading.Thread(target=world.timers.run_once))
            firing[0].start()
            firing[0].join(0.2)  # it waits for the erasure

    watched = WatchedStore(world.bucket.inner)
    watched.before = fire_meanwhile
    world.bucket.inner = watched
    way.erase(world)
    if firing:
        firing[0].join()
    else:  # the deletion was known before the archive was told
        world.pass_time(1)
    assert not [body for body in world.bodies() if GONE in body]


# transactions


def prepare(world: DelayWorld, body: str, topic: str = TOPIC) -> tuple[int, int]:
    """Send half a message; returns its offsets."""
    properties = encode_properties({UNIQ_KEY: body, "KEYS": f"key-{body}", "PGROUP": "group"})
    half = half_message(topic, 0, properties, world.clock.now_ms())
    messages = ClientMessages(1 << 20)
    messages.add(half.topic, 0, body.encode(), half.properties, born_ms=world.clock.now_ms(), born_host=bytes(8))
    (appended,) = world.engine.append(messages)
    return offset_in_message_id(appended.message_id), appended.queue_offset


@by_each_way
@pytest.mark.parametrize("where", ["hot", "archived"])
@pytest.mark.parametrize("then", ["goes on", "killed"])
def test_half_a_message_is_erased_with_the_topic_that_it_is_for(way: Way, where: str, then: str) -> None:
    world = DelayWorld()
    world.send("now")
    halves = {body: prepare(world, body) for body in (GONE, "with another key")}
    halves[OTHER] = prepare(world, OTHER, "payments")
    transactions = Transactions(world.engine, world.clock)
    assert transactions.open_count() == 3
    if where == "archived":
        world.archive()
    way.erase(world)
    if where == "archived":
        carry_out(world)
        assert not bucket_holds(world, GONE.encode())
    if then == "killed":
        transactions = Transactions(world.open(), world.clock)
    for body, half in halves.items():
        if body == GONE or (body != OTHER and not way.is_by_key):
            with pytest.raises(MessageNotFoundError):
                transactions.end(*half, TransactionOutcome.COMMIT)
        else:
            transactions.end(*half, TransactionOutcome.COMMIT)
    world.clock.advance(60_000)
    assert transactions.due_checks() == []
    assert transactions.open_count() == 0
    assert world.bodies() == (["now", "with another key"] if way.is_by_key else [])
    assert world.bodies("payments") == [OTHER]
    assert GONE.encode() not in [one.record.body for one in messages_from(world.engine, HALF_TOPIC, 0, 0)]


# killed


def erase_wholly(world: DelayWorld, way: Way) -> None:
    """Erase, and carry it out."""
    way.erase(world)
    carry_out(world)


def steps(way: Way) -> int:
    """How many writes to the bucket it takes to erase and to carry that out."""
    world = waiting()
    world.archive()
    watched = WatchedStore(world.bucket.inner)
    written = list[object]()
    watched.after = lambda _, what, key: written.append(key) if what in WRITES else None
    world.bucket.inner = watched
    erase_wholly(world, way)
    return len(written)


def kill_at_write(store: WatchedStore, number: int, *, after: bool) -> None:
    """End the process at its n-th write to the bucket, before or after it happens."""
    begun = 0

    def before(_: int, what: str, __: object) -> None:
        nonlocal begun
        begun += what in WRITES
        if what in WRITES and begun == number and not after:
            raise Killed

    def done(_: int, what: str, __: object) -> None:
        if what in WRITES and begun == number:
            raise Killed

    store.before, store.after = before, done


@pytest.mark.parametrize("name", ["the topic is deleted", "a key is erased"])
@pytest.mark.parametrize("loses", [False, True], ids=["killed", "power cut"])
def test_killed_at_any_write_what_was_acknowledged_as_erased_is_not_delivered(name: str, loses: bool) -> None:
    way = WAYS[name]
    for number in range(1, steps(way) + 1):
        for after in (False, True):
            world = waiting()
            world.archive()
            inner = world.bucket.inner
            watched = WatchedStore(inner)
            world.bucket.inner = watched
            kill_at_write(watched, number, after=after)
            with pytest.raises(Killed):
                erase_wholly(world, way)
            world.bucket.inner = inner
            if loses:
                world.cut_power(lose_everything=True)
            world.open()
            is_deleted = world.engine.find_queues(TOPIC) is None
            if not is_deleted:
                way.erase(world)  # who asked got no answer, and asks again
            for _ in range(3):
                world.engine.run_tiers()
            carry_out(world)
            assert not bucket_holds(world, GONE.encode()), (number, after)
            world.open()
            verify(world, way)
