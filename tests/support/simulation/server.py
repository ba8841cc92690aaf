"""A simulated object store: one server, and for each process a way to it that delays, loses and repeats.

A call of a client may fail with nothing done (503, 409, no answer), be done and its answer lost (also as the 412 that a
client's own retry gets), or be done a while after the client gave up. Listings come in pages, each as of some time ago.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.support.simulation.scheduler import Process, Scheduler, SimClock
from tierlog.tiering.base.errors import ObjectStoreUnavailableError, PreconditionFailedError, StoreError, ThrottledError
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo, PendingUpload

_Answer = TypeVar("_Answer")
_LISTED_A_PAGE = 20
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
GRACE_MS = 4 * HOUR_MS
#: Longer than the grace period: whoever was held up so long finds another world.
STALL_MS = 8 * HOUR_MS


@dataclass(frozen=True)
class Weather:
    """How likely what goes wrong is, in parts of one."""

    fails_before: float = 0.03
    fails_after: float = 0.03
    lands_later: float = 0.01
    kills: float = 0.004
    slow: float = 0.02
    """A call that takes minutes."""
    stalls: float = 0.003
    """A client that loses the processor for hours, between one call and the next."""
    slow_upload: float = 0.04
    """An upload whose commit begins hours later."""
    stale_listing: float = 0.3


CALM = Weather(0, 0, 0, 0, 0, 0, 0, 0)


class Trace:
    """Everything that happened, as a running hash."""

    def __init__(self, scheduler: Scheduler, show: Callable[[str], object] | None = None) -> None:
        self._scheduler = scheduler
        self._show = show
        self._digest = hashlib.sha256()

    def add(self, *what: object) -> None:
        """Write one line."""
        line = " ".join(map(str, (self._scheduler.now_ms, self._scheduler.running, *what)))
        self._digest.update(line.encode() + b"\n")
        if self._show is not None:
            self._show(line + "\n")

    @property
    def digest(self) -> str:
        """The hash of all lines so far."""
        return self._digest.hexdigest()


class Server:
    """The objects, their history for stale listings, and whoever wants to see every change."""

    def __init__(self, scheduler: Scheduler, trace: Trace) -> None:
        self.scheduler = scheduler
        self.trace = trace
        self.objects = MemoryObjectStore(SimClock(scheduler))
        self.on_put: Callable[[Client, str, bytes, object], None] = lambda *_: None
        self.on_delete: Callable[[str], None] = lambda _: None
        self._history: list[tuple[int, str, ObjectInfo | None]] = []

    def put(
        self, client: Client, key: str, data: bytes, *, absent: bool, match: str | None, note: object
    ) -> ObjectInfo:
        """Store an object at this moment."""
        info = self.objects.put(key, data, if_absent=absent, if_match=match)
        self._history.append((self.scheduler.now_ms, key, info))
        self.on_put(client, key, data, note)
        return info

    def uploaded(self, client: Client, info: ObjectInfo) -> None:
        """An upload in parts was completed."""
        self._history.append((self.scheduler.now_ms, info.key, info))
        self.on_put(client, info.key, b"", None)

    def delete(self, key: str) -> None:
        """Take an object away at this moment."""
        self.on_delete(key)
        self.objects.delete(key)
        self._history.append((self.scheduler.now_ms, key, None))

    def names_as_of(self, at_ms: int, prefix: str, after: str) -> list[ObjectInfo]:
        """What a listing showed at an earlier time."""
        shown: dict[str, ObjectInfo] = {}
        for when_ms, key, info in self._history:
            if when_ms > at_ms:
                break
            if key.startswith(prefix) and key > after:
                if info is None:
                    shown.pop(key, None)
                else:
                    shown[key] = info
        return [shown[key] for key in sorted(shown)]


class Client:
    """One process's way to the server; every call is a place where others go on."""

    def __init__(self, server: Server, process: Process, chance: random.Random, weather: Weather) -> None:
        self.server = server
        self.process = process
        self.weather = weather
        #: What each actor means to commit, for whoever checks it.
        self.notes: dict[str, object] = {}
        self._chance = chance
        self._scheduler = server.scheduler

    # the contract

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        note, kept = self.notes.get(self._scheduler.running), bytes(data)

        def act() -> ObjectInfo:
            return self.server.put(self, key, kept, absent=if_absent, match=if_match, note=note)

        conditional = if_absent or if_match is not None
        return self._call("put", key, act, is_write=True, is_conditional=conditional)

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        self._switch()

        def slowly() -> Iterator[bytes]:
            for piece in pieces:
                self._switch()
                yield piece

        info = self.server.objects.upload(key, slowly())

        def act() -> ObjectInfo:
            self.server.uploaded(self, info)
            return info

        return self._answer("upload", key, act)

    def hold_up(self) -> None:
        """Maybe take hours between an upload and its commit."""
        if self._chance.random() < self.weather.slow_upload:
            self._scheduler.pause(self._chance.randrange(STALL_MS))

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._call("get", key, lambda: self.server.objects.get(key))

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        return self._call("get_if_changed", key, lambda: self.server.objects.get_if_changed(key, etag))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._call("get_range", key, lambda: self.server.objects.get_range(key, start, end))

    def head(self, key: str) -> ObjectInfo:
        return self._call("head", key, lambda: self.server.objects.head(key))

    def now_ms(self) -> int:
        return self._call("now_ms", "", self.server.objects.now_ms)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        last = after
        while True:
            start = last
            page: Sequence[ObjectInfo] = self._call("list", prefix, lambda: self._page(prefix, start))  # noqa: B023
            yield from page
            if len(page) < _LISTED_A_PAGE:
                return
            last = page[-1].key

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.server.delete(key), is_write=True)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        yield from self._call("list_uploads", prefix, lambda: list(self.server.objects.list_uploads(prefix)))

    def abort_upload(self, pending: PendingUpload) -> None:
        self._call("abort_upload", pending.key, lambda: self.server.objects.abort_upload(pending))

    def close(self) -> None:
        """Nothing to give back."""

    # what goes wrong

    def _page(self, prefix: str, after: str) -> Sequence[ObjectInfo]:
        stale = self._chance.random() < self.weather.stale_listing
        back_ms = self._chance.choice((1_000, MINUTE_MS, HOUR_MS)) if stale else 0
        return self.server.names_as_of(self._scheduler.now_ms - back_ms, prefix, after)[:_LISTED_A_PAGE]

    def _call(
        self,
        operation: str,
        key: str,
        act: Callable[[], _Answer],
        *,
        is_write: bool = False,
        is_conditional: bool = False,
    ) -> _Answer:
        self._switch()
        draw = self._chance.random()
        weather = self.weather
        if draw < weather.fails_before:
            raise self._lost(operation, key, is_conditional)
        if is_write and draw < weather.fails_before + weather.lands_later:
            self._scheduler.later(self._chance.randrange(5 * MINUTE_MS), lambda: self._land(operation, key, act))
            raise self._lost(operation, key, False)
        return self._answer(operation, key, act, is_conditional=is_conditional)

    def _answer(self, operation: str, key: str, act: Callable[[], _Answer], *, is_conditional: bool = False) -> _Answer:
        try:
            answer = act()
        except StoreError as error:
            self.server.trace.add(operation, key, type(error).__name__)
            self._switch()
            raise
        self.server.trace.add(operation, key, "done")
        self._switch()
        if self._chance.random() < self.weather.fails_after:
            raise self._lost(operation, key, is_conditional)
        return answer

    def _land(self, operation: str, key: str, act: Callable[[], object]) -> None:
        try:
            act()
            self.server.trace.add("late", operation, key, "done")
        except StoreError as error:
            self.server.trace.add("late", operation, key, type(error).__name__)

    def _lost(self, operation: str, key: str, is_conditional: bool) -> StoreError:
        errors: list[StoreError] = [ObjectStoreUnavailableError("no answer"), ThrottledError("503 slow down")]
        if is_conditional:
            errors.append(PreconditionFailedError("409, or the 412 to a retry"))
        error = self._chance.choice(errors)
        self.server.trace.add(operation, key, "lost", type(error).__name__)
        return error

    def _switch(self) -> None:
        """Time passes on the way; the process may end here."""
        chance, weather = self._chance, self.weather
        if chance.random() < weather.kills:
            self.server.trace.add("killed")
            self.process.is_killed = True
        ms = chance.randrange(1, 300)
        draw = chance.random()
        if draw < weather.slow:
            ms = chance.randrange(5 * MINUTE_MS)
        elif draw < weather.slow + weather.stalls:
            ms = chance.randrange(STALL_MS)
        self._scheduler.pause(ms)
