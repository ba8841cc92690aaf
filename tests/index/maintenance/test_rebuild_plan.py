"""Which ranges of an archive's index are made again, in which commits and tasks."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tierlog.index.maintenance.rebuild import Range, RebuildPlan, plan_rebuild
from tierlog.tiering.base.types import uncovered
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry

SEGMENT = 100
EVER = ((0, 1 << 62),)


def head(cold_min: int, indexed_to: int, gaps: tuple[Range, ...] = ()) -> Head:
    return Head("store", "v", "o", 1, 1, "c", (), indexed_to, indexed_to, cold_min, log_gaps=gaps)


def segments(first: int, end: int) -> list[LogEntry]:
    return [LogEntry(f"log/{base}", base, SEGMENT, 10, 0, 90, 9, None, {}, None) for base in range(first, end, SEGMENT)]


def entry(first: int, end: int, *, level: int = 0, slots: tuple[int, int] = (0, 10), name: str = "") -> IndexEntry:
    key = f"index/{name or 'good'}-{first}-{end}-{slots[0]}"
    return IndexEntry(key, level, first, end, 0, 10, 0, 5, 10, *slots, "tierlog", None, {})


def plan(
    index: list[IndexEntry], *, at: Head | None = None, within: tuple[Range, ...] = EVER, most: int = 1 << 40,
    log: list[LogEntry] | None = None, everything: bool = False,
) -> RebuildPlan:  # fmt: skip
    return plan_rebuild(
        at or head(0, 1000), segments(0, 1000) if log is None else log, index,
        lambda each: not everything and "bad" not in each.key, within=within, most_bytes=most,
    )  # fmt: skip


def ranges(found: RebuildPlan) -> list[Range]:
    return [(each.first, each.next) for each in found.stretches]


def test_a_sound_index_needs_nothing() -> None:
    found = plan([entry(0, 430), entry(430, 1000)])
    assert (found.stretches, found.kept) == ((), 2)


def test_no_index_at_all_is_one_range() -> None:
    assert ranges(plan([])) == [(0, 1000)]
    assert ranges(plan([], at=head(300, 700))) == [(300, 700)], "neither expired nor unindexed"


def test_what_no_object_covers() -> None:
    found = plan([entry(0, 430), entry(500, 900)])
    assert ranges(found) == [(430, 500), (900, 1000)]
    assert all(not each.old for each in found.stretches)
    assert found.kept == 2


def test_an_object_that_is_not_right_and_what_is_missing_beside_it_go_together() -> None:
    found = plan([entry(0, 430), entry(430, 600, name="bad"), entry(700, 1000)])
    assert ranges(found) == [(430, 700)]
    assert [each.first for each in found.stretches[0].old] == [430]


def test_objects_that_overlap_one_that_is_not_right_go_with_it() -> None:
    found = plan([entry(0, 430), entry(400, 600, name="bad"), entry(550, 800), entry(800, 1000)])
    assert ranges(found) == [(0, 800)]
    assert len(found.stretches[0].old) == 3
    assert found.kept == 1


def test_all_parts_of_a_merge_are_replaced_together() -> None:
    parts = [entry(0, 600, level=1, slots=(0, 5)), entry(0, 600, level=1, slots=(5, 10), name="bad")]
    found = plan([*parts, entry(600, 1000)])
    assert ranges(found) == [(0, 600)]
    assert found.stretches[0].old == tuple(parts)


@pytest.mark.parametrize("slots", [(0, 9), (1, 10), (0, 5)])
def test_a_range_of_slots_that_is_missing(slots: tuple[int, int]) -> None:
    assert ranges(plan([entry(0, 600, level=1, slots=slots), entry(600, 1000)])) == [(0, 600)]


def test_parts_may_be_cut_by_time_too() -> None:
    parts = [entry(0, 600, level=1, slots=(0, 5)), entry(0, 200, level=1, slots=(5, 10))]
    rest = entry(200, 600, level=1, slots=(5, 10))
    assert ranges(plan([*parts, rest, entry(600, 1000)])) == []
    assert ranges(plan([*parts, entry(600, 1000)])) == [(0, 600)]


def test_an_object_that_reaches_below_what_has_expired_is_replaced_above_it() -> None:
    found = plan([entry(0, 430, name="bad"), entry(430, 1000)], at=head(200, 1000))
    assert ranges(found) == [(200, 430)]
    assert [each.first for each in found.stretches[0].old] == [0]
    gone = plan([entry(0, 150, name="bad"), entry(150, 1000)], at=head(200, 1000))
    assert (gone.stretches, gone.kept) == ((), 1)


def test_only_what_touches_the_ranges_asked_for() -> None:
    index = [entry(0, 430, name="bad"), entry(430, 600, name="bad"), entry(600, 1000, name="bad")]
    assert ranges(plan(index, within=((500, 501),))) == [(430, 600)]
    assert ranges(plan(index, within=((0, 430), (999, 2000)))) == [(0, 430), (600, 1000)]
    assert ranges(plan(index, within=((600, 600),))) == []


def test_everything_if_asked_for() -> None:
    assert ranges(plan([entry(0, 430), entry(430, 1000)], everything=True)) == [(0, 1000)]


def test_commits_are_bounded_where_objects_meet_and_tasks_where_segments_begin() -> None:
    index = [entry(0, 430), entry(430, 600), entry(600, 650), entry(650, 1000)]
    found = plan(index, everything=True, most=200)
    assert ranges(found) == [(0, 430), (430, 650), (650, 1000)]
    assert [each.pieces for each in found.stretches] == [
        ((0, 200), (200, 400), (400, 430)), ((430, 650),), ((650, 800), (800, 1000)),
    ]  # fmt: skip


def test_a_huge_merge_is_one_commit_of_many_tasks() -> None:
    found = plan([entry(0, 1000, level=3, name="bad")], most=90)
    assert ranges(found) == [(0, 1000)]
    assert found.stretches[0].pieces == tuple((base, base + SEGMENT) for base in range(0, 1000, SEGMENT))


def test_declared_gaps_are_nobodys_work() -> None:
    at = head(0, 1000, gaps=((300, 700),))
    found = plan([], at=at, log=[*segments(0, 300), *segments(700, 1000)])
    assert ranges(found) == [(0, 1000)]
    assert found.stretches[0].pieces == ((0, 300), (700, 1000))


@pytest.mark.parametrize("chosen", range(20))
def test_stretches_and_kept_objects_tile_the_archive(seed: int, chosen: int) -> None:
    chance = random.Random(seed * 100 + chosen)
    index: list[IndexEntry] = []
    at = 0
    while at < 1000:
        end = min(1000, at + chance.randrange(1, 300))
        name = chance.choice(["good", "bad", "none"])
        if name != "none":
            index.append(entry(at, end, name=name))
            if chance.random() < 0.2:
                index.append(replace(entry(max(0, at - 20), end), key=f"index/more-{at}"))
        at = end
    most = chance.choice([1, 150, 500, 1 << 30])
    found = plan(index, at=head(cold_min := chance.choice([0, 100, 130]), 1000), most=most)
    old = {each.key for stretch in found.stretches for each in stretch.old}
    alive = [each for each in index if each.next > cold_min]
    assert len(old) + found.kept == len(alive)
    assert {each.key for each in alive if "bad" in each.key} <= old
    rest = [(each.first, each.next) for each in alive if each.key not in old]
    taken = ranges(found)
    assert uncovered([*rest, *taken], cold_min, 1000) == []
    assert all(first >= end or next <= start for first, next in rest for start, end in taken), "never both"
    assert all(first[1] <= second[0] for first, second in pairwise(taken))
    for stretch in found.stretches:
        assert [(stretch.first, stretch.next)] == [(stretch.pieces[0][0], stretch.pieces[-1][1])]
        assert all(left[1] == right[0] for left, right in pairwise(stretch.pieces))
        assert all(max(cold_min, each.first) >= stretch.first and each.next <= stretch.next for each in stretch.old)
