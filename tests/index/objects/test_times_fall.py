"""Whether store times of a key fall is seen however the items of an object come in pieces."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.index.given_items import GivenItems, by_slot
from tierlog.index.format.layout import ROCKETMQ, SECONDS_MAX, SECONDS_MIN, TIERLOG, ItemLayout, Items
from tierlog.index.objects.builder import build_index_object
from tierlog.index.objects.item_order import TimesFall
from tierlog.index.objects.writer import IndexMeta
from tierlog.tiering.base.types import TimeBounds

SLOTS = 4


def items_with(layout: ItemLayout, keys: list[tuple[int, int]], seconds: list[int]) -> Items:
    """Items in the order of the log, a record each."""
    items = np.zeros(len(keys), layout.compacted)
    items["hash"], items["seconds"] = [low for low, _ in keys], seconds
    if layout.has_hash_high:
        items["hash_high"] = [high for _, high in keys]
    items["offset"] = 100 * np.arange(len(keys))
    return items


def do_fall(layout: ItemLayout, keys: list[tuple[int, int]], seconds: list[int]) -> bool:
    """What an object has to say: by key, in the order of the log."""
    latest: dict[tuple[int, int], int] = {}
    for key, second in zip(keys, seconds, strict=True):
        key = key if layout.has_hash_high else (key[0], 0)
        if second < latest.get(key, SECONDS_MIN):
            return True
        latest[key] = second
    return False


@pytest.mark.parametrize("layout", [TIERLOG, ROCKETMQ], ids=["tierlog", "rocketmq"])
def test_an_object_tells_it_of_any_items_in_any_pieces(layout: ItemLayout) -> None:
    numbers, told = random.Random(1), {False: 0, True: 0}
    for _ in range(300):
        count = numbers.randrange(1, 60)
        keys = [(numbers.choice((1, 3, 5, 9)), numbers.choice((0, 7, 1 << 31))) for _ in range(count)]
        seconds = sorted(numbers.choice((SECONDS_MIN, -5, 0, 1, 2, SECONDS_MAX)) for _ in range(count))
        if numbers.random() < 0.5:
            one, other = numbers.randrange(count), numbers.randrange(count)
            seconds[one], seconds[other] = seconds[other], seconds[one]
        source = GivenItems(
            by_slot(items_with(layout, keys, seconds), SLOTS), SLOTS, layout, bounds=TimeBounds(0, 1, 0, 1)
        )
        wanted = do_fall(layout, keys, seconds)
        told[wanted] += 1
        for piece in (1, 7, 1000):
            built = build_index_object(
                source, lambda offsets: offsets, IndexMeta("s", 1 << 20, {}), 400, piece_items=piece
            )
            assert built.meta.get("times_fall", False) is wanted
            assert ("times_fall" in built.meta) is wanted
    assert min(told.values()) > 50


def test_the_last_item_of_one_piece_is_compared_with_the_first_of_the_next() -> None:
    items = items_with(TIERLOG, [(1, 1)] * 4, [4, 5, 1, 2])[::-1]  # as an object has them: newest first
    for cut in range(5):
        found = TimesFall()
        for piece in (items[:cut], items[:0], items[cut:]):
            found.add(piece)
        assert found.is_found
