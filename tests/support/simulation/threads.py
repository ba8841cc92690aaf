"""Stands in for ``threading`` in modules whose locks are held, or whose threads wait, across calls of a bucket.

An actor that finds such a lock taken has to let the others go on, or nobody ever frees it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from unittest.mock import patch

from tests.support.simulation.scheduler import Actor, Scheduler, SimLock

_LOOK_MS = 60_000


class SimCondition:
    """A condition for actors: whoever waits looks again within a minute. Re-entrant, never held across a call."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Actor | None = None
        self._depth = 0

    def __enter__(self) -> SimCondition:
        assert self._owner in (None, self._scheduler.actor), "a condition is held while others go on"
        self._owner = self._scheduler.actor
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Let the others go on for a while; the time is not kept, so that an outage of hours is few steps."""
        mine, self._owner, self._depth = (self._owner, self._depth), None, 0
        try:
            self._scheduler.pause(self._scheduler.chance.randrange(1, _LOOK_MS))
        finally:
            self._owner, self._depth = mine
        return True

    def notify_all(self) -> None:
        """Whoever waits looks by itself."""


class _Inline:
    """A thread that is waited for at once is the work of who waits."""

    def __init__(self, target: Callable[[], object], **_: object) -> None:
        self._target = target

    def start(self) -> None:
        self._target()

    def join(self, timeout_s: float | None = None) -> None:
        """It is done."""


class SimThreading:
    """What those modules use of ``threading``."""

    Event = threading.Event

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.Thread = _Inline

    def Lock(self) -> SimLock:
        """One that lets others go on."""
        return SimLock(self._scheduler)

    def RLock(self) -> None:
        """Part of the condition."""

    def Condition(self, lock: object = None) -> SimCondition:
        """One whose waiters let others go on."""
        return SimCondition(self._scheduler)


@contextlib.contextmanager
def simulated(scheduler: Scheduler, *modules: ModuleType) -> Iterator[None]:
    """Have these modules make locks and threads of actors."""
    with contextlib.ExitStack() as patches:
        for module in modules:
            patches.enter_context(patch.object(module, "threading", SimThreading(scheduler)))
        yield
