"""What the tails of a lost volume give back, and that a restore which is cut off goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.hot_stores import append
from tests.support.stores.tails import KEYS, TailWorld, archived_bodies, data_head, take_over
from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError, FencedError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestChange
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.tail import TailKind
from tierlog.tiering.lifecycle.archiver import upload_segment
from tierlog.tiering.lifecycle.tail_recovery import TOPIC_ID_STEP, RecoveredTails, recover_tails
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.object_store import ObjectStore

FOLDER = Path("/restore")


def bodies(first: int, end: int) -> list[bytes]:
    return [f"body {number} ".encode() * 9 for number in range(first, end)]


def send(world: TailWorld, first: int, end: int, topic: str = "orders") -> int:
    """Append numbered messages and have them covered."""
    for body in bodies(first, end):
        append(world.hot, Message(topic, body, queue_id=0))
    end_offset = world.hot.log.flushed
    world.writer.want(end_offset)
    world.run()
    return end_offset


def recover(world: TailWorld, volume_id: str = "other") -> RecoveredTails:
    manifest, head = take_over(world, volume_id)
    return recover_tails(manifest, head, world.hot_world.fs, FOLDER, SeededRandomness(5))


def test_the_log_so_far_is_published_as_a_segment_that_ends_early() -> None:
    world = TailWorld()
    end = send(world, 0, 7)
    found = recover(world)
    assert (found.head.archived_to, found.lacks_from) == (4096, end)
    assert archived_bodies(world.manifest) == bodies(0, 7)
    (entry,) = found.head.log
    restored = SegmentReader(world.manifest.reader(), entry).restore().data
    assert restored[:end] == world.log_bytes(end)
    assert restored[end : end + 4] == (4096 - end).to_bytes(4)
    assert not any(restored[end + 8 :])
    assert world.hot_world.fs.list_dir(FOLDER) == []


def test_segments_that_were_rolled_come_back_as_they_were() -> None:
    world = TailWorld()
    end = send(world, 0, 60)
    assert end > 2 * 4096
    found = recover(world)
    assert found.lacks_from == end
    assert archived_bodies(world.manifest) == bodies(0, 60)
    for entry in found.head.log[:-1]:
        original = bytes(world.hot.log.segment_of(entry.base).data)
        assert SegmentReader(world.manifest.reader(), entry).restore().data == original


def test_a_rolled_segment_alone_is_no_partial_one() -> None:
    world = TailWorld()
    end = send(world, 0, 5)
    world.hot.roll()
    world.writer.want(4096)
    world.run()
    found = recover(world)
    assert (found.head.archived_to, found.lacks_from) == (4096, end)
    assert archived_bodies(world.manifest) == bodies(0, 5)


def test_what_was_archived_already_is_not_published_again() -> None:
    world = TailWorld()
    send(world, 0, 20)
    world.hot.roll()
    world.hot.dispatch()
    (segment, *_) = world.hot.log.segments()
    topics = world.hot.topics.all()
    entry = upload_segment(world.manifest, SeededRandomness(3), topics=topics, segment=segment, epoch=world.head.epoch)
    world.manifest.commit(ManifestChange(log=(entry,), archived_to=4096), world.head)
    world.archived_to = 4096
    send(world, 20, 30)
    recover(world)
    assert archived_bodies(world.manifest) == bodies(0, 30)


def test_no_tails_still_get_a_fence() -> None:
    world = TailWorld()
    found = recover(world)
    assert (found.head.archived_to, found.lacks_from) == (0, 0)
    (tail,) = world.all()
    assert (tail.head.kind, tail.head.first, tail.head.volume_id, tail.head.epoch) == (TailKind.FENCE, 0, "other", 2)
    append(world.hot, Message("orders", b"late"))
    world.writer.want(world.hot.log.flushed)
    with pytest.raises(FencedError):
        world.run()


def test_a_tail_behind_a_hole_is_not_part_of_the_log() -> None:
    world = TailWorld()
    send(world, 0, 3)
    for body in bodies(3, 40):
        append(world.hot, Message("orders", body, queue_id=0))
    world.writer.want(world.hot.log.flushed)
    first, second, third = world.take(), world.take(), world.take()
    world.writer.store(first)
    world.writer.store(third)
    found = recover(world)
    assert found.lacks_from == first.head.end
    there = [body for body in bodies(3, 40) if body in first.cut.payload.tobytes()]
    assert archived_bodies(world.manifest) == bodies(0, 3) + there
    with pytest.raises(FencedError):
        world.writer.store(second)


def test_topics_that_only_tails_know_get_new_ids_and_their_queues() -> None:
    world = TailWorld()
    world.hot.create_topic("wide", 7)
    send(world, 0, 2)
    send(world, 2, 4, topic="wide")
    found = recover(world)
    state = world.manifest.state(world.manifest.reader(), found.head)
    assert [(topic.name, topic.topic_id, topic.queues) for topic in state.topics] == [
        ("orders", 1 + TOPIC_ID_STEP, 2), ("wide", 2 + TOPIC_ID_STEP, 7),
    ]  # fmt: skip
    assert (state.next_topic_id, state.segment_bytes) == (3 + TOPIC_ID_STEP, 4096)


def test_a_second_restore_of_a_third_volume_finds_the_same() -> None:
    world = TailWorld()
    end = send(world, 0, 7)
    first = recover(world)
    second = recover(world, "third")
    assert second.lacks_from == first.lacks_from == end
    assert archived_bodies(world.manifest) == bodies(0, 7)


class Killed(BaseException):
    """The process is gone."""


class DyingStore(FaultyObjectStore):
    """Ends the process at its n-th call, before or after it is done."""

    def __init__(self, inner: ObjectStore, number: int, *, after: bool) -> None:
        super().__init__(inner)
        self._number, self._after = number, after

    def _begin(self, operation: str, key: str) -> None:
        super()._begin(operation, key)
        if len(self.calls) == self._number and not self._after:
            raise Killed

    def _end(self, operation: str, key: str) -> None:
        super()._end(operation, key)
        if len(self.calls) == self._number:
            raise Killed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_call_of_the_bucket_it_goes_on(after: bool) -> None:
    number = 0
    while True:
        number += 1
        world = TailWorld()
        end = send(world, 0, 45)
        bucket = world.objects
        world.objects = DyingStore(bucket.inner, number, after=after)
        try:
            recover(world)
        except Killed:
            world.objects = bucket
            found = recover(world, "third")
            assert found.lacks_from == end
            assert archived_bodies(world.manifest) == bodies(0, 45)
        else:
            break
    assert number > 20, "a restore of two segments makes some calls"


def test_a_damaged_tail_is_named_and_nothing_of_its_segment_is_published() -> None:
    world = TailWorld()
    send(world, 0, 7)
    key = KEYS.tail(0)
    data, _ = world.objects.inner.get(key)
    world.objects.inner.put(key, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(ChecksumMismatchError, match="tail/0000"):
        recover(world)
    assert archived_bodies(world.manifest) == []


def test_a_tail_whose_bytes_are_no_records_is_refused() -> None:
    world = TailWorld()
    world.tails.create(replace(data_head(0, b"no record" * 20), volume_id="volume"), b"no record" * 20)
    with pytest.raises(CorruptionError):
        recover(world)
    assert archived_bodies(world.manifest) == []


def test_a_volume_that_was_fenced_itself_publishes_nothing() -> None:
    world = TailWorld()
    send(world, 0, 7)
    manifest, head = take_over(world)
    take_over(world, "third")
    with pytest.raises(FencedError):
        recover_tails(manifest, head, world.hot_world.fs, FOLDER, SeededRandomness(5))
    assert archived_bodies(world.manifest) == []
