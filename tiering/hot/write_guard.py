"""One failure to write is final: the store is read-only from then on, with the reason, until somebody restarts it.

Two are none: a request that was wrong, and a system that had no descriptor or memory to spare, which has not asked the
disk. A step that ends so is taken again later, and every step can be: what it did before is done once more, or is what
it finds.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from types import TracebackType

from tiering.errors import ClosedError, InvalidRequestError, OutOfResourcesError, ReadOnlyError

_LOG = logging.getLogger("tierlog")
_NOT_OF_THE_DISK = (InvalidRequestError, ClosedError, OutOfResourcesError)


class WriteGuard:
    """Lets nothing change a store's disk after a change that failed. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None

    @property
    def read_only_reason(self) -> str | None:
        """Why the store accepts no more writes, or None."""
        return self._reason

    def turn_read_only(self, reason: str) -> None:
        """Accept nothing more; the first reason stays."""
        with self._lock:
            is_first = self._reason is None
            self._reason = self._reason or reason
        if is_first:
            _LOG.error("the store is read-only now: %s", reason)

    def check(self) -> None:
        """Raise :class:`ReadOnlyError` if the store accepts no more writes."""
        if self._reason is not None:
            raise ReadOnlyError(f"the store is read-only: {self._reason}", hint="repair the cause and restart")

    def writing(self, what: str) -> AbstractContextManager[None]:
        """A step that changes the disk: refused once the store is read-only, and it is so after a failure.

        May be kept, and entered again and again by many threads at a time.
        """
        return _Step(self, what)


class _Step:
    """Steps of one kind under a guard; a class, as every append takes two of them."""

    __slots__ = ("_guard", "_what")

    def __init__(self, guard: WriteGuard, what: str) -> None:
        self._guard = guard
        self._what = what

    def __enter__(self) -> None:
        self._guard.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # neither says anything about the disk, nor does a store that was closed; an interrupt, or Python out of memory:
        # nobody knows how far it came
        if error is not None and not isinstance(error, _NOT_OF_THE_DISK):
            self._guard.turn_read_only(f"{self._what} failed: {error}")
