"""One thread looks for everybody who waits; nobody who appends is held up by it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from tierlog.service.engine.background import PullWaiters
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.errors import DiskFailedError

_S = 20.0


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def waiters(stopping: threading.Event) -> Iterator[PullWaiters]:
    made = PullWaiters(lambda: None, stopping, SystemClock())
    yield made
    stopping.set()
    made.stop()


def test_only_who_has_something_is_told_and_once(waiters: PullWaiters) -> None:
    here: set[str] = {"a"}
    told: list[str] = []
    last = threading.Event()
    with (
        waiters.watch(lambda: "a" in here, lambda: told.append("a")),
        waiters.watch(lambda: "b" in here, lambda: told.append("b")),
        waiters.watch(lambda: "c" in here, last.set),
    ):
        here.add("c")
        waiters.look()
        assert last.wait(_S)
        assert told == ["a"]


def test_nobody_is_told_after_the_context(waiters: PullWaiters) -> None:
    here, told, last = threading.Event(), threading.Event(), threading.Event()
    with waiters.watch(here.is_set, told.set):
        pass
    here.set()
    with waiters.watch(here.is_set, last.set):
        assert last.wait(_S)
    assert not told.is_set()


def test_a_slow_look_holds_nobody_up(waiters: PullWaiters) -> None:
    asked, go_on, told = threading.Event(), threading.Event(), threading.Event()

    def slow() -> bool:
        asked.set()
        return go_on.wait(_S)

    with waiters.watch(slow, told.set):
        assert asked.wait(_S)
        waiters.look()
        with waiters.watch(lambda: False, lambda: None):
            assert not told.is_set()
        go_on.set()
        assert told.wait(_S)


def test_a_stop_tells_everybody_also_who_comes_later(waiters: PullWaiters, stopping: threading.Event) -> None:
    early, late = threading.Event(), threading.Event()
    with waiters.watch(lambda: False, early.set):
        stopping.set()
        waiters.stop()
        assert early.is_set()
    with waiters.watch(lambda: False, late.set):
        assert late.is_set()


def test_a_failure_sends_everybody_to_read_and_the_next_look_works(stopping: threading.Event) -> None:
    failing, here, sent, told = True, threading.Event(), threading.Event(), threading.Event()

    def catch_up() -> None:
        if failing:
            raise DiskFailedError("scripted")

    waiters = PullWaiters(catch_up, stopping, SystemClock())
    with waiters.watch(here.is_set, sent.set):
        assert sent.wait(_S)
    failing = False
    here.set()
    with waiters.watch(here.is_set, told.set):
        assert told.wait(_S)
    stopping.set()
    waiters.stop()


class _WatchedClock(ManualClock):
    """Notes how long each wait is to be, in ms, and ends none of them."""

    def __init__(self) -> None:
        super().__init__(now_ms=1_000)
        self.asked: queue.Queue[int] = queue.Queue()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.asked.put(round(timeout_s * 1000))
        if event.wait(_S):
            return True
        raise AssertionError("nobody woke the thread")


def test_the_thread_sleeps_until_the_first_time_and_is_woken_for_an_earlier_one(
    stopping: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _WatchedClock()
    waiters = PullWaiters(lambda: None, stopping, clock)
    due_ms, told = [7_000], threading.Event()
    with waiters.watch(lambda: clock.now_ms() >= due_ms[0], told.set, lambda: due_ms[0]):
        assert [clock.asked.get(timeout=_S) for _ in range(2)] == [6_000] * 2  # the news is the watch itself
        with monkeypatch.context() as patched:
            looked: list[None] = []
            patched.setattr(waiters, "look", lambda: looked.append(None))
            waiters.look_by(7_000)
            waiters.look_by(8_000)
            assert looked == [], "nobody needs to be woken for that"
        due_ms[0] = 3_000
        waiters.look_by(3_000)
        assert clock.asked.get(timeout=_S) == 2_000
        assert not told.is_set()
        clock.advance(2_000)
        waiters.look()
        assert told.wait(_S)
    stopping.set()
    waiters.stop()


def test_who_waits_for_a_time_is_told_although_nothing_comes(stopping: threading.Event) -> None:
    clock, told = ManualClock(1_000), threading.Event()
    waiters = PullWaiters(lambda: None, stopping, clock)
    with waiters.watch(lambda: clock.now_ms() >= 61_000, told.set, lambda: 61_000):
        assert told.wait(_S)
    stopping.set()
    waiters.stop()
