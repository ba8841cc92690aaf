"""Work on the parts of a segment that goes on beside the thread that wants its results in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

#: Threads that scan, or gather, compress and look again. Whoever takes what they made writes it meanwhile.
THREADS = 2
A = TypeVar("A")
B = TypeVar("B")


def in_order(work: Callable[[A], B], items: Iterable[A], name: str) -> Iterator[B]:
    """What ``work`` makes of the items, in their order, each on one of :data:`THREADS` threads.

    One more result than there are threads may wait, so that none of them does while one is taken.
    """
    pending: deque[Future[B]] = deque()
    with ThreadPoolExecutor(THREADS, name) as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > THREADS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for waiting in pending:
                waiting.cancel()
