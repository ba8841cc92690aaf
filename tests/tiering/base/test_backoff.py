"""Pauses after failures: they double up to a limit, are drawn apart, and end with the first success."""

from __future__ import annotations

import threading

import pytest

from tierlog.tiering.base.backoff import Backoff, Retries, TryAgain
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ConflictError, CorruptionError, UnavailableError
from tierlog.tiering.base.randomness import SeededRandomness


def pause_of(backoff: Backoff, clock: ManualClock) -> float:
    """Milliseconds from a failure now until the next try."""
    backoff.failed()
    began = clock.monotonic_s()
    while not backoff.is_over:
        clock.advance(1)
    return clock.monotonic_s() - began


def test_pauses_double_up_to_the_limit_and_begin_again_after_a_success() -> None:
    clock = ManualClock()
    backoff = Backoff(clock, SeededRandomness(1), first_s=1, most_s=10)
    assert backoff.is_over
    for longest in (1, 2, 4, 8, 10, 10):
        assert longest / 2 <= pause_of(backoff, clock) <= longest
    backoff.succeeded()
    assert backoff.is_over
    assert pause_of(backoff, clock) <= 1


def test_two_nodes_that_lose_one_bucket_do_not_try_in_step() -> None:
    clocks = ManualClock(), ManualClock()
    nodes = [Backoff(clock, SeededRandomness(seed), first_s=8, most_s=60) for seed, clock in enumerate(clocks)]
    pauses = [[pause_of(node, clock) for _ in range(20)] for node, clock in zip(nodes, clocks, strict=True)]
    assert all(abs(mine - other) > 0.001 for mine, other in zip(*pauses, strict=True))


def test_the_pause_begins_when_the_try_ended() -> None:
    clock = ManualClock()
    backoff = Backoff(clock, SeededRandomness(1), first_s=4, most_s=4)
    clock.advance(100_000)  # the try hung
    backoff.failed()
    clock.advance(1_999)
    assert not backoff.is_over


def test_a_limit_below_the_first_pause_is_the_first_pause() -> None:
    clock = ManualClock()
    backoff = Backoff(clock, SeededRandomness(1), first_s=10, most_s=1)
    assert [5 <= pause_of(backoff, clock) <= 10 for _ in range(3)] == [True] * 3


class Step:
    """Asks for another try as often as it is told to."""

    def __init__(self, failures: int, after_s: float = 0.0) -> None:
        self.failures, self.after_s, self.tries = failures, after_s, 0

    def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise TryAgain(UnavailableError(f"failure {self.tries}"), self.after_s)
        return "done"


def retries(clock: ManualClock, stopping: threading.Event | None = None) -> Retries:
    return Retries(clock, SeededRandomness(1), tries=4, first_s=1, most_s=2, stopping=stopping)


def test_a_step_is_taken_again_after_growing_pauses() -> None:
    clock, step = ManualClock(), Step(3)
    assert retries(clock).run(step) == "done"
    assert step.tries == 4
    assert 2.49 <= clock.monotonic_s() <= 5


def test_the_last_failure_is_raised_without_a_pause_behind_it() -> None:
    clock, step = ManualClock(), Step(9)
    with pytest.raises(UnavailableError, match="failure 4"):
        retries(clock).run(step)
    assert clock.monotonic_s() <= 5


def test_who_asks_for_more_patience_gets_it() -> None:
    clock = ManualClock()
    assert retries(clock).run(Step(1, after_s=30)) == "done"
    assert clock.monotonic_s() == 30


def test_a_stop_ends_the_tries() -> None:
    step, stopping = Step(9), threading.Event()
    stopping.set()
    with pytest.raises(UnavailableError, match="failure 1"):
        retries(ManualClock(), stopping).run(step)


def test_what_does_not_ask_for_another_try_is_raised_at_once() -> None:
    errors = iter([CorruptionError("damage"), ConflictError("never met")])

    def step() -> None:
        raise next(errors)

    with pytest.raises(CorruptionError):
        retries(ManualClock()).run(step)
