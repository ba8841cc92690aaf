"""Threads that fetch ahead: a bounded number, none while there is nothing to do, and nobody waits for them to end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class FetchPool:
    """Runs work in the order it was given, at most ``threads`` pieces at once. Thread safe."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        self._running = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """The result to come; cancelling it keeps work that has not begun from beginning."""
        result: Future[T] = Future()
        with self._lock:
            self._waiting.append((result, work))
            if self._running == self._threads:
                return result
            self._running += 1
        threading.Thread(target=self._work, name="tierlog-read-ahead", daemon=True).start()
        return result

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                result, work = self._waiting.popleft()
            run_into(result, work)


def run_into(result: Future[T], work: Callable[[], T]) -> None:
    """Do the work here and now, unless it was cancelled; its outcome goes where those who wait look for it."""
    if not result.set_running_or_notify_cancel():
        return
    try:
        value = work()
    except BaseException as error:  # raised again by whoever asks for the result
        result.set_exception(error)
    else:
        result.set_result(value)


def done_here(work: Callable[[], T]) -> Future[T]:
    """The outcome of work done by the caller."""
    result: Future[T] = Future()
    run_into(result, work)
    return result
