"""Followed brokers with their stores, the door that answers for them, and a nameserver that hears of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.rocketmq.fake_broker import FakeBroker
from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.rocketmq.remoting_world import listen
from tests.support.stores.engines import small_settings
from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog, FollowedWorld, broker_log
from tests.support.world import World
from tierlog.service.access.control import AccessControl
from tierlog.service.config.settings import Settings
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.service.follow.answering.door import AnsweringDoor
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import RequestCode

CLUSTER = "DefaultCluster"


@dataclass
class Followed:
    """One broker: its log, the broker as it lives, and the store that follows it."""

    log: BrokerLog
    live: FakeBroker
    engine: FollowedStore
    broker: FollowedBroker

    def keep_from(self, offset: int) -> None:
        """The broker has removed what lies below."""
        self.live.tell_bounds(offset, self.log.end)


def log_of(messages: Sequence[Message]) -> BrokerLog:
    """The log of a broker that has these messages, a second between each six of them."""
    world = World(settings=small_settings(hot__segment_bytes=SEGMENT_BYTES), url=None)
    store = world.open()
    for topic in {one.topic for one in messages}:
        store.create_topic(topic, max(one.queue_id for one in messages if one.topic == topic) + 1 or 1)
    for first in range(0, len(messages), 6):
        store.append(list(messages[first : first + 6]))
        world.clock.advance(1000)
    hot = store._hot
    data = b"".join(bytes(segment.data) for segment in hot.log.segments())[: hot.log.end]
    store.close()
    return BrokerLog(data)


class AnsweringWorld:
    """The door and what is behind it."""

    def __init__(self, door: AnsweringDoor, address: str, followed: Sequence[Followed], nameserver: FakeBroker) -> None:
        self.door = door
        self.address = address
        self.followed = followed
        self.nameserver = nameserver

    def client(self, **more: Any) -> RemotingClient:
        """Connects."""
        return RemotingClient(self.address, **more)

    def registered(self, name: str) -> Any:
        """The topics of the entry of this name that the nameserver was told last."""
        frames = [frame for frame in self.nameserver.asked if frame.code == RequestCode.REGISTER_BROKER]
        frame = next(frame for frame in reversed(frames) if frame.fields["brokerName"] == name)
        return json.loads(frame.body)["topicConfigSerializeWrapper"]["topicConfigTable"]

    def wait_until(self, holds: Callable[[], object]) -> None:
        """Waits until something holds, a minute at most."""
        until = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.01)

    def counted(self) -> dict[tuple[str, ...], float]:
        """Requests by their names and answers."""
        return dict(self.door.counts.requests.reading())


@contextmanager
def answering_world(
    root: Path, logs: Sequence[BrokerLog] | None = None, *, is_started: bool = False, **settings: Any
) -> Iterator[AnsweringWorld]:
    """Follows brokers with these logs to their ends, and answers.

    Settings of ``follow`` by their names. ``is_started``: the stores have their threads.
    """
    with ExitStack() as opened:
        nameserver = opened.enter_context(FakeBroker())
        nameserver.answer(RequestCode.GET_BROKER_CLUSTER_INFO, {"brokerAddrTable": {}})
        nameserver.answer(RequestCode.REGISTER_BROKER, b"")
        nameserver.answer(RequestCode.UNREGISTER_BROKER, b"")
        followed = []
        for number, log in enumerate([broker_log()] if logs is None else logs):
            name = f"broker-{'abc'[number]}"
            live = opened.enter_context(FakeBroker())
            world = FollowedWorld()
            seams = world.components
            engine = FollowedStore.open(
                world.root, cold_url=world.url, store_id=name, segment_bytes=log.segment_bytes, begin=0,
                settings=seams.settings, clock=SystemClock(), fs=seams.fs, randomness=seams.randomness,
                objects=seams.objects,
            )  # fmt: skip
            opened.callback(engine.close)
            log.feed(engine)
            engine.flush()
            engine.store.flush()
            if is_started:
                engine.store.start()
            broker = FollowedBroker(name, name, CLUSTER, live.address, FollowState.FOLLOWING, store=engine.store)
            followed.append(Followed(log, live, engine, broker))
            followed[-1].keep_from(0)
        overrides = {"follow.namesrv": nameserver.address, **{f"follow.{name}": to for name, to in settings.items()}}
        made, clock_of_door = Settings.load(overrides=overrides), SystemClock()
        listening = opened.enter_context(listen("127.0.0.1", 0, "follow.listen"))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        door = AnsweringDoor(
            listening, made, clock_of_door, brokers=lambda: [one.broker for one in followed], root=root,
            fs=LocalFileSystem(), address=address, control=AccessControl(made.access, clock_of_door),
        )  # fmt: skip
        door.start()
        opened.callback(door.stop, 2.0)
        yield AnsweringWorld(door, address, followed, nameserver)
