"""Replays of archived queues: everything, in order, in few requests, within bounds, whatever fails."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable

import pytest

from tests.support.objects.damage import flipped, overwrite
from tests.support.stores.engines import tiny_settings
from tests.support.threads import wait_for_threads
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader
from tierlog.tiering.base.errors import ObjectStoreUnavailableError, StoreError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.sorted_segment import FramePlace
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore
from tierlog.tiering.read.pull_result import PullResult
from tierlog.tiering.read.queue_replay import OpenReplays, ReadAheadBudget

QUEUES = 3
COUNT = 3000
PER_QUEUE = COUNT // QUEUES
BODY = random.Random(1).randbytes(400)


class BilledWorld(World):
    """An archive of about 25 segments, which all hold every queue in about five frames, and readers of it."""

    def __init__(self) -> None:
        super().__init__()
        self.node = self.open()
        self.count = 0
        self.more(COUNT)
        self.archive()

    def more(self, count: int) -> None:
        for start in range(self.count, self.count + count, 100):
            numbers = range(start, min(start + 100, self.count + count))
            self.node.append([Message("orders", b"%06d" % n + BODY, queue_id=n % QUEUES) for n in numbers])
        self.count += count

    def reader(self, meter: Meter | None = None, **settings: object) -> Archive:
        return self.cold(MeteredObjectStore(self.bucket, meter or Meter()), tiny_settings(**settings))

    def asked(self, pattern: str = "") -> int:
        return sum(call.operation == "get_range" and pattern in call.key for call in self.bucket.calls)


@pytest.fixture(scope="module")
def archive() -> BilledWorld:
    """For tests that change nothing."""
    return BilledWorld()


@pytest.fixture
def world() -> BilledWorld:
    return BilledWorld()


def offsets_in(page: PullResult, queue: int = 0) -> list[int]:
    """Queue offsets of a page, whose bodies must be those that were written there."""
    found = []
    for message in page.messages:
        number = int(message.record.body[:6])
        assert (number % QUEUES, number // QUEUES) == (queue, message.record.queue_offset)
        found.append(message.record.queue_offset)
    return found


def replay(engine: StoreReader, limit: int, queue: int = 0, offset: int = 0) -> list[int]:
    found: list[int] = []
    while (page := engine.pull("orders", queue, offset, limit)).status is PullStatus.FOUND:
        found += offsets_in(page, queue)
        offset = page.next_offset
    settle()
    return found


def settle() -> None:
    """What was begun ahead has ended."""
    wait_for_threads("tierlog-read-ahead")


@pytest.mark.parametrize("read_ahead", [0, 6000, 1 << 26])
@pytest.mark.parametrize("limit", [1, 7, 300, 5000])
def test_a_replay_gives_every_message_once_in_order(archive: BilledWorld, read_ahead: int, limit: int) -> None:
    engine = archive.reader(cold__read_ahead_bytes=read_ahead)
    begin = 0 if limit > 1 else PER_QUEUE - 60
    assert replay(engine, limit, 1, begin) == list(range(begin, PER_QUEUE))


@pytest.mark.parametrize("read_ahead", [0, 30_000, 1 << 26])
def test_consumers_beside_each_other_and_jumps_change_no_answer(archive: BilledWorld, read_ahead: int) -> None:
    engine = archive.reader(cold__read_ahead_bytes=read_ahead, cold__cache_bytes=300_000)
    errors: list[BaseException] = []

    def consume(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(12):
                queue, offset = chance.randrange(QUEUES), chance.randrange(PER_QUEUE)
                for _ in range(chance.randrange(1, 6)):
                    limit = chance.choice((1, 5, 60))
                    page = engine.pull("orders", queue, offset, limit)
                    expected = list(range(offset, min(offset + limit, PER_QUEUE)))
                    assert offsets_in(page, queue) == expected
                    offset = page.next_offset
        except BaseException as error:
            errors.append(error)

    consumers = [threading.Thread(target=consume, args=(seed,)) for seed in range(4)]
    for thread in consumers:
        thread.start()
    for thread in consumers:
        thread.join()
    assert errors == []
    settle()
    assert engine._fetcher()._replays.budget.used_bytes <= max(read_ahead, 1)


def test_a_replay_is_bound_by_bandwidth_and_not_by_round_trips(archive: BilledWorld) -> None:
    """Each window and each segment's metadata is one request, whatever the number of pulls."""
    frames = sum(1 for _ in frames_of(archive, queue=0))
    meter = Meter()
    before = archive.asked()
    assert len(replay(archive.reader(cold__read_ahead_bytes=0), PER_QUEUE)) == PER_QUEUE
    naive = archive.asked() - before
    assert naive > frames
    engine = archive.reader(meter)
    before = archive.asked()
    assert len(replay(engine, 10)) == PER_QUEUE
    segments = sum(info.kind == "segment" for info in engine.files())
    asked = archive.asked("/log/") - before
    assert asked <= 2 * segments + 8, f"{asked} requests for {segments} segments"
    assert frames > 4 * segments


def frames_of(world: BilledWorld, queue: int) -> Iterable[tuple[int, int]]:
    """(segment, frame) of every frame that holds the queue."""
    manifest = world.node._manifest
    assert manifest is not None
    reader = manifest.reader()
    for entry in manifest.log_entries(reader, manifest.refresh()):
        rows = SegmentReader(reader, entry).directory_rows("orders", queue)
        yield from {(entry.base, row.frame) for row in rows}


def test_requests_ahead_are_on_their_way_together(archive: BilledWorld) -> None:
    """A request that is held keeps neither its neighbours nor the consumer's next pull from what has come."""
    engine = archive.reader()
    first = engine.pull("orders", 0, 0, 1)
    holds = [archive.bucket.hold("get_range", "*/log/*") for _ in range(3)]
    page = engine.pull("orders", 0, first.next_offset, 1)  # goes on: fetch ahead
    for hold in holds:
        hold.wait_until_reached()
    assert offsets_in(page) == [1], "what lies in the first frame waits for nothing"
    for hold in holds:
        hold.release()
    assert replay(engine, 100, 0, 2) == list(range(2, PER_QUEUE))
    archive.bucket.heal()


def test_one_pull_fetches_nothing_ahead_and_a_wrong_guess_costs_little(archive: BilledWorld) -> None:
    meter = Meter()
    engine = archive.reader(meter)
    engine.pull("orders", 0, 500, 1)
    settle()
    before = meter.reading()
    engine.pull("orders", 0, 100, 1)
    settle()
    once = meter.reading() - before
    frame_bytes = 4096
    assert once.bytes_read <= 3 * frame_bytes, "directory with seek table, and one frame"
    engine.pull("orders", 0, 101, 1)
    settle()
    assert (meter.reading() - before).bytes_read <= 2 * (64 << 10) + 3 * 8 * frame_bytes


def test_pulls_of_one_consumer_ask_for_nothing_twice(archive: BilledWorld) -> None:
    read = []
    for limit in (3, PER_QUEUE):
        meter = Meter()
        engine = archive.reader(meter)
        before = meter.reading()
        replay(engine, limit)
        read.append((meter.reading() - before).bytes_read)
    assert read[0] <= read[1] * 1.1


def test_a_replay_does_not_ask_for_the_head_at_each_pull_but_sees_what_is_archived_meanwhile(
    world: BilledWorld,
) -> None:
    engine = world.reader()
    heads = [call.operation for call in world.bucket.calls].count("get_if_changed")
    offset = 0
    for _ in range(50):
        offset = engine.pull("orders", 0, offset, 5).next_offset
    assert [call.operation for call in world.bucket.calls].count("get_if_changed") - heads == 1
    world.more(300)
    world.archive()
    assert replay(engine, 100, 0, offset) == list(range(offset, PER_QUEUE + 100))


def test_a_head_that_was_not_looked_at_for_long_is_looked_at_again(world: BilledWorld) -> None:
    engine = world.reader()
    offset = engine.pull("orders", 0, 0, 5).next_offset
    heads = [call.operation for call in world.bucket.calls].count("get_if_changed")
    world.clock.advance(10_000)
    engine.pull("orders", 0, offset, 5)
    assert [call.operation for call in world.bucket.calls].count("get_if_changed") - heads == 1


def test_a_failure_ahead_comes_up_where_it_is_reached_and_not_before(world: BilledWorld) -> None:
    engine = world.reader()
    engine.pull("orders", 0, 0, 1)
    world.bucket.fail_before("get_range", times=None)
    offset = 1

    def go_on() -> None:
        nonlocal offset
        for _ in range(PER_QUEUE):
            page = engine.pull("orders", 0, offset, 1)
            assert offsets_in(page) == [offset]
            offset = page.next_offset

    with pytest.raises(ObjectStoreUnavailableError):
        go_on()
    assert offset > 1, "what was there already is given"
    settle()
    world.bucket.heal()
    assert replay(engine, 50, 0, offset) == list(range(offset, PER_QUEUE))
    assert engine._fetcher()._replays.budget.used_bytes == 0


def test_erased_messages_are_hidden_from_a_replay_under_way(world: BilledWorld) -> None:
    offset = world.node.pull("orders", 0, 0, 5).next_offset
    page = world.node.pull("orders", 0, offset, 5)
    assert len(page.messages) == 5
    world.node.removal.erase(Query("orders"))
    assert world.node.pull("orders", 0, page.next_offset, 5).messages == []


def test_a_deep_pull_looks_into_few_queue_rows(world: BilledWorld) -> None:
    for wanted in (0, PER_QUEUE // 2, PER_QUEUE - 1):
        engine = world.reader()
        engine._fetcher().offsets("orders", 0)
        before = world.asked("/manifest/")
        assert offsets_in(engine.pull("orders", 0, wanted, 1)) == [wanted]
        assert world.asked("/manifest/") - before <= 10


@pytest.mark.slow
def test_many_replays_stay_within_their_bytes_and_their_number(archive: BilledWorld) -> None:
    limit = 60_000
    engine = archive.reader(cold__read_ahead_bytes=limit)
    budget = engine._fetcher()._replays.budget
    most = 0
    for start in range(0, 400, 4):
        for queue in range(QUEUES):
            page = engine.pull("orders", queue, start, 1)
            engine.pull("orders", queue, page.next_offset, 1)
            most = max(most, budget.used_bytes)
    settle()
    assert 0 < most <= limit + 8192, "one frame that is wanted now is fetched whatever the others hold"
    assert len(engine._fetcher()._replays._idle) <= 64


def offsets_until_it_fails(engine: Archive, limit: int, *, as_batches: bool) -> tuple[list[int], str]:
    """Queue offsets that pulls give up to the first that fails, and how that does."""
    found: list[int] = []
    try:
        offset = 0
        while True:
            if as_batches:
                batch = engine.pull_batch("orders", 0, offset, limit, ["queue_offset"])
                got, after = batch.messages.column(0).to_pylist(), batch.next_offset
            else:
                page = engine.pull("orders", 0, offset, limit)
                got, after = offsets_in(page), page.next_offset
            if not got:
                return found, ""
            found += got
            offset = after
    except StoreError as error:
        return found, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_frame_among_others_is_reported_where_it_is_reached(seed: int) -> None:
    chance, world = random.Random(seed), BilledWorld()
    manifest = world.node._manifest
    assert manifest is not None
    entries = list(manifest.log_entries(manifest.reader(), manifest.refresh()))
    entry = entries[chance.randrange(8)]
    places = [row.place for row in SegmentReader(manifest.reader(), entry).directory_rows("orders", 0)]
    place = places[chance.randrange(1, len(places))]
    objects = world.bucket.inner
    assert isinstance(objects, MemoryObjectStore)
    position = place.position + chance.randrange(place.length)
    overwrite(objects, entry.key, flipped(objects._objects[entry.key][0], position, chance.randrange(8)))
    alone = offsets_until_it_fails(world.reader(cold__read_ahead_bytes=0), 1000, as_batches=False)
    assert alone[0] == list(range(len(alone[0])))
    assert "frame" in alone[1]
    for limit in (1, 7, 1000):
        for as_batches in (False, True):
            assert offsets_until_it_fails(world.reader(), limit, as_batches=as_batches) == alone
    settle()


def test_frames_that_are_there_together_are_decompressed_together(
    archive: BilledWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    alone = SegmentReader.decode_frame

    def counted(self: SegmentReader, place: FramePlace, data: bytes) -> bytes:
        nonlocal asked
        asked += 1
        return alone(self, place, data)

    monkeypatch.setattr(SegmentReader, "decode_frame", counted)
    frames = sum(1 for _ in frames_of(archive, queue=0))
    assert len(replay(archive.reader(), 7)) == PER_QUEUE
    assert asked < frames / 4
    asked = 0
    assert len(replay(archive.reader(cold__read_ahead_bytes=0), 7)) == PER_QUEUE
    assert asked >= frames


def test_memory_of_frames_that_are_decompressed_together_counts_and_is_given_back(archive: BilledWorld) -> None:
    engine = archive.reader()
    replays = engine._fetcher()._replays
    offset = 0
    for _ in range(3):
        offset = engine.pull("orders", 0, offset, 30).next_offset
    settle()
    (kept,) = replays._idle.values()
    assert kept._piece is not None
    waiting = sum(window.size_bytes for window in kept._windows)
    assert replays.budget.used_bytes - waiting >= len(kept._piece.data) > 4096
    kept.drop()
    settle()
    assert replays.budget.used_bytes == 0


def test_a_budget_counts_what_is_taken_and_given() -> None:
    budget = ReadAheadBudget(10)
    assert budget.take(6)
    assert not budget.take(5)
    budget.give(6)
    assert budget.take(10)


def test_nothing_is_kept_between_pulls_where_nothing_may_be_fetched_ahead(archive: BilledWorld) -> None:
    engine = archive.reader(cold__read_ahead_bytes=0)
    engine.pull("orders", 0, 0, 1)
    replays: OpenReplays = engine._fetcher()._replays
    assert not replays._idle
    assert replays.budget.used_bytes == 0
