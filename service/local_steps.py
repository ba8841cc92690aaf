"""Changes of local files by threads that may outlive their store: none begins once it was stopped."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tiering.errors import ClosedError, ReadOnlyError

_WAIT_S = 3.0


class LocalSteps:
    """Counts the changes that are under way; they do not exclude each other.

    After :meth:`stop` another process may hold the store, and whoever comes late must not write over what it did.
    """

    def __init__(self, stopping: threading.Event, read_only_reason: Callable[[], str | None]) -> None:
        self._stopping = stopping
        self._read_only_reason = read_only_reason
        self._turn = threading.Condition()
        self._under_way = 0

    def check(self) -> None:
        """Raise :class:`ClosedError` or :class:`ReadOnlyError` if no further step is to be taken."""
        if self._stopping.is_set():
            raise ClosedError("the store is closing")
        reason = self._read_only_reason()
        if reason is not None:
            raise ReadOnlyError(f"the store is read-only: {reason}")

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A change; refused as by :meth:`check`."""
        with self._turn:
            self.check()
            self._under_way += 1
        try:
            yield
        finally:
            with self._turn:
                self._under_way -= 1
                self._turn.notify_all()

    def stop(self) -> None:
        """After ``stopping`` is set: wait for the changes under way, 3 s at most."""
        with self._turn:
            self._turn.wait_for(lambda: not self._under_way, _WAIT_S)
