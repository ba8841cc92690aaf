"""Threads that work for others: all work is done, and a thread that lingers is used again."""

from __future__ import annotations

import threading

from tierlog.tiering.base.worker_pool import WorkerPool


def test_a_thread_that_lingers_does_the_next_work() -> None:
    pool = WorkerPool(1, linger_s=60)
    first = pool.submit(threading.current_thread).result(60)
    assert pool.submit(threading.current_thread).result(60) is first


def test_no_work_is_lost_between_threads_that_come_and_go() -> None:
    pool = WorkerPool(3, linger_s=0.000_01)

    def give(start: int) -> None:
        for number in range(start, start + 300):
            assert pool.submit(lambda number=number: number).result(60) == number  # type: ignore[misc]

    givers = [threading.Thread(target=give, args=(start,)) for start in (0, 1000, 2000, 3000)]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join()
    assert not pool.has_waiting
