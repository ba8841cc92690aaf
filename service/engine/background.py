"""The threads that run beside requests: flushing, dispatching, checkpoints, and the way from tier to tier.

Daemon threads, one for each thing that must not wait for another: flushing, which bounds what a crash may lose;
deriving queues and index, with the checkpoints; keeping the index's files; preparing the next segment; archiving and
removal, where a bucket may be dead; sweeping the bucket and counting what is there. Those who wait for messages have a
further one (:class:`PullWaiters`), which looks for all of them. A failure is logged once until it changes, and shown by
readiness. :func:`make_background` decides which tasks a store repeats, and with what pauses after failures.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tierlog.service.config.settings import Settings
from tierlog.service.engine.opening import StoreParts
from tierlog.tiering.base.backoff import Backoff, RepeatedTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ClosedError, OutOfResourcesError, ReadOnlyError, StoreError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.hot.store import HotStore

_LOG = logging.getLogger("tierlog")
_PAUSE_S = 1.0
#: Pause after a verification of the log that failed: the next one scans the same segment.
_AFTER_FAILURE_S = 10.0
_JOIN_S = 3.0
_WAITERS_JOIN_S = 1.0
#: Smaller steps back of a clock are normal.
CLOCK_ALARM_MS = 60_000


#: Longer than anybody waits.
_FOR_EVER_MS = 1 << 62


def _tell(event: threading.Event) -> None:
    """Sets an event that its thread clears before it looks, so one that is set need not be set again."""
    if not event.is_set():
        event.set()


def _never() -> None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    arrived: Callable[[], bool]
    notify: Callable[[], object]
    due_ms: Callable[[], int | None]


class PullWaiters:
    """Tells readers who wait for messages of one open store that some came. Its thread starts with the first."""

    def __init__(self, catch_up: Callable[[], object], stopping: threading.Event, clock: Clock) -> None:
        self._catch_up = catch_up
        self._stopping = stopping
        self._clock = clock
        #: When the thread looks again, if nobody wakes it before.
        self._look_ms = _FOR_EVER_MS
        self._lock = threading.Lock()
        self._watches: set[_Watch] = set()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(
        self, arrived: Callable[[], bool], notify: Callable[[], object], due_ms: Callable[[], int | None] = _never
    ) -> Iterator[None]:
        """Calls ``notify`` once inside the context: when ``arrived()`` holds, when looking fails, or at the stop.

        ``arrived`` is asked on the thread, after catching up with the log, and ``due_ms`` after it: when to ask again
        although nothing has come, None for never. ``notify`` must not block, and is not called any more after the
        context.
        """
        watch = _Watch(arrived, notify, due_ms)
        with self._lock:
            if self._stopping.is_set():
                notify()
            else:
                self._watches.add(watch)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._loop, name="tierlog-pull-waiters", daemon=True)
                    self._thread.start()
        self._news.set()
        try:
            yield
        finally:
            with self._lock:
                self._watches.discard(watch)

    def look(self) -> None:
        """Wakes the thread, because something was appended or flushed."""
        if self._watches:
            self._news.set()

    def look_by(self, due_ms: int) -> None:
        """Has the thread look at this time, or before."""
        if due_ms < self._look_ms:
            self.look()

    def stop(self) -> None:
        """Tells everybody; to be called once ``stopping`` is set."""
        self._news.set()
        with self._lock:  # a thread that is seen is started
            thread = self._thread
        if thread is not None:
            thread.join(_WAITERS_JOIN_S)

    def _loop(self) -> None:
        stopping = False
        while not stopping:
            self._wait()
            due = self._due()
            with self._lock:
                stopping = self._stopping.is_set()
                for watch in self._watches.copy() if stopping else self._watches & due:
                    self._watches.remove(watch)
                    watch.notify()

    def _wait(self) -> None:
        """Returns when something has come, or when the first of those who wait wants to be asked again."""
        self._look_ms = _FOR_EVER_MS  # whatever changes while the times are asked for wakes the thread at once
        with self._lock:
            watches = self._watches.copy()
        times_ms = [due_ms for watch in watches if (due_ms := watch.due_ms()) is not None]
        self._look_ms = min(times_ms, default=_FOR_EVER_MS)
        if times_ms:
            self._clock.wait(self._news, max(0, self._look_ms - self._clock.now_ms()) / 1000)
        else:
            self._news.wait()
        self._news.clear()

    def _due(self) -> set[_Watch]:
        with self._lock:
            watches = self._watches.copy()
        try:
            self._catch_up()
            return {watch for watch in watches if watch.arrived()}
        except (StoreError, OSError):  # readers are woken, and get the error themselves
            return watches


class Background:
    """The threads of one open store."""

    def __init__(
        self,
        hot: HotStore,
        *,
        checkpoint: RepeatedTask,
        index_maintenance: RepeatedTask,
        tiers: Sequence[RepeatedTask],
        beside: Sequence[RepeatedTask],
        settings: Settings,
        clock: Clock,
        stopping: threading.Event,
        after_flush: Callable[[], None],
    ) -> None:
        """``checkpoint`` moves the recovery points; ``index_maintenance`` maintains the index's files.

        ``tiers`` are the archiving and removal tasks, run in turn; ``beside`` runs alongside until one of them fails.
        ``after_flush`` is called after each flush, and must not wait.
        """
        self._hot = hot
        self._checkpoint = checkpoint
        self._index_maintenance = index_maintenance
        self._tiers = tiers
        self._beside = beside
        self._settings = settings
        self._clock = clock
        self._stopping = stopping
        self._after_flush = after_flush
        self._dirty = threading.Event()
        self._behind = threading.Event()
        self._near_end = threading.Event()
        self._derived_to = 0
        self._clock_alarm = False
        self._checkpoint_at_s = 0.0
        #: Who waits for messages.
        self.pull_waiters = PullWaiters(hot.dispatch, stopping, clock)
        self._threads: list[threading.Thread] = []

    @property
    def cold_error(self) -> str | None:
        """The last failure to move data to the archive; None once it went well again."""
        return next((task.error for task in self._tiers if task.error is not None), None)

    @property
    def index_error(self) -> str | None:
        """The last failure to keep the index's files or to move the recovery point; None once it went well again."""
        return self._index_maintenance.error or self._checkpoint.error

    def start(self) -> None:
        """Starts the threads."""
        loops = {
            "flush": self._flush_loop, "derive": self._derive_loop, "segments": self._segments_loop,
            "index": self._index_loop, "tiers": self._tiers_loop, "damage": self._damage_loop,
        }  # fmt: skip
        if self._beside:
            loops["sweep"] = self._sweep_loop
        for name, loop in loops.items():
            thread = threading.Thread(target=loop, name=f"tierlog-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Asks the threads to end and waits for them, 3 s at most for all together.

        One that hangs in a call to a dead bucket is left: it is a daemon, and checks before every local change
        whether the store is closing.
        """
        self._stopping.set()
        self._dirty.set()
        self._behind.set()
        self._near_end.set()
        self._hot.damage.news.set()
        self.pull_waiters.stop()
        deadline_s = self._clock.monotonic_s() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))
        self._threads.clear()

    def appended(self) -> None:
        """Tells waiting readers, and wakes threads that have work early, such as half of what may be lost to flush."""
        log = self._hot.log
        if log.end - log.flushed >= self._settings.hot.flush_dirty_bytes // 2:
            _tell(self._dirty)
        if log.wants_zeros or log.wants_next:
            _tell(self._near_end)
        self._look_behind()
        self.pull_waiters.look()

    def _look_behind(self) -> None:
        """Wakes the thread that derives if much is to be derived."""
        most = self._settings.hot.flush_dirty_bytes // 4
        if self._hot.log.visible - self._derived_to >= most:  # it only rises, so an old value is a safe bound
            self._derived_to = self._hot.dispatched_to
        if self._hot.log.visible - self._derived_to >= most:
            _tell(self._behind)

    def _flush_loop(self) -> None:
        while not self._stopping.is_set():
            self._clock.wait(self._dirty, self._settings.hot.flush_interval_ms / 1000)
            self._dirty.clear()
            self._unless_read_only(self._hot.flush)
            self._unless_read_only(self._after_flush)
            self._look_behind()
            self.pull_waiters.look()

    def _derive_loop(self) -> None:
        while not self._stopping.is_set():
            self._clock.wait(self._behind, self._settings.hot.flush_interval_ms / 1000)
            self._behind.clear()
            self._unless_read_only(self._derive)
            self._watch_clock()

    def _derive(self) -> None:
        self._hot.dispatch()
        if self._clock.monotonic_s() >= self._checkpoint_at_s:
            self._checkpoint.run_once()
            if self._checkpoint.error is None:
                self._checkpoint_at_s = self._clock.monotonic_s() + self._settings.hot.checkpoint_interval_ms / 1000

    def _unless_read_only(self, step: Callable[[], object]) -> None:
        """Takes a step; a failure of the disk makes the store read-only, which ends these steps."""
        if self._hot.guard.read_only_reason is None:
            try:
                step()
            except ReadOnlyError:
                return  # it became read-only meanwhile, for example by a takeover, and said why
            except (ClosedError, OutOfResourcesError):
                return  # the next turn tries again
            except (StoreError, OSError):
                _LOG.exception("the disk failed")

    def _damage_loop(self) -> None:
        """Verifies what somebody could not read in the log, which may take a second a segment.

        Beside that each segment is looked at once after a start, the oldest first, in a quarter of the time: recovery
        has read no more than what was written last.
        """
        unseen = deque(segment.base_offset for segment in self._hot.log.segments())
        next_look_s = self._clock.monotonic_s() + _PAUSE_S
        while not self._stopping.is_set():
            self._clock.wait(self._hot.damage.news, _PAUSE_S)
            if self._stopping.is_set():
                return
            try:
                self._hot.verify_damage()
                begun_s = self._clock.monotonic_s()
                if unseen and begun_s >= next_look_s:
                    self._hot.look_for_damage(unseen[0])
                    unseen.popleft()
                    next_look_s = self._clock.monotonic_s() + 3 * (self._clock.monotonic_s() - begun_s)
            except (StoreError, OSError):  # it stays suspected
                self._clock.wait(self._stopping, _AFTER_FAILURE_S)

    def _segments_loop(self) -> None:
        failure = None
        while not self._stopping.is_set():
            self._clock.wait(self._near_end, _PAUSE_S)
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
                self._clock.wait(self._stopping, _PAUSE_S)

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

    def _index_loop(self) -> None:
        self._until_closed(self._index_maintenance.run_once)

    def _tiers_loop(self) -> None:
        self._until_closed(self._run_tiers)

    def _sweep_loop(self) -> None:
        self._until_closed(self._run_beside)

    def _until_closed(self, run_once: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                run_once()
            except ClosedError:
                return
            self._clock.wait(self._stopping, _PAUSE_S)

    def _run_tiers(self) -> None:
        for task in self._tiers:
            task.run_once()

    def _run_beside(self) -> None:
        for task in self._beside:
            if self.cold_error is None:
                task.run_once()


def make_background(
    parts: StoreParts,
    *,
    checkpoint: Callable[[], None],
    remove_due: Callable[[], None],
    settings: Settings,
    clock: Clock,
    randomness: Randomness,
    after_flush: Callable[[], None],
) -> Background:
    """Makes the threads of a store, not started; a store without a cold tier runs ``remove_due`` beside its index."""

    def repeated(name: str, run_once: Callable[[], object], error: str | None = None) -> RepeatedTask:
        cold = settings.cold
        first_s, most_s = cold.retry_interval_ms / 1000, cold.retry_max_ms / 1000
        return RepeatedTask(name, run_once, Backoff(clock, randomness, first_s=first_s, most_s=most_s), error)

    # the tasks of every store
    index_maintenance = repeated("keeping the key index", parts.hot.index_maintenance.run_once)
    # in a writable store only a lack of file descriptors stops this; it passes as soon as one is freed
    checkpointing = RepeatedTask("checkpoint", checkpoint, Backoff(clock, randomness, first_s=1.0, most_s=5.0))
    # the tasks of a store with an archive, or of one without
    archive, writers = parts.archive, parts.writers
    first_contact = archive.first_contact if archive else None
    beside: list[RepeatedTask] = []
    if archive is None or writers is None:
        tiers = [repeated("removal", remove_due, first_contact)]
    else:
        tiers = [
            repeated("rolling and removal", writers.mover.roll_and_remove),
            repeated("archiving", writers.mover.archive_due, first_contact),
            repeated("expiry and erasure", parts.removal.run_once),
        ]

        def sweep_both() -> None:
            writers.mover.sweep_due()
            writers.appends.sweep_due()

        def count() -> None:
            manifest = archive.manifest
            if manifest.head is not None:
                archive.totals.learn(manifest.reader(scan=True), manifest.head)

        beside = [repeated("sweeping", sweep_both), repeated("counting the archive", count)]
    return Background(
        parts.hot.store,
        checkpoint=checkpointing,
        index_maintenance=index_maintenance,
        tiers=tiers,
        beside=beside,
        settings=settings,
        clock=clock,
        stopping=parts.stopping,
        after_flush=after_flush,
    )
