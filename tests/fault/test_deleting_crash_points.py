"""A deletion that is killed anywhere is either not begun or goes on: the topic is never back, nothing else is lost."""

from __future__ import annotations

import threading

import pytest

from tests.support.fs.crash_fs import PowerCut
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.deleted_topics import has_topic, note_deletion, verify_gone, verify_others
from tests.support.stores.removal_world import Killed, RemovalWorld, WatchedStore, kill_at
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message


def small() -> RemovalWorld:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 16)
    engine.archive(everything=True)
    world.append(engine, 6)
    engine.close()
    return world


def delete(engine: Store) -> bool:
    """Whether the deletion was acknowledged before the process was killed."""
    try:
        engine.removal.delete_topic("t")
    except (Killed, PowerCut):
        return False
    return True


def verify_either(world: RemovalWorld, *, acknowledged: bool) -> bool:
    """After a restart the topic is there with every message, or gone for every reader; whether it is gone."""
    dead = FaultyObjectStore(world.objects)
    dead.die()
    engine = world.open(objects=dead)
    is_gone = not has_topic(engine, "t")
    assert is_gone or not acknowledged
    engine = world.open()
    assert has_topic(engine, "t") != is_gone
    engine.run_tiers()
    if is_gone:
        verify_gone(engine, world, "t")
        verify_gone(world.cold(), world, "t")
        verify_others(engine, world, "t")
    else:
        world.verify(engine)
        engine.removal.delete_topic("t")
    note_deletion(world, "t")
    world.append(engine, 4)
    world.verify(engine)
    world.finish(engine)
    world.verify(engine)
    assert engine.check(deep=True) == []
    for number, one in enumerate(world.sent):
        assert world.bucket_holds(one.message.body) != world.is_erased(number)
    return is_gone


@pytest.mark.slow
def test_killed_at_every_request() -> None:
    outcomes = []
    for number in range(1, 100):
        world = small()
        watched = WatchedStore(world.objects)
        engine = world.open(objects=watched)
        kill_at(watched, number, after=False)
        acknowledged = delete(engine)
        outcomes.append((acknowledged, verify_either(world, acknowledged=acknowledged)))
        if acknowledged:
            break
    assert outcomes[:-1] == [(False, True)] * (len(outcomes) - 1)  # the first request is behind the local mark
    assert len(outcomes) > 5
    assert outcomes[-1] == (True, True)


@pytest.mark.slow
def test_power_cut_at_every_write(seed: int) -> None:
    outcomes = set()
    for number in range(1, 200, 2):
        world = small()
        engine = world.open()
        world.fs.cut_at = world.fs.calls + number
        acknowledged = delete(engine)
        world.fs = world.fs.crash(seed + number)
        outcomes.add((acknowledged, verify_either(world, acknowledged=acknowledged)))
        if acknowledged:
            break
    assert outcomes == {(False, False), (False, True), (True, True)}


def test_an_acknowledged_deletion_survives_a_power_cut(seed: int) -> None:
    world = small()
    engine = world.open()
    assert delete(engine)
    world.fs = world.fs.crash(seed, lose_everything=True)
    assert verify_either(world, acknowledged=True)


@pytest.mark.parametrize("create_topics", [True, False], ids=["made-on-write", "not-made"])
def test_an_append_that_races_with_a_deletion_is_before_it_or_behind_it(create_topics: bool) -> None:
    world = RemovalWorld(hot__segment_bytes=1 << 16)
    settings = world.settings.model_copy(update={"create_topics": create_topics})
    world.settings = settings
    engine = world.open()
    engine.create_topic("t", 2)
    acknowledged: list[tuple[int, bytes]] = []
    begun = threading.Barrier(4)
    failed: list[BaseException] = []

    def produce(writer: int) -> None:
        begun.wait()
        try:
            for number in range(40):
                body = f"{writer}-{number}".encode()
                (at,) = engine.append([Message("t", body)], Durability.ASYNC)
                acknowledged.append((int(at.message_id[-16:], 16), body))
        except TopicNotFoundError:
            assert not create_topics
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=produce, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    ends = [engine.removal.delete_topic("t")["below_offset"]]
    for thread in threads:
        thread.join()
    assert failed == []
    engine.flush()
    expected = sorted(body for offset, body in acknowledged if offset >= ends[0])
    if not create_topics:
        assert expected == []
        assert not has_topic(engine, "t")
        return
    if not has_topic(engine, "t"):  # all of them were before
        assert expected == []
        return
    seen = []
    for queue in engine.topic("t").queues:
        offset = queue.min_offset
        while offset < queue.max_offset:
            page = engine.pull("t", queue.queue_id, offset, 100)
            seen += [message.record.body for message in page.messages]
            offset = page.next_offset
    assert sorted(seen) == expected
    engine.close()
