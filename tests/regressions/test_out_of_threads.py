"""Where no thread could be started, a pool counted it as running for good, and in the end nothing it was given ran."""

from __future__ import annotations

import threading

import pytest

from tests.support.stores.hold import Hold
from tierlog.tiering.base.worker_pool import WorkerPool


def refuse_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_a_pool_that_got_no_thread_works_once_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(2)
    done: list[int] = []
    with monkeypatch.context() as patch:
        refuse_to_start(patch)
        for number in range(5):
            with pytest.raises(RuntimeError):
                pool.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert pool.submit(lambda: "run").result(30) == "run"
    assert done == [], "what was refused does not run later"


def test_work_for_which_there_is_no_further_thread_waits_for_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, hold = WorkerPool(4), Hold()
    first = pool.submit(hold.stop_here)
    hold.wait_until_reached()
    with monkeypatch.context() as patch:
        refuse_to_start(patch)
        others = [pool.submit(lambda: "run") for _ in range(5)]
    hold.release()
    first.result(30)
    assert [other.result(30) for other in others] == ["run"] * 5
