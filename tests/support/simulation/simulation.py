"""What every simulation has: a scheduler, a server, its weather, and processes that are killed and begun again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.simulation.scheduler import Process, Scheduler, SimClock
from tests.support.simulation.server import HOUR_MS, MINUTE_MS, Client, Server, Weather


@dataclass(frozen=True)
class Outcome:
    """What a run was and did."""

    seed: int
    trace: str
    steps: int
    heads: int
    counts: dict[str, int]


class Simulation:
    """Processes around one bucket."""

    def __init__(self, scheduler: Scheduler, server: Server, weather: Weather) -> None:
        self.scheduler = scheduler
        self.server = server
        self.weather = weather
        self.chance: random.Random = scheduler.chance
        self.clients: list[Client] = []
        self.counts: dict[str, int] = {}
        self._names = 0

    def client(self, process: Process) -> Client:
        """A way to the server for a process."""
        client = Client(self.server, process, self.chance, self.weather)
        self.clients.append(client)
        return client

    def calm_down(self, weather: Weather) -> None:
        """Another weather from now on, for every client."""
        self.weather = weather
        for client in self.clients:
            client.weather = weather

    def clock(self) -> SimClock:
        """The clock of a process: up to days off, up to a percent too fast or slow."""
        off_ms = self.chance.choice((0, self.chance.randrange(-72, 72) * HOUR_MS))
        return SimClock(self.scheduler, off_ms=off_ms, drift=self.chance.uniform(-0.01, 0.01))

    def count(self, what: str) -> None:
        """Something that a run should contain happened."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.server.trace.add(what)

    def process(self, kind: str) -> Process:
        """A process with a name of its own."""
        self._names += 1
        return Process(f"{kind}-{self._names}")

    def when_killed(self, process: Process, then: Callable[[], None], *, after_ms: int = 0) -> None:
        """Look every 20 minutes whether a process is gone."""

        def look() -> None:
            if process.is_killed:
                then()
            else:
                self.scheduler.later(20 * MINUTE_MS, look)

        self.scheduler.later(after_ms + 20 * MINUTE_MS, look)

    def sleep(self, most_ms: int) -> None:
        """Let time pass."""
        self.scheduler.pause(self.chance.randrange(1, most_ms))
