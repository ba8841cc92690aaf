"""What the tails of a lost volume give back, and that a restore which is cut off goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.hot_stores import append
from tests.support.stores.tails import KEYS, TailedStore, archived_bodies, data_head, take_over
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


def send(tailed: TailedStore, first: int, end: int, topic: str = "orders") -> int:
    """Append numbered messages and have them covered."""
    for body in bodies(first, end):
        append(tailed.hot, Message(topic, body, queue_id=0))
    end_offset = tailed.hot.log.flushed
    tailed.writer.want(end_offset)
    tailed.run()
    return end_offset


def recover(tailed: TailedStore, volume_id: str = "other") -> RecoveredTails:
    manifest, head = take_over(tailed, volume_id)
    return recover_tails(manifest, head, tailed.hot_world.fs, FOLDER, SeededRandomness(5))


def test_the_log_so_far_is_published_as_a_segment_that_ends_early() -> None:
    tailed = TailedStore()
    end = send(tailed, 0, 7)
    found = recover(tailed)
    assert (found.head.archived_to, found.lacks_from) == (4096, end)
    assert archived_bodies(tailed.manifest) == bodies(0, 7)
    (entry,) = found.head.log
    restored = SegmentReader(tailed.manifest.reader(), entry).restore().data
    assert restored[:end] == tailed.log_bytes(end)
    assert restored[end : end + 4] == (4096 - end).to_bytes(4)
    assert not any(restored[end + 8 :])
    assert tailed.hot_world.fs.list_dir(FOLDER) == []


def test_segments_that_were_rolled_come_back_as_they_were() -> None:
    tailed = TailedStore()
    end = send(tailed, 0, 60)
    assert end > 2 * 4096
    found = recover(tailed)
    assert found.lacks_from == end
    assert archived_bodies(tailed.manifest) == bodies(0, 60)
    for entry in found.head.log[:-1]:
        original = bytes(tailed.hot.log.segment_of(entry.base).data)
        assert SegmentReader(tailed.manifest.reader(), entry).restore().data == original


def test_a_rolled_segment_alone_is_no_partial_one() -> None:
    tailed = TailedStore()
    end = send(tailed, 0, 5)
    tailed.hot.roll()
    tailed.writer.want(4096)
    tailed.run()
    found = recover(tailed)
    assert (found.head.archived_to, found.lacks_from) == (4096, end)
    assert archived_bodies(tailed.manifest) == bodies(0, 5)


def test_what_was_archived_already_is_not_published_again() -> None:
    tailed = TailedStore()
    send(tailed, 0, 20)
    tailed.hot.roll()
    tailed.hot.dispatch()
    (segment, *_) = tailed.hot.log.segments()
    topics = tailed.hot.topics.all()
    entry = upload_segment(
        tailed.manifest, SeededRandomness(3), topics=topics, segment=segment, epoch=tailed.head.epoch
    )
    tailed.manifest.commit(ManifestChange(log=(entry,), archived_to=4096), tailed.head)
    tailed.archived_to = 4096
    send(tailed, 20, 30)
    recover(tailed)
    assert archived_bodies(tailed.manifest) == bodies(0, 30)


def test_no_tails_still_get_a_fence() -> None:
    tailed = TailedStore()
    found = recover(tailed)
    assert (found.head.archived_to, found.lacks_from) == (0, 0)
    (tail,) = tailed.all()
    assert (tail.head.kind, tail.head.first, tail.head.volume_id, tail.head.epoch) == (TailKind.FENCE, 0, "other", 2)
    append(tailed.hot, Message("orders", b"late"))
    tailed.writer.want(tailed.hot.log.flushed)
    with pytest.raises(FencedError):
        tailed.run()


def test_a_tail_behind_a_hole_is_not_part_of_the_log() -> None:
    tailed = TailedStore()
    send(tailed, 0, 3)
    for body in bodies(3, 40):
        append(tailed.hot, Message("orders", body, queue_id=0))
    tailed.writer.want(tailed.hot.log.flushed)
    first, second, third = tailed.take(), tailed.take(), tailed.take()
    tailed.writer.store(first)
    tailed.writer.store(third)
    found = recover(tailed)
    assert found.lacks_from == first.head.end
    there = [body for body in bodies(3, 40) if body in first.cut.payload.tobytes()]
    assert archived_bodies(tailed.manifest) == bodies(0, 3) + there
    with pytest.raises(FencedError):
        tailed.writer.store(second)


def test_topics_that_only_tails_know_get_new_ids_and_their_queues() -> None:
    tailed = TailedStore()
    tailed.hot.create_topic("wide", 7)
    send(tailed, 0, 2)
    send(tailed, 2, 4, topic="wide")
    found = recover(tailed)
    state = tailed.manifest.state(tailed.manifest.reader(), found.head)
    assert [(topic.name, topic.topic_id, topic.queues) for topic in state.topics] == [
        ("orders", 1 + TOPIC_ID_STEP, 2), ("wide", 2 + TOPIC_ID_STEP, 7),
    ]  # fmt: skip
    assert (state.next_topic_id, state.segment_bytes) == (3 + TOPIC_ID_STEP, 4096)


def test_a_second_restore_of_a_third_volume_finds_the_same() -> None:
    tailed = TailedStore()
    end = send(tailed, 0, 7)
    first = recover(tailed)
    second = recover(tailed, "third")
    assert second.lacks_from == first.lacks_from == end
    assert archived_bodies(tailed.manifest) == bodies(0, 7)


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
        tailed = TailedStore()
        end = send(tailed, 0, 45)
        bucket = tailed.objects
        tailed.objects = DyingStore(bucket.inner, number, after=after)
        try:
            recover(tailed)
        except Killed:
            tailed.objects = bucket
            found = recover(tailed, "third")
            assert found.lacks_from == end
            assert archived_bodies(tailed.manifest) == bodies(0, 45)
        else:
            break
    assert number > 20, "a restore of two segments makes some calls"


def test_a_damaged_tail_is_named_and_nothing_of_its_segment_is_published() -> None:
    tailed = TailedStore()
    send(tailed, 0, 7)
    key = KEYS.tail(0)
    data, _ = tailed.objects.inner.get(key)
    tailed.objects.inner.put(key, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(ChecksumMismatchError, match="tail/0000"):
        recover(tailed)
    assert archived_bodies(tailed.manifest) == []


def test_a_tail_whose_bytes_are_no_records_is_refused() -> None:
    tailed = TailedStore()
    tailed.tails.create(replace(data_head(0, b"no record" * 20), volume_id="volume"), b"no record" * 20)
    with pytest.raises(CorruptionError):
        recover(tailed)
    assert archived_bodies(tailed.manifest) == []


def test_a_volume_that_was_fenced_itself_publishes_nothing() -> None:
    tailed = TailedStore()
    send(tailed, 0, 7)
    manifest, head = take_over(tailed)
    take_over(tailed, "third")
    with pytest.raises(FencedError):
        recover_tails(manifest, head, tailed.hot_world.fs, FOLDER, SeededRandomness(5))
    assert archived_bodies(tailed.manifest) == []
