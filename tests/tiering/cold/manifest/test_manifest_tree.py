"""Entries that leave the manifest, or are replaced in it: all others stay once, in order, with their queue rows."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.tiering.cold.manifest.test_manifest_store import KEYS, OWNER, SEGMENT, entry, index_entry, rows_of
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ConflictError, FencedError, PreconditionFailedError
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.format.manifest import (
    REMEMBERED_COMMITS,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    QueueGap,
    Tombstone,
    TopicExpiry,
    encode_gaps,
)
from tierlog.tiering.format.queue_rows import encode_queue_rows
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo

OPTIONS = ColdOptions(max_inline_entries=4, page_entries=4)


class Archive:
    """A manifest of objects that are really there, and what it should hold."""

    def __init__(self, options: ColdOptions = OPTIONS) -> None:
        self.clock = ManualClock()
        self.objects = MemoryObjectStore(self.clock)
        self.manifest = ManifestStore(
            self.objects, KEYS, randomness=SeededRandomness(3), options=options, clock=self.clock
        )
        self.head = self.manifest.claim(OWNER, log_begin=0, log_end=1 << 40)
        self.log: dict[int, str] = {}
        self.index: list[str] = []

    def publish(self, count: int = 1) -> None:
        """The next segments, and an index object for each."""
        for _ in range(count):
            base = self.head.archived_to
            segment, items = entry(base, self.rows(base)), index_entry(base, base + SEGMENT)
            self.head = self.manifest.commit(ManifestChange(log=(segment,), archived_to=base + SEGMENT), self.head)
            self.head = self.manifest.commit(ManifestChange(index=(items,), indexed_to=base + SEGMENT), self.head)
            for key in (segment.key, items.key):
                self.objects.put(key, b"object")
            self.log[base] = segment.key
            self.index.append(items.key)

    def rows(self, base: int) -> ObjectRef:
        key = f"store/manifest/rows-{base}"
        data, section = encode_queue_rows(rows_of(base), key)
        self.objects.put(key, data)
        return ObjectRef(key, len(data), zlib.crc32(data), section.head_length)

    def segment(self, base: int) -> LogEntry:
        found = self.manifest.log_entry(self.manifest.reader(), self.head, base)
        assert found is not None
        return found

    def replace(self, base: int, number: int) -> None:
        old = self.segment(base)
        new = replace(old, key=f"store/log/{base}-{number}", rows=None)
        self.objects.put(new.key, b"object")
        self.head = self.manifest.commit_other(ManifestChange(log=(new,), remove=(old,)))
        self.log[base] = new.key

    def merge(self, numbers: slice) -> None:
        """One index object instead of several."""
        inputs = [each for each in self.index_entries() if each.key in self.index[numbers]]
        merged = index_entry(min(each.first for each in inputs), max(each.next for each in inputs))
        merged = replace(merged, key=f"{merged.key}-merged-{self.head.version}", level=1)
        self.objects.put(merged.key, b"object")
        self.head = self.manifest.commit_other(ManifestChange(index=(merged,), remove=tuple(inputs)))
        for each in inputs:
            self.index.remove(each.key)
        self.index.append(merged.key)

    def index_entries(self) -> list[IndexEntry]:
        return list(self.manifest.all_index_entries(self.manifest.reader(), self.head))

    def expire(self, cold_min: int) -> None:
        below = {each.key for each in self.index_entries() if each.next <= cold_min}
        self.head = self.manifest.commit_other(ManifestChange(cold_min=cold_min))
        self.log = {base: key for base, key in self.log.items() if base >= cold_min}
        self.index = [key for key in self.index if key not in below]

    def check(self) -> None:
        """Every entry once and in order, rows as published, and every object either named or on the removed list."""
        reader, head = self.manifest.reader(), self.manifest.refresh()
        assert [(each.base, each.key) for each in self.manifest.log_entries(reader, head)] == sorted(self.log.items())
        assert sorted(each.key for each in self.index_entries()) == sorted(self.index)
        for base, key in self.log.items():
            found = self.manifest.segment_of(reader, head, base + 17)
            assert found is not None
            assert found.key == key
        for topic_id in (1, 2):
            rows = self.manifest.queue_rows(reader, head, topic_id)
            wanted = [row for base in sorted(self.log) for row in rows_of(base).tolist() if row[0] == topic_id]
            assert rows.tolist() == wanted
        named = {ref.key for ref in self.manifest.pages(reader, head)} | {*self.log.values(), *self.index, KEYS.head}
        removed = [key for key, _ in self.manifest.removed_names(reader, head)]
        assert len(removed) == len(set(removed))
        assert not named & set(removed)
        assert named | set(removed) == {info.key for info in self.objects.list("")} | (set(removed) - named)


def nodes(archive: Archive, tree: tuple[PageNode, ...]) -> Iterator[PageNode]:
    """All nodes but the last of their level: those that must not be small."""
    kind = "log" if tree is archive.head.log_tree else "index"
    yield from tree
    for node in tree:
        yield from archive.manifest._page(archive.manifest.reader(), node, kind)


def test_a_segment_is_replaced_in_its_place_inline_and_in_a_page() -> None:
    archive = Archive()
    archive.publish(30)
    for number, base in enumerate((0, 7 * SEGMENT, 28 * SEGMENT, 29 * SEGMENT, 7 * SEGMENT)):
        archive.replace(base, number)
        archive.check()


def test_index_objects_are_replaced_by_their_merge() -> None:
    archive = Archive()
    archive.publish(30)
    archive.merge(slice(0, 11))
    archive.check()
    archive.merge(slice(3, 19))
    archive.check()


def test_pages_that_lose_most_entries_are_joined() -> None:
    archive = Archive()
    archive.publish(60)
    before = len(list(nodes(archive, archive.head.index_tree)))
    for start in range(0, 40, 2):
        archive.merge(slice(start // 2, start // 2 + 3))
        archive.check()
    leaves = list(nodes(archive, archive.head.index_tree))
    assert len(leaves) < before
    assert sum(node.count for node in leaves if node.level == 0) == len(archive.index) - len(archive.head.index)


def test_everything_below_cold_min_leaves_with_its_rows() -> None:
    archive = Archive()
    archive.publish(40)
    for cold_min in (SEGMENT, 9 * SEGMENT, 37 * SEGMENT, 40 * SEGMENT):
        archive.expire(cold_min)
        archive.check()
        assert archive.head.cold_min == cold_min
    archive.publish(12)
    archive.check()


def test_an_input_that_is_gone_is_a_conflict_and_changes_nothing() -> None:
    archive = Archive()
    archive.publish(20)
    old = archive.segment(3 * SEGMENT)
    archive.replace(3 * SEGMENT, 1)
    before = archive.head
    with pytest.raises(ConflictError, match="left the manifest"):
        archive.manifest.commit_other(ManifestChange(remove=(old, archive.segment(19 * SEGMENT))))
    assert archive.manifest.refresh() == before
    archive.check()


def test_names_that_left_carry_the_servers_time() -> None:
    archive = Archive(ColdOptions())
    archive.publish(2)
    archive.clock.advance(5_000)
    archive.expire(SEGMENT)
    at_ms = archive.clock.now_ms()
    removed = dict(archive.manifest.removed_names(archive.manifest.reader(), archive.head))
    assert removed == {
        f"store/log/{0}": at_ms, "store/manifest/rows-0": at_ms, "store/index/0": at_ms,
    }  # fmt: skip


def test_pages_of_removed_names_stay_few_and_lose_no_name() -> None:
    archive = Archive()
    archive.publish(10)
    for number in range(150):
        archive.replace(9 * SEGMENT, number)
    assert len(archive.head.removed) <= 33
    archive.check()
    archive.manifest.commit_other(ManifestChange(deleted=archive.head.removed[:-1]))
    head = archive.manifest.refresh()
    reader = archive.manifest.reader()
    left = [key for key, _ in archive.manifest.removed_names(reader, head)]
    assert {page.ref.key for page in archive.head.removed[:-1]} <= set(left)


def test_tombstones_expiry_and_gaps_come_and_go() -> None:
    archive = Archive()
    archive.publish(3)
    stone = Tombstone("t", "orders", None, "", None, None, archive.head.archived_to)
    gaps = encode_gaps([QueueGap(1, 0, 5, 9)])
    ref = ObjectRef("store/manifest/gaps-1", len(gaps), zlib.crc32(gaps), len(gaps))
    archive.objects.put(ref.key, gaps)
    head = archive.manifest.commit_other(
        ManifestChange(add_tombstones=(stone,), expired=(TopicExpiry(1, 70),), gaps=ref, log_gaps=((5, 9),))
    )
    assert [each.tombstone_id for each in head.tombstones] == ["t"]
    assert head.tombstones[0].added == head.version
    assert archive.manifest.gaps(archive.manifest.reader(), head) == (QueueGap(1, 0, 5, 9),)
    head = archive.manifest.commit_other(
        ManifestChange(close_tombstones=("t",), expired=(TopicExpiry(1, 60), TopicExpiry(2, 5)), log_gaps=((1, 2),))
    )
    assert head.tombstones == ()
    assert head.expired == (TopicExpiry(1, 70), TopicExpiry(2, 5))
    assert head.log_gaps == ((1, 2), (5, 9))


def test_a_commit_built_before_an_erasure_is_built_again() -> None:
    archive = Archive()
    archive.publish(2)
    before = archive.head
    archive.manifest.commit_other(
        ManifestChange(add_tombstones=(Tombstone("t", "orders", None, "", None, None, before.archived_to),))
    )
    base = before.archived_to
    change = ManifestChange(log=(entry(base),), archived_to=base + SEGMENT)
    with pytest.raises(ConflictError, match="erasure"):
        archive.manifest.commit(change, before)
    head = archive.manifest.commit(change, archive.manifest.refresh())
    assert head.archived_to == base + SEGMENT


def test_an_upload_that_took_too_long_is_done_again() -> None:
    archive = Archive()
    begun_s = archive.clock.monotonic_s()
    archive.clock.advance(OPTIONS.grace_ms // 4 + 1)
    change = ManifestChange(log=(entry(0),), archived_to=SEGMENT, begun_s=begun_s)
    with pytest.raises(ConflictError, match="quarter of the grace"):
        archive.manifest.commit(change, archive.head)
    assert archive.manifest.refresh().archived_to == 0


def test_a_takeover_fences_the_volume_before() -> None:
    archive = Archive()
    archive.publish(2)
    other = ManifestStore(archive.objects, KEYS, randomness=SeededRandomness(8), options=OPTIONS)
    owner = type(OWNER)("volume-2", "open-9", ("open-9",))
    taken = other.take_over(owner, ManifestChange(log_gaps=((2 * SEGMENT, 9 * SEGMENT),)), other.refresh())
    assert (taken.volume_id, taken.open_id, taken.epoch) == ("volume-2", "open-9", archive.head.epoch + 1)
    with pytest.raises(FencedError):
        archive.publish()
    with pytest.raises(ConflictError, match="takeover"):
        other.take_over(owner, ManifestChange(), archive.head)


def test_a_commit_that_landed_long_ago_is_known_by_its_traces() -> None:
    archive = Archive()
    archive.publish(1)
    put = archive.objects.put
    seen: list[str] = []

    def answer_late(key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """412 for the first head that was in truth stored, after more commits than a head remembers."""
        info = put(key, data, if_absent=if_absent, if_match=if_match)
        if key == KEYS.head and not seen:
            seen.append(key)
            beside = ManifestStore(archive.objects, KEYS, randomness=SeededRandomness(77), options=OPTIONS)
            for number in range(REMEMBERED_COMMITS + 1):
                beside.commit_other(ManifestChange(expired=(TopicExpiry(1, number),)))
            raise PreconditionFailedError("a client's second try met its first", path=key)
        return info

    archive.objects.put = answer_late  # type: ignore[method-assign]
    archive.replace(0, 1)
    archive.check()
    seen.clear()
    archive.publish()
    archive.check()


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_of_publishing_replacing_merging_and_expiring(seed: int) -> None:
    chosen = random.Random(seed)
    archive = Archive(ColdOptions(max_inline_entries=chosen.choice((2, 5)), page_entries=chosen.choice((2, 3, 5))))
    archive.publish(3)
    for number in range(40):
        action = chosen.randrange(6)
        if action < 3 or len(archive.index) < 3 or not archive.log:
            archive.publish(chosen.randrange(1, 4))
        elif action == 3:
            archive.replace(chosen.choice(sorted(archive.log)), number)
        elif action == 4:
            start = chosen.randrange(len(archive.index) - 1)
            archive.merge(slice(start, start + chosen.randrange(2, 6)))
        else:
            archive.expire(chosen.choice(sorted(archive.log)))
        archive.check()
