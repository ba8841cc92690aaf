"""Everything that overlaps, in order, and little else is looked at; links and maxima are exact when nobody writes."""

from __future__ import annotations

import gc
import random
import sys
import threading
from itertools import pairwise

import pytest

from tests.support.index.counted import Counted
from tierlog.index.objects.interval_skip_list import IntervalSkipList, Node, Tenure
from tierlog.tiering.base.randomness import SeededRandomness

EVER = Tenure(0)


def filled(intervals: list[tuple[int, int]], seed: int = 1) -> IntervalSkipList[int]:
    found: IntervalSkipList[int] = IntervalSkipList(SeededRandomness(seed))
    for number, (low, high) in enumerate(intervals):
        found.insert(low, high, number, EVER)
    return found


def looked_at(intervals: IntervalSkipList[int], from_ms: int, to_ms: int, most: int | None = None) -> tuple[int, int]:
    """Answers, and comparisons for them."""
    Counted.comparisons = 0
    found = intervals.overlapping(1, Counted(from_ms), to_ms)
    answers = sum(1 for _ in zip(range(most), found, strict=False)) if most is not None else sum(1 for _ in found)
    return answers, Counted.comparisons


COUNT = 30_000
#: Comparisons to get anywhere in COUNT nodes: 4 on each of 7.4 levels, up and down, and twice that for bad luck.
FAR = 120
SHUFFLED = random.Random(5).sample(range(COUNT), COUNT)


def test_a_narrow_range_costs_the_logarithm_and_a_wide_one_its_answers() -> None:
    intervals = filled([(place * 10, place * 10 + 9) for place in SHUFFLED])
    assert intervals.problems() == []
    for from_ms in range(5, COUNT * 10, 7_919):
        answers, comparisons = looked_at(intervals, from_ms, from_ms + 1)
        assert answers == 1
        assert comparisons < FAR
    answers, comparisons = looked_at(intervals, 100_000, 200_000)
    assert answers == 10_000
    assert comparisons < FAR + 4 * answers


def test_one_interval_that_spans_everything_makes_no_reader_look_at_all() -> None:
    intervals = filled([(0, COUNT * 10), *((place * 10, place * 10 + 9) for place in SHUFFLED)])
    for from_ms in range(5, COUNT * 10, 7_919):
        answers, comparisons = looked_at(intervals, from_ms, from_ms + 1)
        assert answers == 2
        assert comparisons < 2 * FAR


def test_nothing_is_looked_at_one_by_one_where_there_is_no_answer() -> None:
    intervals = filled([(place * 10, place * 10 + 3) for place in SHUFFLED])
    for from_ms in range(5, COUNT * 10, 7_930):
        answers, comparisons = looked_at(intervals, from_ms, from_ms + 1)
        assert answers == 0
        assert comparisons < FAR


def test_equal_times_cost_what_others_cost_to_read_and_to_change() -> None:
    intervals: IntervalSkipList[int] = IntervalSkipList(SeededRandomness(3))
    nodes = [intervals.insert(Counted(7), 7, number, EVER) for number in range(5_000)]
    Counted.comparisons = 0
    for node in nodes[::2]:
        intervals.unlink(node)
    assert Counted.comparisons < FAR * 2_500
    assert intervals.problems() == []
    assert looked_at(intervals, 8, 100)[1] < FAR
    assert looked_at(intervals, 0, 7)[1] < FAR
    answers, comparisons = looked_at(intervals, 7, 8)
    assert (answers, comparisons < FAR + 4 * answers) == (2_500, True)


def test_strewn_long_intervals_cost_the_logarithm_of_their_distance() -> None:
    long = range(0, COUNT, 1_000)
    intervals = filled([(place * 10, COUNT * 10 if place in long else place * 10 + 3) for place in SHUFFLED])
    answers, comparisons = looked_at(intervals, COUNT * 10, COUNT * 10 + 1)
    assert answers == len(long)
    assert comparisons < FAR * answers


def test_who_takes_the_first_answers_looks_at_no_more() -> None:
    intervals = filled([(place * 10, place * 10 + 9) for place in SHUFFLED])
    assert looked_at(intervals, 50_000, 250_000, most=3)[1] < FAR + 12


def test_lower_ranks_come_first_and_then_the_order_of_insertion() -> None:
    intervals: IntervalSkipList[str] = IntervalSkipList(SeededRandomness(3))
    for value, low, rank in (("c", 5, 1), ("e", 6, 0), ("d", 5, 1), ("b", 5, 0), ("a", 4, 9)):
        intervals.insert(low, 8, value, EVER, rank)
    assert [node.value for node in intervals.overlapping(1, 0, 9)] == list("abcde")


@pytest.mark.parametrize("seed", range(20))
def test_any_insertions_and_removals_leave_exactly_the_rest(seed: int) -> None:
    chosen = random.Random(seed)
    intervals: IntervalSkipList[int] = IntervalSkipList(SeededRandomness(seed))
    width, spread = chosen.choice([(0, 5), (3, 60), (200, 60), (3, 3_000)])
    nodes: list[Node[int]] = []
    for number in range(300):
        if nodes and chosen.random() < 0.4:
            intervals.unlink(nodes.pop(chosen.randrange(len(nodes))))
        else:
            low = chosen.randrange(-spread, spread)
            nodes.append(intervals.insert(low, low + chosen.randrange(width + 1), number, EVER))
        if number % 10 == 0:
            assert intervals.problems() == []
        from_ms = chosen.randrange(-spread - 5, spread + 5)
        to_ms = from_ms + chosen.randrange(width + 3)
        wanted = [node for node in nodes if node.low < to_ms and node.high >= from_ms]
        wanted.sort(key=lambda node: (node.low, node.value))
        assert list(intervals.overlapping(1, from_ms, to_ms)) == wanted
    assert len(intervals) == len(nodes)
    assert intervals.problems() == []


def test_the_checker_names_a_wrong_order_a_wrong_count_and_a_wrong_maximum() -> None:
    intervals = filled([(number, number + 1) for number in range(50)])
    nodes = list(intervals.overlapping(1, 0, 100))
    tall = next(node for node in nodes if node.upper)
    following, greatest = tall.upper[0]
    tall.upper[0] = following, greatest + 1
    assert intervals.problems() == [f"upper level 0: the link at {tall.low} is wrong"]
    tall.upper[0] = following, greatest
    assert intervals.problems() == []
    plain = next(a for a, b in pairwise(nodes[:-1]) if not b.upper)
    assert plain.next is not None
    plain.next = plain.next.next
    assert "49 nodes are linked, 50 were counted" in intervals.problems()
    nodes[3].low = 17
    assert "nodes are out of order" in intervals.problems()


def test_readers_beside_a_writer_miss_nothing_that_is_there_all_the_time() -> None:
    chosen = random.Random(2)
    intervals = filled([(place * 10, place * 10 + chosen.randrange(30)) for place in range(0, 2_000, 10)])
    stays = list(intervals.overlapping(1, -1, 1 << 40))
    failures: list[object] = []
    done = threading.Event()

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        while not done.is_set():
            from_ms = chosen.randrange(20_000)
            to_ms = from_ms + chosen.choice([1, 500, 20_000])
            found = [node.value for node in intervals.overlapping(1, from_ms, to_ms)]
            wanted = [node.value for node in stays if node.low < to_ms and node.high >= from_ms]
            if found != wanted:
                failures.append((from_ms, to_ms, found, wanted))
                done.set()

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for reader in readers:
            reader.start()
        later = Tenure(2)
        others: list[Node[int]] = []
        for _ in range(4_000):
            if len(others) > 60 or (others and chosen.random() < 0.5):
                intervals.unlink(others.pop(chosen.randrange(len(others))))
            else:
                low = chosen.randrange(20_000)
                others.append(intervals.insert(low, low + chosen.choice([0, 30, 20_000]), -1, later))
    finally:
        done.set()
        for reader in readers:
            reader.join()
        sys.setswitchinterval(interval)
    assert not failures, failures[0]
    assert intervals.problems() == []


def test_a_long_list_goes_without_deep_recursion() -> None:
    intervals = filled([(number, number) for number in range(60_000)])
    del intervals
    gc.collect()
