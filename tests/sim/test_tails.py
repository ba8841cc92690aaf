"""Stores whose appends wait for the bucket are killed, cut off and taken over: what was promised is there, once.

``python -m tests.support.simulation.run --tails --first 0 --count 500`` explores more seeds.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.simulation.run_tails import simulate_tails

_BATCH = 10


def test_what_was_acknowledged_as_archived_is_there_once_whoever_took_over() -> None:
    done: Counter[str] = Counter()
    for seed in (5, 14):  # a writer that appends through a takeover, and a restore that sleeps through another
        done.update(simulate_tails(seed).counts)
    for what in (
        "appends archived",
        "appends refused",
        "restored",
        "rounds",
        "promised by tails",
        "fences",
        "salvaged",
    ):
        assert done[what], what


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(3))
def test_what_was_acknowledged_as_archived_is_there_once_over_many_seeds(batch: int, seed: int) -> None:
    for number in range(_BATCH):
        simulate_tails(seed * 50 + batch * 1000 + number)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace() -> None:
    assert simulate_tails(3).trace == simulate_tails(3).trace
