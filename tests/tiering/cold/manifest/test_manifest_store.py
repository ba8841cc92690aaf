"""Commits to the manifest: each exactly once whatever answers are lost, never by two volumes, entries never lost."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.format.manifest import REMEMBERED_COMMITS, Head, IndexEntry, LogEntry, ObjectRef
from tierlog.tiering.format.queue_rows import QUEUE_ROW, QueueRows, encode_queue_rows
from tierlog.tiering.format.store_state import StoreState, TopicState
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo

KEYS = ColdKeys("store")
SEGMENT = 4096
OWNER = Ownership("volume", "open-1", ("open-1",))
OPTIONS = ColdOptions(max_inline_entries=2, page_entries=2)


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(ManualClock())


class Committer:
    """A manifest with a hand that publishes one segment after the other."""

    def __init__(self, objects: MemoryObjectStore, seed: int = 1, owner: Ownership = OWNER) -> None:
        self.objects = FaultyObjectStore(objects)
        self.manifest = ManifestStore(self.objects, KEYS, randomness=SeededRandomness(seed), options=OPTIONS)
        self.owner = owner

    def claim(self, *, log_begin: int = 0, log_end: int = 1 << 40) -> Head:
        return self.manifest.claim(self.owner, log_begin=log_begin, log_end=log_end)

    def publish(self, head: Head) -> Head:
        """Commit the next segment, with queue rows of its own."""
        base = head.archived_to
        change = ManifestChange(log=(entry(base, self.rows(base)),), archived_to=base + SEGMENT)
        return self.manifest.commit(change, head)

    def rows(self, base: int) -> ObjectRef:
        key = f"store/manifest/rows-{base}"
        data, section = encode_queue_rows(rows_of(base), key)
        self.objects.inner.put(key, data)
        return ObjectRef(key, len(data), zlib.crc32(data), section.head_length)

    def bases(self) -> list[int]:
        head = self.manifest.refresh()
        return [each.base for each in self.manifest.log_entries(self.manifest.reader(), head)]


def bounds(number: int) -> TimeBounds:
    return TimeBounds(number * 10_000, number * 10_000 + 5_000, number * 10_000 - 7, number * 10_000 + 5_000)


def entry(base: int, rows: ObjectRef | None = None) -> LogEntry:
    return LogEntry(f"store/log/{base}", base, SEGMENT, 10, 0, 9, 1, bounds(base // SEGMENT), {}, rows)


def index_entry(first: int, next_offset: int) -> IndexEntry:
    number = first // SEGMENT
    return IndexEntry(f"store/index/{first}", 0, first, next_offset, 0, 1, 0, 1, 9, 0, 9, "tierlog", bounds(number), {})


def rows_of(base: int) -> QueueRows:
    """Queue 0 of topic 1 in each segment, topic 2 in every third."""
    number = base // SEGMENT
    found = [(1, 0, base, number * 10, 10, *[number] * 4)]
    if number % 3 == 0:
        found.append((2, 1, base, number, 1, *[number] * 4))
    return np.array(found, QUEUE_ROW)


# ---- who may write


def test_nothing_there(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    with pytest.raises(ObjectNotFoundError):
        committer.manifest.refresh()
    committer.manifest.check_owner(OWNER)
    assert committer.manifest.head is None


def test_first_claim_makes_the_head(objects: MemoryObjectStore) -> None:
    head = Committer(objects).claim(log_begin=8192)
    assert (head.version, head.epoch, head.archived_to, head.indexed_to, head.cold_min) == (1, 1, 8192, 8192, 8192)
    assert (head.volume_id, head.open_id, head.store_id) == ("volume", "open-1", "store")
    assert Committer(objects, 2).manifest.refresh() == head


def test_claim_again_is_no_new_epoch(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    assert committer.claim() == committer.claim()


def test_next_open_raises_the_epoch(objects: MemoryObjectStore) -> None:
    head = Committer(objects).claim()
    later = Committer(objects, 2, Ownership("volume", "open-2", ("open-1", "open-2"))).claim()
    assert (later.epoch, later.version, later.open_id) == (head.epoch + 1, head.version + 1, "open-2")


def test_create_that_meets_another_head_at_the_last_moment(objects: MemoryObjectStore) -> None:
    first, second = Committer(objects, 1), Committer(objects, 2, Ownership("other", "o", ("o",)))

    class Late(FaultyObjectStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
            first.claim()
            return super().put(key, data, if_absent=if_absent, if_match=if_match)

    second.manifest.objects = Late(objects)
    with pytest.raises(StoreMismatchError, match="just made"):
        second.claim()
    assert first.manifest.refresh().volume_id == "volume"
    assert objects.head("store/head").size_bytes


def test_another_volume_is_refused_and_changes_nothing(objects: MemoryObjectStore) -> None:
    head = Committer(objects).claim()
    other = Committer(objects, 2, Ownership("other", "open-1", ("open-1",)))
    with pytest.raises(StoreMismatchError, match="belongs to volume"):
        other.claim()
    with pytest.raises(StoreMismatchError):
        other.manifest.check_owner(other.owner)
    assert other.manifest.refresh() == head


def test_of_two_copies_of_a_volume_only_the_first_goes_on(objects: MemoryObjectStore) -> None:
    Committer(objects).claim()
    copies = [
        Committer(objects, number, Ownership("volume", f"open-{number}", ("open-1", f"open-{number}")))
        for number in (2, 3)
    ]
    copies[0].claim()
    with pytest.raises(FencedError, match="copy of this volume"):
        copies[1].claim()
    with pytest.raises(FencedError):
        copies[1].manifest.check_owner(copies[1].owner)
    copies[0].publish(copies[0].claim())


def test_an_older_open_is_fenced(objects: MemoryObjectStore) -> None:
    old = Committer(objects)
    head = old.claim()
    Committer(objects, 2, Ownership("volume", "open-2", ("open-1", "open-2"))).claim()
    with pytest.raises(FencedError, match="a copy of this one"):
        old.publish(head)
    assert old.bases() == []


def test_commit_without_a_claim_is_fenced(objects: MemoryObjectStore) -> None:
    head = Committer(objects).claim()
    with pytest.raises(FencedError):
        Committer(objects, 2).publish(head)


def test_a_log_that_ends_below_the_archive_is_refused(objects: MemoryObjectStore) -> None:
    first = Committer(objects)
    first.publish(first.claim())
    again = Committer(objects, 2, Ownership("volume", "open-2", ("open-1", "open-2")))
    with pytest.raises(StoreMismatchError, match="log ends at 4095"):
        again.claim(log_end=4095)
    assert again.claim(log_end=4096).epoch == 2


# ---- lost answers


@pytest.mark.parametrize("lost", range(1, 4))
def test_lost_answers_are_recognised_and_nothing_is_doubled(objects: MemoryObjectStore, lost: int) -> None:
    committer = Committer(objects)
    committer.objects.fail_after("put", "*/head")
    head = committer.claim()
    assert head.version == 1
    for _ in range(6):
        committer.objects.fail_after("put", "*/head", times=lost)
        version = head.version
        head = committer.publish(head)
        committer.objects.heal()
        assert head.version == version + 1
    assert committer.bases() == [number * SEGMENT for number in range(6)]


def test_failures_before_anything_is_done_are_tried_again(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()
    committer.objects.fail_before("put", "*/head", times=3)
    head = committer.publish(head)
    assert head.version == 2
    assert committer.bases() == [0]


def test_a_lost_answer_hidden_by_the_retry_of_a_client(objects: MemoryObjectStore) -> None:
    """The client's own second try turns a lost 200 into a 412."""
    committer = Committer(objects)
    head = committer.claim()
    committer.objects.fail_after("put", "*/head", error=PreconditionFailedError("412"))
    assert committer.publish(head).version == 2
    assert committer.bases() == [0]


def test_dead_bucket_leaves_the_outcome_to_the_next_look(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()

    class DiesAfterThePut(FaultyObjectStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
            super().put(key, data, if_absent=if_absent, if_match=if_match)
            self.die()
            raise ObjectStoreUnavailableError("the answer was lost")

    dying = DiesAfterThePut(objects)
    committer.manifest.objects = dying
    with pytest.raises(UnavailableError):
        committer.publish(head)
    committer.manifest.objects = committer.objects
    with pytest.raises(ConflictError, match="watermarks have moved"):
        committer.publish(head)
    assert committer.bases() == [0]
    assert committer.publish(committer.manifest.refresh()).archived_to == 2 * SEGMENT


def test_a_head_that_keeps_changing_is_given_up(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()
    committer.objects.fail_before("put", "*/head", times=None, error=PreconditionFailedError("412"))
    with pytest.raises(ConflictError, match="kept changing"):
        committer.publish(head)


def test_moved_watermark_is_a_conflict(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()
    committer.publish(head)
    with pytest.raises(ConflictError):
        committer.publish(head)
    current = committer.manifest.refresh()
    committer.manifest.commit(ManifestChange(indexed_to=10), current)
    with pytest.raises(ConflictError):
        committer.publish(current)
    assert committer.bases() == [0]


def test_head_remembers_the_last_commits(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()
    ids = list(head.commit_ids)
    for _ in range(REMEMBERED_COMMITS + 5):
        head = committer.publish(head)
        ids.append(head.commit_id)
    assert list(head.commit_ids) == ids[-REMEMBERED_COMMITS:]
    assert len(set(ids)) == len(ids)


def test_failed_claims_can_be_repeated(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    committer.objects.die()
    for _ in range(2):
        with pytest.raises(ObjectStoreUnavailableError):
            committer.claim()
    committer.objects.revive()
    committer.objects.fail_before("put", "*/head")
    with pytest.raises(ObjectStoreUnavailableError):
        committer.claim()
    assert committer.claim().version == 1


# ---- pages


def test_spilled_entries_stay_once_in_order_with_their_rows(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head, reader = committer.claim(), committer.manifest.reader()
    published: list[int] = []
    for number in range(50):
        head = committer.publish(head)
        published.append(number * SEGMENT)
        if number % 4 == 3:
            first = head.indexed_to
            change = ManifestChange(index=(index_entry(first, head.archived_to),), indexed_to=head.archived_to)
            head = committer.manifest.commit(change, head)
        assert len(head.log) + len(head.index) <= OPTIONS.max_inline_entries
        assert len(head.encode()) < 6000
        entries = list(committer.manifest.log_entries(reader, head))
        assert [each.base for each in entries] == published
        assert [each.added for each in entries] == sorted(each.added for each in entries)
    fresh = ManifestStore(objects, KEYS, randomness=SeededRandomness(9), options=OPTIONS)
    head = fresh.refresh()
    for base in published:
        found = fresh.log_entry(fresh.reader(), head, base)
        assert found is not None
        assert found.key == f"store/log/{base}"
    assert fresh.log_entry(fresh.reader(), head, 50 * SEGMENT) is None
    assert fresh.log_entry(fresh.reader(), head, SEGMENT + 1) is None
    for topic_id, queue_id in ((1, 0), (2, 1), (1, None), (3, None)):
        rows = fresh.queue_rows(fresh.reader(), head, topic_id, queue_id)
        wanted = np.concatenate([rows_of(base) for base in published])
        wanted = wanted[wanted["topic_id"] == topic_id]
        assert rows.tolist() == wanted.tolist()


def test_index_entries_are_chosen_by_overlap_through_pages(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head, reader = committer.claim(), committer.manifest.reader()
    for number in range(24):
        head = committer.publish(head)
        change = ManifestChange(index=(index_entry(number * SEGMENT, head.archived_to),), indexed_to=head.archived_to)
        head = committer.manifest.commit(change, head)

    def chosen(from_ms: int, to_ms: int, axis: TimeAxis = TimeAxis.STORE) -> list[int]:
        found = committer.manifest.index_entries(reader, head, axis, TimeRange(from_ms, to_ms))
        return [each.first // SEGMENT for each in found]

    assert chosen(-(1 << 40), 1 << 40) == list(range(24))
    assert chosen(52_000, 83_000) == [5, 6, 7, 8]
    assert chosen(55_999, 56_001) == [5], "seconds are cut, so bounds count a second more"
    assert chosen(56_001, 58_900) == []
    assert chosen(58_000, 59_001) == [6]
    assert chosen(58_000, 58_995, TimeAxis.BORN) == [6], "seven ms earlier on this axis"


def test_a_lost_answer_for_a_page_is_harmless(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    committer.claim()
    for number in range(20):
        if number % 2:
            committer.objects.fail_after("put", "*/manifest/*")
        while True:
            try:
                committer.publish(committer.manifest.refresh())
                break
            except UnavailableError:
                continue
    committer.objects.heal()
    assert committer.bases() == [number * SEGMENT for number in range(20)]


def test_damaged_page_stops_the_commit(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()
    for _ in range(6):
        head = committer.publish(head)
    (page,) = [info.key for info in objects.list("store/manifest/log1")][-1:]
    data = bytearray(objects.get(page)[0])
    data[-1] ^= 1
    objects.put(page, bytes(data))
    while len(head.log) < OPTIONS.max_inline_entries:
        head = committer.publish(head)
    with pytest.raises(CorruptionError):
        committer.publish(head)
    assert Head.decode(objects.get("store/head")[0], path="h").archived_to == head.archived_to


def test_state_is_kept_until_the_next_one(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()
    assert committer.manifest.state(committer.manifest.reader(), head) == StoreState()
    state = StoreState((TopicState(1, "orders", 4),))
    data = state.encode()
    objects.put("store/state/1", data)
    ref = ObjectRef("store/state/1", len(data), zlib.crc32(data), len(data))
    head = committer.manifest.commit(ManifestChange(state=ref), head)
    head = committer.publish(head)
    assert committer.manifest.state(committer.manifest.reader(), head) == state


def test_refresh_asks_only_for_changes(objects: MemoryObjectStore) -> None:
    committer = Committer(objects)
    head = committer.claim()
    before = len(committer.objects.calls)
    assert committer.manifest.refresh() is committer.manifest.head
    assert [call.operation for call in committer.objects.calls[before:]] == ["get_if_changed"]
    other = Committer(objects, 2, Ownership("volume", "open-1", ("open-1",)))
    other.claim()
    other.publish(other.manifest.refresh())
    assert committer.manifest.refresh() == replace(other.manifest.refresh())
    assert committer.manifest.refresh() != head
