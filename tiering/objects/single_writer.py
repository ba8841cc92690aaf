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
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    FencedError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
)
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore, PendingUpload

#: S3 refuses requests that were signed longer ago.
QUIET_S = 15 * 60.0


class ConditionalPut(Protocol):
    """Puts an object on exactly one condition, as :meth:`ObjectStore.put` promises it."""

    def __call__(self, key: str, data: bytes, *, if_absent: bool, if_match: str | None) -> ObjectInfo:
        """Raises as that does."""
        ...


class GuardedObjectStore:
    """An object store that passes every call to ``inner``, but conditional puts to ``conditional``."""

    def __init__(self, inner: ObjectStore, conditional: ConditionalPut) -> None:
        self._inner = inner
        self._conditional = conditional

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """Passes a plain put; a refused combination of conditions is for ``inner`` to refuse."""
        if if_absent != (if_match is not None):
            return self._conditional(key, data, if_absent=if_absent, if_match=if_match)
        return self._inner.put(key, data, if_absent=if_absent, if_match=if_match)

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        return self._inner.upload(key, pieces)

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._inner.get(key)

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        return self._inner.get_if_changed(key, etag)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._inner.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, after)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return self._inner.list_uploads(prefix)

    def abort_upload(self, pending: PendingUpload) -> None:
        self._inner.abort_upload(pending)

    def now_ms(self) -> int:
        return self._inner.now_ms()

    def close(self) -> None:
        self._inner.close()


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
        """Checks, puts and reads back; raises FencedError if somebody else has written meanwhile."""
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
