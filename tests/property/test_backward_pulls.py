"""A pull backwards gives what pulls forwards give, from the last message to the first: in both tiers and at the border.

Whatever happened to the store meanwhile, and over gaps of a followed broker's log.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support.stores.irregular import Sent, followed_archive, irregular_log
from tests.support.stores.moving_world import QUEUES, TOPICS, MovingWorld
from tierlog.service.archive.readers import StoreReader
from tierlog.tiering.base.types import PullStatus, Tier
from tierlog.tiering.read.pull_result import PullResult

TAGS = (None, "A", "A || B", "BBBB")
"""The last has the hash of another."""


def forward(reader: StoreReader, topic: str, queue_id: int, tag: str | None) -> list[int]:
    """The offsets that pulls in order give."""
    found, offset = [], 0
    while True:
        pulled = reader.pull(topic, queue_id, offset, 50, tag)
        found += [message.record.queue_offset for message in pulled.messages]
        if pulled.status is PullStatus.NO_NEW_MESSAGE or pulled.next_offset <= offset:
            return found
        offset = pulled.next_offset


def backward(
    reader: StoreReader, topic: str, queue_id: int, tag: str | None, random: Random, below: int = 1 << 60
) -> tuple[list[int], list[PullResult]]:
    """The same backwards, in pages of any size; each goes on where the one before it ended."""
    found, pages = [], []
    while True:
        limit = random.choice((1, 3, 20, 400))
        pulled = reader.pull(topic, queue_id, below, limit, tag, backward=True)
        pages.append(pulled)
        assert len(pulled.messages) <= limit
        assert all(pulled.next_offset <= message.record.queue_offset < below for message in pulled.messages)
        assert pulled.next_offset < below or pulled.status is PullStatus.OFFSET_TOO_SMALL
        found += [message.record.queue_offset for message in pulled.messages]
        if pulled.next_offset <= pulled.min_offset or pulled.status is PullStatus.OFFSET_TOO_SMALL:
            return found, pages
        below = pulled.next_offset


def check(reader: StoreReader, topic: str, queue_id: int, random: Random) -> None:
    for tag in TAGS:
        expected = forward(reader, topic, queue_id, tag)
        found, pages = backward(reader, topic, queue_id, tag, random)
        assert found == expected[::-1]
        assert all(len({message.tier for message in page.messages}) <= 1 for page in pages), "one answer, one tier"
        below = random.randrange(200)
        found, _ = backward(reader, topic, queue_id, tag, random, below)
        assert found == [offset for offset in reversed(expected) if offset < below]


@pytest.mark.parametrize("seed", range(10))
def test_backwards_is_forwards_turned_round_whatever_happened(seed: int) -> None:
    world = MovingWorld(seed)
    for turn in range(10):
        world.step()
        readers: list[StoreReader] = [world.engine]
        if turn in (5, 9):
            readers.append(world.cold())
        for reader in readers:
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    check(reader, topic, queue_id, world.chance)
    world.engine.removal.delete_topic("t")
    world.append_a_run()
    check(world.engine, "t", 0, world.chance)
    world.engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_gaps_of_a_followed_log_are_stepped_over(tmp_path: Path, seed: int) -> None:
    random, sent, offset = Random(seed), [], 0
    for number in range(120):
        offset += 1 if random.random() < 0.8 else random.choice((2, 5, 300, 1 << 32))
        sent.append(Sent("t", 0, offset, number))
    log = irregular_log(sent)
    with followed_archive(tmp_path, log, len(log.log.data)) as store:
        expected = [record.queue_offset for record in sent]
        for _ in range(2):
            found, pages = backward(store.store, "t", 0, None, random)
            assert found == expected[::-1]
            assert len(pages) <= len(sent) + 5, "no page for a stretch of a gap"
            store.archive_all()


def test_a_page_of_the_archive_costs_a_few_requests_for_each_segment_it_comes_from() -> None:
    """The frames of a page are asked for together, and what precedes them in the queue is not."""
    world = MovingWorld(1)
    for _ in range(40):
        world.append_a_run()
        world.engine.archive(everything=True)
    archive = world.cold()
    end = archive.pull("t", 0, 0, 1).max_offset
    for below in (end, end // 2, 40):
        before = len(world.bucket.calls)
        pulled = archive.pull("t", 0, below, 20, backward=True)
        assert [message.tier for message in pulled.messages] == [Tier.COLD] * 20
        segments = {message.record.physical_offset // world.segment_bytes for message in pulled.messages}
        asked = len(world.bucket.calls) - before
        assert asked <= 4 * len(segments) + 4, f"{asked} requests for {len(segments)} segments, of 40"
