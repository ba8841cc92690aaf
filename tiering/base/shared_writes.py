"""Many callers share one durable write: what comes while one is under way is in the next.

So a slow disk makes each caller wait for two writes at most, not for a queue of them. Killed before a write is durable:
no caller of its batch has returned. After it: what all of them wanted is there, whether or not they returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class SharedChange:
    """What one caller wants written, and how that ended."""

    error: BaseException | None = field(default=None, kw_only=True)
    """Of this change alone, if its batch says so; raised by the caller."""


_Change = TypeVar("_Change", bound=SharedChange)


class SharedWrites(Generic[_Change]):
    """Writes changes in batches, each of them by one of its callers. Thread safe."""

    def __init__(self, write: Callable[[list[_Change]], object], lock: threading.Lock) -> None:
        """``write`` makes a batch durable, under ``lock``, which keeps others away from what it changes."""
        self._write, self._lock = write, lock
        self._waiting_lock = threading.Lock()
        self._waiting: list[_Change] = []

    def make(self, mine: _Change) -> None:
        """Returns when the change is durable; raises its error, or what the write of its batch raised."""
        with self._waiting_lock:
            batch = self._waiting
            batch.append(mine)
        with self._lock:
            with self._waiting_lock:
                is_written = self._waiting is not batch  # by another caller of the same batch
                if not is_written:
                    self._waiting = []
            if not is_written:
                try:
                    self._write(batch)
                except BaseException as error:  # also an exit: every caller raises it, as nothing was acknowledged
                    for change in batch:
                        change.error = change.error or error
        if mine.error is not None:
            raise mine.error
