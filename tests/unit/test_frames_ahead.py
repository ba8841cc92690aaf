"""Frames decompressed ahead: in order, each error at its place, nobody waits for a busy pool, memory is given back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tiering.cold.caching.fetch_pool import FetchPool
from tiering.cold.frames_ahead import GROUP_FRAMES, frames_ahead
from tiering.cold.replay import ReadAheadBudget
from tiering.errors import ChecksumMismatchError
from tiering.format.sorted_segment import FramePlace

RAW_BYTES = 100


def places(count: int) -> list[FramePlace]:
    return [FramePlace(number, 1, RAW_BYTES, 0) for number in range(count)]


def decode(place: FramePlace) -> bytes:
    return str(place.position).encode()


def expected(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


@pytest.fixture
def pool() -> FetchPool:
    return FetchPool(1)


@pytest.fixture
def budget() -> Iterator[ReadAheadBudget]:
    budget = ReadAheadBudget(10 * GROUP_FRAMES * RAW_BYTES)
    yield budget
    assert budget.used_bytes == 0


@pytest.mark.parametrize("count", [0, 1, GROUP_FRAMES, GROUP_FRAMES + 1, 5 * GROUP_FRAMES + 3])
def test_every_frame_comes_once_and_in_order(count: int, pool: FetchPool, budget: ReadAheadBudget) -> None:
    assert list(frames_ahead(places(count), decode, pool, budget.take, budget.give)) == expected(count)


def test_what_follows_is_decompressed_by_another_thread(pool: FetchPool, budget: ReadAheadBudget) -> None:
    begun = threading.Event()
    threads = set()

    def noted(place: FramePlace) -> bytes:
        threads.add(threading.current_thread())
        if place.position == GROUP_FRAMES:
            begun.set()
        return decode(place)

    frames = frames_ahead(places(2 * GROUP_FRAMES), noted, pool, budget.take, budget.give)
    found = [next(frames)]
    assert begun.wait(60)
    found += frames
    assert found == expected(2 * GROUP_FRAMES)
    assert len(threads) == 2


@pytest.mark.parametrize("bad", [0, 3, GROUP_FRAMES, GROUP_FRAMES + 5, 3 * GROUP_FRAMES - 1])
def test_an_error_comes_up_where_its_frame_would_have_come(bad: int, pool: FetchPool, budget: ReadAheadBudget) -> None:
    def damaged(place: FramePlace) -> bytes:
        if place.position == bad:
            raise ChecksumMismatchError("frame differs from its checksum", path="log", position=place.position)
        return decode(place)

    frames = frames_ahead(places(3 * GROUP_FRAMES), damaged, pool, budget.take, budget.give)
    assert list(itertools.islice(frames, bad)) == expected(bad)
    with pytest.raises(ChecksumMismatchError):
        next(frames)


def test_nobody_waits_for_a_pool_that_is_busy(pool: FetchPool, budget: ReadAheadBudget) -> None:
    released = threading.Event()
    busy = pool.submit(lambda: released.wait(60))
    assert list(frames_ahead(places(40), decode, pool, budget.take, budget.give)) == expected(40)
    released.set()
    assert busy.result()


def test_without_memory_nothing_is_decompressed_ahead(pool: FetchPool) -> None:
    full = ReadAheadBudget(GROUP_FRAMES * RAW_BYTES - 1)
    mine = threading.current_thread()

    def noted(place: FramePlace) -> bytes:
        assert threading.current_thread() is mine
        return decode(place)

    whole = places(4 * GROUP_FRAMES)
    assert list(frames_ahead(whole, noted, pool, full.take, full.give)) == expected(len(whole))
    assert full.used_bytes == 0


@pytest.mark.parametrize("read", [1, GROUP_FRAMES, GROUP_FRAMES + 1, 2 * GROUP_FRAMES + 7])
def test_who_stops_gives_the_memory_back(read: int, pool: FetchPool, budget: ReadAheadBudget) -> None:
    with closing(frames_ahead(places(4 * GROUP_FRAMES), decode, pool, budget.take, budget.give)) as frames:
        assert [next(frames) for _ in range(read)] == expected(read)
        assert budget.used_bytes > 0
