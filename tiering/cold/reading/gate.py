"""Limits how many callers wait for the archive at once, so that a dead bucket leaves threads for what is hot.

Whoever runs work for others gives it a gate (:func:`through_gate`); work passes it (:func:`entering_archive`) on the
thread of its caller, before the first request to the archive that it waits for. Work without a gate just goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tierlog.tiering.base.errors import OverloadedError


class ArchiveGate:
    """Lets at most ``most`` in. Thread safe."""

    def __init__(self, most: int, hint: str) -> None:
        """``hint`` tells those who are refused which setting is in their way."""
        self._most = most
        self._hint = hint
        self._lock = threading.Lock()
        self._inside = 0

    @property
    def inside(self) -> int:
        """Number of those who wait for the archive now."""
        return self._inside

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Enters as one of those inside; :class:`OverloadedError` at once if there are enough."""
        with self._lock:
            if self._inside >= self._most:
                raise OverloadedError(f"{self._inside} requests wait for the archive already", hint=self._hint)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1


_GATE: ContextVar[ArchiveGate | None] = ContextVar("tierlog_archive_gate", default=None)


@contextmanager
def through_gate(gate: ArchiveGate | None) -> Iterator[None]:
    """Makes what runs in the context pass ``gate`` on its way to the archive."""
    before = _GATE.set(gate)
    try:
        yield
    finally:
        _GATE.reset(before)


@contextmanager
def entering_archive() -> Iterator[None]:
    """Passes the gate that this work was given, once however deep the calls are nested."""
    gate = _GATE.get()
    if gate is None:
        yield
    else:
        with gate.passing(), through_gate(None):
            yield
