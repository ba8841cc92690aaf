"""Ctrl-C and SIGTERM: a command stops at the next safe place and closes its store."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_S = 2.0


class Stopped(Exception):
    """The command was asked to stop."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets SIGTERM interrupt a command that only reads wherever it is, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_flag() -> Iterator[threading.Event]:
    """Yields a flag for commands that write: the first signal sets it, the second interrupts."""
    flag = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopping_at(progress: Callable[[int, int], object], flag: threading.Event) -> Callable[[int, int], None]:
    """Returns ``progress`` as a place to stop: it raises :class:`Stopped` once the flag is set."""

    def move_or_stop(done: int, of: int) -> None:
        progress(done, of)
        if flag.is_set():
            raise Stopped

    return move_or_stop


def run_stoppable(work: Callable[[], T], flag: threading.Event) -> T:
    """Returns the result of ``work``, which runs in a thread of its own so that a stop need not wait for it.

    Raises what ``work`` raises, and :class:`Stopped` if the flag is set and ``work`` does not end within 2 s.
    """
    results: list[T] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # handed to the caller below
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True, name="tierlog-command").start()
    while not done.wait(0.1):
        if flag.is_set() and not done.wait(_GRACE_S):
            raise Stopped
    if failures:
        raise failures[0]
    return results[0]
