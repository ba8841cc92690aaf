"""A pull of records as they lie in the log has what a pull of messages has, whatever lies where, and fails alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tests.support.stores.hot_stores import records_in
from tests.support.stores.moving_world import MovingWorld
from tierlog.service.archive.readers import StoreReader
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.record import Record
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC
from tierlog.tiering.read import pull_records
from tierlog.tiering.read.pull_result import PullResult

MANY = 1 << 62


def compare(reader: StoreReader, topic: str, queue: int, offset: int, limit: int, tag: str | None = None) -> PullResult:
    """Pull both ways from an offset; the answers say the same."""
    hashes = None if tag is None else frozenset((tag_hash(tag), 12345))
    page = reader.pull(topic, queue, offset, limit, tag)
    with reader.pull_records(topic, queue, offset, limit, max_bytes=MANY, tag_hashes=hashes) as pulled:
        assert records_in(pulled.parts) == [message.record for message in page.messages]
        assert (pulled.status, pulled.next_offset) == (page.status, page.next_offset)
        assert (pulled.min_offset, pulled.max_offset) == (page.min_offset, page.max_offset)
        assert (pulled.count, pulled.bytes) == (len(page.messages), sum(map(len, pulled.parts)))
    return page


def read_in_bytes(reader: StoreReader, topic: str, queue: int, max_bytes: int) -> list[Record]:
    """All records of a queue, by answers of at most so many bytes."""
    found: list[Record] = []
    offset = 0
    while True:
        with reader.pull_records(topic, queue, offset, 1000, max_bytes=max_bytes) as pulled:
            assert pulled.count <= 1 or pulled.bytes <= max_bytes
            if pulled.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_TOO_LARGE):
                return found
            assert pulled.next_offset > offset
            found += records_in(pulled.parts)
            offset = pulled.next_offset


@pytest.mark.parametrize("seed", range(10))
def test_the_records_of_both_tiers_are_those_of_the_messages_whatever_happened(seed: int) -> None:
    world = MovingWorld(seed)
    for reader, topic, queue in world.lived():
        limit, tag = world.chance.choice((1, 7, 50, 10_000)), world.chance.choice((None, None, "A", "BB"))
        first = compare(reader, topic, queue, 0, limit, tag)
        whole: list[Record] = []
        offset = 0
        while (page := compare(reader, topic, queue, offset, limit)).status in (
            PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE, PullStatus.OFFSET_TOO_SMALL,
        ):  # fmt: skip
            whole += [message.record for message in page.messages]
            offset = page.next_offset
        while (first := compare(reader, topic, queue, first.next_offset, limit, tag)).status in (
            PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE, PullStatus.OFFSET_TOO_SMALL,
        ):  # fmt: skip
            pass
        assert len({record.queue_offset for record in whole}) == len(whole)
        assert read_in_bytes(reader, topic, queue, world.chance.choice((1, 700, 20_000))) == whole
        for edge in (-1, page.max_offset + 1, page.min_offset):
            compare(reader, topic, queue, edge, limit)
    world.engine.close()


def test_pulls_of_all_kinds_take_turns_in_one_replay_of_the_archive() -> None:
    world = MovingWorld(3)
    for _ in range(6):
        world.append_a_run()
    world.archive()
    expected = read_in_bytes(world.engine, "t", 0, 1 << 20)
    got: list[Record] = []
    while len(got) < len(expected):
        with world.engine.pull_records("t", 0, got[-1].queue_offset + 1 if got else 0, 7) as pulled:
            offset = pulled.next_offset
            page = world.engine.pull("t", 0, offset, 3)  # the first answer stays as it is
            got += records_in(pulled.parts) + [message.record for message in page.messages]
    assert got == expected


def test_neighbours_in_the_log_are_one_part() -> None:
    world = MovingWorld(2)
    world.append_a_run()
    world.engine._hot.roll()
    world.append_a_run()
    offset = world.engine.offsets("t", 0)[1] - 60
    with world.engine.pull_records("t", 0, offset, 60) as pulled:
        assert (pulled.count, len(pulled.parts)) == (60, 2)
        assert all(memoryview(part).readonly for part in pulled.parts)


def test_what_a_pull_looks_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MovingWorld(4)
    for _ in range(4):
        world.append_a_run()
    for name, least in (("MAX_MESSAGES", 3), ("MAX_READ_BYTES", 500)):
        with monkeypatch.context() as patched:
            patched.setattr(pull_records, name, least)
            patched.setattr(f"tierlog.tiering.read.pull_result.{name}", least)
            for reader in (world.engine, world.cold()):
                offset, end = reader.pull("t", 0, 0, 1).min_offset, reader.pull("t", 0, 0, 1).max_offset
                while offset < end:
                    offset = compare(reader, "t", 0, offset, 1000, "none").next_offset
        world.engine.archive(everything=True)


def test_the_slices_of_a_pull_stay_while_their_segments_are_removed() -> None:
    world = MovingWorld(6)
    for _ in range(4):
        world.append_a_run()
    expected = [message.record for message in world.engine.pull("t", 0, 0, 1000).messages]
    with world.engine.pull_records("t", 0, 0, 1000) as pulled:
        removal = threading.Thread(target=world.archive)
        removal.start()
        while world.engine._hot.border == 0 and removal.is_alive():
            assert records_in(pulled.parts) == expected
        assert removal.is_alive(), "the segments were not removed below a reader"
        assert records_in(pulled.parts) == expected
    removal.join()
    assert not any(segment.base_offset == 0 for segment in world.engine._hot.log.segments())


def test_a_pull_from_the_archive_and_one_that_finds_nothing_pin_no_segment() -> None:
    world = MovingWorld(7)
    world.append_a_run()
    world.archive()
    end = world.engine.offsets("t", 0)[1]
    with world.engine.pull_records("t", 0, 0, 10) as pulled, world.engine.pull_records("t", 0, end, 10) as nothing:
        assert (pulled.status, nothing.status) == (PullStatus.FOUND, PullStatus.NO_NEW_MESSAGE)
        world.append_a_run()
        world.archive()  # would wait for whoever pins
        assert records_in(pulled.parts)


def records_at(reader: StoreReader, offset: int, tag: str | None) -> list[Record]:
    hashes = None if tag is None else frozenset((tag_hash(tag),))
    with reader.pull_records("t", 0, offset, 1000, max_bytes=MANY, tag_hashes=hashes) as pulled:
        return records_in(pulled.parts)


@pytest.mark.parametrize("is_cold", [False, True])
def test_what_waits_for_its_delivery_passes_no_filter_of_tags(is_cold: bool) -> None:
    """The unit of such a message has a time in the place of its tag's hash."""
    world = MovingWorld(8)
    for name, delay in ((b"waits", {"DELAY": "3"}), (b"does not", {})):
        world.engine.append([Message(SCHEDULE_TOPIC, name, tag="A", properties=delay, queue_id=0)])
    if is_cold:
        world.archive()
    passed = compare(world.engine, SCHEDULE_TOPIC, 0, 0, 10, "A").messages
    assert [message.record.body for message in passed] == [b"does not"]
    assert len(compare(world.engine, SCHEDULE_TOPIC, 0, 0, 10).messages) == 2


def failure_of(pull: Callable[[], object]) -> str | None:
    try:
        pull()
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_record_in_the_log_ends_the_answer_before_it_and_then_fails_alike(seed: int) -> None:
    world = MovingWorld(seed)
    for _ in range(4):
        world.append()
    held = [message.record for message in world.engine.pull("t", 0, 0, 1000).messages]
    victim = world.chance.choice(held)
    log = world.engine._hot.log
    segment = log._segments[victim.physical_offset - victim.physical_offset % log.segment_bytes]
    data = segment.data.copy()
    data[victim.physical_offset - segment.base_offset + world.chance.randrange(victim.size)] ^= 1 << seed % 8
    log._segments[segment.base_offset] = replace(segment, data=data)
    tag = world.chance.choice((None, "A"))
    at = held[0].queue_offset
    while True:
        failure = failure_of(partial(world.engine.pull, "t", 0, at, 1000, tag))
        assert failure_of(partial(records_at, world.engine, at, tag)) == failure
        if failure is not None or compare(world.engine, "t", 0, at, 1000, tag).status is PullStatus.NO_NEW_MESSAGE:
            return
        at = world.engine.pull("t", 0, at, 1000, tag).next_offset


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_object_of_the_archive_fails_alike(seed: int) -> None:
    world = MovingWorld(seed)
    for _ in range(3):
        world.append_a_run()
    world.archive()
    held = [key for key in world.objects._objects if "/log/" in key]
    data, info = world.objects._objects[key := world.chance.choice(held)]
    damaged = bytearray(data)
    damaged[world.chance.randrange(len(data))] ^= 1 << seed % 8
    world.objects._objects[key] = bytes(damaged), info
    end = world.engine.offsets("t", 0)[1]
    for at in range(0, end, 5):
        failure = failure_of(partial(world.cold().pull, "t", 0, at, 20))
        assert failure_of(partial(records_at, world.cold(), at, None)) == failure
        if failure is None:
            compare(world.cold(), "t", 0, at, 20)
    world.engine.close()
