"""Keeps one store's key index in shape beside its writer: seals, compacts, removes, and derives again what is missing.

With and without a cold tier, and never waiting for one: whoever publishes waits for this, not the other way round.
:class:`LocalChanges` lets no change of local files begin once the store was stopped, as threads may outlive it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.local.local_index import LocalIndex
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError, ReadOnlyError
from tierlog.tiering.hot.store import HotStore

_LOG = logging.getLogger("tierlog")
_WAIT_S = 3.0


class LocalChanges:
    """Counts changes of local files that are under way; they do not exclude each other.

    After :meth:`stop` another process may hold the store, and whoever comes late must not write over what it did.
    """

    def __init__(self, stopping: threading.Event, read_only_reason: Callable[[], str | None]) -> None:
        self._stopping = stopping
        self._read_only_reason = read_only_reason
        self._changed = threading.Condition()
        self._under_way = 0

    def check(self) -> None:
        """Raises :class:`ClosedError` or :class:`ReadOnlyError` if no further change may begin."""
        if self._stopping.is_set():
            raise ClosedError("the store is closing")
        reason = self._read_only_reason()
        if reason is not None:
            raise ReadOnlyError(f"the store is read-only: {reason}")

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Surrounds a change; refused as by :meth:`check`."""
        with self._changed:
            self.check()
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Waits for the changes under way, 3 s at most; to be called after ``stopping`` is set."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, _WAIT_S)


class IndexMaintenance:
    """Maintenance of one open store's key index. Thread safe: one run at a time."""

    def __init__(self, hot: HotStore, index: LocalIndex, clock: Clock, seal_age_ms: int, changes: LocalChanges) -> None:
        """A file whose first message is older than ``seal_age_ms`` is sealed though it is not full."""
        self._hot = hot
        self._index = index
        self._clock = clock
        self._seal_age_ms = seal_age_ms
        self._changes = changes
        self._lock = threading.Lock()

    def run_once(self) -> None:
        """Seals by age, then does what :meth:`keep` does."""
        self._index.put_aside(self._clock.now_ms() - self._seal_age_ms)
        self.keep()

    def keep(self) -> None:
        """Does whatever waits to be done to index files, and derives again the ranges of those that were dropped.

        A damaged file, found here or by a look-up, is put aside and derived again from the log, once. Raises what the
        disk says, and :class:`CorruptIndexError` for what that did not mend: the next call goes on from there.
        """
        with self._lock:
            self._changes.check()
            for error in self._index.discard_noted():
                _LOG.warning("an index file is damaged and is derived again: %s", error)
            try:
                self._index.maintain()
            except CorruptIndexError as error:
                if not self._discard_damaged(error):
                    raise
            self._derive_gaps()

    def derive_damaged(self, error: CorruptIndexError) -> None:
        """Puts all files aside that are damaged, as one was found to be, and derives them again."""
        with self._lock:
            self._changes.check()
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
            self._index.maintain()
