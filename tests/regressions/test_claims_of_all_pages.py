"""With ``--all`` the intervals of several pages were joined across what a page between them could not read."""

from __future__ import annotations

import pytest

from tierlog.service.wire.documents import Json, merged_stores

Interval = tuple[int, int] | None


def stores(cold: Interval) -> list[Json]:
    claim = {"from_ms": cold[0], "to_ms": cold[1], "manifest_version": 1} if cold else None
    return [{"store_id": "s", "hot": None, "cold": claim, "error": None}]


@pytest.mark.parametrize(
    ("pages", "claimed"),
    [
        ([(8, 10), (5, 9), (0, 6)], (0, 10)),
        ([(0, 6), (5, 9), (8, 10)], (0, 10)),
        ([(8, 10), None, (0, 6)], (8, 10)),
        ([(8, 10), (7, 9), (0, 6)], (7, 10)),
        ([None, (5, 9)], (5, 9)),
        ([None, None], None),
    ],
)
def test_only_intervals_that_touch_are_joined(pages: list[Interval], claimed: Interval) -> None:
    merged = stores(pages[0])
    for page in pages[1:]:
        merged = merged_stores(merged, stores(page))
    assert merged == stores(claimed)
