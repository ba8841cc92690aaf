"""A shop's store with a history of two days in both tiers, served on the loopback for the page to be looked at."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.service.served import served
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.cli.line_loader import LineRules, TimestampParser, batches_of_text
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.sample import BORN_FORMAT, BORN_PATTERN, KEY_PATTERNS, TAG_PATTERN, sample_log
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Tier
from tierlog.tiering.message.batch import Message

SIZES: dict[str, object] = {
    "hot.segment_bytes": 128 << 10,
    "hot.queue_file_units": 2_000,
    "index.slots": 500,
    "index.items": 2_000,
    "cold.disk_cache_bytes": 0,
    "cold.frame_bytes": 16 << 10,
    "advertise": "127.0.0.1:10911",
}
#: The last message of a history, 2026-03-03 12:00 UTC.
END_MS = 1_772_539_200_000
HISTORY_MS = 48 * 3_600_000
_BATCH = 60


@dataclass
class PageWorld:
    """An open engine behind ``url``; its archive fails when told to."""

    engine: Store
    settings: Settings
    clock: ManualClock
    objects: FaultyObjectStore
    url: str
    lines: Iterator[bytes]

    def load(self, lines: int, over_ms: int) -> None:
        """The next lines of the sample, appended at even pace."""
        rules = LineRules(
            "shop",
            [re.compile(pattern) for pattern in KEY_PATTERNS],
            re.compile(TAG_PATTERN),
            TimestampParser(re.compile(BORN_PATTERN), BORN_FORMAT, year=None, now_ms=self.clock.now_ms()),
        )
        batches = batches_of_text("sample", [b"".join(islice(self.lines, lines))], rules)
        messages = [one for batch in batches for one in batch.messages]
        pieces = range(0, len(messages), _BATCH)
        for first in pieces:
            self.clock.advance(over_ms // len(pieces))
            self.engine.append(messages[first : first + _BATCH])
        self.settle()

    def order(self, number: int, **more: object) -> None:
        """One message with a JSON body."""
        body = {"order": number, "city": "Köln", "paid": True, "total": 1249.5, "note": None, "lines": [1, 2], **more}
        self.engine.append(
            [
                Message(
                    "orders", json.dumps(body, ensure_ascii=False).encode(), [f"ord-{number}"], "paid", {"trace": "t-1"}
                )
            ]
        )
        self.settle()

    def settle(self) -> None:
        """Derive queues and index of all that was appended, and move index files on."""
        self.engine.flush()

    def keep_index(self) -> None:
        """Seal and compact index files that are full."""
        self.engine._index_maintenance.run_once()

    def archive(self, *, everything: bool = False, drop_hot: bool = False) -> None:
        """Publish what is rolled, or all of it."""
        self.engine.archive(everything=everything, drop_hot=drop_hot)


@contextlib.contextmanager
def page_world(folder: Path, *, port: int = 0, **sizes: object) -> Iterator[PageWorld]:
    """An empty store; what to put into it is the caller's."""
    settings = Settings.load(None, {**SIZES, **sizes})
    world = World(folder / "store", settings=settings, clock=ManualClock(END_MS - HISTORY_MS), store_id=None)
    engine = world.open()
    try:
        with served(engine, settings, port=port) as url:
            lines = iter(b"".join(sample_log(20_000)).splitlines(keepends=True))
            yield PageWorld(engine, settings, world.clock, world.bucket, url, lines)
    finally:
        world.bucket.heal()
        engine.close()


def tell_the_shops_story(world: PageWorld) -> None:
    """Two days: the first in the archive only, then some in both tiers, the last hours on the disk alone."""
    engine, hour = world.engine, 3_600_000
    world.load(6_000, 24 * hour)
    world.archive(everything=True, drop_hot=True)
    world.load(3_000, 14 * hour)
    world.archive()
    world.load(2_400, 8 * hour)
    for number in range(4_711, 4_723):
        world.order(number, express=number % 2 == 0)
    engine.removal.configure("orders", hold=True)
    world.keep_index()
    world.load(600, 2 * hour)
    ends = [queue.max_offset for queue in engine.topic("shop").queues]
    engine.groups.join("mailer", ["orders"])
    for behind, _ in ((40, "first"), (7, "second")):
        member = engine.groups.join("billing", ["shop"])
        taken = {queue: max(0, ends[queue[2]] - behind * queue[2]) for queue in member.assignment}
        engine.groups.commit("billing", taken, member_id=member.member_id, generation=member.generation, reset=True)


def key_in_both_tiers(world: PageWorld) -> str:
    """An address of the shop's story that bodies of the first and of the last hour name."""
    for message in world.engine.query(Query("shop", limit=2000)).messages:
        found = re.search(rb"10\.\d\.\d\.\d+", message.record.body)
        if found:
            answer = world.engine.query(Query("shop", found[0].decode(), limit=200))
            if {one.tier for one in answer.messages} == set(Tier):
                return found[0].decode()
    raise AssertionError("no key in both tiers")
