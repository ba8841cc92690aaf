"""What runs beside requests: flushing, dispatching, checkpoints, and the way from tier to tier.

Daemon threads, one for each thing that must not wait for another: flushing, which bounds what a crash may lose;
deriving queues and index, with the checkpoints; keeping the index's files; preparing the next segment; archiving and
removal, where a bucket may be dead; sweeping the bucket and counting what is there. Those who
wait for messages have a further one (``service.arrivals``). A failure is logged once until it changes, and shown by
readiness.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from service.arrivals import Arrivals
from service.repeated import Repeated
from service.settings import Settings
from tiering.clock import Clock
from tiering.errors import ClosedError, OutOfResourcesError, ReadOnlyError, StoreError
from tiering.hot.store import HotStore

_LOG = logging.getLogger("tierlog")
_ROUND_S = 1.0
_JOIN_S = 3.0
#: A clock that steps back by less is nothing out of the ordinary.
CLOCK_ALARM_MS = 60_000


class Background:
    """The threads of one open store."""

    def __init__(
        self,
        hot: HotStore,
        checkpoint: Repeated,
        keeping: Repeated,
        tiers: Sequence[Repeated],
        beside: Sequence[Repeated],
        settings: Settings,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        """``checkpoint`` moves the recovery points; ``keeping`` keeps the index's files; ``tiers`` are the steps of the
        way from tier to tier, taken in turn; ``beside`` goes beside them, as long as they do not fail."""
        self._hot = hot
        self._checkpoint = checkpoint
        self._keeping = keeping
        self._tiers = tiers
        self._beside = beside
        self._settings = settings
        self._clock = clock
        self._stopping = stopping
        self._dirty = threading.Event()
        self._behind = threading.Event()
        self._near_end = threading.Event()
        self._derived_to = 0
        self._clock_alarm = False
        self._checkpoint_at_s = 0.0
        #: Who waits for messages.
        self.arrivals = Arrivals(hot.dispatch, stopping)
        self._threads: list[threading.Thread] = []

    @property
    def cold_error(self) -> str | None:
        """The last failure on the way to the archive; None once it went well again."""
        return next((step.error for step in self._tiers if step.error is not None), None)

    @property
    def index_error(self) -> str | None:
        """The last failure to keep the index's files or to move the recovery point; None once it went well again."""
        return self._keeping.error or self._checkpoint.error

    def start(self) -> None:
        """Start the threads."""
        loops = {
            "flush": self._flush_loop, "derive": self._derive_loop, "segments": self._segments_loop,
            "index": self._keeping_loop, "tiers": self._tiers_loop,
        }  # fmt: skip
        if self._beside:
            loops["sweep"] = self._sweep_loop
        for name, loop in loops.items():
            thread = threading.Thread(target=loop, name=f"tierlog-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ask the threads to end and wait for them, 3 s at most for all together.

        One that hangs in a call to a dead bucket is left: it is a daemon, and checks before every local change
        whether the store is closing.
        """
        self._stopping.set()
        self._dirty.set()
        self._behind.set()
        self._near_end.set()
        self.arrivals.stop()
        deadline_s = self._clock.monotonic_s() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))
        self._threads.clear()

    def appended(self) -> None:
        """Tell waiting readers, and wake whoever has work early: half of what may be lost is unflushed, for example."""
        log = self._hot.log
        if log.end - log.flushed >= self._settings.hot.flush_dirty_bytes // 2:
            self._dirty.set()
        if log.wants_next:
            self._near_end.set()
        self._look_behind()
        self.arrivals.look()

    def _look_behind(self) -> None:
        """Wake who derives if much is to be derived."""
        most = self._settings.hot.flush_dirty_bytes // 4
        if self._hot.log.visible - self._derived_to >= most:  # it only rises, so what was seen will do for a while
            self._derived_to = self._hot.dispatched_to
        if self._hot.log.visible - self._derived_to >= most:
            self._behind.set()

    def _flush_loop(self) -> None:
        while not self._stopping.is_set():
            self._clock.wait(self._dirty, self._settings.hot.flush_interval_ms / 1000)
            self._dirty.clear()
            self._unless_read_only(self._hot.flush)
            self._look_behind()
            self.arrivals.look()

    def _derive_loop(self) -> None:
        while not self._stopping.is_set():
            self._clock.wait(self._behind, self._settings.hot.flush_interval_ms / 1000)
            self._behind.clear()
            self._unless_read_only(self._derive)
            self._watch_clock()

    def _derive(self) -> None:
        self._hot.dispatch()
        if self._clock.monotonic_s() >= self._checkpoint_at_s:
            self._checkpoint.turn()
            if self._checkpoint.error is None:
                self._checkpoint_at_s = self._clock.monotonic_s() + self._settings.hot.checkpoint_interval_ms / 1000

    def _unless_read_only(self, step: Callable[[], object]) -> None:
        """Take a step; a failure of the disk makes the store read-only, which ends these steps."""
        if self._hot.guard.read_only_reason is None:
            try:
                step()
            except ReadOnlyError:
                return  # it became so meanwhile, as when it is taken over, and said why
            except (ClosedError, OutOfResourcesError):
                return  # the next turn tries again
            except (StoreError, OSError):
                _LOG.exception("the disk failed")

    def _segments_loop(self) -> None:
        failure = None
        while not self._stopping.is_set():
            self._clock.wait(self._near_end, _ROUND_S)
            self._near_end.clear()
            try:
                if self._hot.guard.read_only_reason is None and not self._stopping.is_set():
                    self._hot.prepare_segment()
                failure = None
            except ClosedError:
                return
            except (StoreError, OSError) as error:
                if str(error) != failure:
                    _LOG.warning("the next segment could not be prepared, will try again: %s", error)
                failure = str(error)
                self._clock.wait(self._stopping, _ROUND_S)

    def _watch_clock(self) -> None:
        behind_ms = self._hot.clock_behind_ms
        if (behind_ms > CLOCK_ALARM_MS) != self._clock_alarm:
            self._clock_alarm = not self._clock_alarm
            if self._clock_alarm:
                _LOG.error(
                    "this machine's clock is %d s behind the newest message, stored when the clock was ahead; "
                    "new messages get that message's time until it is past", behind_ms // 1000,
                )  # fmt: skip
            else:
                _LOG.warning("the clock has caught up with the newest message")

    def _keeping_loop(self) -> None:
        self._until_closed(self._keeping.turn)

    def _tiers_loop(self) -> None:
        self._until_closed(self._tiers_turn)

    def _sweep_loop(self) -> None:
        self._until_closed(self._sweep_turn)

    def _until_closed(self, turn: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                turn()
            except ClosedError:
                return
            self._clock.wait(self._stopping, _ROUND_S)

    def _tiers_turn(self) -> None:
        for step in self._tiers:
            step.turn()

    def _sweep_turn(self) -> None:
        for step in self._beside:
            if self.cold_error is None:
                step.turn()
