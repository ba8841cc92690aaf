"""Borders that readers hold on to, and the wait of a removal for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tiering.clock import Clock

_WAIT_S = 60.0


class Pins:
    """Counts the readers of each border. The lock that guards it is the border's own."""

    def __init__(self, lock: threading.Condition, clock: Clock) -> None:
        self._lock = lock
        self._clock = clock
        self._counts: dict[int, int] = {}

    def pin(self, border: int) -> contextlib.AbstractContextManager[None]:
        """Note a reader until the context ends, which has to be entered. The caller holds the lock."""
        self._counts[border] = self._counts.get(border, 0) + 1
        return self._until_released(border)

    @contextlib.contextmanager
    def _until_released(self, border: int) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._counts[border] -= 1
                if not self._counts[border]:
                    del self._counts[border]
                self._lock.notify_all()

    def wait_below(self, border: int, *, give_up: Callable[[], bool]) -> None:
        """Wait until nobody reads below ``border``, 60 s at most. The caller holds the lock."""
        deadline = self._clock.monotonic_s() + _WAIT_S
        while not give_up() and any(pinned < border for pinned in self._counts):
            if not self._lock.wait(max(0.0, deadline - self._clock.monotonic_s())):
                break
