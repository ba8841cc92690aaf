"""A step that a loop takes again and again, and leaves out for a while after it failed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tiering.backoff import Backoff
from tiering.errors import ClosedError, ReadOnlyError, StoreError

_LOG = logging.getLogger("tierlog")


class Repeated:
    """One step with its pauses after failures and its last failure. For one thread; ``error`` may be read by any."""

    def __init__(self, name: str, step: Callable[[], object], backoff: Backoff, error: str | None = None) -> None:
        """``name`` is what the log calls the step.

        ``error`` is what is known to have failed before the first turn, which is taken at once all the same.
        """
        self._name = name
        self._step = step
        self._backoff = backoff
        #: The last failure; None after a turn that went well.
        self.error = error

    def turn(self) -> None:
        """Take the step unless a pause is on; a failure is logged once until it changes. Raises ClosedError.

        One that nobody foresaw (out of memory) is a failure too: a loop that it ended would be missed by nobody.
        """
        if not self._backoff.is_over:
            return
        try:
            self._step()
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
