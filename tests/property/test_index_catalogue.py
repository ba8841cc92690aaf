"""Versions of a set of intervals, and heads of an archive, against plain sets; searches stay open through changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.index.index_trees import EVER, IndexTrees
from tierlog.index.objects.catalogue import IndexCatalogue
from tierlog.index.objects.interval_skip_list import Node, VersionedIntervals
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Order, TimeAxis, TimeRange

TIME = st.integers(0, 12)
LENGTH = st.sampled_from([0, 0, 1, 3, 12])
AXES = (0, 1)
Interval = tuple[int, int]


class Versions(RuleBasedStateMachine):
    """One list an axis; what is added has a time on both."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: list[VersionedIntervals[int]] = [VersionedIntervals(SeededRandomness(axis)) for axis in AXES]
        self.nodes: dict[int, list[Node[int]]] = {}
        self.times: dict[int, list[Interval]] = {}
        self.sets: dict[int, frozenset[int]] = {0: frozenset()}
        self.pins: list[int] = []
        self.walks: list[tuple[Iterator[Node[int]], int, list[int], list[int]]] = []

    def _change(self, gone: list[int], new: list[list[Interval]]) -> None:
        for axis, intervals in enumerate(self.lists):
            for number in gone:
                intervals.remove(self.nodes[number][axis])
        held = set(self.sets[self.lists[0].newest]) - set(gone)
        for times in new:
            number = len(self.times)
            self.times[number] = times
            self.nodes[number] = [self.lists[axis].add(*times[axis], number) for axis in AXES]
            held.add(number)
        for intervals in self.lists:
            version = intervals.publish()
        self.sets[version] = frozenset(held)

    @property
    def held(self) -> list[int]:
        return sorted(self.sets[self.lists[0].newest])

    @rule(new=st.lists(st.tuples(TIME, LENGTH, TIME, LENGTH), min_size=1, max_size=4))
    def add(self, new: list[tuple[int, int, int, int]]) -> None:
        self._change([], [[(a, a + length), (b, b + width)] for a, length, b, width in new])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self._change(data.draw(st.lists(st.sampled_from(self.held), unique=True, max_size=4)), [])

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(self.held), unique=True, min_size=2, max_size=6))
        times = [[self.times[number][axis] for number in gone] for axis in AXES]
        self._change(gone, [[(min(low for low, _ in each), max(high for _, high in each)) for each in times]])

    @rule()
    def pin(self) -> None:
        self.pins.append(self.lists[0].newest)
        for intervals in self.lists:
            intervals.pin(self.pins[-1])

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        version = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        for intervals in self.lists:
            intervals.unpin(version)

    def _wanted(self, version: int, axis: int, from_ms: int, to_ms: int) -> list[int]:
        numbers = [n for n in self.sets[version] if self._overlaps(self.times[n][axis], from_ms, to_ms)]
        return sorted(numbers, key=lambda number: (self.times[number][axis][0], number))

    @staticmethod
    def _overlaps(times: Interval, from_ms: int, to_ms: int) -> bool:
        return times[0] < to_ms and times[1] >= from_ms

    @rule(data=st.data(), axis=st.sampled_from(AXES), from_ms=st.integers(-2, 25), length=st.integers(1, 30))
    def query(self, data: st.DataObject, axis: int, from_ms: int, length: int) -> None:
        version = data.draw(st.sampled_from([self.lists[0].newest, *self.pins]))
        found = [node.value for node in self.lists[axis].overlapping(version, from_ms, from_ms + length)]
        assert found == self._wanted(version, axis, from_ms, from_ms + length)

    @rule(axis=st.sampled_from(AXES), from_ms=st.integers(-2, 25), length=st.integers(1, 30))
    def begin_walk(self, axis: int, from_ms: int, length: int) -> None:
        version = self.lists[axis].pin(self.lists[axis].newest)
        walk = self.lists[axis].overlapping(version, from_ms, from_ms + length)
        self.walks.append((walk, version * 2 + axis, [], self._wanted(version, axis, from_ms, from_ms + length)))

    @precondition(lambda self: self.walks)
    @rule(data=st.data(), steps=st.integers(1, 5))
    def walk_on(self, data: st.DataObject, steps: int) -> None:
        place = data.draw(st.integers(0, len(self.walks) - 1))
        walk, pinned, got, wanted = self.walks[place]
        for _ in range(steps):
            node = next(walk, None)
            if node is None:
                assert got == wanted
                del self.walks[place]
                self.lists[pinned % 2].unpin(pinned // 2)
                return
            got.append(node.value)

    @invariant()
    def lists_are_sound_and_hold_only_what_somebody_may_read(self) -> None:
        for axis, intervals in enumerate(self.lists):
            assert intervals.problems() == []
            walked = {pinned // 2 for _, pinned, _, _ in self.walks if pinned % 2 == axis}
            needed = frozenset().union(*(self.sets[v] for v in {intervals.newest, *self.pins, *walked}))
            assert len(intervals) == len(needed)


class Heads(RuleBasedStateMachine):
    """The heads of an archive; searches of any of them are open while pages are read and heads replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.trees = IndexTrees(page_entries=2, max_inline_entries=2)
        self.heads = [self.trees.head]
        self.catalogues = {
            (axis, order): IndexCatalogue(axis, order, SeededRandomness(1)) for axis in TimeAxis for order in Order
        }
        self.walks: list[tuple[Iterator[Any], list[str], set[str]]] = []

    @rule(seed=st.integers(0, 1 << 30), steps=st.integers(1, 4))
    def change(self, seed: int, steps: int) -> None:
        self.trees.chosen.seed(seed)
        for _ in range(steps):
            self.heads.append(self.trees.any_change())

    @rule(
        direction=st.tuples(st.sampled_from(TimeAxis), st.sampled_from(Order)),
        back=st.sampled_from([0, 0, 0, 1, 2, 9]),
        seed=st.integers(0, 1 << 30),
        is_wide=st.booleans(),
    )
    def begin_walk(self, direction: tuple[TimeAxis, Order], back: int, seed: int, is_wide: bool) -> None:
        self.trees.chosen.seed(seed)
        head = self.heads[-1 - min(back, len(self.heads) - 1)]
        within: TimeRange = EVER if is_wide else self.trees.any_range()
        walk = self.catalogues[direction].overlapping(head, within, self.trees.load)
        self.walks.append((walk, [], self.trees.entries(direction[0], within, head)))

    @precondition(lambda self: self.walks)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def walk_on(self, data: st.DataObject, steps: int) -> None:
        place = data.draw(st.integers(0, len(self.walks) - 1))
        walk, got, wanted = self.walks[place]
        for _ in range(steps):
            entry = next(walk, None)
            if entry is None:
                assert sorted(got) == sorted(wanted)
                del self.walks[place]
                return
            got.append(entry.key)

    @precondition(lambda self: self.walks)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        del self.walks[data.draw(st.integers(0, len(self.walks) - 1))]

    @invariant()
    def lists_are_sound(self) -> None:
        for catalogue in self.catalogues.values():
            assert catalogue.problems() == []

    def teardown(self) -> None:
        for walk, got, wanted in self.walks:
            assert sorted([*got, *(entry.key for entry in walk)]) == sorted(wanted)


TestVersions = Versions.TestCase
TestVersions.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestHeads = Heads.TestCase
TestHeads.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("machine", [Versions, Heads])
def test_long_histories(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=150, stateful_step_count=60, deadline=None))
