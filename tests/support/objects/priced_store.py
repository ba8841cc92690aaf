"""An object store that writes down what a server would bill: every listing page is a request of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore, PendingUpload, usd_of

_NAMES_A_PAGE = 1000
_WRITES = frozenset(("put", "upload", "list", "list_uploads"))
_FREE = frozenset(("delete", "abort_upload"))


class PricedStore:
    """Passes everything to ``inner`` and counts the requests of a server by operation. Thread safe."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.requests: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_written = 0
        self._lock = threading.Lock()

    def _count(self, operation: str, requests: int = 1, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self.requests[operation] += requests
            self.bytes_read += read
            self.bytes_written += written

    @property
    def usd(self) -> float:
        """What all requests so far cost."""
        writes = sum(count for operation, count in self.requests.items() if operation in _WRITES)
        free = sum(count for operation, count in self.requests.items() if operation in _FREE)
        return usd_of(writes=writes, reads=self.requests.total() - writes - free)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        self._count("put", written=len(data))
        return self.inner.put(key, data, if_absent=if_absent, if_match=if_match)

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        self._count("upload")
        info = self.inner.upload(key, pieces)
        self._count("upload", 0, written=info.size_bytes)
        return info

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        self._count("get")
        found = self.inner.get(key)
        self._count("get", 0, read=len(found[0]))
        return found

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        self._count("get_if_changed")
        found = self.inner.get_if_changed(key, etag)
        self._count("get_if_changed", 0, read=len(found[0]) if found else 0)
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self._count("get_range", read=end - start)
        return self.inner.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        self._count("head")
        return self.inner.head(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        for number, info in enumerate(self.inner.list(prefix, after)):
            if number % _NAMES_A_PAGE == 0 and number:
                self._count("list")
            yield info
        self._count("list")

    def delete(self, key: str) -> None:
        self._count("delete")
        self.inner.delete(key)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        self._count("list_uploads")
        yield from self.inner.list_uploads(prefix)

    def abort_upload(self, pending: PendingUpload) -> None:
        self._count("abort_upload")
        self.inner.abort_upload(pending)

    def now_ms(self) -> int:
        self._count("head")
        return self.inner.now_ms()

    def close(self) -> None:
        self.inner.close()
