"""Whether what is derived follows the log: a failure stops it, is told once, and is tried again after a pause."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tiering.clock import Clock
from tiering.errors import CorruptionError, ReadOnlyError, StoreError

_LOG = logging.getLogger("tierlog")
#: A try scans up to a segment again.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Following:
    """Turns of the dispatcher. One thread at a time; :attr:`error` may be read by any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = self._again_s = 0.0
        #: Why the last try failed; None after one that went well.
        self.error: str | None = None

    def turn(self, step: Callable[[], object]) -> None:
        """Take the step, unless it failed less than a pause ago.

        Raises :class:`CorruptionError` and :class:`ReadOnlyError`, for which another try is no help. Any other failure,
        foreseen or not, is logged once until it changes, and makes the pause twice as long, 30 s at most.
        """
        if self.error is not None and self._clock.monotonic_s() < self._again_s:
            return
        try:
            step()
        except (CorruptionError, ReadOnlyError):
            raise
        except Exception as error:
            found = str(error) if isinstance(error, StoreError) else repr(error)
            if found != self.error:
                _LOG.error("queues and index cannot follow the log, will try again: %s", found, exc_info=error)
            self.error = found
            self._pause_s = min(max(_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._again_s = self._clock.monotonic_s() + self._pause_s
        else:
            if self.error is not None:
                _LOG.warning("queues and index follow the log again")
            self.error, self._pause_s = None, 0.0
