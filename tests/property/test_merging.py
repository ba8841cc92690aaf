"""What a merge of index objects leaves equals a plain sort of all their items, whatever pages, parts and keys."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.index.index_merge import memory_assembly
from tests.support.index.merge_inputs import SEGMENT, STEP, Inputs, Key
from tierlog.index.format.layout import SECONDS_MAX, SECONDS_MIN
from tierlog.index.maintenance import merge_task
from tierlog.index.maintenance.merge_task import merge_range
from tierlog.tiering.base.randomness import SeededRandomness

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
#: Few slots and few hashes, so that keys meet in slots, and runs begin and end at the borders of pages.
keys = st.tuples(st.integers(0, 12) | st.just(2**31 - 1), st.integers(0, 2) | st.just(2**32 - 1))
runs = st.lists(st.tuples(keys, st.integers(1, 30)), min_size=1, max_size=12)
files = st.lists(runs, min_size=1, max_size=6)
slots = st.sampled_from([1, 3, 10, 40, 2**31 - 1])
pages = st.sampled_from([48, 80, 112, 400, 65536])


def put_of(given_files: list[list[tuple[Key, int]]]) -> list[list[Key]]:
    return [[key for key, count in given_runs for _ in range(count)] for given_runs in given_files]


@QUICK
@given(files, st.sampled_from([1, 3, 10, 40]), pages, st.lists(st.integers(1, 39), max_size=3), st.integers(1, 8))
def test_items_are_those_of_all_inputs_in_the_order_of_an_object(
    given_files: list[list[tuple[Key, int]]], slots: int, page_bytes: int, cuts: list[int], most_pages: int
) -> None:
    inputs = Inputs(put_of(given_files), slots, page_bytes=page_bytes, slot_cuts=cuts)
    was, merge_task.LEAST_PAGES = merge_task.LEAST_PAGES, most_pages
    try:
        merged = merge_range(inputs.task(), inputs.objects, SeededRandomness(1), memory_assembly())
    finally:
        merge_task.LEAST_PAGES = was
    (entry,) = merged.entries
    assert inputs.found([entry]) == inputs.rows
    assert (entry.items, entry.first, entry.next) == (len(inputs.rows), 0, STEP * len(inputs.rows))
    assert (entry.slot_from, entry.slot_end, entry.level) == (0, slots, 1)
    bounds = [each.bounds for each in inputs.entries if each.bounds is not None]
    assert entry.bounds is not None
    assert entry.bounds.min_store_ms == min(each.min_store_ms for each in bounds)
    assert entry.bounds.max_store_ms == max(each.max_store_ms for each in bounds)


@QUICK
@given(files, st.sampled_from([3, 10, 40]), st.sampled_from([400, 2000]), st.integers(3000, 12_000),
       st.lists(st.integers(1, 39), max_size=2))  # fmt: skip
def test_parts_hold_together_what_the_inputs_hold_and_none_passes_its_size(
    given_files: list[list[tuple[Key, int]]], slots: int, page_bytes: int, max_part_bytes: int, cuts: list[int]
) -> None:
    put = put_of(given_files)
    inputs = Inputs(put, slots, page_bytes=page_bytes, slot_cuts=cuts)
    middle = slots // 2
    entries = [
        entry
        for low, high in ((0, middle), (middle, slots))
        for entry in merge_range(
            inputs.task(slot_from=low, slot_end=high, max_part_bytes=max_part_bytes),
            inputs.objects, SeededRandomness(low), memory_assembly(),
        ).entries
    ]  # fmt: skip
    assert sorted(inputs.found(entries), key=str) == sorted(inputs.rows, key=str)
    wanted: dict[Key, list[int]] = {}
    for row in inputs.rows:
        wanted.setdefault(row.place[1:], []).append(row.cold)
    for key in {*wanted, (0, 7), (12, 1)}:
        assert inputs.look_up(entries, key) == wanted.get(key, [])
    for entry in entries:
        one_slot = len({row.place[0] for row in inputs.found([entry])}) == 1
        assert one_slot or entry.size_bytes <= max_part_bytes
    assert len({entry.key for entry in entries}) == len(entries)


@QUICK
@given(files, st.integers(0, 12))
def test_items_of_expired_segments_are_left_out(given_files: list[list[tuple[Key, int]]], segments: int) -> None:
    inputs = Inputs(put_of(given_files), 10)
    cold_min = SEGMENT * segments
    merged = merge_range(inputs.task(cold_min=cold_min), inputs.objects, SeededRandomness(1), memory_assembly())
    assert inputs.found(merged.entries) == [row for row in inputs.rows if row.cold >= cold_min]
    assert all(cold_min <= entry.first < entry.next for entry in merged.entries)


@QUICK
@given(st.lists(st.integers(-3, 10**9), min_size=2, max_size=5),
       st.lists(st.integers(SECONDS_MIN, SECONDS_MAX) | st.sampled_from([SECONDS_MIN, SECONDS_MAX, -1, 0]), min_size=1,
                max_size=6))  # fmt: skip
@example([0, 1], [SECONDS_MIN + 1])
def test_seconds_say_the_same_time_or_that_nobody_knows(begins_s: list[int], seconds: list[int]) -> None:
    put = [[(number, at) for at in range(6)] for number in range(len(begins_s))]
    inputs = Inputs(put, 7, begin_ms=[1000 * each for each in begins_s], seconds=seconds)
    merged = merge_range(inputs.task(), inputs.objects, SeededRandomness(1), memory_assembly())
    assert merged.entries[0].begin_ms == 1000 * begins_s[0]
    fits = range(begins_s[0] + SECONDS_MIN + 1, begins_s[0] + SECONDS_MAX)
    for found, row in zip(inputs.found(merged.entries), inputs.rows, strict=True):
        assert found.second == (row.second if row.second is not None and row.second in fits else None)
