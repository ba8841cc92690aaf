"""Object stores that break their word in one way each, as servers do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import PreconditionFailedError
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo


class IgnoresIfAbsent(MemoryObjectStore):
    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        return super().put(key, data, if_match=if_match)


class IgnoresIfMatch(MemoryObjectStore):
    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        return super().put(key, data, if_absent=if_absent)


class ChecksThenWrites(MemoryObjectStore):
    """Right one after another; of two at once both are told that they won."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        with self._lock:
            current = self._objects.get(key)
        if if_absent and current is not None:
            raise PreconditionFailedError("the object exists", path=key)
        if if_match is not None and (current is None or current[1].etag != if_match):
            raise PreconditionFailedError("the object was replaced", path=key)
        if if_absent or if_match is not None:
            time.sleep(0.001)
        return super().put(key, data)


class LosersWriteToo(MemoryObjectStore):
    """One is told that it won; of those at the same time, a loser's bytes stay."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._busy = 0
        self._count = threading.Lock()

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        with self._count:
            self._busy += 1
        time.sleep(0.001)
        try:
            return super().put(key, data, if_absent=if_absent, if_match=if_match)
        except PreconditionFailedError:
            if self._busy > 1:
                super().put(key, data)
            raise
        finally:
            with self._count:
                self._busy -= 1


class ListsLate(MemoryObjectStore):
    """An object is listed from the second listing after its write on."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._listed: set[str] = set()

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        found = list(super().list(prefix, after))
        known = [info for info in found if info.key in self._listed]
        self._listed |= {info.key for info in found}
        return iter(known)


class ClockOff(MemoryObjectStore):
    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


class ReadsOld(MemoryObjectStore):
    """A read after an overwrite gives the version before it, once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._old: dict[str, tuple[bytes, ObjectInfo]] = {}

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        before = self._objects.get(key)
        info = super().put(key, data, if_absent=if_absent, if_match=if_match)
        if before is not None:
            self._old[key] = before
        return info

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._old.pop(key, None) or super().get(key)
