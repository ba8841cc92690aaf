"""An index object that began before the asked range and holds a message inside it is asked, wherever it is named.

RocketMQ chose files by their creation time inside the range (#9233, #10268), and once it took their end for their
begin (#10656): what was written later than that was not found.
"""

from __future__ import annotations

import pytest

from tests.support.index.index_trees import IndexTrees
from tierlog.index.objects.catalogue import IndexCatalogue
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Order, TimeAxis, TimeBounds, TimeRange

HOUR_MS = 3_600_000
YEAR_MS = 8_760 * HOUR_MS


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("axis", TimeAxis)
@pytest.mark.parametrize("place", [0, 17, 299], ids=["oldest page", "some page", "head"])
def test_a_long_object_among_short_ones_is_asked_for_every_hour_that_it_holds(
    place: int, axis: TimeAxis, order: Order
) -> None:
    trees = IndexTrees(page_entries=8, max_inline_entries=8)
    for number in range(300):
        begin, end = number * HOUR_MS, number * HOUR_MS + HOUR_MS - 2_000
        born = begin - 7 * HOUR_MS  # clocks of producers that are wrong by hours
        if number == place:
            end = begin + YEAR_MS
        trees.publish(TimeBounds(begin, end, born, born + end - begin))
    (long,) = (entry for entry in trees.all() if entry.first == trees.all()[place].first)
    assert long.bounds is not None
    low, high = long.bounds.on(axis)
    catalogue = IndexCatalogue(axis, order, SeededRandomness(1))
    for from_ms in (low, low + 5 * HOUR_MS, low + 150 * HOUR_MS, low + YEAR_MS // 2, high):
        found = {entry.key for entry in catalogue.overlapping(trees.head, TimeRange(from_ms, from_ms + 1), trees.load)}
        assert long.key in found
        assert len(found) <= 3, "it, and one beside it whose bounds are a second away"
    for from_ms in (low - HOUR_MS, high + HOUR_MS):
        found = {entry.key for entry in catalogue.overlapping(trees.head, TimeRange(from_ms, from_ms + 1), trees.load)}
        assert long.key not in found
