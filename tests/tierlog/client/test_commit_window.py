"""What is committed is the lowest offset that is not finished, in whatever order handlers end."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tierlog.client.commit_window import Window


class WindowMachine(RuleBasedStateMachine):
    """A window beside a plain list of what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window(10)
        self.read_to = self.committed = 10
        self.unfinished: dict[int, int] = {}
        self.finished: set[int] = set()

    @rule(steps=st.lists(st.integers(1, 4), max_size=6), behind=st.integers(0, 3))
    def read(self, steps: list[int], behind: int) -> None:
        """Offsets have gaps: tags that do not fit, and what is erased."""
        found = []
        for step in steps:
            self.read_to += step
            found.append((self.read_to - 1, step * 10))
        self.read_to += behind
        self.unfinished.update(found)
        self.window.took(found, self.read_to)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.unfinished)))
        del self.unfinished[offset]
        self.finished.add(offset)
        self.window.finish(offset)

    @rule()
    def commit(self) -> None:
        self.committed = max(self.committed, self.window.lowest_unfinished)
        self.window.committed_to(self.committed)
        self.finished = {one for one in self.finished if one >= self.committed}

    @invariant()
    def lowest_is_right(self) -> None:
        lowest = min(self.unfinished, default=self.read_to)
        assert self.window.lowest_unfinished == lowest
        assert self.window.read_to == self.read_to
        assert self.window.is_due == (lowest > self.committed)

    @invariant()
    def what_a_kill_repeats_is_in_the_window(self) -> None:
        assert len(self.window) == len(self.unfinished) + len(self.finished)
        assert self.window.open_bytes == sum(self.unfinished.values())

    @invariant()
    def only_offsets_between_committed_and_lowest_go_on(self) -> None:
        lowest = self.window.lowest_unfinished
        assert self.window.goes_on_at(self.committed)
        assert self.window.goes_on_at(lowest)
        assert not self.window.goes_on_at(lowest + 1)
        assert not self.window.goes_on_at(self.committed - 1)


TestWindow = WindowMachine.TestCase


def test_a_message_at_work_holds_the_commit_back() -> None:
    window = Window(0)
    window.took([(0, 1), (1, 1), (2, 1)], 3)
    window.finish(1)
    window.finish(2)
    assert (window.lowest_unfinished, window.is_due, window.finished_count) == (0, False, 0)
    window.finish(0)
    assert (window.lowest_unfinished, window.is_due, window.finished_count) == (3, True, 3)


def test_a_queue_without_a_fitting_message_is_committed_up_to_where_it_was_read() -> None:
    window = Window(5)
    window.took([], 50)
    assert (window.lowest_unfinished, window.is_due) == (50, True)


def test_an_end_below_what_was_committed_is_read_again_and_not_committed() -> None:
    window = Window(100)
    window.took([], 40)
    assert (window.read_to, window.is_due) == (40, False)


def test_what_was_read_is_not_read_again() -> None:
    window = Window(0)
    window.took([(3, 1)], 4)
    with pytest.raises(ValueError, match="read before"):
        window.took([(3, 1)], 4)


def test_an_end_below_what_was_committed_is_known_until_it_is_committed() -> None:
    window = Window(100)
    assert not window.is_beyond_end
    window.took([], 40)
    assert window.is_beyond_end
    assert (window.goes_on_at(100), window.goes_on_at(40)) == (True, False)
    window.committed_to(40)
    assert (window.is_beyond_end, window.goes_on_at(40)) == (False, True)
