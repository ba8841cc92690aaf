"""Guards that keep a store from writing: after a write or flush that failed, for good, and while its disk is full.

One failure to write is final: the store is read-only from then on, with the reason, until somebody restarts it.
:class:`FlushGuard` watches the flushes of one file, :class:`WriteGuard` every change of a store's disk. Two failures
are not final: a request that was wrong, and a system that had no descriptor or memory to spare, which has not asked the
disk. A step that ends so is taken again later, and every step allows that: it does its work once more, or finds it
done.

:class:`DiskSpace` knows how full the volume is, and what follows: hot copies that go early, and appends that are
refused.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ClosedError,
    DiskFailedError,
    DiskFullError,
    InvalidRequestError,
    OutOfResourcesError,
    ReadOnlyError,
    StoreError,
)
from tierlog.tiering.base.fs import FileSystem

_LOG = logging.getLogger("tierlog")
_NOT_OF_THE_DISK = (InvalidRequestError, ClosedError, OutOfResourcesError)
_MEASURED_FOR_S = 1.0


class FlushGuard:
    """Lets no flush of a file follow one that failed.

    The kernel reports an error once, and the next flush succeeds though bytes are lost.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._failure: StoreError | None = None

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raises :class:`DiskFailedError` if a flush has failed."""
        if self._failure is not None:
            raise DiskFailedError("an earlier flush failed", path=self._path) from self._failure

    def flushing(self) -> AbstractContextManager[None]:
        """Flushes inside; refused after a failure, and a failure is remembered.

        A file that could not be opened for it was not flushed, and can be.
        """
        return self

    def __enter__(self) -> None:
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError) and not isinstance(error, OutOfResourcesError):
            self._failure = error


class WriteGuard:
    """Lets nothing change a store's disk after a change that failed. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None

    @property
    def read_only_reason(self) -> str | None:
        """The reason why the store accepts no more writes, or None."""
        return self._reason

    def turn_read_only(self, reason: str) -> None:
        """Accepts nothing more; the first reason stays."""
        with self._lock:
            is_first = self._reason is None
            self._reason = self._reason or reason
        if is_first:
            _LOG.error("the store is read-only now: %s", reason)

    def check(self) -> None:
        """Raises :class:`ReadOnlyError` if the store accepts no more writes."""
        if self._reason is not None:
            raise ReadOnlyError(f"the store is read-only: {self._reason}", hint="repair the cause and restart")

    def writing(self, what: str) -> AbstractContextManager[None]:
        """A step that changes the disk: refused once the store is read-only, and it is so after a failure.

        May be kept, and entered again and again by many threads at a time.
        """
        return _GuardedWrite(self, what)


class _GuardedWrite:
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
        # it may have been done in part
        if error is not None and not isinstance(error, _NOT_OF_THE_DISK):
            self._guard.turn_read_only(f"{self._what} failed: {error}")


class DiskSpace:
    """The space of one volume, whoever fills it. Percentages count as `df` does; 100 is never exceeded.

    Thread safe. Measured at each call, but once a second at most for those who append.
    """

    def __init__(
        self, fs: FileSystem, root: Path, clock: Clock, *, max_used_percent: int = 100, full_percent: int = 100
    ) -> None:
        self._fs = fs
        self._root = root
        self._clock = clock
        self._max_used_percent = max_used_percent
        self._full_percent = full_percent
        self._measured_s = float("-inf")
        self._full_reason: str | None = None

    def free_bytes(self) -> int:
        """Bytes that may still be allocated."""
        return self._fs.free_bytes(self._root)

    def total_bytes(self) -> int:
        """Bytes allocated and free."""
        return self._fs.total_bytes(self._root)

    def excess_bytes(self) -> int:
        """Bytes used beyond the share at which the oldest hot copies go; 0 below it."""
        if self._max_used_percent == 100:
            return 0
        total = self.total_bytes()
        return max(0, total - self.free_bytes() - total * self._max_used_percent // 100)

    @property
    def full_reason(self) -> str | None:
        """The reason why nothing may be appended now, None if there is room."""
        if self._full_percent == 100:
            return None
        now_s = self._clock.monotonic_s()
        if now_s - self._measured_s >= _MEASURED_FOR_S:
            total = self.total_bytes()
            used = total - self.free_bytes()
            over = used * 100 > total * self._full_percent
            reason = f"the disk is over {self._full_percent} % full: {used} of {total} bytes" if over else None
            if reason is not None and self._full_reason is None:
                _LOG.error("appends are refused: %s", reason)
            elif reason is None and self._full_reason is not None:
                _LOG.warning("there is room on the disk again; appends go on")
            self._full_reason = reason
            self._measured_s = now_s
        return self._full_reason

    def check_room(self) -> None:
        """Raises :class:`DiskFullError` if nothing may be appended; passes again once there is room."""
        reason = self.full_reason
        if reason is not None:
            raise DiskFullError(
                reason, path=str(self._root), hint="free space or raise hot.disk_full_percent; reading goes on"
            )
