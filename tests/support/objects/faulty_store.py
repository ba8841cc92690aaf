"""An object store whose faults are scripted by the test, around a real one."""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.stores.hold import Hold
from tierlog.tiering.base.errors import ObjectStoreUnavailableError, StoreError
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore, PendingUpload

_Answer = TypeVar("_Answer")


@dataclass
class _Fault:
    operation: str
    pattern: str
    times: int | None
    error: StoreError | None = None
    after: bool = False
    cut_bytes: int = 0
    hold: Hold | None = None

    def matches(self, operation: str, key: str) -> bool:
        return self.operation in ("*", operation) and fnmatch.fnmatchcase(key, self.pattern)


@dataclass(frozen=True)
class StoreCall:
    """One call that was made, for assertions on what was asked."""

    operation: str
    key: str


@dataclass
class _Script:
    faults: list[_Fault] = field(default_factory=list)
    calls: list[StoreCall] = field(default_factory=list)
    dead: bool = False


class FaultyObjectStore:
    """Passes calls to ``inner`` and makes those fail that the test has chosen.

    A fault names an operation (a method of ObjectStore, or ``*``), a shell pattern for the key (for listings
    the prefix) and how often it strikes (None: always). Each call is struck by at most one fault of each
    kind, the oldest first. Listings fail while they are iterated, as they do on a network.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._script = _Script()

    @property
    def calls(self) -> list[StoreCall]:
        """All calls so far, failed ones included, in the order of their start."""
        with self._lock:
            return list(self._script.calls)

    def fail_before(
        self, operation: str, pattern: str = "*", *, times: int | None = 1, error: StoreError | None = None
    ) -> None:
        """Fail with nothing done."""
        self._add(_Fault(operation, pattern, times, error or _unavailable("scripted failure")))

    def fail_after(
        self, operation: str, pattern: str = "*", *, times: int | None = 1, error: StoreError | None = None
    ) -> None:
        """Do it, then fail: the answer was lost."""
        self._add(_Fault(operation, pattern, times, error or _unavailable("scripted lost answer"), after=True))

    def short_read(self, operation: str, pattern: str = "*", *, times: int | None = 1, cut_bytes: int = 1) -> None:
        """Hand out fewer bytes without a word, as no store may: for tests of the readers' own checks."""
        self._add(_Fault(operation, pattern, times, after=True, cut_bytes=cut_bytes))

    def hold(self, operation: str, pattern: str = "*", *, times: int | None = 1) -> Hold:
        """Make calls wait before anything is done, until the test releases them."""
        hold = Hold()
        self._add(_Fault(operation, pattern, times, hold=hold))
        return hold

    def die(self) -> None:
        """Make every call fail with nothing done, until :meth:`revive`."""
        with self._lock:
            self._script.dead = True

    def revive(self) -> None:
        """End what :meth:`die` began; other faults stay."""
        with self._lock:
            self._script.dead = False

    def heal(self) -> None:
        """Forget all faults and revive; held calls go on."""
        with self._lock:
            faults, self._script.faults = self._script.faults, []
            self._script.dead = False
        for fault in faults:
            if fault.hold is not None:
                fault.hold.release()

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        return self._run("put", key, lambda: self.inner.put(key, data, if_absent=if_absent, if_match=if_match))

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        return self._run("upload", key, lambda: self.inner.upload(key, pieces))

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        data, info = self._run("get", key, lambda: self.inner.get(key))
        return self._cut("get", key, data), info

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        found = self._run("get_if_changed", key, lambda: self.inner.get_if_changed(key, etag))
        return None if found is None else (self._cut("get_if_changed", key, found[0]), found[1])

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._cut("get_range", key, self._run("get_range", key, lambda: self.inner.get_range(key, start, end)))

    def head(self, key: str) -> ObjectInfo:
        return self._run("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self._iterate("list", prefix, lambda: self.inner.list(prefix, after))

    def delete(self, key: str) -> None:
        self._run("delete", key, lambda: self.inner.delete(key))

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return self._iterate("list_uploads", prefix, lambda: self.inner.list_uploads(prefix))

    def abort_upload(self, pending: PendingUpload) -> None:
        self._run("abort_upload", pending.key, lambda: self.inner.abort_upload(pending))

    def now_ms(self) -> int:
        return self._run("now_ms", "", self.inner.now_ms)

    def close(self) -> None:
        self.inner.close()

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._script.faults.append(fault)

    def _take(self, operation: str, key: str, kind: Callable[[_Fault], bool]) -> _Fault | None:
        """The oldest fault of this kind for the call, with one of its times used up."""
        with self._lock:
            for fault in self._script.faults:
                if fault.times != 0 and kind(fault) and fault.matches(operation, key):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def _begin(self, operation: str, key: str) -> None:
        with self._lock:
            self._script.calls.append(StoreCall(operation, key))
        held = self._take(operation, key, lambda fault: fault.hold is not None)
        if held is not None and held.hold is not None:
            held.hold.stop_here()
        with self._lock:
            if self._script.dead:
                raise _unavailable("the store is dead")
        fault = self._take(operation, key, lambda fault: fault.error is not None and not fault.after)
        if fault is not None and fault.error is not None:
            raise fault.error

    def _end(self, operation: str, key: str) -> None:
        fault = self._take(operation, key, lambda fault: fault.error is not None and fault.after)
        if fault is not None and fault.error is not None:
            raise fault.error

    def _run(self, operation: str, key: str, call: Callable[[], _Answer]) -> _Answer:
        self._begin(operation, key)
        answer = call()
        self._end(operation, key)
        return answer

    def _iterate(self, operation: str, prefix: str, call: Callable[[], Iterator[_Answer]]) -> Iterator[_Answer]:
        self._begin(operation, prefix)
        yield from call()
        self._end(operation, prefix)

    def _cut(self, operation: str, key: str, data: bytes) -> bytes:
        fault = self._take(operation, key, lambda fault: fault.cut_bytes > 0)
        return data if fault is None else data[: max(0, len(data) - fault.cut_bytes)]


def _unavailable(message: str) -> ObjectStoreUnavailableError:
    return ObjectStoreUnavailableError(message)
