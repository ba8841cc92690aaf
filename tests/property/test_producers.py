"""Whatever is sent again, cut off, killed or restarted: each message of a producer is in the log once."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from tests.support.fs.crash_fs import PowerCut
from tests.support.stores.power_world import tiny_settings
from tests.support.world import World
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability, PullStatus
from tierlog.tiering.message.batch import Message

PRODUCERS = ("first", "second", "third")
TOPICS = ("orders", "payments")


def message(topic: str, producer: str, number: int) -> Message:
    size = number * 37 % 400 if number % 50 else 3000
    return Message(topic, f"{producer} {number} {'x' * size}".encode(), [f"k{number}"], "t", {"p": producer})


class ToldWorld(World):
    """A store on a disk that forgets, what producers have sent to it, and what they were told."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(settings=tiny_settings(8192), seed=seed)
        self.sent: dict[tuple[str, str], int] = {}
        self.told: dict[tuple[str, str, int], Appended] = {}
        self.open()

    def send(self, topic: str, producer: str, first: int, end: int) -> None:
        key = topic, producer
        self.sent[key] = max(end, self.sent.get(key, 0))
        durability = self.chance.choice([Durability.FLUSHED, Durability.FLUSHED, Durability.ASYNC])
        messages = [message(topic, producer, number) for number in range(first, end)]
        results = self.engine.append(messages, durability, IdempotencyKey(producer, first))
        assert len(results) == len(messages)
        for number, result in enumerate(results, first):
            before = self.told.get((*key, number))
            assert before in (None, result), f"{key} {number} was told another place"
            if durability is Durability.FLUSHED:
                self.told[(*key, number)] = result

    def step(self) -> None:
        topic, producer = self.chance.choice(TOPICS), self.chance.choice(PRODUCERS)
        high = self.sent.get((topic, producer), 0)
        what = self.chance.randrange(20)
        if what < 12:
            first = self.chance.choice([high, max(0, high - self.chance.randrange(40)), 0])
            first = min(first, high)
            self.send(topic, producer, first, first + self.chance.choice([1, 1, 2, 5, 30]))
        elif what < 14:
            self.engine.append([Message(topic, b"of nobody TL_PID\x01x")] * self.chance.randrange(1, 9))
        elif what < 16:
            self.engine.archive(everything=True, drop_hot=self.chance.random() < 0.6)
        elif what < 18:
            self.engine.flush()
        else:
            self.clock.advance(self.chance.choice([1, 40_000]))
            self.engine.run_tiers()

    def crash(self, step: Any) -> None:
        """Take a step on a disk whose power goes somewhere in it, or whose process is killed there."""
        self.fs.cut_at = self.fs.calls + self.chance.randrange(1, 12)
        with contextlib.suppress(PowerCut):
            step()
        if self.chance.random() < 0.5:
            self.fs = self.fs.after_kill()
        else:
            self.cut_power(self.chance.randrange(1 << 30))
        self.open()


def everything(engine: Store) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for topic in engine.topics():
        for queue in topic.queues:
            offset = 0
            while True:
                page = engine.pull(topic.name, queue.queue_id, offset, 1000)
                for one in page.messages:
                    found.setdefault(topic.name.encode() + b" " + one.record.body, []).append(one.record.message_id)
                    assert not one.properties.keys() & {"TL_PID", "TL_SEQ"}
                if page.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_TOO_LARGE):
                    break
                offset = page.next_offset
    return found


@pytest.mark.parametrize("run", range(6))
def test_each_message_is_there_once(seed: int, run: int) -> None:
    world = ToldWorld(seed + run)
    chance = world.chance
    for _ in range(40):
        what = chance.randrange(12)
        if what == 0:
            world.reopen()
        elif what < 4:
            world.crash(world.step)
        else:
            world.step()
    for (topic, producer), high in world.sent.items():
        at = 0
        while at < high:
            end = min(high, at + chance.randrange(1, 50))
            world.send(topic, producer, at, end)
            at = end
    world.engine.flush()
    found = everything(world.engine)
    for (topic, producer), high in world.sent.items():
        for number in range(high):
            one = message(topic, producer, number)
            assert len(found[topic.encode() + b" " + one.body]) == 1, f"{producer} {number} of {topic}"
            told = world.told.get((topic, producer, number))
            assert told is None or [told.message_id] == found[topic.encode() + b" " + one.body]
    assert world.engine.check(deep=True) == []
    world.engine.close()
