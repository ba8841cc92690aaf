"""One simulated day from a seed, and a command that explores many: ``python -m tests.support.simulation.run``."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable

from tests.support.simulation.actors import (
    KEYS,
    SEGMENT,
    ArchiveSimulation,
    Volume,
    open_store,
    run_merges,
    run_reader,
    start_job,
)
from tests.support.simulation.ledger import BrokenPromiseError, Ledger
from tests.support.simulation.run_tails import simulate_tails
from tests.support.simulation.scheduler import START_MS, Scheduler
from tests.support.simulation.server import CALM, GRACE_MS, HOUR_MS, Server, Trace, Weather
from tests.support.simulation.simulation import Outcome

_STORMY_MS = 20 * HOUR_MS
_CALM_MS = 7 * GRACE_MS // 2
_WEATHERS = (Weather(), Weather(), Weather(0.1, 0.1, 0.05, 0.01), Weather(stalls=0.02), Weather(kills=0.02), CALM)


def simulate(seed: int, *, show: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; raises :class:`BrokenPromiseError`, or whatever an actor raised that it must not."""
    chance = random.Random(seed)
    scheduler = Scheduler(chance)
    trace = Trace(scheduler, show)
    server = Server(scheduler, trace)
    ledger = Ledger(server, KEYS, GRACE_MS, SEGMENT)
    simulation = ArchiveSimulation(scheduler, server, ledger, chance.choice(_WEATHERS))
    try:
        first = Volume("volume-1")
        open_store(simulation, first)
        if chance.random() < 0.7:  # the same volume, attached elsewhere while the first goes on
            scheduler.later(chance.randrange(_STORMY_MS), lambda: _open_again(simulation, first))
        if chance.random() < 0.5:  # a restore onto another volume while the first goes on
            open_store(simulation, Volume("volume-2"), takes_over=True, after_ms=chance.randrange(HOUR_MS, _STORMY_MS))
        for kind, body in (
            ("merge", run_merges),
            ("merge", run_merges),
            ("reader", run_reader),
            ("reader", run_reader),
        ):
            start_job(simulation, kind, body)
        scheduler.run(START_MS + _STORMY_MS)
        simulation.calm_down(CALM)
        scheduler.run(START_MS + _STORMY_MS + _CALM_MS)
        _check_leaks(server, ledger)
        return Outcome(seed, trace.digest, scheduler.steps, ledger.heads, dict(simulation.counts))
    finally:
        scheduler.end()


def _open_again(simulation: ArchiveSimulation, volume: Volume) -> None:
    head = simulation.ledger.head
    if head is not None and head.volume_id == volume.volume_id:
        open_store(simulation, Volume(volume.volume_id, (head.open_id,)))


def _check_leaks(server: Server, ledger: Ledger) -> None:
    """After calm hours nothing is left that nobody has named for long."""
    long_ago_ms = server.scheduler.now_ms - 5 * GRACE_MS // 2
    named = ledger.named
    for key, (_, info) in server.objects._objects.items():
        since_ms = named.removed.get(key, info.modified_ms)
        if key not in named.objects and key != KEYS.head and since_ms < long_ago_ms:
            raise BrokenPromiseError(f"{key} was left behind")


def main() -> int:
    """Explore seeds; stops at the first that breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--tails", action="store_true", help="appends that wait for the bucket, instead of committers")
    parser.add_argument("--trace", action="store_true", help="print every line of every trace")
    arguments = parser.parse_args()
    totals: Counter[str] = Counter()
    for seed in range(arguments.first, arguments.first + arguments.count):
        try:
            run = simulate_tails if arguments.tails else simulate
            outcome = run(seed, show=sys.stdout.write if arguments.trace else None)
        except BaseException as error:
            sys.stdout.write(f"seed {seed}: {type(error).__name__}: {error}\n")
            raise
        totals.update(outcome.counts)
        totals.update(steps=outcome.steps, heads=outcome.heads, seeds=1)
    sys.stdout.write(", ".join(f"{count} {what}" for what, count in sorted(totals.items())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
