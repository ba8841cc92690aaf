"""Tells readers who wait for messages that some came: one thread looks for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tiering.errors import StoreError

_JOIN_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    arrived: Callable[[], bool]
    tell: Callable[[], object]


class Arrivals:
    """Who waits for what in one open store. The thread starts with the first of them."""

    def __init__(self, catch_up: Callable[[], object], stopping: threading.Event) -> None:
        self._catch_up = catch_up
        self._stopping = stopping
        self._lock = threading.Lock()
        self._watches: set[_Watch] = set()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, arrived: Callable[[], bool], tell: Callable[[], object]) -> Iterator[None]:
        """Inside the context, call ``tell`` once when ``arrived()`` holds, when looking fails, or at the stop.

        ``arrived`` is asked on the thread, after catching up with the log. ``tell`` must not block, and is not called
        any more after the context.
        """
        watch = _Watch(arrived, tell)
        with self._lock:
            if self._stopping.is_set():
                tell()
            else:
                self._watches.add(watch)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._loop, name="tierlog-arrivals", daemon=True)
                    self._thread.start()
        self._news.set()
        try:
            yield
        finally:
            with self._lock:
                self._watches.discard(watch)

    def look(self) -> None:
        """Something was appended or flushed."""
        if self._watches:
            self._news.set()

    def stop(self) -> None:
        """Tell everybody; call it once ``stopping`` is set."""
        self._news.set()
        with self._lock:  # a thread that is seen is started
            thread = self._thread
        if thread is not None:
            thread.join(_JOIN_S)

    def _loop(self) -> None:
        stopping = False
        while not stopping:
            self._news.wait()
            self._news.clear()
            due = self._due()
            with self._lock:
                stopping = self._stopping.is_set()
                for watch in self._watches.copy() if stopping else self._watches & due:
                    self._watches.remove(watch)
                    watch.tell()

    def _due(self) -> set[_Watch]:
        with self._lock:
            watches = self._watches.copy()
        try:
            self._catch_up()
            return {watch for watch in watches if watch.arrived()}
        except (StoreError, OSError):  # whoever reads now is told the reason
            return watches
