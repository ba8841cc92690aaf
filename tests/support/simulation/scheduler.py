"""One actor runs at a time, in an order that a seed decides, on a clock that jumps from one wake-up to the next.

Actors are threads that hand a baton on wherever they would wait: inside calls to the object store, in pauses, and for
locks. Nothing else runs beside them, so that a run depends on nothing but its generator.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from tierlog.tiering.base.clock import Clock

#: When simulated worlds begin.
START_MS = 1_700_000_000_000
_HANDOVER_LIMIT_S = 120.0


class StoppedError(BaseException):
    """Unwinds an actor: the simulation ends, or its process was killed."""


@dataclass(slots=True)
class Process:
    """What dies together."""

    name: str
    is_killed: bool = False


@dataclass(eq=False)
class Actor:
    """A thread of a simulated process."""

    name: str
    process: Process
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None


class Scheduler:
    """Runs actors until a simulated time; an exception in one of them ends the run and is raised."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_ms = START_MS
        self.steps = 0
        self._wakeups: list[tuple[int, int, Actor | Callable[[], None]]] = []
        self._number = 0
        self._baton = threading.Semaphore(0)
        self._running: Actor | None = None
        self._actors: list[Actor] = []
        self._error: BaseException | None = None
        self._ended = False

    def spawn(self, name: str, process: Process, body: Callable[[], None], *, after_ms: int = 0) -> None:
        """Begin an actor a little later."""
        actor = Actor(name, process)
        actor.thread = threading.Thread(target=self._run_actor, args=(actor, body), name=name, daemon=True)
        self._actors.append(actor)
        self._push(after_ms, actor)
        actor.thread.start()

    def later(self, after_ms: int, action: Callable[[], None]) -> None:
        """Run something that never waits, between the steps of actors."""
        self._push(after_ms, action)

    @property
    def running(self) -> str:
        """The name of the actor that holds the baton."""
        return self._running.name if self._running else "-"

    @property
    def actor(self) -> Actor:
        """The actor that holds the baton."""
        assert self._running is not None
        return self._running

    def pause(self, ms: int) -> None:
        """Called by the running actor: let the others go on for so long. Unwinds it if its process is gone."""
        actor = self.actor
        self._push(ms, actor)
        self.rest(actor)

    def rest(self, actor: Actor) -> None:
        """Let the others go on until :meth:`wake`."""
        self._baton.release()
        self._wait(actor)

    def wake(self, actor: Actor) -> None:
        """Let a resting actor go on at this time, after those that are due already."""
        self._push(0, actor)

    def run(self, until_ms: int) -> None:
        """Take steps in the order of time."""
        while self._wakeups and self._wakeups[0][0] <= until_ms and self._error is None:
            self.now_ms, _, what = heapq.heappop(self._wakeups)
            self.steps += 1
            if isinstance(what, Actor):
                self._running = what
                what.baton.release()
                assert self._baton.acquire(timeout=_HANDOVER_LIMIT_S), f"{what.name} never waits"
                self._running = None
            else:
                what()
        if self._error is not None:
            raise self._error
        self.now_ms = max(self.now_ms, until_ms)

    def end(self) -> None:
        """Unwind all actors."""
        self._ended = True
        for actor in self._actors:
            if actor.thread is not None and actor.thread.is_alive():
                actor.baton.release()
                actor.thread.join(_HANDOVER_LIMIT_S)
        self._wakeups.clear()

    def _push(self, after_ms: int, what: Actor | Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._wakeups, (self.now_ms + max(0, after_ms), self._number, what))

    def _wait(self, actor: Actor) -> None:
        actor.baton.acquire()
        if self._ended or actor.process.is_killed:
            raise StoppedError

    def _run_actor(self, actor: Actor, body: Callable[[], None]) -> None:
        try:
            self._wait(actor)
            body()
        except StoppedError:
            pass
        except BaseException as error:  # raised again by run()
            self._error = error
        finally:
            if not self._ended:
                self._baton.release()


class SimLock:
    """A lock for actors: whoever finds it taken rests until it is free. Made free by unwinding."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_held = False
        self._waiting: list[Actor] = []

    def __enter__(self) -> None:
        self.acquire()

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; without ``blocking`` only if it is free. Returns whether it was taken."""
        while self._is_held:
            if not blocking:
                return False
            actor = self._scheduler.actor
            self._waiting.append(actor)
            self._scheduler.rest(actor)
        self._is_held = True
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give it back."""
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for actor in waiting:
            self._scheduler.wake(actor)


class SimClock(Clock):
    """The clock of one process: off by some amount, and too fast or too slow by some share."""

    def __init__(self, scheduler: Scheduler, *, off_ms: int = 0, drift: float = 0.0) -> None:
        self._scheduler = scheduler
        self._off_ms = off_ms
        self._rate = 1 + drift

    def now_ms(self) -> int:
        return self._off_ms + START_MS + int((self._scheduler.now_ms - START_MS) * self._rate)

    def monotonic_s(self) -> float:
        return (self._scheduler.now_ms - START_MS) * self._rate / 1000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._scheduler.pause(int(timeout_s * 1000))
        return event.is_set()
