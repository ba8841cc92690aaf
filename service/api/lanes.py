"""Lanes of requests: how many of a kind may be under way at once, and on which threads they run.

Each kind has threads of its own, so that a flood of one leaves the others answered. Of the threads for appends and for
reads, a share is kept for what does not wait for the archive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import parse_qs

from tierlog.service.cluster.routing import MOST_ARGUMENTS
from tierlog.service.config.serve import ServeSettings
from tierlog.tiering.base.errors import DeadlineError, OverloadedError
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.reading.gate import ArchiveGate, behind

T = TypeVar("T")

#: Bodies that are parsed at a time. Parsing only needs the processor: more threads would not finish it
#: sooner, and the event loop would wait longer for its turn.
_PARSED_AT_ONCE = 2
#: How long a thread stays after its last work.
_LINGER_S = 2.0
_TRUE = {"1", "on", "t", "true", "y", "yes"}


def _pool(threads: int, name: str) -> WorkerPool:
    return WorkerPool(threads, f"tierlog-{name}", linger_s=_LINGER_S)


class LaneChoice(StrEnum):
    """The lanes that a route can declare."""

    ALWAYS = "always"
    READ = "read"
    APPEND = "append"
    ADMIN = "admin"
    #: The lane of downloads for a call with ``all``, of long polls for one with ``wait_ms``, else of reads.
    AS_ASKED = "as asked"


class Lane:
    """One kind of requests. Used on the event loop only."""

    def __init__(
        self,
        name: str,
        pool: WorkerPool,
        most: int,
        setting: str,
        *,
        gate: ArchiveGate | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """``most`` requests at once, as ``setting`` says; ``timeout_ms`` for the work of one, None for no limit."""
        self.name = name
        self._pool, self._gate = pool, gate
        self._most, self._setting = most, setting
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        #: Whether its requests carry messages, and so large bodies.
        self.takes_messages = name == "append"
        #: Whether a request is under way until its answer is sent, as more is read for it until then.
        self.is_long = name == "download"
        #: Requests that are running or waiting.
        self.under_way = 0

    def enter(self) -> None:
        """Counts a request until :meth:`leave`; raises :class:`OverloadedError` if there are enough."""
        if self.under_way >= self._most:
            raise OverloadedError(
                f"{self.under_way} requests of this kind ({self.name}) are under way already",
                hint=f"try again in a moment; {self._setting} is the limit",
            )
        self.under_way += 1

    def leave(self) -> None:
        """Counts a request no longer."""
        self.under_way -= 1

    async def run(self, work: Callable[[], T], *, is_timed: bool = True) -> T:
        """Runs the work on a thread of the lane, in turn.

        Raises :class:`DeadlineError` if it is not done in time. It then goes on and keeps its thread, or never begins.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def gated() -> T:
            with behind(self._gate):
                return work()

        def on_thread() -> None:
            if result.done():  # nobody waits for it any more
                return
            try:
                done = functools.partial(_settle, result, context.run(gated), None)
            except BaseException as error:
                done = functools.partial(_settle, result, None, error)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(done)

        self._pool.give(on_thread)
        if not is_timed or self._timeout_s is None:
            return await result
        try:
            async with asyncio.timeout(self._timeout_s):  # wait_for can lose a cancellation
                return await result
        except TimeoutError as error:
            raise self.too_late() from error

    @property
    def timeout_s(self) -> float | None:
        """The time for the work of one request; None for no limit."""
        return self._timeout_s

    def too_late(self) -> DeadlineError:
        """Returns the error of a request that is not done in time."""
        return DeadlineError(
            f"not done after {self._timeout_s:g} s; the work may have been done or not",
            hint="serve.request_timeout_ms is the limit",
        )


def _settle(result: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if result.done():
        return
    if error is None:
        result.set_result(value)
    else:
        result.set_exception(error)


class Lanes:
    """All lanes of one application."""

    def __init__(self, settings: ServeSettings) -> None:
        timeout_ms = settings.request_timeout_ms
        append, read = settings.append_threads, settings.read_threads
        #: Held by a thread while it parses a body.
        self.parsing = threading.Semaphore(_PARSED_AT_ONCE)
        self.gates = {
            "append": ArchiveGate(append - max(1, append // 4), "serve.append_threads is the limit"),
            "read": ArchiveGate(read - max(1, read // 4), "serve.read_threads is the limit"),
        }
        reading = _pool(read, "read")
        self.append = Lane(
            "append", _pool(append, "append"), settings.max_appends, "serve.max_appends",
            gate=self.gates["append"], timeout_ms=timeout_ms,
        )  # fmt: skip
        self.read = Lane(
            "read", reading, settings.max_reads, "serve.max_reads", gate=self.gates["read"], timeout_ms=timeout_ms
        )
        self.poll = Lane(
            "long poll", reading, settings.max_long_polls, "serve.max_long_polls",
            gate=self.gates["read"], timeout_ms=timeout_ms,
        )  # fmt: skip
        self.stream = Lane(
            "download", _pool(settings.stream_threads, "stream"), settings.max_streams, "serve.max_streams"
        )
        admin = settings.admin_threads
        self.admin = Lane("admin", _pool(admin, "admin"), 5 * admin, "serve.admin_threads")
        #: For requests that are always answered: health, metrics and the page.
        self.always = Lane("always", _pool(2, "always"), 1_000, "a constant", timeout_ms=timeout_ms)
        self._chosen = {
            LaneChoice.ALWAYS: self.always,
            LaneChoice.READ: self.read,
            LaneChoice.APPEND: self.append,
            LaneChoice.ADMIN: self.admin,
        }

    def of(self, choice: LaneChoice, query: bytes) -> Lane:
        """Returns the lane of a request, whose route declares the choice."""
        if choice is not LaneChoice.AS_ASKED:
            return self._chosen[choice]
        if query.count(b"&") > MOST_ARGUMENTS:  # it will be refused
            return self.read
        asked = parse_qs(query.decode("latin-1"))
        if asked.get("all", [""])[-1].lower() in _TRUE:
            return self.stream
        return self.poll if asked.get("wait_ms", ["0"])[-1] != "0" else self.read
