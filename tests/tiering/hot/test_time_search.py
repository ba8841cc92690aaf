"""Offsets by time: both boundaries, runs of equal times over file borders, and what the border leaves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pytest

from tests.support.stores.hot_stores import NOW_MS, HotWorld, append
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.hot.snapshot_queue import offset_by_time, shown_queues
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.batch import Message


def find(hot: HotStore, time_ms: int, boundary: Boundary) -> int:
    with hot.snapshot() as snapshot:
        return offset_by_time(shown_queues(hot, snapshot, hot.topics.get("a"))[0], time_ms, boundary)


def filled(world: HotWorld, runs: list[tuple[int, int]], body: bytes = b"x") -> tuple[HotStore, list[int]]:
    """A queue with ``count`` messages at each time; the times of all of them."""
    hot = world.open()
    for time_ms, count in runs:
        world.clock.step(time_ms - world.clock.now_ms())
        append(hot, *[Message("a", body, queue_id=0)] * count)
        append(hot, Message("other", b"x", queue_id=0))
    return hot, [time_ms for time_ms, count in runs for _ in range(count)]


def test_exact_between_before_and_after() -> None:
    hot, times = filled(HotWorld(), [(NOW_MS, 1), (NOW_MS + 100, 3), (NOW_MS + 200, 1)])
    assert len(times) == 5
    answers = {
        NOW_MS - 1: (0, 0),
        NOW_MS: (0, 0),
        NOW_MS + 1: (1, 0),
        NOW_MS + 99: (1, 0),
        NOW_MS + 100: (1, 3),
        NOW_MS + 101: (4, 3),
        NOW_MS + 200: (4, 4),
        NOW_MS + 201: (5, 4),
    }
    for time_ms, (lower, upper) in answers.items():
        assert (find(hot, time_ms, Boundary.LOWER), find(hot, time_ms, Boundary.UPPER)) == (lower, upper), time_ms


@pytest.mark.parametrize("units", [1, 7, 60])
def test_a_run_of_equal_times_is_followed_over_file_borders(units: int) -> None:
    world = HotWorld(queue_file_units=units, segment_bytes=65_536)
    hot, times = filled(world, [(NOW_MS, 5), (NOW_MS + 10, 130), (NOW_MS + 20, 70)])
    for time_ms in range(NOW_MS - 1, NOW_MS + 22):
        assert find(hot, time_ms, Boundary.LOWER) == bisect_left(times, time_ms)
        assert find(hot, time_ms, Boundary.UPPER) == max(0, bisect_right(times, time_ms) - 1)


def test_after_a_removal_the_search_begins_at_the_border() -> None:
    hot, times = filled(HotWorld(), [(NOW_MS + 10 * n, 7) for n in range(20)], body=b"x" * 300)
    hot.roll()
    hot.dispatch()
    border = hot.log.segments()[3].base_offset
    hot.remove_below(border, forget=lambda _: None)
    first = hot.queue_views(hot.topics.get("a"))[0].first_at_or_above(border)
    assert 0 < first < len(times)
    assert find(hot, NOW_MS, Boundary.LOWER) == first
    assert find(hot, NOW_MS, Boundary.UPPER) == 0
    for time_ms in range(times[first], times[-1] + 2):
        assert find(hot, time_ms, Boundary.LOWER) == max(first, bisect_left(times, time_ms))
        assert find(hot, time_ms, Boundary.UPPER) == bisect_right(times, time_ms) - 1
