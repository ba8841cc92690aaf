"""Half a simulated day of appends that wait for the bucket: ``python -m tests.support.simulation.run --tails``."""

from __future__ import annotations

import random
from collections.abc import Callable

import tierlog.service.engine.archive_mover
import tierlog.service.engine.archived_appends
import tierlog.service.engine.recovery
import tierlog.tiering.cold.manifest.store
import tierlog.tiering.lifecycle.tail_writer
from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.simulation.ledger import BrokenPromiseError
from tests.support.simulation.scheduler import START_MS, Scheduler
from tests.support.simulation.server import CALM, GRACE_MS, HOUR_MS, Server, Trace, Weather
from tests.support.simulation.simulation import Outcome
from tests.support.simulation.tail_ledger import TailLedger, number_of
from tests.support.simulation.threads import simulated
from tests.support.simulation.volumes import COLD_URL, KEYS, ROOT, SETTINGS, STORE_ID, TailSimulation, open_volume
from tests.support.stores.small_steps import small_steps
from tests.support.world import read_all
from tierlog.service.cli.salvager import salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SeededRandomness

_STORMY_MS = 12 * HOUR_MS
_CALM_MS = GRACE_MS
_WEATHERS = (Weather(), Weather(0.1, 0.1, 0.05, 0.01), Weather(stalls=0.03), Weather(kills=0.02), CALM)
_MODULES = (
    tierlog.service.engine.archived_appends,
    tierlog.service.engine.archive_mover,
    tierlog.service.engine.recovery,
    tierlog.tiering.cold.manifest.store,
    tierlog.tiering.lifecycle.tail_writer,
)


def simulate_tails(seed: int, *, show: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed; raises :class:`BrokenPromiseError`, or whatever an engine raised that it must not."""
    chance = random.Random(seed)
    scheduler = Scheduler(chance)
    trace = Trace(scheduler, show)
    server = Server(scheduler, trace)
    ledger = TailLedger(server, KEYS, GRACE_MS)
    simulation = TailSimulation(scheduler, server, ledger, chance.choice(_WEATHERS))
    with simulated(scheduler, *_MODULES), small_steps():
        try:
            open_volume(simulation)
            for _ in range(chance.choice((1, 1, 2, 3))):
                open_volume(simulation, restore=True, after_ms=chance.randrange(HOUR_MS, _STORMY_MS))
            scheduler.run(START_MS + _STORMY_MS)
            simulation.calm_down(CALM)
            scheduler.run(START_MS + _STORMY_MS + _CALM_MS)
        finally:
            scheduler.end()
    read_again = _read_again(server, ledger, simulation)
    counts = dict(simulation.counts)
    counts |= {"promised": len(ledger.promised), "promised by tails": ledger.promised_by_tails}
    counts |= {"fences": ledger.fences, "read again": read_again}
    return Outcome(seed, trace.digest, scheduler.steps, ledger.heads, counts)


def _read_again(server: Server, ledger: TailLedger, simulation: TailSimulation) -> int:
    """All disks are lost, a last volume is made from the bucket alone, and its queues are read as a consumer does.

    Then the disks turn up, whatever the log of each ends in, and are salvaged into it.
    """
    engine = Store.open(
        ROOT, settings=SETTINGS, cold_url=COLD_URL, store_id=STORE_ID, clock=ManualClock(), fs=CrashFileSystem(),
        randomness=SeededRandomness(1), restore=True, objects=server.objects,
    )  # fmt: skip
    try:
        found = _numbers(engine)
        durable: set[int] = set()
        for fs, acknowledged in zip(simulation.disks, simulation.durable, strict=True):
            if acknowledged:  # else it may be of a restore that was never done
                durable |= acknowledged
                components = Components(
                    SETTINGS.unsized(), ManualClock(), fs.after_kill(), SeededRandomness(2), server.objects
                )  # fmt: skip
                for run in range(2):
                    report = salvage(ROOT, components, LocalWriter(engine), lambda done, of: None)
                    simulation.counts["salvaged"] = simulation.counts.get("salvaged", 0) + report.appended
                    if report.not_saved or (run and report.appended):
                        raise BrokenPromiseError(f"run {run} of salvage: {report}")
        salvaged = _numbers(engine)
    finally:
        engine.close()
    for true, what in (
        (len(set(salvaged)) == len(salvaged), "a message is read twice"),
        (ledger.promised <= set(found), f"{sorted(ledger.promised - set(found))} were acknowledged and cannot be read"),
        (ledger.published.keys() <= set(found), "what was published cannot be read"),
        (durable <= set(salvaged), f"{sorted(durable - set(salvaged))} were acknowledged, and salvage left them"),
    ):
        if not true:
            raise BrokenPromiseError(what)
    return len(found)


def _numbers(engine: Store) -> list[int]:
    return [
        number_of(message.record.body)
        for topic in engine.topics()
        for queue in topic.queues
        for message in read_all(engine, topic.name, queue.queue_id)
    ]
