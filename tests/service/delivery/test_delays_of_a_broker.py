"""What waited at a broker's levels of delay fires once in the store that was promoted, and what it had sent on does
not fire again."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.engines import small_settings
from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog, FollowedWorld
from tests.support.world import World
from tierlog.service.delivery.copies import messages_from
from tierlog.service.delivery.timers import Timers
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.service.engine.store import Store
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.format.properties import UNIQ_KEY, encode_properties
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC

LEVEL, DELAY_MS = 3, 10_000
_HOST = bytes((10, 0, 0, 1)) + (54321).to_bytes(4)


def append(store: Store, topic: str, queue_id: int, body: str, *, tries: int = 0, **properties: str) -> None:
    batch = ClientMessages(1 << 20)
    batch.add(
        topic, queue_id, body.encode(), encode_properties({UNIQ_KEY: body, **properties}), flag=0,
        born_ms=store.now_ms(), born_host=_HOST, reconsume_times=tries,
    )  # fmt: skip
    store.append(batch)


def brokers_log(world: World) -> BrokerLog:
    """Messages 0 to 7 wait, sent a second apart; the broker has sent on 0 and 1, and retries of others' came before."""
    store = world.open()
    store.create_topic("orders", 2)
    store.create_topic(SCHEDULE_TOPIC, 18)
    real = {"REAL_TOPIC": "orders", "REAL_QID": "1", "DELAY": str(LEVEL), "KEYS": "k"}
    for number in range(8):
        append(store, SCHEDULE_TOPIC, LEVEL - 1, f"m{number}", tries=2, **real)
        world.clock.advance(1_000)
    append(store, "orders", 1, "m2", tries=1)  # the try before
    world.clock.advance(2_000)
    for number in range(2):
        append(store, "orders", 1, f"m{number}", tries=2, REAL_TOPIC="orders", REAL_QID="1")
        world.clock.advance(1_000)
    append(store, "orders", 0, "last")
    log = store._hot.log
    data = b"".join(bytes(segment.data) for segment in log.segments())[: log.end]
    store.close()
    return BrokerLog(data)


def following() -> tuple[FollowedWorld, FollowedStore, BrokerLog]:
    """A store that has all of a broker's log."""
    before = World(settings=small_settings(hot__segment_bytes=SEGMENT_BYTES), url=None)
    log = brokers_log(before)
    world = FollowedWorld(url=None, clock=before.clock)
    store = world.open()
    log.feed(store)
    return world, store, log


@pytest.fixture
def world() -> FollowedWorld:
    """A store that followed it to its end and was promoted."""
    world, store, _ = following()
    store.copy_groups([], {LEVEL: 1})  # a moment before 1 was sent on
    store.promote()
    store.close()
    return world


def opened(world: World) -> Timers:
    return Timers(world.open(), world.clock, SeededRandomness(1))


def fired(store: Store) -> list[str]:
    found = messages_from(store, "orders", 1, 0)
    return sorted(message.record.body.decode() for message in found if message.record.reconsume_times == 2)


def test_each_fires_at_its_time_and_none_twice(world: FollowedWorld) -> None:
    ordinary = world.ordinary()
    timers = opened(ordinary)
    assert timers.run_once() == 1  # 2 was due a moment after the broker had gone
    assert fired(ordinary.engine) == ["m0", "m1", "m2"]
    ordinary.clock.advance(2_000)
    assert timers.run_once() == 2
    ordinary.clock.advance(DELAY_MS)
    timers = opened(ordinary)
    assert timers.run_once() == 3
    assert fired(ordinary.engine) == [f"m{number}" for number in range(8)]
    copies = list(messages_from(ordinary.engine, "orders", 1, 0))
    assert copies[-1].record.properties.keys() == {UNIQ_KEY, "KEYS", "REAL_TOPIC", "REAL_QID"}
    assert opened(ordinary).run_once() == 0
    assert ordinary.engine.check() == []


@pytest.mark.parametrize("seed", range(3))
def test_none_is_lost_and_none_fires_twice_wherever_the_power_is_cut(world: FollowedWorld, seed: int) -> None:
    cuts, disk = 0, world.fs
    for cut_at in range(1 + seed, 3_000, 11):
        world.fs = disk.after_kill(cut_at=cut_at)
        ordinary = world.ordinary()
        try:
            timers = opened(ordinary)
            timers.run_once()
            ordinary.engine.close()
        except PowerCut:
            cuts += 1
        else:
            break
        ordinary.fs = _crashed(ordinary.fs, cut_at)
        ordinary.clock.advance(DELAY_MS)
        opened(ordinary).run_once()
        assert Counter(fired(ordinary.engine)) == Counter(f"m{number}" for number in range(8)), cut_at
        ordinary.clock.advance(-DELAY_MS)
    assert cuts > 3


def _crashed(fs: CrashFileSystem, seed: int) -> CrashFileSystem:
    return fs.crash(seed, lose_everything=seed % 3 == 0)


def test_the_log_of_what_waits_stays_while_the_broker_is_followed() -> None:
    _, store, log = following()
    store.flush()
    store.store._hot.dispatch()
    assert store.keep_delayed(log.end, 0) == log.end  # nothing is known of levels
    store.copy_groups([], {LEVEL: 2, 4: 9})
    (third,) = list(messages_from(store.store, SCHEDULE_TOPIC, LEVEL - 1, 2))[:1]
    assert store.keep_delayed(log.end, 0) == third.record.physical_offset
    store.copy_groups([], {LEVEL: 8})
    assert store.keep_delayed(log.end, 0) == log.end
