"""What runs beside requests: flushing, dispatching, checkpoints, and the way from tier to tier.

Two daemon threads: one for the disk, one for archiving and removal, so that a dead bucket never delays a flush or the
close; those who wait for messages have a third (``service.arrivals``). A failure is logged once until it changes,
counted, and shown by readiness.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.arrivals import Arrivals
from service.settings import Settings
from tiering.clock import Clock
from tiering.errors import ClosedError, ReadOnlyError, StoreError
from tiering.hot.store import HotStore

_LOG = logging.getLogger("tierlog")
_ROUND_S = 1.0
_JOIN_S = 3.0


class Background:
    """The threads of one open store."""

    def __init__(
        self,
        hot: HotStore,
        tiers_round: Callable[[], None],
        settings: Settings,
        clock: Clock,
        stopping: threading.Event,
        cold_error: str | None,
    ) -> None:
        self._hot = hot
        self._tiers_round = tiers_round
        self._settings = settings
        self._clock = clock
        self._stopping = stopping
        self._dirty = threading.Event()
        #: Who waits for messages.
        self.arrivals = Arrivals(hot.dispatch, stopping)
        self._threads: list[threading.Thread] = []
        #: The last failure of the way to the archive; None after a round that went well.
        self.cold_error = cold_error

    def start(self) -> None:
        """Start the threads."""
        for name, loop in (("tierlog-disk", self._disk_loop), ("tierlog-tiers", self._tiers_loop)):
            thread = threading.Thread(target=loop, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ask the threads to end and wait for them, a few seconds at most.

        One that hangs in a call to a dead bucket is left: it is a daemon, and checks before every local change
        whether the store is closing.
        """
        self._stopping.set()
        self._dirty.set()
        self.arrivals.stop()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._threads.clear()

    def appended(self) -> None:
        """Tell waiting readers, and wake the flusher early if much is unflushed."""
        if self._hot.log.end - self._hot.log.flushed >= self._settings.hot.flush_dirty_bytes:
            self._dirty.set()
        self.arrivals.look()

    def _disk_loop(self) -> None:
        checkpoint_at = 0.0
        failing = False
        while not self._stopping.is_set():
            self._clock.wait(self._dirty, self._settings.hot.flush_interval_ms / 1000)
            self._dirty.clear()
            try:
                if self._hot.read_only_reason is None:
                    self._hot.flush()
                    self._hot.dispatch()
                    if self._clock.monotonic_s() >= checkpoint_at:
                        self._hot.checkpoint()
                        checkpoint_at = self._clock.monotonic_s() + self._settings.hot.checkpoint_interval_ms / 1000
                failing = False
            except (StoreError, OSError):
                if not failing:
                    _LOG.exception("the disk loop failed; the store is read-only")
                failing = True
            self.arrivals.look()

    def _tiers_loop(self) -> None:
        while not self._stopping.is_set():
            pause_s = _ROUND_S
            try:
                self._tiers_round()
                self.cold_error = None
            except ClosedError:
                return
            except (StoreError, OSError) as error:
                if str(error) != self.cold_error and not isinstance(error, ReadOnlyError):
                    _LOG.warning("archiving failed, will try again: %s", error, exc_info=True)
                self.cold_error = str(error)
                pause_s = self._settings.cold.retry_interval_ms / 1000
            self._clock.wait(self._stopping, pause_s)
