"""A store to which everything happens that moves messages, or hides some."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.archive.readers import StoreReader
from tierlog.tiering.message.batch import Message

TOPICS = ("t", "u")
QUEUES = 2
TAGS = ("", "A", "B", "AaAa")


class MovingWorld(World):
    """A store of several topics that is written to, archived, erased from, expired from and restored by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(settings=tiny_settings(hot__default_queues=QUEUES, hot__record_checksum=seed % 2 == 1))
        self.volumes = 0
        self.open()
        self.engine.append([Message(topic, b"first", queue_id=queue) for topic in TOPICS for queue in range(QUEUES)])
        self.engine.archive()

    def message(self) -> Message:
        chance = self.chance
        keys = [f"k{chance.randrange(4)}" for _ in range(chance.choice((0, 1, 1, 3)))]
        body = chance.randbytes(chance.choice((1, 1, 5, 300, 5000)))
        return Message(
            chance.choice(TOPICS), body, keys, chance.choice(TAGS), properties={"p": "ä"},
            queue_id=chance.randrange(QUEUES),
        )  # fmt: skip

    def append(self) -> None:
        self.clock.advance(50)
        self.engine.append([self.message() for _ in range(self.chance.choice((1, 20, 80)))])

    def append_a_run(self) -> None:
        """Messages of one queue, which are neighbours in the log."""
        self.clock.advance(50)
        self.engine.append([replace(self.message(), topic="t", queue_id=0) for _ in range(30)])

    def erase(self) -> None:
        until = self.clock.now_ms() - self.chance.randrange(1, 200)
        self.engine.removal.erase(Query("t", self.chance.choice((None, "k1", "k2")), 0, until))

    def expire(self) -> None:
        self.engine.removal.configure("t", cold_retention_ms=self.chance.choice((100, 200, None)))
        self.engine.run_tiers()

    def restore(self) -> None:
        """Go on with a volume made of the archive, which lacks what was not archived."""
        self.engine.close()
        self.volumes += 1
        self.open(f"volume-{self.volumes}", restore=True)

    def step(self) -> None:
        """Something that moves messages, or hides some."""
        steps: list[Callable[[], object]] = [
            self.append, self.append, self.append_a_run, self.engine._hot.roll,
            lambda: self.engine.archive(everything=True), self.archive, self.erase, self.engine.run_tiers, self.expire,
            self.restore,
        ]  # fmt: skip
        self.chance.choice(steps)()

    def lived(self) -> Iterator[tuple[StoreReader, str, int]]:
        """Ten steps; after each, every queue with the store as its reader, and twice with the archive alone as well."""
        for turn in range(10):
            self.step()
            readers: list[StoreReader] = [self.engine]
            if turn in (5, 9):
                readers.append(self.cold())
            yield from product(readers, TOPICS, range(QUEUES))
