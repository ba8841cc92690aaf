"""Pauses after failures, longer with every one in a row and never in step, and the two ways to try again.

:class:`Retries` makes one call until it goes well. :class:`RepeatedTask` is the work of a loop, which leaves it out for
a while after it failed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError, ReadOnlyError, StoreError
from tierlog.tiering.base.randomness import Randomness

_JITTER_BYTES = 4
T = TypeVar("T")
_LOG = logging.getLogger("tierlog")


class Backoff:
    """Pauses between tries: ``first_s`` after the first failure, twice as long after each further one up to ``most_s``.

    Each pause is drawn between half of that and all of it, so that many nodes which lost the same bucket do not come
    back together. One success forgets all failures. For one thread.
    """

    def __init__(self, clock: Clock, randomness: Randomness, *, first_s: float, most_s: float) -> None:
        self._clock = clock
        self._randomness = randomness
        self._first_s = first_s
        self._most_s = max(first_s, most_s)
        self._longest_s = first_s
        self._until_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is time to try."""
        return self._until_s is None or self._clock.monotonic_s() >= self._until_s

    @property
    def left_s(self) -> float:
        """Seconds of the pause that are left, 0 once it is over."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - self._clock.monotonic_s())

    def failed(self) -> None:
        """Begins the next pause now: a try that took long is not followed at once by another."""
        share = int(self._randomness.token_hex(_JITTER_BYTES), 16) / (1 << 8 * _JITTER_BYTES)
        self._until_s = self._clock.monotonic_s() + self._longest_s * (1 + share) / 2
        self._longest_s = min(2 * self._longest_s, self._most_s)

    def succeeded(self) -> None:
        """Forgets the failures."""
        self._until_s, self._longest_s = None, self._first_s


class TryAgain(Exception):
    """Raised by an attempt of :class:`Retries` that failed and may go well the next time."""

    def __init__(self, error: StoreError, after_s: float = 0.0) -> None:
        """``error`` is what the last try ends with; ``after_s`` is how long the other side asked to be left alone."""
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


class Retries:
    """Makes an attempt again while it asks for that: at most ``tries`` times, with the pauses of a :class:`Backoff`.

    Which failures are worth another try is for the attempt to say. A stop ends a pause, and the attempt fails at once.
    """

    def __init__(
        self,
        clock: Clock,
        randomness: Randomness,
        *,
        tries: int,
        first_s: float,
        most_s: float,
        stopping: threading.Event | None = None,
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._tries = tries
        self._first_s, self._most_s = first_s, most_s
        self._stopping = stopping or threading.Event()

    def run(self, attempt: Callable[[], T]) -> T:
        """Returns the attempt's result.

        Raises the error of the last :class:`TryAgain`, and what else the attempt raises.
        """
        pauses = Backoff(self._clock, self._randomness, first_s=self._first_s, most_s=self._most_s)
        for left in range(self._tries - 1, -1, -1):
            try:
                return attempt()
            except TryAgain as again:
                failure = again
            pauses.failed()
            if not left or self._clock.wait(self._stopping, max(pauses.left_s, failure.after_s)):
                break
        raise failure.error


class RepeatedTask:
    """Work that a loop does again and again, and leaves out for a while after it failed.

    For one thread; ``error``, the last failure, may be read by any.
    """

    def __init__(self, name: str, work: Callable[[], object], backoff: Backoff, error: str | None = None) -> None:
        """``name`` is what the log calls the work.

        ``error`` is what is known to have failed before the first run, which is made at once all the same.
        """
        self._name = name
        self._work = work
        self._backoff = backoff
        #: The last failure; None after a run that went well.
        self.error = error

    def run_once(self) -> None:
        """Does the work unless a pause is on; a failure is logged once until it changes. Raises ClosedError.

        An unforeseen error (out of memory) is a failure too: nobody would notice that it had ended the loop.
        """
        if not self._backoff.is_over:
            return
        try:
            self._work()
        except ClosedError:
            raise
        except Exception as error:
            found = str(error) if isinstance(error, StoreError | OSError) else repr(error)
            if found != self.error and not isinstance(error, ReadOnlyError):
                _LOG.warning("%s failed, will try again: %s", self._name, found, exc_info=True)
            self.error = found
            self._backoff.failed()
        else:
            if self.error is not None:
                _LOG.warning("%s goes well again", self._name)
            self.error = None
            self._backoff.succeeded()
