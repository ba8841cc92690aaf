"""One fetch for all who want the same thing at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class UnsharedError(Exception):
    """Mixin of errors that concern only the caller who met them, such as a spent budget."""


class SingleFlight:
    """Runs one piece of work a key at a time; whoever comes while it runs gets its outcome. Thread safe.

    The work runs on the thread of the first, so nobody who waits can end it. An error of the work reaches everybody
    who waits for it: of a bucket that is dead each learns once, without asking again in turn. What stops only the
    first, an :class:`UnsharedError` or a signal, is not passed on: the next one who waits does the work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Any]] = {}
        self._joined = 0

    @property
    def joined(self) -> int:
        """Number of times that somebody waited for what another one was fetching."""
        return self._joined

    def run(self, key: Hashable, work: Callable[[], T]) -> tuple[T, bool]:
        """The work's result, and whether it was done here."""
        while True:
            with self._lock:
                flight = self._running.get(key)
                if flight is None:
                    mine: Future[T] = Future()
                    self._running[key] = mine
                    break
                self._joined += 1
            try:
                result: T = flight.result()
            except CancelledError:
                continue
            return result, False
        return self._run(key, mine, work), True

    def _run(self, key: Hashable, mine: Future[T], work: Callable[[], T]) -> T:
        try:
            result = work()
        except BaseException as error:
            self._end(key)
            if isinstance(error, UnsharedError) or not isinstance(error, Exception):
                mine.cancel()
            else:
                mine.set_exception(error)
            raise
        self._end(key)
        mine.set_result(result)
        return result

    def _end(self, key: Hashable) -> None:
        with self._lock:
            del self._running[key]
