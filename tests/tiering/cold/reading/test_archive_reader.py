"""Reading through the caches: what is kept, what never is, who pays, and what a scan leaves alone."""

from __future__ import annotations

import gc
import random
import threading
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.threads import wait_for_threads
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ChecksumMismatchError, ObjectStoreUnavailableError
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.reading.bill import BudgetSpentError, ReadBill
from tierlog.tiering.cold.reading.disk_cache import DiskCache
from tierlog.tiering.cold.reading.memory_cache import MemoryCache, size_of
from tierlog.tiering.objects.memory import MemoryObjectStore

PAGE = 1000
PAGES = 400


class NumberedPages:
    """Objects of numbered pages, each with a checksum in front, read through one cache."""

    def __init__(self, limit_bytes: int = 1 << 20, *, disk: bool = False) -> None:
        self.bucket = FaultyObjectStore(MemoryObjectStore(ManualClock()))
        self.content = random.Random(1).randbytes((PAGE - 4) * PAGES)
        pages = [self.content[at : at + PAGE - 4] for at in range(0, len(self.content), PAGE - 4)]
        self.object = b"".join(zlib.crc32(page).to_bytes(4) + page for page in pages)
        for key in ("s/log/a", "s/log/b"):
            self.bucket.put(key, self.object)
        self.fs = CrashFileSystem()
        self.cache = ArchiveCache(limit_bytes, DiskCache(self.fs, Path("/cache"), 1 << 20) if disk else None)

    def reader(self, bill: ReadBill | None = None, *, scan: bool = False) -> ArchiveReader:
        return ArchiveReader(self.bucket, self.cache, bill, scan=scan)

    def page(self, number: int, *, key: str = "s/log/a", scan: bool = False) -> ReadBill:
        """Read one page and compare it; the bill."""
        reader = self.reader(scan=scan)
        found = reader.data(key, number * PAGE, (number + 1) * PAGE, "page", checked)
        assert found == self.content[number * (PAGE - 4) : (number + 1) * (PAGE - 4)]
        return reader.bill

    def written(self) -> None:
        """What was offered to the disk is there."""
        wait_for_threads("tierlog-disk-cache")

    def requests(self) -> int:
        return sum(call.operation == "get_range" for call in self.bucket.calls)


def checked(data: bytes) -> bytes:
    if len(data) < 4 or zlib.crc32(data[4:]) != int.from_bytes(data[:4]):
        raise ChecksumMismatchError("page differs")
    return data[4:]


def test_what_was_read_once_is_not_asked_for_again() -> None:
    pages = NumberedPages()
    first, second = pages.page(3), pages.page(3)
    assert (first.requests, first.bytes, first.hits) == (1, PAGE, 0)
    assert (second.requests, second.bytes, second.hits, second.hit_bytes) == (0, 0, 1, PAGE)
    assert not second.stages


def test_the_disk_gives_what_memory_lost_and_memory_has_it_again() -> None:
    pages = NumberedPages(disk=True)
    pages.page(3)
    pages.written()
    pages.cache.data.forget("s/log/a")
    pages.cache.data = MemoryCache(1 << 20)
    bills = [pages.page(3), pages.page(3)]
    assert [bill.requests for bill in bills] == [0, 0]
    assert pages.requests() == 1
    layers = pages.cache.counters()
    assert (layers["disk"].hits, layers["data"].hits, layers["data"].misses) == (1, 1, 1)


@pytest.mark.parametrize("layer", ["data", "metadata"])
def test_wrong_bytes_are_never_kept(layer: str) -> None:
    pages = NumberedPages(disk=True)
    pages.bucket.short_read("get_range")
    read = getattr(pages.reader(), layer)
    with pytest.raises(ChecksumMismatchError):
        read("s/log/a", 0, PAGE, "page", checked)
    pages.written()
    assert all(counters.entries == 0 for counters in pages.cache.counters().values())
    assert read("s/log/a", 0, PAGE, "page", checked) == pages.content[: PAGE - 4]


def test_bytes_that_went_wrong_in_memory_are_asked_for_again() -> None:
    pages = NumberedPages()
    pages.page(3)
    pages.cache.data.put(("s/log/a", 3 * PAGE, 4 * PAGE), bytes(PAGE), PAGE)
    assert pages.page(3).requests == 1
    assert pages.page(3).requests == 0


def test_forgetting_an_object_drops_it_from_every_layer_for_good() -> None:
    pages = NumberedPages(disk=True)
    pages.page(3), pages.page(3, key="s/log/b")
    pages.reader().metadata("s/log/a", 0, PAGE, "page", checked)
    hold = pages.bucket.hold("get_range", "s/log/a")
    late = threading.Thread(target=pages.page, args=(4,))
    late.start()
    hold.wait_until_reached()
    pages.written()
    pages.cache.forget("s/log/a")
    hold.release()
    late.join()
    pages.written()
    assert pages.page(3).requests == 1
    assert pages.page(4).requests == 1, "what was being fetched is not kept either"
    assert pages.page(3, key="s/log/b").requests == 0
    assert len(pages.fs.list_dir(Path("/cache/ranges"))) == 1


def test_concurrent_readers_of_a_range_make_one_request_and_one_of_them_pays() -> None:
    pages = NumberedPages()
    hold = pages.bucket.hold("get_range")
    bills: list[ReadBill] = []
    readers = [threading.Thread(target=lambda: bills.append(pages.page(3))) for _ in range(20)]
    for thread in readers:
        thread.start()
    hold.wait_until_reached()
    hold.release()
    for thread in readers:
        thread.join()
    assert pages.requests() == 1
    assert sorted(bill.requests for bill in bills) == [0] * 19 + [1]
    assert sum(bill.hits for bill in bills) == 19


def test_a_budget_that_is_spent_stops_its_owner_only() -> None:
    pages = NumberedPages()
    poor = pages.reader(ReadBill(max_requests=0))
    with pytest.raises(BudgetSpentError):
        poor.data("s/log/a", 0, PAGE, "page", checked)
    pages.page(0)
    assert poor.data("s/log/a", 0, PAGE, "page", checked), "what is kept costs no request"


def test_a_failure_is_not_kept() -> None:
    pages = NumberedPages()
    pages.bucket.fail_before("get_range")
    with pytest.raises(ObjectStoreUnavailableError):
        pages.page(3)
    assert pages.page(3).requests == 1


def test_a_scan_of_a_big_archive_leaves_the_hit_rate_of_point_reads_unchanged() -> None:
    pages = NumberedPages(limit_bytes=4 * 100 * PAGE, disk=True)
    points = list(range(50))

    def hits() -> int:
        return sum(pages.page(number).hits for number in points)

    hits()
    pages.written()
    kept_on_disk = pages.cache.counters()["disk"].entries
    assert hits() == len(points)
    for key in ("s/log/a", "s/log/b"):
        for number in range(PAGES):
            pages.page(number, key=key, scan=True)
            pages.reader(scan=True).metadata(key, number * PAGE, (number + 1) * PAGE, "page", checked)
    assert hits() == len(points)
    pages.written()
    assert pages.cache.counters()["disk"].entries == kept_on_disk


def test_a_scan_uses_what_is_kept_and_a_point_read_takes_over_what_a_scan_brought() -> None:
    pages = NumberedPages()
    pages.page(1)
    assert pages.page(1, scan=True).requests == 0
    assert pages.page(2, scan=True).requests == 1
    assert pages.page(2).requests == 0
    for number in range(3, PAGES):
        pages.page(number, scan=True)
    assert pages.page(2).requests == 0


def test_neighbours_come_in_one_request_and_are_kept_one_by_one() -> None:
    pages = NumberedPages()
    pages.page(11)
    ranges = [(number * PAGE, (number + 1) * PAGE) for number in (2, 3, 5, 11, 12, 300)]
    reader = pages.reader()
    found = list(reader.data_of("s/log/a", ranges, "page", lambda _, data: checked(data)))
    assert found == [checked(pages.object[start:end]) for start, end in ranges]
    assert reader.bill.requests == 3, "2 to 5 with the gap between them, 12, and 300, which is far"
    assert (reader.bill.hits, reader.bill.hit_bytes) == (1, PAGE)
    assert pages.page(3).requests == 0
    assert pages.page(4).requests == 1, "what lies in a gap was not asked for and is not kept"


def test_a_damaged_neighbour_spoils_no_other() -> None:
    pages = NumberedPages()
    damaged = bytearray(pages.object)
    damaged[3 * PAGE + 10] ^= 1
    pages.bucket.put("s/log/a", bytes(damaged))
    ranges = [(number * PAGE, (number + 1) * PAGE) for number in (2, 3, 4)]
    reader = pages.reader().data_of("s/log/a", ranges, "page", lambda _, data: checked(data))
    assert next(reader) == checked(pages.object[2 * PAGE : 3 * PAGE])
    with pytest.raises(ChecksumMismatchError):
        next(reader)
    assert pages.page(2).requests == 0


@pytest.mark.slow
def test_memory_stays_within_the_limit_whatever_is_read() -> None:
    limit = 2 << 20
    cache: MemoryCache[object] = MemoryCache(limit)
    rows = np.zeros(40, [("a", ">i8"), ("b", ">i4")])

    def value(number: int) -> object:
        if number % 3 == 0:
            return rows.copy()
        return bytes(number % 700) if number % 3 == 1 else [f"topic-{number}-{each}" for each in range(20)]

    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20_000):
            made = value(number)
            cache.put((f"s/log/{number % 5000:020d}", number, number + 1), made, size_of(made), scan=number % 2 == 0)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counters = cache.counters()
    assert 0.9 * limit < counters.bytes <= limit
    assert counters.bytes / 2 < held < counters.bytes * 1.3, f"{held} bytes are held for a cost of {counters.bytes}"
