"""A million messages of real logs with new keys, part hot, part archived, part merged: answers equal a full scan.

The scan is numpy and dicts over what was appended; it shares no code with the store.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.index.index_merge import Shape, merge, mergeable, neighbours
from tests.support.oracles.logs import real_log, real_log_names, write_sample
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader
from tierlog.service.config.settings import ColdSettings, HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS, Durability, Order, TimeAxis
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.local import LocalObjectStore

COUNT = 1_000_000
HOT_KEY = "hot"
HOT_EVERY = 10
BATCH = 2_000
TOPICS = ("web", "batch")
DAY_MS = 86_400_000
SETTINGS = Settings(
    advertise="10.0.0.1:7777",
    hot=HotSettings(segment_bytes=32 << 20, default_queues=4),
    index=IndexSettings(slots=50_000, items=200_000),
    cold=ColdSettings(max_inline_entries=8, page_entries=4),
)


@dataclass
class Appended:
    """Everything that was appended, by number."""

    lines: list[bytes]
    offset: NDArray[np.int64]
    store_ms: NDArray[np.int64]
    born_ms: NDArray[np.int64]
    topic: NDArray[np.int8]
    by_key: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    @classmethod
    def of(cls, lines: list[bytes]) -> Appended:
        """Nothing yet."""
        offset, store_ms, born_ms = np.zeros((3, COUNT), np.int64)
        return cls(lines, offset, store_ms, born_ms, np.zeros(COUNT, np.int8))

    def body(self, number: int) -> bytes:
        """The text of a message."""
        return b"%d %s" % (number, self.lines[number % len(self.lines)])

    def matching(self, query: Query, below: int) -> NDArray[np.int64]:
        """Numbers of the messages of a query whose offset is below a border, in its order."""
        if query.key is None:
            numbers = np.arange(self.count)
        else:
            numbers = np.array(self.by_key.get(query.key, []), np.int64)
        times = (self.store_ms if query.axis is TimeAxis.STORE else self.born_ms)[numbers]
        wanted = (times >= query.from_ms) & (times < query.to_ms) & (self.offset[numbers] < below)
        wanted &= self.topic[numbers] == TOPICS.index(query.topic)
        numbers, times = numbers[wanted], times[wanted]
        ordered: NDArray[np.int64] = numbers[np.lexsort((self.offset[numbers], times))]
        return ordered[::-1] if query.order is Order.NEWEST else ordered

    def assert_are(self, messages: list[StoredMessage], numbers: NDArray[np.int64], query: Query) -> None:
        """These messages, byte for byte and in this order."""
        offsets = [message.record.physical_offset for message in messages]
        assert offsets == self.offset[numbers].tolist(), query
        for message, number in zip(messages, numbers.tolist(), strict=True):
            record = message.record
            assert record.body == self.body(number), query
            assert (record.store_ms, record.born_ms) == (self.store_ms[number], self.born_ms[number])


class Job:
    """One store that is loaded part by part."""

    def __init__(self, folder: Path, lines: list[bytes], seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.folder = folder
        self.url = f"file://{folder}/cold"
        self.engine = Store.open(
            folder / "store", settings=SETTINGS, cold_url=self.url, store_id="million", clock=self.clock
        )
        self.all = Appended.of(lines)
        self.queries = self.compared = 0

    def load(self, until: int) -> None:
        """Messages up to a number; each has a key of its own, one of its session, one that is spread, some the hot."""
        every, chance = self.all, self.chance
        while every.count < until:
            self.clock.advance(chance.choice([0, 1, 7, 900, 1000, 3_000]))
            now_ms = self.clock.now_ms()
            batch = []
            for number in range(every.count, min(until, every.count + BATCH)):
                keys = [f"own-{number:x}", f"session-{number // 60}", f"spread-{number * 7919 % 997}"]
                if number % HOT_EVERY == 0:
                    keys.append(HOT_KEY)
                skew = number * 2_654_435_761 % (4 * DAY_MS) - 2 * DAY_MS if number % 16 == 0 else -(number % 1500)
                topic = number // 30 % 7 == 0
                every.born_ms[number], every.topic[number] = now_ms + skew, topic
                for key in keys:
                    every.by_key[key].append(number)
                batch.append(Message(TOPICS[topic], every.body(number), keys, born_ms=now_ms + skew))
            done = self.engine.append(batch, Durability.ASYNC)
            at = slice(every.count, every.count + len(batch))
            every.offset[at] = [int(each.message_id[-16:], 16) for each in done]
            every.store_ms[at] = [each.store_ms for each in done]
            every.count += len(batch)
        self.engine.flush()

    def merge(self) -> int:
        """Half of the index objects become one of the next level, in parts."""
        store = LocalObjectStore(self.folder / "cold", self.clock)
        manifest = ManifestStore(
            store,
            ColdKeys("million"),
            randomness=SeededRandomness(4),
            options=SETTINGS.cold_options(),
            clock=self.clock,
        )
        (run,) = mergeable(manifest, manifest.refresh())
        return len(merge(manifest, neighbours(run, 0, len(run) // 2), SeededRandomness(5), Shape(3)))

    def check(self, source: StoreReader, query: Query, below: int) -> None:
        """The first page of a query."""
        answer, wanted = source.query(query), self.all.matching(query, below)
        self.all.assert_are(answer.messages, wanted[: query.limit], query)
        assert answer.coverage.complete, answer.coverage
        assert (answer.next_cursor is not None) == (len(wanted) > query.limit), query
        self.queries += 1
        self.compared += len(answer.messages)

    def page_through(self, query: Query) -> int:
        """All pages of a query; how many messages."""
        wanted, reached = self.all.matching(query, 1 << 62), 0
        while True:
            answer = self.engine.query(query)
            assert answer.coverage.complete, answer.coverage
            self.all.assert_are(answer.messages, wanted[reached : reached + query.limit], query)
            reached += len(answer.messages)
            self.queries += 1
            self.compared += len(answer.messages)
            if answer.next_cursor is None:
                assert reached == len(wanted)
                return reached
            query = replace(query, cursor=answer.next_cursor)

    def draw(self) -> Query:
        """A key of any class, or none, and a window that its class makes sense of."""
        number = self.chance.randrange(self.all.count)
        keys = {
            f"own-{number:x}": 6, f"session-{number // 60}": 3, f"spread-{number % 997}": 3, f"absent-{number}": 3,
            f"session-{number}": 3, HOT_KEY: 1, None: 1,  # of these many messages match, and each query takes its time
        }  # fmt: skip
        (key,) = self.chance.choices(list(keys), list(keys.values()))
        # by born time all hits of such a key, or all frames, are read before a page is cut
        axis = TimeAxis.STORE if key in (None, HOT_KEY) else self.chance.choice(list(TimeAxis))
        return self.about(number, key, axis)

    def about(self, number: int, key: str | None, axis: TimeAxis) -> Query:
        """A query for a key around the time of a message."""
        chance, every = self.chance, self.all
        at = int((every.store_ms if axis is TimeAxis.STORE else every.born_ms)[number])
        width = chance.choice([1, 1, 900, 60_000])
        windows = [(0, END_OF_TIME_MS), (at, at + width), (at - width + 1, at + 1), (at + 1, at + 1 + width)]
        from_ms, to_ms = chance.choice(windows if key not in (None, HOT_KEY) else windows[1:])
        limit = chance.choice([1, 5, 32, 100])
        return Query(TOPICS[every.topic[number]], key, from_ms, to_ms, limit, axis, chance.choice(list(Order)))


def texts(shared_data: Path, folder: Path) -> list[bytes]:
    """Lines of all the real logs, or of the generated one where there are none."""
    names = [name for name in real_log_names(shared_data) if name != "no-log"]
    paths = [real_log(shared_data, name) for name in names] or [write_sample(folder)]
    return [line.rstrip(b"\r") for path in paths for line in path.read_bytes().split(b"\n") if line.strip()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_messages_are_found_as_a_full_scan_finds_them(shared_data: Path, tmp_path: Path, seed: int) -> None:
    job = Job(tmp_path, texts(shared_data, tmp_path), seed)
    try:
        job.load(COUNT * 5 // 10)
        job.engine.archive(everything=True, drop_hot=True)
        objects = job.merge()
        job.load(COUNT * 8 // 10)
        report = job.engine.archive(everything=True)
        job.load(COUNT)
        kinds = {(file.kind, str(file.tier)) for file in job.engine.files()}
        assert len(kinds) == 4, kinds
        cold = Archive.open(job.url, settings=SETTINGS, clock=job.clock)
        for number in range(800):
            query = job.draw()
            job.check(job.engine, query, 1 << 62)
            if number % 3 == 0:
                job.check(cold, query, report.archived_to)
        for key in (None, HOT_KEY):
            job.check(job.engine, job.about(job.chance.randrange(COUNT), key, TimeAxis.BORN), 1 << 62)
        hot = [
            sum(job.page_through(Query(topic, HOT_KEY, limit=10_000, order=order)) for topic in TOPICS)
            for order in Order
        ]
        assert hot == [COUNT // HOT_EVERY] * 2
        cold.close()
    finally:
        job.engine.close()
    print(
        f"\n{COUNT} messages, {len(job.all.by_key)} keys, {objects} merged objects: {job.queries} queries, "
        f"{job.compared} messages compared with a full scan, 0 wrong"
    )
