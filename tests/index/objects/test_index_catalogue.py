"""The index objects that overlap a range are those that a walk over all pages finds, for every head, at less cost."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from dataclasses import replace

import pytest

from tests.support.index.index_trees import EVER, IndexTrees
from tests.support.stores.big_archive import BigArchive
from tierlog.index.objects.catalogue import ENTRY_BYTES, ColdIndex, IndexCatalogue
from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError, StoreError
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Order, TimeAxis, TimeBounds, TimeRange
from tierlog.tiering.cold.reading.bill import BudgetSpentError, ReadBill
from tierlog.tiering.format.manifest import Head, LogEntry, PageNode

DIRECTIONS = [(axis, order) for axis in TimeAxis for order in Order]


def catalogue(axis: TimeAxis = TimeAxis.STORE, order: Order = Order.NEWEST) -> IndexCatalogue:
    return IndexCatalogue(axis, order, SeededRandomness(1))


def at(*seconds: int) -> list[TimeBounds]:
    """A second's worth of messages each, of equal times on both axes."""
    return [TimeBounds(*(second * 1000, second * 1000 + 999) * 2) for second in seconds]


def found(catalogue: IndexCatalogue, trees: IndexTrees, within: TimeRange = EVER, head: Head | None = None) -> set[str]:
    """Names of what overlaps, each once."""
    names = [entry.key for entry in catalogue.overlapping(head or trees.head, within, trees.load)]
    assert len(names) == len(set(names))
    return set(names)


def inserted(catalogue: IndexCatalogue) -> int:
    """How often something was put into the list."""
    return catalogue._intervals._list._inserted


@pytest.mark.parametrize("seed", range(12))
def test_every_head_has_what_a_walk_over_its_pages_finds(seed: int) -> None:
    trees = IndexTrees(seed, page_entries=(2, 3, 5)[seed % 3], max_inline_entries=(2, 5)[seed % 2])
    catalogues = {direction: catalogue(*direction) for direction in DIRECTIONS}
    heads = [trees.head]
    for _ in range(60):
        heads.append(trees.any_change())
        # the newest, or any before it: one that was put back, or that a search took long ago
        head = trees.chosen.choice([heads[-1], heads[-1], trees.chosen.choice(heads)])
        (axis, order), asked = trees.chosen.choice(list(catalogues.items()))
        within = trees.any_range()
        entries = list(asked.overlapping(head, within, trees.load))
        assert {entry.key for entry in entries} == trees.entries(axis, within, head)
        times = [entry.bounds.on(axis) for entry in entries if entry.bounds]
        assert len(times) == len({entry.key for entry in entries})
        if order is Order.NEWEST:
            assert times == sorted(times, key=lambda time: -time[1])
        else:
            assert times == sorted(times, key=lambda time: time[0])
        assert asked.problems() == []


def test_seconds_are_cut_so_that_bounds_count_one_more_on_both_sides() -> None:
    trees = IndexTrees()
    trees.publish(TimeBounds(10_000, 20_000, 50_000, 60_000))
    for axis, low, high in ((TimeAxis.STORE, 10_000, 20_000), (TimeAxis.BORN, 50_000, 60_000)):
        for order in Order:
            for from_ms, to_ms, is_found in (
                (high + 1_000, high + 1_001, True),
                (high + 1_001, high + 9_000, False),
                (low - 1_000, low - 999, True),
                (low - 9_000, low - 1_000, False),
                (low + 5_000, low + 5_001, True),
            ):
                names = found(catalogue(axis, order), trees, TimeRange(from_ms, to_ms))
                assert len(names) == is_found, (axis, order, from_ms, to_ms)


def test_an_empty_process_reads_only_the_pages_that_its_range_overlaps() -> None:
    archive = BigArchive(1_000)
    fresh = archive.fresh()
    head, cold = fresh.refresh(), ColdIndex(fresh, SeededRandomness(4))
    middle = next(iter(fresh.log_entries(fresh.reader(scan=True), head))).bounds
    assert middle is not None
    fresh = archive.fresh()
    head, cold = fresh.refresh(), ColdIndex(fresh, SeededRandomness(4))
    begin = middle.min_store_ms + 300 * 360_000
    within = TimeRange(begin, begin + 60_000)

    def asked(within: TimeRange) -> tuple[int, int]:
        bill = ReadBill()
        answers = list(cold.overlapping(fresh.reader(bill), head, axis=TimeAxis.STORE, within=within))
        return len(answers), bill.requests

    assert asked(within) == (2, 2), "an upper page and a lower one; the object that ended just before counts"
    assert asked(within) == (2, 0)
    assert asked(TimeRange(begin + 360_000, begin + 370_000))[1] == 0, "the same page holds the next"
    assert asked(TimeRange(begin + 300 * 360_000, begin + 300 * 360_000 + 1))[1] == 1, "another lower page"


def test_who_takes_the_newest_reads_no_older_page() -> None:
    trees = IndexTrees(page_entries=4)
    for second in range(0, 400, 4):
        trees.publish(*at(second, second + 1, second + 2, second + 3))
    for order in Order:
        trees.loaded.clear()
        entries = catalogue(order=order).overlapping(trees.head, EVER, trees.load)
        first = [next(entries) for _ in range(7)]
        wanted = range(399, 392, -1) if order is Order.NEWEST else range(7)
        assert [entry.bounds.min_store_ms // 1000 for entry in first if entry.bounds] == list(wanted)
        assert len(trees.loaded) <= 5, "of 25 lower and 7 upper pages"


def test_pages_that_stay_are_not_put_into_the_list_again_when_those_above_them_change() -> None:
    trees = IndexTrees(page_entries=8, max_inline_entries=8)
    for second in range(500):
        trees.publish(*at(second))
    asked = catalogue()
    assert found(asked, trees) == trees.entries()
    before = inserted(asked)
    known = {node.ref.key for node in trees.pages()}
    trees.merge(trees.all()[40:44])
    for second in range(500, 506):  # heads go by of which nobody reads a page, enough for one to be forgotten
        trees.publish(*at(second))
        assert found(asked, trees, TimeRange(-2_000_000, -1_000_000)) == set()
    changed = [node for node in trees.pages() if node.ref.key not in known]
    assert {node.level for node in changed} == {0, 1}
    assert found(asked, trees) == trees.entries()
    assert inserted(asked) - before <= sum(node.count + 1 for node in changed) + 20


def test_heads_that_searches_hold_by_turns_cost_nothing_after_the_first_time() -> None:
    trees = IndexTrees(5, page_entries=4, max_inline_entries=4)
    for second in range(60):
        trees.publish(*at(second))
    heads = [trees.head, trees.publish(*at(60)), trees.publish(*at(61)), trees.publish(*at(62))]
    asked = catalogue()
    for head in heads:
        assert found(asked, trees, EVER, head) == trees.entries(head=head)
    before = inserted(asked)
    for head in [*heads[::-1], *heads]:
        again = Head.decode(head.encode(), path="head")
        assert found(asked, trees, EVER, again) == trees.entries(head=head)
    assert inserted(asked) == before


def test_what_no_head_in_use_names_leaves_memory() -> None:
    trees = IndexTrees(page_entries=8, max_inline_entries=8)
    asked = catalogue()
    for second in range(300):
        trees.publish(*at(second))
        if second % 10 == 9:
            assert found(asked, trees) == trees.entries()
    assert 300 <= len(asked) < 400
    while len(trees.all()) > 30:
        trees.merge(trees.all()[:20])
        found(asked, trees)
    for second in range(300, 320):  # a few heads later
        trees.publish(*at(second))
        found(asked, trees)
    assert len(asked) < 150
    assert asked.problems() == []


def test_a_search_that_is_under_way_keeps_its_head_through_all_that_follows() -> None:
    trees = IndexTrees(3)
    for _ in range(40):
        trees.any_change()
    asked = catalogue()
    wanted = trees.entries()
    begun = asked.overlapping(trees.head, EVER, trees.load)
    got = [next(begun).key for _ in range(3)]
    for _ in range(60):
        trees.any_change()
        assert found(asked, trees) == trees.entries()
    got += [entry.key for entry in begun]
    assert sorted(got) == sorted(wanted)
    assert asked.problems() == []


def test_a_head_that_goes_back_and_one_of_another_archive_are_taken_for_what_they_name() -> None:
    first, second = IndexTrees(1), IndexTrees(2)
    for _ in range(30):
        first.any_change()
    old = first.head
    for _ in range(30):
        first.any_change()
        second.any_change()
    # as if the bucket were set back, or another store stood there under the same name, at a lower version
    heads = [(first, first.head), (first, old), (second, second.head), (first, old), (first, first.head)]
    heads.append((second, replace(second.head, version=1, epoch=9)))
    for axis, order in DIRECTIONS:
        asked = catalogue(axis, order)
        for trees, head in [*heads, *heads]:
            assert found(asked, trees, EVER, head) == trees.entries(axis, EVER, head)
        assert asked.problems() == []


def test_a_page_that_cannot_be_read_is_told_and_the_rest_is_found() -> None:
    trees = IndexTrees(page_entries=3)
    for second in range(60):
        trees.publish(*at(second))
    everything = trees.entries()
    told: list[tuple[LogEntry | PageNode, StoreError]] = []

    def note(part: LogEntry | PageNode, error: StoreError) -> None:
        told.append((part, error))

    for page in list(trees.pages()):
        trees.lost = {page.ref.key}
        below = {entry.key for entry in trees._below(page)}
        asked = catalogue()
        for _ in range(2):
            told.clear()
            entries = asked.overlapping(trees.head, EVER, trees.load, note)
            assert {entry.key for entry in entries} == everything - below
            assert [part for part, _ in told] == [page]
            assert isinstance(told[0][1], ObjectNotFoundError)
        with pytest.raises(ObjectNotFoundError):
            found(asked, trees)
        trees.lost = set()
        assert found(asked, trees) == everything, "nothing of a failure is remembered"
        trees.lost = {page.ref.key}
        told.clear()
        entries = asked.overlapping(trees.head, EVER, trees.load, note)
        assert {entry.key for entry in entries} == everything - (below if page.level == 0 else set())
        assert [part for part, _ in told] == ([page] if page.level == 0 else []), "its times are known, its names not"


def test_a_page_that_contradicts_its_reference_is_damage_and_not_an_answer_too_few() -> None:
    trees = IndexTrees(page_entries=3)
    for second in range(20):
        trees.publish(*at(second))

    def shifted(node: PageNode) -> list[object]:
        items = trees.load(node)
        return [replace(item, bounds=at(500)[0]) if node.level == 0 else item for item in items]

    told: list[CorruptionError] = []
    entries = list(
        catalogue().overlapping(trees.head, EVER, shifted, lambda _, error: told.append(error))  # type: ignore[arg-type]
    )
    assert {entry.key for entry in entries} == {entry.key for entry in trees.head.index}
    assert told
    assert all(isinstance(error, CorruptionError) for error in told)


def test_a_spent_budget_ends_the_list_and_lets_the_head_go() -> None:
    trees = IndexTrees(page_entries=3)
    for second in range(60):
        trees.publish(*at(second))
    asked = catalogue()

    def stingy(node: PageNode) -> list[object]:
        if len(trees.loaded) > 2:
            raise BudgetSpentError("no more")
        return list(trees.load(node))

    with pytest.raises(BudgetSpentError):
        list(asked.overlapping(trees.head, EVER, stingy, lambda *_: None))
    assert found(asked, trees) == trees.entries()


def test_memory_of_an_entry_is_what_the_limit_counts_with() -> None:
    trees = IndexTrees(page_entries=256, max_inline_entries=150)
    for second in range(0, 3_000, 100):
        trees.publish(*at(*range(second, second + 100)))
    asked = catalogue()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    count = sum(1 for _ in asked.overlapping(trees.head, EVER, trees.load))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 3_000
    assert (after - before) / count < ENTRY_BYTES


def test_more_than_the_limit_begins_anew_and_answers_the_same() -> None:
    archive = BigArchive(900)
    fresh = archive.fresh()
    fresh.options = ColdOptions(cache_bytes=500 * 16 * ENTRY_BYTES)
    head, cold = fresh.refresh(), ColdIndex(fresh, SeededRandomness(4))
    for _ in range(3):
        entries = list(cold.overlapping(fresh.reader(), head, axis=TimeAxis.STORE, within=EVER))
        assert len(entries) == 900
    begin = min(entry.begin_ms for entry in entries)
    narrow = TimeRange(begin, begin + 1)
    assert len(list(cold.overlapping(fresh.reader(), head, axis=TimeAxis.STORE, within=narrow))) == 1
    (kept,) = cold._catalogues.values()
    assert len(kept) < 500


def test_readers_beside_merges_see_the_inputs_or_the_output_never_both_never_neither() -> None:
    trees = IndexTrees(11, page_entries=4, max_inline_entries=6)
    for second in range(80):
        trees.publish(*at(second))
    heads = [trees.head]
    wanted = [trees.entries()]
    for number in range(90):
        if number % 3:
            start = trees.chosen.randrange(len(trees.all()) - 3)
            trees.merge(trees.all()[start : start + 2])
        else:
            trees.publish(*at(80 + number), *at(81 + number))
        heads.append(trees.head)
        wanted.append(trees.entries())
    catalogues = [catalogue(), catalogue(TimeAxis.BORN, Order.OLDEST)]
    newest, counted = [0], [0] * 4
    failures: list[BaseException] = []
    begin = threading.Barrier(5)

    def read(reader: int) -> None:
        begin.wait()
        number = 0
        try:
            while number < len(heads) - 1 or counted[reader] < 30:
                number = newest[0]
                asked = catalogues[reader % 2]
                names = sorted(entry.key for entry in asked.overlapping(heads[number], EVER, trees.load))
                assert names == sorted(wanted[number])
                counted[reader] += 1
        except BaseException as error:
            failures.append(error)

    def swap() -> None:
        begin.wait()
        while newest[0] < len(heads) - 1 and not failures:
            newest[0] += 1
            for asked in catalogues:  # as a search of one object that comes with the new head
                next(asked.overlapping(heads[newest[0]], EVER, trees.load))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read, args=(reader,)) for reader in range(4)]
        threads.append(threading.Thread(target=swap))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures, failures[0]
    assert all(asked.problems() == [] for asked in catalogues)
    for asked in catalogues:
        assert len(asked) < 3 * len(wanted[-1]) + 40
