"""Offsets of index items are rewritten as a plain dictionary says, however records lie in their segments."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.cold_offsets import ColdOffsets, Offsets
from index.errors import CorruptIndexError
from index.layout import ROCKETMQ, TIERLOG, ItemLayout, Items

SEGMENT = 1 << 20


def items_at(offsets: list[int], layout: ItemLayout) -> Items:
    items = np.zeros(len(offsets), layout.compacted)
    items["hash"], items["offset"] = np.arange(len(offsets)), offsets
    return items


def mirrored(physical: Offsets) -> Offsets:
    return physical // SEGMENT * SEGMENT + SEGMENT - 1 - physical % SEGMENT


def collected(offsets: list[int]) -> ColdOffsets:
    counts = Counter(offset // SEGMENT * SEGMENT for offset in offsets)
    return ColdOffsets.collect(dict(counts), [np.array(offsets, np.int64)], mirrored, SEGMENT)


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
