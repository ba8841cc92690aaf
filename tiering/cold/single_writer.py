"""Conditional writes for a bucket that has none, safe as long as there is one writer.

A condition is checked by a read, the object is put plainly, and read back. With one writer nobody comes in between.
What remains is that writer's own past: a put whose answer was lost may still be carried out, after newer ones, and set
the archive back. So nothing is put again on a condition until such a put can no longer arrive: S3 refuses requests that
were signed more than 15 minutes ago. The store below must not repeat requests by itself, or a repeated put could hide
that an earlier try is still under way.

Killed at any step: the mark says that a put may be under way, and the next process waits as well. Without the mark,
none is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tiering.clock import Clock
from tiering.cold.object_store import ObjectInfo, ObjectStore
from tiering.errors import FencedError, ObjectNotFoundError, ObjectStoreUnavailableError, PreconditionFailedError

QUIET_S = 15 * 60.0


class SingleWriterPuts:
    """Conditional puts of the one writer of a bucket; one at a time.

    ``mark`` makes durable whether a put may be under way, ``marked`` is what it said when the process started.
    """

    def __init__(self, store: ObjectStore, clock: Clock, mark: Callable[[bool], None], *, marked: bool) -> None:
        self._store = store
        self._clock = clock
        self._mark = mark
        self._lock = threading.Lock()
        self._quiet_until_s = clock.monotonic_s() + QUIET_S if marked else None

    def __call__(self, key: str, data: bytes, *, if_absent: bool, if_match: str | None) -> ObjectInfo:
        """Check, put, read back; raises FencedError if somebody else has written meanwhile."""
        with self._lock:
            self._wait_for_quiet(key)
            self._check(key, if_match)
            if self._quiet_until_s is None:
                self._mark(True)
            self._quiet_until_s = self._clock.monotonic_s() + QUIET_S  # unless the answer comes
            self._store.put(key, data)
            found, info = self._store.get(key)
            if found != data:
                raise FencedError("another writer has replaced the object, in a bucket for a single one", path=key)
            self._quiet_until_s = None
            self._mark(False)
            return info

    def _wait_for_quiet(self, key: str) -> None:
        if self._quiet_until_s is None:
            return
        left_s = self._quiet_until_s - self._clock.monotonic_s()
        if left_s > 0:
            raise ObjectStoreUnavailableError(
                f"an earlier write may still be under way: nothing is written for another {left_s:.0f} s",
                path=key,
                hint="this bucket has no safe conditional writes (cold.single_writer)",
            )

    def _check(self, key: str, if_match: str | None) -> None:
        try:
            current: str | None = self._store.head(key).etag
        except ObjectNotFoundError:
            current = None
        if current != if_match:
            raise PreconditionFailedError("the object is not as the condition demands", path=key)
