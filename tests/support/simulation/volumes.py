"""Real engines in a simulation: volumes whose appends wait for the bucket, and restores that take over from them.

A volume goes on after a kill, with the disk that it had; a restore that is killed is begun again in its directory. A
volume that was taken over goes on appending for as long as the simulation lasts: nobody is told that it worked.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.simulation.scheduler import Process, Scheduler
from tests.support.simulation.server import GRACE_MS, HOUR_MS, MINUTE_MS, Server, Weather
from tests.support.simulation.simulation import Simulation
from tests.support.simulation.tail_ledger import TailLedger, body_of
from tests.support.stores.engines import small_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import (
    ClosedError,
    ConflictError,
    FencedError,
    NotFoundError,
    ReadOnlyError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.object_store import ObjectStore

STORE_ID = "store"
KEYS = ColdKeys(STORE_ID)
COLD_URL = "memory://archive"
ROOT = Path("/volume")
SETTINGS = small_settings(cold__grace_ms=GRACE_MS, cold__tail_bytes=1024, cold__tail_interval_ms=0)
_APPENDERS = 3
_TOPICS = ("orders", "pays")
_LENGTHS = (5, 60, 60, 300, 1500)
_LEVELS = (*[Durability.ARCHIVED] * 7, Durability.FLUSHED, Durability.ASYNC)


class TailSimulation(Simulation):
    """Volumes of one store around one bucket, and the ledger of what they promise."""

    def __init__(self, scheduler: Scheduler, server: Server, ledger: TailLedger, weather: Weather) -> None:
        super().__init__(scheduler, server, weather)
        self.ledger = ledger
        self.sent = 0
        #: Of each volume, as it is now.
        self.disks: list[CrashFileSystem] = []
        #: Numbers of messages that were acknowledged as flushed or archived, by disk.
        self.durable: list[set[int]] = []


def open_volume(simulation: TailSimulation, *, restore: bool = False, after_ms: int = 0) -> None:
    """Begin a process on a disk of its own."""
    simulation.disks.append(CrashFileSystem(seed=len(simulation.disks) + 1))
    simulation.durable.append(set())
    _begin(simulation, len(simulation.disks) - 1, restore=restore, after_ms=after_ms)


def _begin(simulation: TailSimulation, disk: int, *, restore: bool, after_ms: int = 0) -> None:
    process = simulation.process("restore" if restore else "volume")
    volume = VolumeProcess(simulation, disk, process, restore=restore)

    def again() -> None:
        cut = simulation.chance.random() < 0.5  # the power of the whole machine, or only the process
        simulation.disks[disk] = volume.fs.crash(simulation.chance.getrandbits(30)) if cut else volume.fs.after_kill()
        _begin(simulation, disk, restore=restore)

    simulation.scheduler.spawn(process.name, process, volume.run, after_ms=after_ms)
    simulation.when_killed(process, again, after_ms=after_ms)


class VolumeProcess:
    """An engine, whoever appends to it, and its rounds."""

    def __init__(self, simulation: TailSimulation, disk: int, process: Process, *, restore: bool) -> None:
        self._simulation, self._process, self._restore = simulation, process, restore
        self._clock, self._chance = simulation.clock(), simulation.chance
        self._client = simulation.client(process)
        self.fs = simulation.disks[disk]
        self._durable = simulation.durable[disk]

    def run(self) -> None:
        """Open, then work for ever."""
        engine = self._opened()
        if engine is None:
            self._simulation.count("fenced at opening")
            return
        if self._restore:
            self._simulation.count("restored")
        for number in range(_APPENDERS):
            self._simulation.scheduler.spawn(
                f"{self._process.name}.append{number}", self._process, lambda: self._append_for_ever(engine)
            )
        self._simulation.scheduler.spawn(f"{self._process.name}.sweep", self._process, lambda: self._sweep(engine))
        while True:
            self._simulation.sleep(20 * MINUTE_MS)
            self._round(engine)

    def _opened(self) -> Store | None:
        """None once another volume has taken over."""
        while True:
            try:
                engine = Store.open(
                    ROOT, settings=SETTINGS, cold_url=COLD_URL, store_id=STORE_ID, clock=self._clock, fs=self.fs,
                    randomness=SeededRandomness(self._chance.getrandbits(60)), restore=self._restore,
                    objects=cast(ObjectStore, self._client),
                )  # fmt: skip
            except (FencedError, StoreMismatchError):
                return None
            except (UnavailableError, NotFoundError, ConflictError):
                self._simulation.count("opened later")
                self._simulation.sleep(10 * MINUTE_MS)
                continue
            if engine.read_only_reason is None:
                return engine
            engine.close()  # what may be in tails could not be asked
            self._simulation.count("opened later")
            self._simulation.sleep(10 * MINUTE_MS)

    def _round(self, engine: Store) -> None:
        """What the background does, and what an operator asks for."""
        hot = engine._hot
        steps = (
            engine.run_tiers,
            engine.run_tiers,
            hot.roll,
            hot.prepare_segment,
            partial(engine.archive, everything=True),
        )
        try:
            self._chance.choice(steps)()
            if self._chance.random() < 0.2:
                engine.archive(drop_hot=True)
            self._simulation.count("rounds")
        except (FencedError, UnavailableError, ConflictError, ReadOnlyError, ClosedError, NotFoundError):
            self._simulation.count("rounds refused")

    def _append_for_ever(self, engine: Store) -> None:
        while True:
            busy = self._chance.random() < 0.7
            self._simulation.sleep(MINUTE_MS if busy else 2 * HOUR_MS)
            self._append(engine)

    def _append(self, engine: Store) -> None:
        simulation = self._simulation
        numbers = [*range(simulation.sent, simulation.sent + self._chance.choice((1, 1, 2, 4)))]
        simulation.sent += len(numbers)
        messages = [
            Message(
                self._chance.choice(_TOPICS), body_of(number, self._chance.choice(_LENGTHS)), [f"key-{number}"],
                queue_id=self._chance.randrange(2),
            )
            for number in numbers
        ]  # fmt: skip
        level = self._chance.choice(_LEVELS)
        try:
            engine.append(messages, level)
        except (FencedError, ReadOnlyError):
            simulation.count("appends refused")
        except (UnavailableError, ConflictError, ClosedError):
            simulation.count("appends unknown")
        else:
            simulation.count(f"appends {level.value}")
            if level is not Durability.ASYNC:
                self._durable.update(numbers)
            if level is Durability.ARCHIVED:
                simulation.ledger.acknowledged(numbers)

    def _sweep(self, engine: Store) -> None:
        """Tails go beside everything else."""
        assert engine._archived is not None
        while True:
            self._simulation.sleep(GRACE_MS // 2)
            try:
                engine._archived.sweep_due()
            except (UnavailableError, NotFoundError):
                self._simulation.count("sweeps refused")
