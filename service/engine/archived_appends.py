"""Appends that are acknowledged when the bucket has them: who waits, and the threads that write the tails.

The threads are begun by the first append that waits; a store that nobody asks for it has none, and asks its bucket
for nothing. A dead bucket keeps an append waiting for a bounded time and the end of the store not at all: the threads
are daemons, and look whether the store is closing before every local change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tierlog.service.config.settings import Settings
from tierlog.service.engine.archive_mover import ArchiveMover
from tierlog.tiering.base.backoff import Backoff
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ClosedError,
    CorruptionError,
    FencedError,
    StoreError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.options import TailOptions
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.lifecycle.tail_store import TailMark, TailObjects
from tierlog.tiering.lifecycle.tail_writer import TailWriter

_LOG = logging.getLogger("tierlog")
_LOOK_S = 0.25
_FIRST_SWEEP_S = 600.0
_SWEPT_AT_ONCE = 1000
_UNKNOWN = "the messages are flushed on the volume; whether they are archived is unknown"


@dataclass(frozen=True, slots=True)
class TailNumbers:
    """The tails written since the store was opened, and how far they go; None before the first append that waited."""

    covered_to: int | None = None
    lag_bytes: int | None = None
    written_count: int = 0
    written_bytes: int = 0


class ArchivedAppends:
    """Lets appends wait until the tails that cover them exist. Thread safe."""

    def __init__(
        self,
        hot: HotStore,
        writer: TailWriter,
        *,
        manifest: ManifestStore,
        claim: Callable[[], Head],
        clock: Clock,
        backoff: Backoff,
        options: TailOptions,
        stopping: threading.Event,
    ) -> None:
        self._hot = hot
        self._manifest = manifest
        self._claim = claim
        self._clock = clock
        self._backoff = backoff
        self._options = options
        self._stopping = stopping
        self._begin_lock = threading.Lock()
        self._sweep_every_s = manifest.options.grace_ms / 4000
        self._sweep_at_s = clock.monotonic_s() + min(_FIRST_SWEEP_S, self._sweep_every_s)
        self._threads = 0
        self._may_have_threads = False
        #: What writes the tails.
        self.writer = writer
        #: The last failure to store a tail, None once one was stored again.
        self.error: str | None = None

    def start(self) -> None:
        """Starts threads that do the work; before that, every append that waits does it itself."""
        self._may_have_threads = True

    def stop(self) -> None:
        """Releases all waiting appends; to be called after ``stopping`` is set."""
        with self.writer.changed:
            self.writer.changed.notify_all()

    def wait_for(self, end: int) -> None:
        """Returns when everything below ``end``, which is flushed, survives the loss of the volume.

        Raises :class:`UnavailableError` after ``timeout_ms``, :class:`FencedError` if another volume has taken over,
        :class:`StoreMismatchError` while the tails in the bucket are not this log's.
        """
        self.writer.want(end)
        if not self._may_have_threads:
            self._work_until(end)
            return
        self._start_threads()
        if not self._threads:
            self._work_until(end)
            return
        deadline_s = self._clock.monotonic_s() + self._options.timeout_ms / 1000
        with self.writer.changed:
            while not self.writer.is_covered(end):
                left_s = deadline_s - self._clock.monotonic_s()
                if self._stopping.is_set():
                    raise ClosedError("the store is closing", hint=_UNKNOWN)
                if left_s <= 0:
                    why = f" ({self.error})" if self.error else ""
                    raise UnavailableError(
                        f"the bucket did not take the messages within {self._options.timeout_ms} ms{why}", hint=_UNKNOWN
                    )
                self.writer.changed.wait(min(left_s, _LOOK_S))

    def ask(self, end: int) -> None:
        """Has everything below ``end``, which is flushed, written beside the caller once there are threads for it."""
        if end > self.writer.wanted:
            self.writer.want(end)
            if self._may_have_threads:
                self._start_threads()

    def sweep_due(self) -> None:
        """Deletes tails that the archive has passed and that are older than the grace period, every quarter of it."""
        head, now_s = self._manifest.head, self._clock.monotonic_s()
        if head is None or now_s < self._sweep_at_s:
            return
        objects, grace_ms = self._manifest.objects, self._manifest.options.grace_ms
        tails = TailObjects(objects, self._manifest.keys)
        before_ms = objects.now_ms() - grace_ms
        if tails.remove_old(head.archived_to, before_ms, _SWEPT_AT_ONCE) < _SWEPT_AT_ONCE:
            self._sweep_at_s = now_s + self._sweep_every_s

    def numbers(self) -> TailNumbers:
        """Returns the numbers of this moment."""
        writer = self.writer
        with writer.changed:
            if not writer.has_begun:
                return TailNumbers()
            covered = writer.covered()
            return TailNumbers(covered, max(0, writer.wanted - covered), writer.written_count, writer.written_bytes)

    def _work_until(self, end: int) -> None:
        """Does the work in this thread, one tail at a time; a failure is the caller's."""
        while not self.writer.is_covered(end):
            if self._stopping.is_set():
                raise ClosedError("the store is closing", hint=_UNKNOWN)
            try:
                if not self._advance(float("inf")):  # another append is at it
                    with self.writer.changed:
                        if not self.writer.is_covered(end):
                            self.writer.changed.wait(_LOOK_S)
            except UnavailableError as error:
                raise UnavailableError(f"the bucket did not take the messages ({error})", hint=_UNKNOWN) from error

    def _start_threads(self) -> None:
        with self._begin_lock:
            while self._threads < self._options.in_flight:
                thread = threading.Thread(target=self._write_tails, name=f"tierlog-tails-{self._threads}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started now: the next append that waits tries again
                    return
                self._threads += 1

    def _write_tails(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._advance(self._clock.monotonic_s()):
                    self._wait_for_work()
            except ClosedError:
                return
            except (StoreError, OSError) as error:
                self._note_failure(error)

    def _wait_for_work(self) -> None:
        with self.writer.changed:
            idle_s = self.writer.idle_s(self._clock.monotonic_s())
            if not self._backoff.is_over or self.writer.wanted > self.writer.covered():
                idle_s = _LOOK_S if idle_s is None else min(max(idle_s, 0.001), _LOOK_S)
            if not self._stopping.is_set():
                self.writer.changed.wait(idle_s)

    def _advance(self, now_s: float) -> bool:
        """Does the next thing there is to do; False if there is nothing now."""
        if now_s != float("inf") and not self._backoff.is_over:
            return False
        try:
            if not self.writer.has_begun:
                return self._begin()
            piece = self.writer.take(now_s)
            if piece is None:
                return False
            self.writer.store(piece)
        except FencedError as error:
            self._hot.guard.turn_read_only(str(error))
            raise
        except CorruptionError as error:
            self._hot.guard.turn_read_only(f"tails cannot be written: {error}")
            self.writer.give_up(error)
            raise
        self._succeeded()
        return True

    def _begin(self) -> bool:
        if self.writer.wanted <= self.writer.covered() or not self._begin_lock.acquire(blocking=False):
            return False
        try:
            if not self.writer.has_begun:
                self.writer.begin(self._claimed())
        finally:
            self._begin_lock.release()
        return True

    def _claimed(self) -> Head:
        try:
            return self._claim()
        except (FencedError, StoreMismatchError) as error:
            self.writer.give_up(error)
            raise

    def _succeeded(self) -> None:
        with self.writer.changed:
            self.error = None
            self._backoff.succeeded()

    def _note_failure(self, error: Exception) -> None:
        with self.writer.changed:
            if str(error) != self.error:
                _LOG.warning("a tail could not be stored, will try again: %s", error)
            self.error = str(error)
            self._backoff.failed()


def archived_appends(
    hot: HotStore,
    archive_mover: ArchiveMover,
    *,
    manifest: ManifestStore,
    mark: TailMark,
    settings: Settings,
    clock: Clock,
    randomness: Randomness,
    stopping: threading.Event,
) -> ArchivedAppends:
    """Makes the archived appends of one open store."""
    cold, options = settings.cold, settings.tail_options()

    def archived_to() -> int:
        head = archive_mover.own_head()
        return 0 if head is None else head.archived_to

    writer = TailWriter(
        hot, TailObjects(manifest.objects, manifest.keys), mark=mark, randomness=randomness, options=options,
        grace_ms=manifest.options.grace_ms, archived_to=archived_to, check_owner=archive_mover.check_owner,
        local_step=archive_mover.local_step,
    )  # fmt: skip
    backoff = Backoff(clock, randomness, first_s=cold.retry_interval_ms / 1000, most_s=cold.retry_max_ms / 1000)
    return ArchivedAppends(
        hot,
        writer,
        manifest=manifest,
        claim=archive_mover.claim,
        clock=clock,
        backoff=backoff,
        options=options,
        stopping=stopping,
    )
