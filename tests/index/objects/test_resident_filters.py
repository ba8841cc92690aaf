"""Filters in memory: brought by use and beside the query, never over the limit, and never a wrong answer."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.object_sections import FILTER
from tierlog.index.objects.resident_filters import ResidentFilters
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFailedError, DiskFullError
from tierlog.tiering.cold.reading.disk_cache import DiskCache
from tierlog.tiering.cold.reading.memory_cache import uses_that_pay
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.format.section import SectionRef
from tierlog.tiering.objects.memory import MemoryObjectStore

FOLDER = Path("/cache/filters")
LIMIT = 1 << 20
BEFORE = b"pages and directory"


def hashes(number: int) -> tuple[int, int]:
    return number * 7_919 % (1 << 31), number * 2_654_435_761 % (1 << 32)


ABSENT = hashes(999_999)


class FilteredObjects:
    """Objects with filters in a bucket; what is to be done later is done when the test says so."""

    def __init__(self, count: int = 5, limit_bytes: int = LIMIT, *, keys: int = 100) -> None:
        self.clock = ManualClock()
        self.bucket = FaultyObjectStore(MemoryObjectStore(self.clock))
        self.fs = FaultyFileSystem(CrashFileSystem())
        self.later: deque[Callable[[], None]] = deque()
        self.entries = [self.publish(number, keys) for number in range(count)]
        self.limit_bytes = limit_bytes
        self.filters = ResidentFilters(self.bucket, limit_bytes, self.clock, submit=self.later.append)

    def publish(self, number: int, keys: int) -> IndexEntry:
        held = [hashes(number * 1000 + each) for each in range(keys)]
        section = KeyFilter.build([low for low, _ in held], [high for _, high in held]).encode()
        ref = SectionRef(len(BEFORE), len(section), len(section), zlib.crc32(section))
        key = f"store/index/L0/{number:03}.idx"
        self.bucket.inner.put(key, BEFORE + section)
        return IndexEntry(key, 0, 0, 1, 0, 1, 0, keys, 100, 0, 100, "tierlog", None, {FILTER: ref})

    def with_disk(self, limit_bytes: int = LIMIT) -> ResidentFilters:
        """As after a restart."""
        self.filters.close()
        self.later.clear()
        disk = DiskCache(self.fs, FOLDER, limit_bytes)
        self.filters = ResidentFilters(self.bucket, self.limit_bytes, self.clock, disk=disk, submit=self.later.append)
        return self.filters

    def run_later(self) -> None:
        while self.later:
            self.later.popleft()()

    def miss(self, entry: IndexEntry, times: int = 1) -> int:
        """Look-ups of an absent key, as a search does them; how many asked the object."""
        asked = 0
        for _ in range(times):
            if not self.filters.rules_out(entry, *ABSENT):
                asked += 1
                self.filters.looked_up(entry, found=False)
        return asked

    def bring(self, *entries: IndexEntry) -> None:
        for entry in entries:
            self.miss(entry, uses_that_pay(0))
        self.run_later()

    def fetches(self) -> int:
        return sum(call.operation == "get_range" for call in self.bucket.calls)


def cost_of(objects: FilteredObjects) -> int:
    """What one filter takes of the limit."""
    objects.bring(objects.entries[0])
    return objects.filters.counters().bytes


def test_a_filter_is_fetched_beside_the_query_once_enough_look_ups_were_in_vain() -> None:
    objects = FilteredObjects()
    entry = objects.entries[0]
    assert objects.miss(entry, uses_that_pay(0) - 1) == uses_that_pay(0) - 1
    assert not [work for work in objects.later if objects.fetches()]
    objects.run_later()
    assert objects.fetches() == 0
    assert objects.miss(entry) == 1
    assert objects.fetches() == 0  # not on this thread
    objects.run_later()
    assert objects.fetches() == 1
    assert objects.miss(entry, 10) == 0
    counters = objects.filters.counters()
    assert (counters.hits, counters.misses, counters.fetched, counters.entries) == (10, uses_that_pay(0), 1, 1)
    assert counters.fetched_bytes == entry.sections[FILTER].length


def test_keys_that_an_object_holds_are_never_ruled_out() -> None:
    objects = FilteredObjects()
    objects.bring(*objects.entries)
    for number, entry in enumerate(objects.entries):
        assert not any(objects.filters.rules_out(entry, *hashes(number * 1000 + each)) for each in range(100))


def test_look_ups_that_find_something_bring_no_filter() -> None:
    objects = FilteredObjects()
    for _ in range(100):
        objects.filters.looked_up(objects.entries[0], found=True)
    objects.run_later()
    assert objects.fetches() == 0


def test_objects_without_a_filter_or_of_an_unknown_layout_are_asked_themselves() -> None:
    objects = FilteredObjects()
    bare = replace(objects.entries[0], sections={FILTER: SectionRef(5, 0, 0, 0)})
    strange = replace(objects.entries[1], layout="of another system")
    for entry in (bare, strange, replace(bare, sections={})):
        assert objects.miss(entry, 50) == 50
    objects.run_later()
    assert objects.fetches() == 0


def test_the_limit_holds_to_the_byte() -> None:
    cost = cost_of(FilteredObjects())
    for room in (0, cost - 1, cost, 3 * cost - 1, 3 * cost, 5 * cost):
        objects = FilteredObjects(limit_bytes=room)
        objects.bring(*objects.entries)
        counters = objects.filters.counters()
        assert counters.entries == min(room // cost, 5)
        assert counters.bytes == counters.entries * cost <= counters.limit_bytes == room


def test_the_limit_holds_while_filters_are_on_their_way() -> None:
    cost = cost_of(FilteredObjects())
    objects = FilteredObjects(limit_bytes=2 * cost)
    seen: list[int] = []
    inner = objects.bucket.inner.get_range

    def get_range(key: str, start: int, end: int) -> bytes:
        seen.append(objects.filters.counters().bytes)
        return inner(key, start, end)

    objects.bucket.inner.get_range = get_range  # type: ignore[method-assign]
    for uses in (2, 2, 5, 9, 30):
        for entry in objects.entries:
            objects.miss(entry, uses)
        objects.run_later()
    assert seen
    assert max(seen) == 2 * cost


def test_one_that_is_used_more_takes_the_place_of_one_used_less() -> None:
    cost = cost_of(FilteredObjects())
    objects = FilteredObjects(limit_bytes=2 * cost)
    objects.bring(*objects.entries[:2])
    objects.miss(objects.entries[1], 5)
    objects.miss(objects.entries[2], 4)
    objects.run_later()
    assert [objects.miss(entry) for entry in objects.entries[:3]] == [1, 0, 0]
    assert objects.filters.counters().evictions == 1


def test_no_query_makes_more_than_a_bounded_number_of_filters_wait() -> None:
    objects = FilteredObjects(count=100)
    for entry in objects.entries:
        objects.miss(entry, 4)
    assert len(objects.later) == 64


def test_a_publisher_hands_its_filter_over_without_a_request() -> None:
    objects = FilteredObjects()
    entry = objects.entries[0]
    ref = entry.sections[FILTER]
    data = objects.bucket.inner.get_range(entry.key, ref.position, ref.position + ref.length)
    objects.filters.offer(entry.key, ref, lambda: data)
    assert objects.miss(entry, 3) == 0
    assert objects.fetches() == 0


def test_a_publisher_pushes_nothing_out() -> None:
    cost = cost_of(FilteredObjects())
    objects = FilteredObjects(limit_bytes=cost)
    objects.bring(objects.entries[0])
    ref = objects.entries[1].sections[FILTER]
    data = objects.bucket.inner.get_range(objects.entries[1].key, ref.position, ref.position + ref.length)
    objects.filters.offer(objects.entries[1].key, ref, lambda: data)
    assert [objects.miss(entry) for entry in objects.entries[:2]] == [0, 1]


@pytest.mark.parametrize("at", [0, 30, 80, -1])
def test_a_damaged_filter_is_as_if_there_were_none_and_is_told(at: int, caplog: pytest.LogCaptureFixture) -> None:
    objects = FilteredObjects()
    entry = objects.entries[0]
    whole = bytearray(objects.bucket.inner.get(entry.key)[0])
    whole[at if at < 0 else len(BEFORE) + at] ^= 1
    objects.bucket.inner.delete(entry.key)
    objects.bucket.inner.put(entry.key, bytes(whole))
    with caplog.at_level(logging.WARNING):
        objects.bring(entry)
    assert not any(objects.filters.rules_out(entry, *hashes(each)) for each in range(100))
    assert objects.filters.counters().failures == 1
    assert objects.filters.counters().bytes == 0
    assert entry.key in caplog.text


def test_a_damaged_filter_is_asked_for_again_at_most_now_and_then() -> None:
    objects = FilteredObjects()
    objects.bucket.short_read("get_range", times=None)
    for _ in range(50):
        objects.bring(objects.entries[0])
    assert objects.fetches() == 1
    objects.bring(objects.entries[1])
    assert objects.fetches() == 2
    objects.bucket.heal()
    objects.clock.advance(3_600_001)
    objects.bring(objects.entries[0])
    assert objects.fetches() == 3
    assert objects.miss(objects.entries[0]) == 0


def test_a_dead_bucket_is_left_alone_longer_and_longer() -> None:
    objects = FilteredObjects(count=50)
    objects.bucket.die()
    for _ in range(24 * 60):
        for entry in objects.entries:
            objects.miss(entry)
        objects.run_later()
        objects.clock.advance(60_000)
    assert objects.fetches() < 100
    assert objects.filters.counters().bytes == 0
    objects.bucket.revive()
    objects.clock.advance(3_600_001)
    objects.bring(*objects.entries)
    assert sum(objects.miss(entry) for entry in objects.entries) == 0


def test_a_restart_finds_on_disk_what_was_in_memory() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    objects.bring(*objects.entries[:3])
    assert objects.fetches() == 3
    objects.with_disk()
    objects.filters.warm()
    objects.run_later()
    assert [objects.miss(entry) for entry in objects.entries[:3]] == [0, 0, 0]
    assert objects.fetches() == 3
    objects.miss(objects.entries[3], 4)
    objects.run_later()
    assert objects.fetches() == 4


def test_what_lost_its_place_in_memory_leaves_the_disk() -> None:
    objects = FilteredObjects(limit_bytes=cost_of(FilteredObjects()))
    objects.with_disk()
    objects.bring(objects.entries[0])
    objects.miss(objects.entries[1], 8)
    objects.run_later()
    assert len(objects.fs.list_dir(FOLDER / "ranges")) == 1
    objects.with_disk()
    assert objects.miss(objects.entries[1]) == 1  # the first look-up begins to load
    objects.run_later()
    assert [objects.miss(entry) for entry in objects.entries[:2]] == [1, 0]


def test_a_smaller_limit_takes_hold_after_a_restart_in_memory_and_on_disk() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    objects.bring(*objects.entries)
    objects.limit_bytes = 2 * (objects.filters.counters().bytes // 5)
    objects.with_disk().warm()
    objects.run_later()
    assert objects.filters.counters().bytes == objects.limit_bytes
    assert len(objects.fs.list_dir(FOLDER / "ranges")) == 2


def test_a_filter_that_was_damaged_on_disk_is_fetched_again() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    objects.bring(objects.entries[0])
    (name,) = objects.fs.list_dir(FOLDER / "ranges")
    damaged = bytearray(objects.fs.read(FOLDER / "ranges" / name))
    damaged[-1] ^= 1
    file = objects.fs.open(FOLDER / "ranges" / name)
    file.write_at(0, bytes(damaged))
    file.close()
    objects.with_disk()
    assert objects.miss(objects.entries[0], 2) == 2
    objects.run_later()
    assert objects.fetches() == 2
    assert objects.miss(objects.entries[0]) == 0


def test_a_copy_on_disk_of_another_filter_is_not_believed() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    mine, other = objects.entries[:2]
    ref = other.sections[FILTER]
    section = objects.bucket.inner.get_range(other.key, ref.position, ref.position + ref.length)
    assert ref.length == mine.sections[FILTER].length
    disk = DiskCache(objects.fs, Path("/elsewhere"), LIMIT)
    objects.filters = ResidentFilters(objects.bucket, LIMIT, objects.clock, disk=disk, submit=objects.later.append)
    disk.put(mine.key, ref.position, ref.position + ref.length, section)
    objects.filters.warm()
    objects.run_later()
    assert not any(objects.filters.rules_out(mine, *hashes(each)) for each in range(100))
    assert objects.filters.counters().failures == 1
    objects.bring(mine)
    assert objects.miss(mine) == 0


def test_a_disk_that_is_full_costs_the_copy_only() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    objects.fs.refuse("open", f"{FOLDER}/writing/*", error=DiskFullError("no room"))
    objects.bring(objects.entries[0])
    assert objects.miss(objects.entries[0]) == 0
    assert objects.fs.list_dir(FOLDER / "ranges") == []


def test_forgetting_an_object_drops_its_filter_everywhere_and_for_good() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    objects.bring(*objects.entries[:2])
    objects.filters.forget(objects.entries[0].key)
    assert len(objects.fs.list_dir(FOLDER / "ranges")) == 1
    assert [objects.miss(entry, 10) for entry in objects.entries[:2]] == [10, 0]
    objects.run_later()
    assert objects.fetches() == 2


def test_an_object_that_is_forgotten_while_its_filter_is_fetched_is_not_kept() -> None:
    objects = FilteredObjects()
    entry = objects.entries[0]
    inner = objects.bucket.inner.get_range

    def get_range(key: str, start: int, end: int) -> bytes:
        objects.filters.forget(entry.key)
        return inner(key, start, end)

    objects.with_disk()
    objects.bucket.inner.get_range = get_range  # type: ignore[method-assign]
    objects.bring(entry)
    assert objects.filters.counters().bytes == 0
    assert objects.fs.list_dir(FOLDER / "ranges") == []


def test_forgetting_tells_that_a_copy_stays_on_disk() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    objects.bring(objects.entries[0])
    objects.fs.refuse("unlink", f"{FOLDER}/ranges/*", error=DiskFailedError("input/output error"))
    with pytest.raises(DiskFailedError):
        objects.filters.forget(objects.entries[0].key)
    assert objects.miss(objects.entries[0]) == 1


def test_nothing_is_brought_after_closing() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    for entry in objects.entries:
        objects.miss(entry, 3)
    objects.filters.close()
    objects.run_later()
    assert objects.fetches() == 0
    assert objects.fs.list_dir(FOLDER / "ranges") == []


def test_closing_while_filters_are_taken_from_disk_leaves_them_there() -> None:
    objects = FilteredObjects()
    objects.with_disk()
    objects.bring(*objects.entries)
    objects.with_disk().warm()
    objects.filters.close()
    objects.run_later()
    assert len(objects.fs.list_dir(FOLDER / "ranges")) == 5


def test_a_process_that_can_start_no_thread_answers_without_filters() -> None:
    objects = FilteredObjects()

    def refuse(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    objects.filters = ResidentFilters(objects.bucket, LIMIT, objects.clock, submit=refuse)
    assert objects.miss(objects.entries[0], 20) == 20
