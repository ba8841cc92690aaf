"""Which frames are read together: no piece of work holds more than memory has room for, whatever is kept."""

from __future__ import annotations

import random

from tierlog.index.search.segment_search import FrameWant, bounds_of, together
from tierlog.tiering.base.types import Order
from tierlog.tiering.format.sorted_segment import FramePlace

FRAME_BYTES = 200_000


def wants(count: int) -> list[FrameWant[int]]:
    """Frames side by side; the times of each have nothing to do with its place."""
    chance = random.Random(5)
    times = [chance.randrange(1000) for _ in range(count)]
    places = [FramePlace(number * FRAME_BYTES, FRAME_BYTES, 1 << 20, 0) for number in range(count)]
    return [
        FrameWant(place, (time, time + 5), 1, [number])
        for number, (place, time) in enumerate(zip(places, times, strict=True))
    ]


def test_frames_that_are_kept_are_read_in_pieces_of_bounded_size_and_in_the_order_of_the_results() -> None:
    for order in Order:
        groups = list(together(wants(100), order, 10_001, lambda place: True))
        assert sorted(item for group in groups for want in group for item in want.items) == list(range(100))
        assert max(sum(want.place.length for want in group) for group in groups) <= 1 << 20
        firsts = [-bounds_of(group)[1] if order is Order.NEWEST else bounds_of(group)[0] for group in groups]
        assert firsts == sorted(firsts)


def test_every_group_lies_by_position_and_every_frame_is_in_one() -> None:
    chance = random.Random(7)
    for enough in (1, 7, 10_001):
        kept = {number * FRAME_BYTES for number in range(60) if chance.random() < 0.5}
        groups = list(together(wants(60), Order.NEWEST, enough, lambda place: place.position in kept))  # noqa: B023
        assert sorted(want.place.position for group in groups for want in group) == [
            number * FRAME_BYTES for number in range(60)
        ]
        for group in groups:
            positions = [want.place.position for want in group]
            assert positions == sorted(positions)
            assert len({position in kept for position in positions}) == 1


def test_one_frame_larger_than_the_bound_is_a_piece_of_its_own() -> None:
    large = [
        FrameWant(FramePlace(number << 22, 1 << 22, 1 << 23, 0), (number, number), 1, [number]) for number in (0, 1)
    ]
    for is_kept in (True, False):
        assert [len(group) for group in together(large, Order.OLDEST, 10, lambda _: is_kept)] == [1, 1]  # noqa: B023
