"""Offsets of index items are rewritten as a plain dictionary says, however records lie in their segments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, ItemLayout, Items
from tierlog.index.objects.builder import ColdOffsets, Offsets, _distinct

SEGMENT = 1 << 20


def items_at(offsets: list[int], layout: ItemLayout) -> Items:
    items = np.zeros(len(offsets), layout.compacted)
    items["hash"], items["offset"] = np.arange(len(offsets)), offsets
    return items


def mirrored(physical: Offsets) -> Offsets:
    return physical // SEGMENT * SEGMENT + SEGMENT - 1 - physical % SEGMENT


def collected(offsets: list[int]) -> ColdOffsets:
    middle = len(offsets) // 3
    pieces = [items_at(some, TIERLOG) for some in (offsets[:middle], offsets[middle:])]
    return ColdOffsets.collect(lambda: pieces, mirrored, SEGMENT)


#: Anywhere, close together at both ends of a segment, and in segments far apart.
positions = st.integers(0, SEGMENT - 1) | st.integers(0, 40) | st.integers(SEGMENT - 40, SEGMENT - 1)
offsets_in = st.tuples(st.sampled_from([0, 1, 2, 7, 1 << 20]), positions).map(lambda at: at[0] * SEGMENT + at[1])


@given(st.lists(offsets_in, min_size=1, max_size=300), st.sampled_from([TIERLOG, ROCKETMQ]))
def test_each_offset_becomes_its_cold_one_and_nothing_else_changes(offsets: list[int], layout: ItemLayout) -> None:
    items = items_at(offsets, layout)
    collected(offsets).translate(items)
    expected = items_at(mirrored(np.array(offsets, np.int64)).tolist(), layout)
    assert items.tobytes() == expected.tobytes()


@given(st.lists(offsets_in, min_size=1, max_size=60), offsets_in | st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_offset_that_was_not_collected_is_refused(offsets: list[int], other: int) -> None:
    known = [offset for offset in offsets if offset != other] or [other ^ 1 if 0 < other < 1 << 40 else 5]
    with pytest.raises(CorruptIndexError):
        collected(known).translate(items_at([*known, other, *known], TIERLOG))


@given(st.lists(offsets_in, max_size=60))
def test_segments_are_those_that_offsets_lie_in(offsets: list[int]) -> None:
    assert collected(offsets).segments == sorted({offset // SEGMENT * SEGMENT for offset in offsets})


def test_more_segments_than_there_was_room_for_at_first() -> None:
    offsets = [number * 7919 % 1000 * SEGMENT + number for number in range(1000)]
    found = collected(offsets)
    assert found.segments == [number * SEGMENT for number in range(1000)]
    items = items_at(offsets, TIERLOG)
    found.translate(items)
    assert items.tobytes() == items_at(mirrored(np.array(offsets, np.int64)).tolist(), TIERLOG).tobytes()


@given(st.lists(offsets_in, max_size=20), st.integers(-(1 << 63), -1))
def test_a_negative_offset_is_refused(offsets: list[int], negative: int) -> None:
    with pytest.raises(CorruptIndexError, match="negative"):
        collected([*offsets, negative])


def test_items_that_change_between_the_two_readings_are_refused() -> None:
    for first, second in (([5, SEGMENT], [5, 6]), ([5], [SEGMENT]), ([SEGMENT], [5]), ([SEGMENT], [-1])):
        readings = iter((items_at(first, TIERLOG), items_at(second, TIERLOG)))
        with pytest.raises(CorruptIndexError, match="changed"):
            ColdOffsets.collect(lambda them=readings: [next(them)], mirrored, SEGMENT)  # type: ignore[misc]


numbers = st.integers(0, (1 << 32) - 1) | st.integers(0, 5) | st.integers(1 << 31, (1 << 31) + 3)


@given(st.lists(numbers, max_size=300))
def test_numbers_are_sorted_and_each_is_kept_once(values: list[int]) -> None:
    assert _distinct(np.array(values, np.uint32)).tolist() == sorted(set(values))


@pytest.mark.parametrize(
    "damaged",
    [lambda cold: cold[:-1], lambda cold: cold * 0 + cold[0], lambda cold: cold + SEGMENT, lambda cold: cold - SEGMENT],
)
def test_a_map_that_is_not_one_to_one_or_leaves_the_segment_is_refused(damaged: Callable[[Offsets], Offsets]) -> None:
    items = items_at([5, 9, 700], TIERLOG)
    with pytest.raises(CorruptIndexError):
        ColdOffsets.collect(lambda: [items], lambda physical: damaged(mirrored(physical)), SEGMENT)
