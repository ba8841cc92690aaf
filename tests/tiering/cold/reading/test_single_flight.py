"""Concurrent readers of one range share one fetch, and each failure goes where it belongs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.support.stores.hold import Hold
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.cold.reading.archive_reader import SingleFlight
from tierlog.tiering.cold.reading.bill import BudgetSpentError

WAITERS = 8


class Crowd:
    """One that leads, held inside its work, and some that come meanwhile."""

    def __init__(self, lead: Callable[[], str]) -> None:
        self.flight = SingleFlight()
        self.hold = Hold()
        self.asked = 0
        self.outcomes: list[str | type[BaseException]] = []
        self._lock = threading.Lock()

        def leading() -> str:
            self.hold.stop_here()
            return lead()

        self._leader = threading.Thread(target=self._run, args=(leading,))
        self._leader.start()
        self.hold.wait_until_reached()
        self._others = [threading.Thread(target=self._run, args=(self._work,)) for _ in range(WAITERS)]
        for thread in self._others:
            thread.start()

    def _work(self) -> str:
        with self._lock:
            self.asked += 1
        return "theirs"

    def _run(self, work: Callable[[], str]) -> None:
        try:
            result: str | type[BaseException] = self.flight.run("key", work)[0]
        except BaseException as error:
            result = type(error)
        with self._lock:
            self.outcomes.append(result)

    def end(self) -> None:
        wait_until(lambda: self.flight.joined == WAITERS)
        self.hold.release()
        for thread in (self._leader, *self._others):
            thread.join(10)
            assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nobody came within a minute")


def failing(error: BaseException) -> Callable[[], str]:
    def lead() -> str:
        raise error

    return lead


def test_concurrent_readers_share_one_fetch() -> None:
    crowd = Crowd(lambda: "first")
    crowd.end()
    assert crowd.outcomes == ["first"] * (WAITERS + 1)
    assert crowd.asked == 0


def test_a_dead_bucket_is_asked_once_and_all_who_wait_learn_it() -> None:
    crowd = Crowd(failing(ObjectStoreUnavailableError("dead")))
    crowd.end()
    assert crowd.outcomes == [ObjectStoreUnavailableError] * (WAITERS + 1)
    assert crowd.asked == 0


@pytest.mark.parametrize("error", [BudgetSpentError("spent"), KeyboardInterrupt()])
def test_what_stops_only_the_first_stops_nobody_else(error: BaseException) -> None:
    crowd = Crowd(failing(error))
    crowd.end()
    assert sorted(map(str, crowd.outcomes)) == sorted([str(type(error))] + ["theirs"] * WAITERS)
    assert crowd.asked >= 1


def test_an_outcome_is_not_kept() -> None:
    flight = SingleFlight()
    with pytest.raises(ObjectStoreUnavailableError):
        flight.run("key", failing(ObjectStoreUnavailableError("dead")))
    assert flight.run("key", lambda: "again") == ("again", True)
