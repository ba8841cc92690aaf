"""Keeps one store's key index in shape beside its writer: seals, compacts, removes, and derives again what is missing.

With and without a cold tier, and never waiting for one: whoever publishes waits for this, not the other way round.
"""

from __future__ import annotations

import logging
import threading

from index.errors import CorruptIndexError
from index.local_index import LocalIndex
from service.local_steps import LocalSteps
from tiering.clock import Clock
from tiering.hot.store import HotStore

_LOG = logging.getLogger("tierlog")


class IndexKeeping:
    """Of one open store. Thread safe: one turn at a time."""

    def __init__(self, hot: HotStore, index: LocalIndex, clock: Clock, seal_age_ms: int, steps: LocalSteps) -> None:
        """A file whose first message is older than ``seal_age_ms`` is sealed though it is not full."""
        self._hot = hot
        self._index = index
        self._clock = clock
        self._seal_age_ms = seal_age_ms
        self._steps = steps
        self._turn = threading.Lock()

    def round(self) -> None:
        """Seal by age, then :meth:`keep`."""
        self._index.put_aside(self._clock.now_ms() - self._seal_age_ms)
        self.keep()

    def keep(self) -> None:
        """Do whatever waits to be done to index files, and derive again the ranges of those that were dropped.

        A damaged file, found here or by a look-up, is put aside and derived again from the log, once. Raises what the
        disk says, and :class:`CorruptIndexError` for what that did not mend: the next call goes on from there.
        """
        with self._turn:
            self._steps.check()
            for error in self._index.discard_noted():
                _LOG.warning("an index file is damaged and is derived again: %s", error)
            try:
                self._index.keep_house()
            except CorruptIndexError as error:
                if not self._discard_damaged(error):
                    raise
            self._derive_gaps()

    def derive_damaged(self, error: CorruptIndexError) -> None:
        """A file was found to be damaged: put all aside that are, and derive them again."""
        with self._turn:
            self._steps.check()
            self._discard_damaged(error)
            self._derive_gaps()

    def _discard_damaged(self, error: CorruptIndexError) -> int:
        _LOG.warning("an index file is damaged and is derived again: %s", error)
        return self._index.discard_damaged(error)

    def _derive_gaps(self) -> None:
        gaps = self._index.gaps(self._hot.border, self._hot.log.end)
        for first, end in gaps:
            derived = self._index.derive(first, end)
            try:
                self._hot.derive(derived, first, end)
            finally:
                derived.abandon()  # tried again from the start of what is missing
        if gaps:
            self._index.keep_house()
