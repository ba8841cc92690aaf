"""Pauses after failures: they double up to a limit, are drawn apart, and end with the first success."""

from __future__ import annotations

from tiering.backoff import Backoff
from tiering.clock import ManualClock
from tiering.randomness import SeededRandomness


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
