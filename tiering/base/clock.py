"""Time comes in from outside, so that tests can play it: integer milliseconds since the epoch, UTC."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The time, as the code may ask for it."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch; may step in either direction."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never step back; only differences mean anything."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Waits until ``event`` is set or ``timeout_s`` has passed; says whether it is set."""
        ...


#: An upload that was begun before the machine slept is as old as others take it for.
_SINCE_START: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since the machine started, those during which it slept included where the system counts them."""
        return time.clock_gettime(_SINCE_START)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class ManualClock:
    """A clock that moves only when told to; waiting moves it by the time waited for."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms

    def monotonic_s(self) -> float:
        """Seconds by which :meth:`advance` has moved this clock forward."""
        with self._lock:
            return self._elapsed_ms / 1000

    def advance(self, ms: int) -> None:
        """Moves both clocks forward."""
        with self._lock:
            self._now_ms += ms
            self._elapsed_ms += ms

    def step(self, ms: int) -> None:
        """Moves only the wall clock, forwards or backwards, as an administrator would."""
        with self._lock:
            self._now_ms += ms

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Advances by ``timeout_s`` unless ``event`` is already set."""
        if not event.is_set():
            self.advance(int(timeout_s * 1000))
        return event.is_set()
