"""What is merged with what, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tierlog.index.maintenance.merge_plan import Level, MergeGroup, MergeOptions, due
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.manifest import Head, IndexEntry

MARCH = parse_time("2026-03-01")
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
EVER = MARCH + 800 * DAY_MS
OPTIONS = MergeOptions(late_ms=6 * HOUR_MS)
HEAD = Head("store", "v", "o", 1, 1, "c", ("c",), 0, 10_000, 10_000)


def entry(number: int, begin_ms: int, **changes: object) -> IndexEntry:
    """The n-th object of a log: a hundred bytes of it."""
    bounds = TimeBounds(begin_ms, begin_ms + 10, begin_ms, begin_ms)
    made = IndexEntry(
        f"store/index/L0/{number}", 0, 100 * number, 100 * number + 100, begin_ms, 1000, 0, 10, 8, 0, 8, "tierlog",
        bounds, {},
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def hourly(days: float, **changes: object) -> list[IndexEntry]:
    return [entry(number, MARCH + number * HOUR_MS, **changes) for number in range(int(24 * days))]


def firsts(groups: list[MergeGroup]) -> list[tuple[int, list[int]]]:
    return [(group.level, [each.first // 100 for each in group.inputs]) for group in groups]


def merged(group: MergeGroup, number: int = 0) -> IndexEntry:
    """What a merge leaves."""
    inputs = group.inputs
    return replace(
        inputs[0], key=f"store/index/L{group.level}/{number}-{inputs[0].first}", level=group.level,
        next=inputs[-1].next, size_bytes=group.size_bytes,
    )  # fmt: skip


def test_days_that_are_over_by_the_time_for_late_records_are_due() -> None:
    entries = hourly(2.5)
    assert firsts(due(HEAD, entries, Level.DAY, MARCH + DAY_MS + 6 * HOUR_MS - 1, OPTIONS)) == []
    first_day = (1, list(range(24)))
    assert firsts(due(HEAD, entries, Level.DAY, MARCH + DAY_MS + 6 * HOUR_MS, OPTIONS)) == [first_day]
    assert firsts(due(HEAD, entries, Level.DAY, EVER, OPTIONS)) == [
        first_day, (1, list(range(24, 48))), (1, list(range(48, 60))),
    ]  # fmt: skip
    assert due(HEAD, entries, Level.DAY, EVER, OPTIONS)[0].name == "2026-03-01 from 0"


def test_a_day_of_which_something_may_not_be_indexed_yet_waits() -> None:
    behind = replace(HEAD, archived_to=20_000)
    assert len(due(behind, hourly(2.5), Level.DAY, EVER, OPTIONS)) == 2
    assert len(due(behind, hourly(2), Level.DAY, EVER, OPTIONS)) == 1
    assert len(due(HEAD, hourly(2), Level.DAY, EVER, OPTIONS)) == 2


def test_only_what_ends_by_the_time_asked_for_is_due() -> None:
    until = replace(OPTIONS, until_ms=MARCH + 2 * DAY_MS)
    assert len(due(HEAD, hourly(3), Level.DAY, EVER, until)) == 2
    assert len(due(HEAD, hourly(3), Level.DAY, EVER, replace(until, until_ms=MARCH + 2 * DAY_MS - 1))) == 1


def test_months_wait_for_their_days_and_years_for_their_months() -> None:
    entries = hourly(32)
    for level, groups in ((Level.DAY, 32), (Level.MONTH, 2)):
        assert due(HEAD, entries, Level.YEAR, EVER, OPTIONS) == []
        wanted = due(HEAD, entries, level, EVER, OPTIONS)
        if level is Level.DAY:
            assert due(HEAD, entries, Level.MONTH, EVER, OPTIONS) == []
            assert len(wanted) == groups
        else:
            assert firsts(wanted) == [(2, list(range(0, 31 * 24, 24)))]  # a month of one day has nothing to merge
        gone = {each.key for group in wanted for each in group.inputs}
        entries = [each for each in entries if each.key not in gone] + [merged(group) for group in wanted]
    (year,) = due(HEAD, entries, Level.YEAR, EVER, OPTIONS)
    assert (year.level, [each.level for each in year.inputs]) == (3, [2, 1])
    assert due(HEAD, [merged(year)], Level.YEAR, EVER, OPTIONS) == []


def test_what_is_merged_is_not_due_again_and_late_objects_are() -> None:
    (group,) = due(HEAD, hourly(1), Level.DAY, EVER, OPTIONS)
    after = [merged(group), entry(24, MARCH + DAY_MS - 2), entry(25, MARCH + DAY_MS - 1)]
    assert due(HEAD, after[:2], Level.DAY, EVER, OPTIONS) == []
    assert firsts(due(HEAD, after, Level.DAY, EVER, OPTIONS)) == [(1, [24, 25])]


@pytest.mark.parametrize("odd", [{"slots": 9, "slot_end": 9}, {"layout": "rocketmq"}, {"level": 1}])
def test_only_neighbours_of_one_kind_are_merged(odd: dict[str, object]) -> None:
    entries = hourly(0.25)
    entries[2] = replace(entries[2], **odd)  # type: ignore[arg-type]
    assert firsts(due(HEAD, entries, Level.DAY, EVER, OPTIONS)) == [(1, [0, 1]), (1, [3, 4, 5])]


def test_the_layout_of_rocketmq_is_not_merged() -> None:
    assert due(HEAD, hourly(1, layout="rocketmq"), Level.DAY, EVER, OPTIONS) == []


def test_parts_of_one_range_count_as_one_object() -> None:
    low, high = entry(0, MARCH, slot_end=4), entry(0, MARCH, slot_from=4, key="store/index/L0/high")
    assert due(HEAD, [low, high], Level.DAY, EVER, OPTIONS) == []
    assert firsts(due(HEAD, [low, high, entry(1, MARCH)], Level.DAY, EVER, OPTIONS)) == [(1, [0, 0, 1])]


def test_objects_that_may_hold_the_same_items_are_left_alone() -> None:
    twice = [entry(0, MARCH), entry(0, MARCH, key="store/index/L0/twin"), entry(1, MARCH), entry(2, MARCH)]
    assert firsts(due(HEAD, twice, Level.DAY, EVER, OPTIONS)) == [(1, [1, 2])]


def test_more_objects_than_one_task_reads_are_merged_in_steps() -> None:
    few = replace(OPTIONS, most_inputs=10)
    steps = due(HEAD, hourly(1), Level.DAY, EVER, few)
    assert firsts(steps) == [(0, list(range(8))), (0, list(range(8, 16))), (0, list(range(16, 24)))]
    assert firsts(due(HEAD, [merged(each) for each in steps], Level.DAY, EVER, few)) == [(1, [0, 8, 16])]


def test_slot_ranges_cover_all_slots_and_leave_room() -> None:
    (group,) = due(HEAD, hourly(1), Level.DAY, EVER, OPTIONS)  # 24,000 bytes
    assert group.slot_ranges(600 << 20) == [(0, 8)]
    assert group.slot_ranges(14_000) == [(0, 4), (4, 8)]
    assert group.slot_ranges(1) == [(slot, slot + 1) for slot in range(8)]


def test_days_months_and_years_are_those_of_utc() -> None:
    leap = parse_time("2024-02-29T23:59:59.999")
    assert [level.name_of(leap) for level in Level] == ["2024-02-29", "2024-02", "2024"]
    march = parse_time("2024-03-01")
    assert [level.end_of(leap) for level in Level] == [march, march, parse_time("2025-01-01")]
    assert Level.DAY.end_of(march) == march + DAY_MS


@pytest.mark.parametrize("wrong", [{"max_part_bytes": 0}, {"late_ms": -1}, {"most_inputs": 1}])
def test_options_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError):
        MergeOptions(**wrong)
