"""Hits of an index look-up, in either tier: which may lie in a time range, and in which groups they are read.

The time of a hit is begin time + seconds of its item. Seconds are truncated toward zero, so the store time lies less
than 1000 ms from it, and saturated, so the least and the greatest value stand for any time beyond.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tierlog.index.format.layout import SECONDS_MAX, SECONDS_MIN
from tierlog.tiering.base.types import ALL_TIME, TimeAxis, TimeRange

#: Every comparison with the time of a hit is wider by the second that truncation may have taken.
WIDEN_MS = 1000
_GROUP = 64


def may_lie_in(time_range: TimeRange, second_ms: NDArray[np.int64], seconds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether hits may lie in a range of store times."""
    is_inside = (second_ms > time_range.from_ms - WIDEN_MS) & (second_ms < time_range.to_ms + WIDEN_MS)
    kept: NDArray[np.bool_] = is_inside | is_saturated(seconds)
    return kept


def in_groups(
    axis: TimeAxis, second_ms: NDArray[np.int64], seconds: NDArray[np.integer], offsets: NDArray[np.integer]
) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Offsets of hits that are read together, with bounds of their times; newest first.

    Hits whose seconds say nothing of the time asked for come before the others and may lie anywhere.
    """
    is_unknown = np.full(len(offsets), True) if axis is TimeAxis.BORN else is_saturated(seconds)
    for unknown in (True, False):
        chosen = np.flatnonzero(is_unknown == unknown)
        chosen = chosen[np.lexsort((offsets[chosen], second_ms[chosen]))][::-1]
        for start in range(0, len(chosen), _GROUP):
            group = chosen[start : start + _GROUP]
            bounds = int(second_ms[group[-1]]) - WIDEN_MS, int(second_ms[group[0]]) + WIDEN_MS
            yield ALL_TIME if unknown else bounds, offsets[group].tolist()


def is_saturated(seconds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Returns which seconds are saturated: they stand for any time beyond them."""
    saturated: NDArray[np.bool_] = (seconds == SECONDS_MIN) | (seconds == SECONDS_MAX)
    return saturated
