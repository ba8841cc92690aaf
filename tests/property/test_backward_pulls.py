"""A pull backwards gives what pulls forwards give, from the last message to the first: in both tiers and at the border.

Whatever happened to the store meanwhile, and over gaps of a followed broker's log.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support.objects.damage import changed, flipped
from tests.support.stores.irregular import Sent, followed_archive, irregular_log
from tests.support.stores.moving_world import MovingWorld
from tierlog.service.archive.readers import StoreReader
from tierlog.tiering.base.errors import CorruptionError, StoreError
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
    for reader, topic, queue_id in world.lived():
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
    world = archived_runs(40)
    archive = world.cold()
    end = archive.pull("t", 0, 0, 1).max_offset
    for below in (end, end // 2, 40):
        before = len(world.bucket.calls)
        pulled = archive.pull("t", 0, below, 20, backward=True)
        assert [message.tier for message in pulled.messages] == [Tier.COLD] * 20
        segments = {message.record.physical_offset // world.segment_bytes for message in pulled.messages}
        asked = len(world.bucket.calls) - before
        assert asked <= 4 * len(segments) + 4, f"{asked} requests for {len(segments)} segments, of 40"


def until_refused(reader: StoreReader, limit: int) -> tuple[list[int], bool]:
    """The offsets that pulls backwards give one after the other, and whether one was refused before the beginning."""
    found: list[int] = []
    below = 1 << 60
    while True:
        try:
            pulled = reader.pull("t", 0, below, limit, backward=True)
        except StoreError:
            return found, True
        found += [message.record.queue_offset for message in pulled.messages]
        if pulled.next_offset <= pulled.min_offset or pulled.status is PullStatus.OFFSET_TOO_SMALL:
            return found, False
        below = pulled.next_offset


def archived_runs(count: int) -> MovingWorld:
    world = MovingWorld(1)
    for _ in range(count):
        world.append_a_run()
        world.engine.archive(everything=True)
    return world


def test_a_manifest_page_that_cannot_be_read_is_never_passed_over() -> None:
    world = archived_runs(40)
    everything = forward(world.cold(), "t", 0, None)[::-1]
    pages = [info.key for info in world.objects.list(f"{world.store_id}/manifest/")]
    refused = 0
    for key in pages:
        world.bucket.fail_before("get_range", key, times=None)
        found, is_refused = until_refused(world.cold(), 50)
        world.bucket.heal()
        assert found == everything[: len(found)], f"without {key}"
        assert is_refused or found == everything, f"without {key}"
        refused += is_refused
    assert refused, "no page was needed"


def test_a_damaged_frame_hides_only_its_own_messages() -> None:
    world = archived_runs(12)
    end = world.cold().pull("t", 0, 0, 1).max_offset
    key = sorted(info.key for info in world.objects.list(f"{world.store_id}/log/"))[6]
    for part in (3, 2):
        changed(lambda data, part=part: flipped(data, len(data) // part))(world.objects, key)  # type: ignore[misc]
        lost_forwards, lost_backwards = set[int](), set[int]()
        archive = world.cold()
        for offset in range(end):
            for lost, start, backward_too in ((lost_forwards, offset, False), (lost_backwards, offset + 1, True)):
                try:
                    archive.pull("t", 0, start, 1, backward=backward_too)
                except CorruptionError:
                    lost.add(offset)
        assert lost_backwards == lost_forwards
        assert 0 < len(lost_forwards) < end


def test_an_archive_that_does_not_answer_ends_no_pull_at_the_border() -> None:
    world = archived_runs(12)
    world.engine.archive(everything=True, drop_hot=True)
    world.append_a_run()
    world.engine.close()
    world.open()
    assert world.engine.pull("t", 0, 1 << 60, 5, backward=True).messages[0].tier is Tier.HOT
    world.engine.close()
    world.open()
    world.bucket.die()
    found, is_refused = until_refused(world.engine, 50)
    assert found, "nothing was hot"
    assert is_refused, "the archive's messages are missing without a word"
    world.bucket.revive()
