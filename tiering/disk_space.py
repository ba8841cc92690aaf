"""How full the volume of a store is, and what follows: hot copies that go early, and appends that are refused."""

from __future__ import annotations

import logging
from pathlib import Path

from tiering.clock import Clock
from tiering.errors import DiskFullError
from tiering.fs import FileSystem

_LOG = logging.getLogger("tierlog")
_MEASURED_FOR_S = 1.0


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
        """Why nothing may be appended now, None if there is room."""
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
        """Raise :class:`DiskFullError` if nothing may be appended; passes again once there is room."""
        reason = self.full_reason
        if reason is not None:
            raise DiskFullError(
                reason, path=str(self._root), hint="free space or raise hot.disk_full_percent; reading goes on"
            )
