"""Who may flush a file: one at a time, and those who waited for the one under way leave together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class FlushTurn:
    """The turn to flush. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # entered as such: a condition's own way in takes twice as long
        self._changed = threading.Condition(self._lock)
        self._is_taken = False

    def take(self, unless: Callable[[], bool]) -> bool:
        """Wait for the turn; True with the turn, to be ended by :meth:`end`, False as soon as ``unless`` holds."""
        with self._lock:
            while self._is_taken and not unless():
                self._changed.wait()
            if unless():
                return False
            self._is_taken = True
        return True

    def end(self) -> None:
        """Let go of all who wait."""
        with self._lock:
            self._is_taken = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Nobody else flushes inside."""
        self.take(lambda: False)
        try:
            yield
        finally:
            self.end()
