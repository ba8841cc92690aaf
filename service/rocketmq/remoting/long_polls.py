"""Requests that wait for messages: none of them has a thread, and there is a bound on how many there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from tierlog.service.rocketmq.remoting.connection import Connection
from tierlog.tiering.base.errors import OverloadedError, StoreError

#: What watches for messages: a context in which a function is called once some may be there.
Watch = Callable[[Callable[[], object]], AbstractContextManager[None]]


class _Poll:
    """One that waits. ``go_on`` is called once, with whether it may wait again."""

    __slots__ = ("connection", "go_on", "is_over", "timer", "watched")

    def __init__(self, connection: Connection, go_on: Callable[[bool], object]) -> None:
        self.connection = connection
        self.go_on = go_on
        self.watched = ExitStack()
        self.timer: asyncio.TimerHandle | None = None
        self.is_over = False


class LongPolls:
    """The requests of one door that wait. On the loop's thread, but for :meth:`hold`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call_soon: Callable[[Callable[[], object]], object], most: int
    ) -> None:
        """``call_soon`` runs something on the loop, from any thread."""
        self._loop = loop
        self._call_soon = call_soon
        self._most = most
        self._lock = threading.Lock()
        self._held = 0
        self._polls: set[_Poll] = set()
        self._of_connection: dict[Connection, set[_Poll]] = {}
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._held

    def hold(self, connection: Connection, watch: Watch, timeout_s: float, go_on: Callable[[bool], object]) -> None:
        """Calls ``go_on(True)`` on the loop when there may be messages, ``go_on(False)`` when the time is over.

        The latter also if the connection is gone, or the door stops. From any thread; :class:`OverloadedError` if too
        many wait.
        """
        with self._lock:
            if self._held >= self._most:
                raise OverloadedError(
                    f"{self._most} requests wait for messages", hint="serve.max_long_polls is the limit"
                )
            self._held += 1
        poll = _Poll(connection, go_on)
        self._call_soon(lambda: self._begin(poll, watch, timeout_s))

    def _begin(self, poll: _Poll, watch: Watch, timeout_s: float) -> None:
        if poll.connection.is_closed or self._is_closed or timeout_s <= 0:
            self._end(poll, False)
            return
        self._polls.add(poll)
        self._of_connection.setdefault(poll.connection, set()).add(poll)
        poll.timer = self._loop.call_later(timeout_s, self._end, poll, False)
        try:
            poll.watched.enter_context(watch(lambda: self._call_soon(lambda: self._end(poll, True))))
        except StoreError:  # whoever goes on meets it
            self._end(poll, True)

    def _end(self, poll: _Poll, may_wait: bool) -> None:
        if poll.is_over:
            return
        poll.is_over = True
        with self._lock:
            self._held -= 1
        self._polls.discard(poll)
        mine = self._of_connection.get(poll.connection, set())
        mine.discard(poll)
        if not mine:
            self._of_connection.pop(poll.connection, None)
        if poll.timer is not None:
            poll.timer.cancel()
        poll.watched.close()
        poll.go_on(may_wait)

    def disconnected(self, connection: Connection) -> None:
        """Ends what a connection waits for."""
        for poll in list(self._of_connection.get(connection, ())):
            self._end(poll, False)

    def stop(self) -> None:
        """Ends all waiting."""
        self._is_closed = True
        for poll in list(self._polls):
            self._end(poll, False)
