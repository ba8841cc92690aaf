"""What caches keep: never over the limit, what is asked for again and again, and the right bytes whatever the rule."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fs.crash_fs import CrashFileSystem
from tierlog.tiering.cold.reading.disk_cache import DiskCache
from tierlog.tiering.cold.reading.memory_cache import ByteUses, FrequentLru, MemoryCache, Range

SIZE = 1000
ENTRY = 400
"""What memory adds to the size of each."""


def place(number: int) -> Range:
    return f"store/log/{number:04}", number * SIZE, (number + 1) * SIZE


def ask(cache: MemoryCache[int], number: int, *, scan: bool = False) -> bool:
    """What a reader does; whether it was there."""
    found = cache.get(place(number), scan=scan)
    assert found in (None, number)
    if found is None:
        cache.put(place(number), number, SIZE, scan=scan)
    return found is not None


def cache_of(ranges: int) -> MemoryCache[int]:
    """A cache with room for so many beside what is for scans."""
    return MemoryCache(-(-ranges * (SIZE + ENTRY) * 8 // 7) + 8)


def test_a_turn_over_more_than_fits_keeps_its_share_where_recency_alone_keeps_nothing() -> None:
    room, turn = 50, 100
    cache = cache_of(room)
    recent: OrderedDict[int, None] = OrderedDict()
    hits = of_recency = 0
    for _ in range(20):
        for number in range(turn):
            hits += ask(cache, number)
            of_recency += number in recent
            recent[number] = None
            recent.move_to_end(number)
            if len(recent) > room:
                recent.popitem(last=False)
    assert of_recency == 0
    assert hits >= 0.8 * 19 * room


def test_what_is_asked_for_once_pushes_out_nothing_that_is_asked_for_again() -> None:
    cache = cache_of(20)
    for _ in range(3):
        for number in range(20):
            ask(cache, number)
    for number in range(100, 140):
        assert not ask(cache, number)
    assert sum(ask(cache, number) for number in range(20)) >= 19, "but for one that shares its counts with another"


def test_interest_that_moves_is_followed() -> None:
    room = 40
    cache = cache_of(room)
    for _ in range(100):
        for number in range(room):
            ask(cache, number)
    turns = 0
    while sum(ask(cache, number) for number in range(1000, 1000 + room)) < 0.95 * room:
        turns += 1
        assert turns < 40, "what was asked for a hundred times long ago is still kept"


def test_a_scan_pushes_out_nothing_that_others_use() -> None:
    cache = cache_of(20)
    for number in range(20):
        ask(cache, number)
    for _ in range(5):
        for number in range(100, 400):
            ask(cache, number, scan=True)
    assert all(ask(cache, number) for number in range(20))


def test_what_a_scan_brought_stays_where_it_is_until_it_is_worth_a_place() -> None:
    cache = cache_of(20)
    for _ in range(5):
        for number in range(20):
            ask(cache, number)
    ask(cache, 100, scan=True)
    assert all(ask(cache, 100) for _ in range(10)), "refused at the door, it is not lost"
    assert place(100) in cache


def test_the_door_takes_the_same_memory_whatever_is_asked_for() -> None:
    table: FrequentLru[int] = FrequentLru(1 << 20)
    for number in range(50_000):
        table.admits(place(number), 2 << 20)
    assert len(table._counts) <= table.limit_bytes // 64


@given(
    limit=st.integers(0, 12_000),
    calls=st.lists(
        st.tuples(st.sampled_from("gpsdf"), st.integers(0, 12), st.integers(0, 3000), st.booleans()), max_size=200
    ),
)
def test_memory_gives_what_was_put_or_nothing_and_stays_within_its_limit(
    limit: int, calls: list[tuple[str, int, int, bool]]
) -> None:
    cache: MemoryCache[int] = MemoryCache(limit)
    model: dict[int, int] = {}
    forgotten: set[int] = set()
    for call, number, value, scan in calls:
        match call:
            case "g":
                assert cache.get(place(number), scan=scan) in (None, model.get(number))
            case "p" | "s":
                if not (scan and place(number) in cache):
                    model[number] = value
                cache.put(place(number), value, value, scan=scan)
            case "d":
                cache.drop([place(number)])
                assert place(number) not in cache
            case _:
                cache.forget(place(number)[0])
                forgotten.add(number)
        found = cache.counters()
        assert found.bytes <= limit
        assert found.bytes >= found.entries * ENTRY
        assert not any(place(gone) in cache for gone in forgotten)


@given(st.lists(st.tuples(st.sampled_from("gpdv"), st.integers(0, 15)), max_size=300), st.integers(1, 3000))
def test_uses_a_byte_are_those_of_a_plain_model(calls: list[tuple[str, int]], limit: int) -> None:
    """The model looks through all that are kept for the least; the rule finds it without."""
    table: ByteUses[int, int] = ByteUses(limit)
    model: dict[int, tuple[float, int, int]] = {}  # worth, uses, cost
    age = 0.0
    for call, key in calls:
        cost = 1 + key * key % 97 * 7
        if call == "p" and key not in model and cost <= limit:
            while sum(each[2] for each in model.values()) + cost > limit:
                gone, value, freed = table.evict()
                assert value == gone
                assert freed == model[gone][2]
                age = model[gone][0]
                assert age == min(each[0] for each in model.values())
                del model[gone]
            table.put(key, key, cost)
            model[key] = age + 1 / cost, 1, cost
        elif call == "g":
            assert table.get(key) == (key if key in model else None)
            if key in model:
                _, uses, cost = model[key]
                model[key] = age + (uses + 1) / cost, uses + 1, cost
        elif call == "v":
            assert table.get(key, touch=False) == (key if key in model else None)
        elif call == "d":
            table.pop(key)
            model.pop(key, None)
        assert set(table) == set(model)
        assert table.used_bytes == sum(each[2] for each in model.values()) <= limit
        assert len(table._least) <= 2 * len(table) + 17 + len(calls), "a list that only grows"


def test_the_order_on_disk_takes_memory_by_what_is_kept_not_by_what_was() -> None:
    table: ByteUses[int, int] = ByteUses(100 * SIZE)
    for number in range(20_000):
        table.put(number, number, SIZE)
        if len(table) > 50:
            table.pop(number - 50)
    assert len(table._least) <= 2 * len(table) + 17


def content(where: Range) -> bytes:
    return random.Random(str(where)).randbytes(where[2] - where[1])


def test_on_disk_what_is_used_stays_and_large_ranges_go_before_small_ones() -> None:
    cache = DiskCache(CrashFileSystem(), Path("/cache"), 10 * 4096)
    used, large = ("a", 0, 2000), ("a", 2000, 18_000)
    for where in (used, large):
        assert cache.put(*where, content(where))
    for _ in range(5):
        assert cache.get(*used) == content(used)
    for number in range(30):
        where = ("b", number * 2000, number * 2000 + 2000)
        assert cache.put(*where, content(where))
        assert cache.counters().bytes <= 10 * 4096
    assert cache.get(*large) is None
    assert cache.get(*used) == content(used)


def test_on_disk_old_use_fades() -> None:
    cache = DiskCache(CrashFileSystem(), Path("/cache"), 10 * 4096)
    old = ("a", 0, 2000)
    cache.put(*old, content(old))
    for _ in range(50):
        cache.get(*old)
    number = 0
    while old in cache:
        where = ("b", number * 2000, number * 2000 + 2000)
        cache.put(*where, content(where))
        number += 1
        assert number < 2000
    assert number > 50


@pytest.mark.parametrize("restarts", [1, 3])
def test_after_a_restart_every_use_counts_anew_and_all_bytes_are_right(restarts: int) -> None:
    fs = CrashFileSystem()
    places = [(f"k{number}", 0, 500 * number + 1) for number in range(12)]
    for _ in range(restarts):
        cache = DiskCache(fs, Path("/cache"), 16 * 4096)
        for where in places:
            cache.put(*where, content(where))
            assert cache.get(*where) in (None, content(where))
            assert cache.counters().bytes <= 16 * 4096
        cache.close()
    again = DiskCache(fs, Path("/cache"), 16 * 4096)
    assert again.counters().entries > 0
    assert all(again.get(*where) in (None, content(where)) for where in places)
