"""An object store whose conditional writes go another way, while everything else passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from tiering.cold.object_store import ObjectInfo, ObjectStore, PendingUpload


class ConditionalPut(Protocol):
    """Puts an object on exactly one condition, as :meth:`ObjectStore.put` promises it."""

    def __call__(self, key: str, data: bytes, *, if_absent: bool, if_match: str | None) -> ObjectInfo:
        """Raises as that does."""
        ...


class GuardedObjectStore:
    """Passes every call to ``inner``, but conditional puts to ``conditional``."""

    def __init__(self, inner: ObjectStore, conditional: ConditionalPut) -> None:
        self._inner = inner
        self._conditional = conditional

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """A plain put passes; a refused combination of conditions is for ``inner`` to refuse."""
        if if_absent != (if_match is not None):
            return self._conditional(key, data, if_absent=if_absent, if_match=if_match)
        return self._inner.put(key, data, if_absent=if_absent, if_match=if_match)

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Pass."""
        return self._inner.upload(key, pieces)

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Pass."""
        return self._inner.get(key)

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        """Pass."""
        return self._inner.get_if_changed(key, etag)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Pass."""
        return self._inner.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Pass."""
        return self._inner.head(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Pass."""
        return self._inner.list(prefix, after)

    def delete(self, key: str) -> None:
        """Pass."""
        self._inner.delete(key)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Pass."""
        return self._inner.list_uploads(prefix)

    def abort_upload(self, pending: PendingUpload) -> None:
        """Pass."""
        self._inner.abort_upload(pending)

    def now_ms(self) -> int:
        """Pass."""
        return self._inner.now_ms()

    def close(self) -> None:
        """Pass."""
        self._inner.close()
