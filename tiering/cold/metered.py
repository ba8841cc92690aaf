"""Counting what is asked of an object store: requests cost money, bytes cost time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tiering.cold.object_store import ObjectInfo, ObjectStore, PendingUpload
from tiering.errors import ObjectNotFoundError, PreconditionFailedError

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class MeterReading:
    """The counters at one moment, consistent with each other."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    failures: int = 0

    def __sub__(self, earlier: MeterReading) -> MeterReading:
        """What was counted since an earlier reading."""
        return MeterReading(
            self.requests - earlier.requests,
            self.bytes_read - earlier.bytes_read,
            self.bytes_written - earlier.bytes_written,
            self.failures - earlier.failures,
        )


class Meter:
    """Counters that only rise; safe to share between threads and stores.

    ``requests`` are calls of the ObjectStore contract, failed ones included: an upload in parts, a long
    listing or a retry inside a backend is more than one request to a server. ``failures`` are calls that
    ended with an error, except "no such object" and a failed condition, which are answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = 0
        self._bytes_read = 0
        self._bytes_written = 0
        self._failures = 0

    @property
    def requests(self) -> int:
        """Calls so far."""
        return self.reading().requests

    @property
    def bytes_read(self) -> int:
        """Bytes of objects handed out so far."""
        return self.reading().bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes of objects stored so far, by calls that succeeded."""
        return self.reading().bytes_written

    @property
    def failures(self) -> int:
        """Calls that failed so far."""
        return self.reading().failures

    def reading(self) -> MeterReading:
        """All counters at once."""
        with self._lock:
            return MeterReading(self._requests, self._bytes_read, self._bytes_written, self._failures)

    def count(self, *, requests: int = 0, bytes_read: int = 0, bytes_written: int = 0, failures: int = 0) -> None:
        """Raise the counters."""
        with self._lock:
            self._requests += requests
            self._bytes_read += bytes_read
            self._bytes_written += bytes_written
            self._failures += failures


class MeteredObjectStore:
    """Passes every call to ``inner`` unchanged and counts it on ``meter``."""

    def __init__(self, inner: ObjectStore, meter: Meter) -> None:
        self._inner = inner
        self._meter = meter

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """Count one request and the bytes."""
        with self._request():
            info = self._inner.put(key, data, if_absent=if_absent, if_match=if_match)
        self._meter.count(bytes_written=len(data))
        return info

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Count one request, however many parts it takes, and the bytes."""
        with self._request():
            info = self._inner.upload(key, pieces)
        self._meter.count(bytes_written=info.size_bytes)
        return info

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Count one request and the bytes."""
        with self._request():
            found = self._inner.get(key)
        self._meter.count(bytes_read=len(found[0]))
        return found

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        """Count one request, and the bytes if there were any."""
        with self._request():
            found = self._inner.get_if_changed(key, etag)
        if found is not None:
            self._meter.count(bytes_read=len(found[0]))
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Count one request and the bytes."""
        with self._request():
            data = self._inner.get_range(key, start, end)
        self._meter.count(bytes_read=len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        """Count one request."""
        with self._request():
            return self._inner.head(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Count one request when the iteration begins."""
        with self._request(requests=0):
            found = self._inner.list(prefix, after)
        return self._iterated(found)

    def delete(self, key: str) -> None:
        """Count one request."""
        with self._request():
            self._inner.delete(key)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Count one request when the iteration begins."""
        with self._request(requests=0):
            found = self._inner.list_uploads(prefix)
        return self._iterated(found)

    def abort_upload(self, pending: PendingUpload) -> None:
        """Count one request."""
        with self._request():
            self._inner.abort_upload(pending)

    def now_ms(self) -> int:
        """Count one request."""
        with self._request():
            return self._inner.now_ms()

    def close(self) -> None:
        """Close the inner store; not a request."""
        self._inner.close()

    @contextmanager
    def _request(self, requests: int = 1) -> Iterator[None]:
        self._meter.count(requests=requests)
        try:
            yield
        except (ObjectNotFoundError, PreconditionFailedError):
            raise
        except Exception:
            self._meter.count(failures=1)
            raise

    def _iterated(self, found: Iterator[_Item]) -> Iterator[_Item]:
        with self._request():
            yield from found
