"""A bounded number of threads that run work for others: none while there is none, and nobody waits for their end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class WorkerPool:
    """Runs work in the order it was given, at most ``threads`` pieces at once. Thread safe."""

    def __init__(self, threads: int, name: str = "tierlog-read-ahead", *, linger_s: float = 0) -> None:
        """A thread without work waits ``linger_s`` for some: to start one takes longer than a small piece of work."""
        self._threads = threads
        self._name = name
        self._linger_s = linger_s
        self._lock = threading.Condition(threading.Lock())
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0
        #: Of those, how many wait for work, or were woken and have not taken it yet.
        self._idle = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Returns the result to come; cancelling it keeps work that has not begun from beginning.

        It runs in the context of whoever gives it, so that what it logs says for which request.
        Where no further thread can be started, those that run do it later; :class:`RuntimeError` if there is none.
        """
        result: Future[T] = Future()
        self.give(partial(run_into, result, partial(copy_context().run, work)))
        return result

    def give(self, work: Callable[[], None]) -> None:
        """Runs work that sees to its outcome and its context itself, and raises nothing.

        Otherwise like :meth:`submit`.
        """
        with self._lock:
            self._waiting.append(work)
            if self._idle >= len(self._waiting):
                self._lock.notify()
                return
            if self._running == self._threads:
                return
            self._running += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._running -= 1
                if not self._running and work in self._waiting:
                    self._waiting.remove(work)
                    raise

    @property
    def has_waiting(self) -> bool:
        """Whether there is work that waits for a thread."""
        return bool(self._waiting)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting and self._linger_s:
                    self._idle += 1
                    self._lock.wait_for(lambda: self._waiting, self._linger_s)
                    self._idle -= 1
                if not self._waiting:
                    self._running -= 1
                    return
                work = self._waiting.popleft()
            work()
            del work  # a thread that waits keeps no request in memory


def run_into(result: Future[T], work: Callable[[], T]) -> None:
    """Does the work here and now, unless it was cancelled; its outcome goes where those who wait look for it."""
    if not result.set_running_or_notify_cancel():
        return
    try:
        value = work()
    except BaseException as error:  # raised again by whoever asks for the result
        result.set_exception(error)
    else:
        result.set_result(value)


def done_here(work: Callable[[], T]) -> Future[T]:
    """Returns the outcome of work done by the caller."""
    result: Future[T] = Future()
    run_into(result, work)
    return result
