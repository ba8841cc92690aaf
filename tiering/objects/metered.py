"""Counts what is asked of an object store: requests cost money, bytes cost time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import ObjectNotFoundError, PreconditionFailedError, ThrottledError, UnavailableError
from tierlog.tiering.base.telemetry import NO_TRACER, Histograms, Span, Tally, Tracer
from tierlog.tiering.objects.object_store import (
    LISTED_AT_ONCE,
    PART_BYTES,
    ObjectInfo,
    ObjectStore,
    PendingUpload,
    usd_of,
)

_Item = TypeVar("_Item")
_WRITES = ("put", "upload", "list", "list_uploads")
_FREE = ("delete", "abort_upload")


@dataclass(frozen=True, slots=True)
class MeterReading:
    """The counters at one moment, consistent with each other."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    failures: int = 0

    def __sub__(self, earlier: MeterReading) -> MeterReading:
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
        #: Calls by operation (a method of the contract) and outcome: ``ok``, ``not_found``, ``precondition_failed``,
        #: ``throttled``, ``unavailable`` or ``error``.
        self.calls = Tally()
        #: What they cost by operation, USD at list prices.
        self.usd = Tally()
        #: How long they took by operation, s; of a listing the time waited for names.
        self.seconds = Histograms()

    @property
    def requests(self) -> int:
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
        with self._lock:
            return MeterReading(self._requests, self._bytes_read, self._bytes_written, self._failures)

    def count(self, *, requests: int = 0, bytes_read: int = 0, bytes_written: int = 0, failures: int = 0) -> None:
        """Raises the counters."""
        with self._lock:
            self._requests += requests
            self._bytes_read += bytes_read
            self._bytes_written += bytes_written
            self._failures += failures


class MeteredObjectStore:
    """Passes every call to ``inner`` unchanged, counts it on ``meter`` and tells ``tracer`` of it."""

    def __init__(
        self, inner: ObjectStore, meter: Meter, clock: Clock | None = None, tracer: Tracer = NO_TRACER
    ) -> None:
        self._inner = inner
        self._meter = meter
        self._clock = clock or SystemClock()
        self._tracer = tracer

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        with self._request("put") as call:
            info = self._inner.put(key, data, if_absent=if_absent, if_match=if_match)
            call.wrote(len(data))
        return info

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Counts one request, however many parts it takes, and the bytes."""
        with self._request("upload") as call:
            info = self._inner.upload(key, pieces)
            call.wrote(info.size_bytes)
        return info

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        with self._request("get") as call:
            found = self._inner.get(key)
            call.read(len(found[0]))
        return found

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        with self._request("get_if_changed") as call:
            found = self._inner.get_if_changed(key, etag)
            if found is not None:
                call.read(len(found[0]))
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._request("get_range") as call:
            data = self._inner.get_range(key, start, end)
            call.read(len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        with self._request("head"):
            return self._inner.head(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Counts one request when the iteration begins."""
        return self._iterated("list", self._inner.list(prefix, after))

    def delete(self, key: str) -> None:
        with self._request("delete"):
            self._inner.delete(key)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Counts one request when the iteration begins."""
        return self._iterated("list_uploads", self._inner.list_uploads(prefix))

    def abort_upload(self, pending: PendingUpload) -> None:
        with self._request("abort_upload"):
            self._inner.abort_upload(pending)

    def now_ms(self) -> int:
        with self._request("now_ms"):
            return self._inner.now_ms()

    def close(self) -> None:
        """Closes the inner store; not a request."""
        self._inner.close()

    @contextmanager
    def _request(self, operation: str) -> Iterator[_Call]:
        with self._tracer.span(f"archive {operation}", operation=operation) as span:
            call = _Call(self._meter, operation, span)
            begun_s = self._clock.monotonic_s()
            try:
                yield call
            except Exception as error:
                call.outcome = _outcome_of(error)
                raise
            finally:
                call.end(self._clock.monotonic_s() - begun_s)

    def _iterated(self, operation: str, found: Iterator[_Item]) -> Iterator[_Item]:
        """Counts an iteration. It has no span: one around a generator would be around what its reader does, too."""
        call = _Call(self._meter, operation, None)
        waited_s, names = 0.0, 0
        try:
            while True:
                begun_s = self._clock.monotonic_s()
                try:
                    item = next(found, None)
                except Exception as error:
                    call.outcome = _outcome_of(error)
                    raise
                finally:
                    waited_s += self._clock.monotonic_s() - begun_s
                if item is None:
                    return
                names += 1
                yield item
        finally:
            call.pages = max(1, -(-names // LISTED_AT_ONCE))
            call.end(waited_s)


class _Call:
    """One call on its way, and what it adds to the meter."""

    def __init__(self, meter: Meter, operation: str, span: Span | None) -> None:
        self._meter = meter
        self._operation = operation
        self._span = span
        self._bytes = 0
        self.pages = 1
        self.outcome = "ok"
        meter.count(requests=1)

    def read(self, size_bytes: int) -> None:
        self._bytes = size_bytes
        self._meter.count(bytes_read=size_bytes)

    def wrote(self, size_bytes: int) -> None:
        self._bytes = size_bytes
        self._meter.count(bytes_written=size_bytes)
        if self._operation == "upload" and size_bytes > PART_BYTES:
            self.pages = 2 + -(-size_bytes // PART_BYTES)  # begun, each part, completed

    def end(self, taken_s: float) -> None:
        meter, operation = self._meter, self._operation
        if self.outcome not in ("ok", "not_found", "precondition_failed"):
            meter.count(failures=1)
        meter.calls.add((operation, self.outcome))
        meter.seconds.observe((operation,), taken_s)
        if operation not in _FREE:
            is_write = operation in _WRITES
            meter.usd.add((operation,), usd_of(writes=self.pages) if is_write else usd_of(reads=self.pages))
        if self._span is not None:
            self._span.annotate(outcome=self.outcome, bytes=self._bytes)


def _outcome_of(error: Exception) -> str:
    if isinstance(error, ObjectNotFoundError):
        return "not_found"
    if isinstance(error, PreconditionFailedError):
        return "precondition_failed"
    if isinstance(error, ThrottledError):
        return "throttled"
    return "unavailable" if isinstance(error, UnavailableError) else "error"
