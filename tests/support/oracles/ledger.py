"""What writers asked for and were promised, in files beside a store, and the comparison of a store with it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from tests.support.stores.power_world import everything
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

TOPIC = "log"
QUEUES = 3


class Numbers:
    """A file of JSON lines, each written in one go: what was written before a kill is there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, value: object) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, (json.dumps(value) + "\n").encode())
        os.close(fd)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def last(self) -> int:
        return int((self.lines() or ["0"])[-1])


class Ledger:
    """One writer's: ``sent`` is a count of messages, noted before each append; ``acknowledged`` their ranges."""

    def __init__(self, folder: Path, writer: int) -> None:
        self.writer = writer
        self.sent = Numbers(folder / f"sent-{writer}")
        self.acknowledged = Numbers(folder / f"acknowledged-{writer}")

    def message(self, number: int, chance: random.Random) -> Message:
        """Says who sent it as which message; writers share all queues."""
        body = b"%d:%d:" % (self.writer, number) + b"." * chance.choice((0, 100, 800))
        return Message(TOPIC, body, [f"writer-{self.writer}"], queue_id=chance.randrange(QUEUES))

    def promised(self) -> list[int]:
        ranges = [json.loads(line) for line in self.acknowledged.lines()]
        return [number for start, end in ranges for number in range(start, end)]


def compare(engine: Store, folder: Path, writers: int, *, deep: bool = False) -> tuple[int, int]:
    """Every acknowledged message is there once, others at most once, each queue in order; (acknowledged, found)."""
    assert engine.check(deep=deep) == []
    places: dict[tuple[int, int], tuple[str, int, int]] = {}
    newest: dict[tuple[int, int], int] = {}
    for place, message in sorted(everything(engine).items()):
        writer, number = (int(part) for part in message.record.body.split(b":")[:2])
        assert (writer, number) not in places, f"{writer}:{number} is at {places[writer, number]} and at {place}"
        assert writer < writers, f"{place} holds a message that was refused"
        places[writer, number] = place
        queue = place[1]
        assert newest.get((writer, queue), -1) < number, f"queue {queue}: message {number} of {writer} is late"
        newest[writer, queue] = number
    acknowledged = 0
    for writer in range(writers):
        ledger = Ledger(folder, writer)
        promised = ledger.promised()
        missing = [number for number in promised if (writer, number) not in places]
        assert missing == [], f"writer {writer} lost {missing}"
        acknowledged += len(promised)
        mine = [number for other, number in places if other == writer]
        assert all(number < ledger.sent.last() for number in mine)
        if mine:
            assert _count(engine, f"writer-{writer}") == len(mine)
    return acknowledged, len(places)


def _count(engine: Store, key: str) -> int:
    count, cursor = 0, None
    while True:
        answer = engine.query(Query(TOPIC, key, limit=10_000, cursor=cursor))
        assert answer.coverage.complete
        count, cursor = count + len(answer.messages), answer.next_cursor
        if cursor is None:
            return count
