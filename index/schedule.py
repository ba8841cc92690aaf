"""In which order the pieces of a query are done, on which threads, and when no more is needed.

The piece that may hold the next result in the order asked for is begun first. Pieces that ask the archive run on a
pool, at most ``concurrency`` at once; those that read what is pinned for the query run on the thread that asked, which
else waits. A piece that cannot matter any more is not begun, nor is one that will not matter if those under way give as
many results as they are expected to; and nobody waits for a piece of which nothing can matter any more.

What counts in the end is decided by bounds and results alone: of a piece that was begun for nothing neither notes nor
failure are kept. With a concurrency of 1 everything is done on the thread that asked, one piece after another.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

from index.results import Results
from index.work import SearchContext, Work
from tiering.clock import Clock
from tiering.cold.bill import AbandonedError, ReadBill, RequestChain
from tiering.cold.caching.fetch_pool import FetchPool
from tiering.cold.gate import entering_archive
from tiering.errors import StoreError
from tiering.message import StoredMessage
from tiering.types import Order

_LOOK_S = 0.05
"""How often somebody who waits looks at the clock, which may be one that a test moves."""

_BUDGET_SHARE = 4
"""Pieces under way at once take at most about this part of the requests that a query may still make."""


@dataclass(slots=True)
class Ended:
    """A piece that was done, or failed."""

    work: Work
    context: SearchContext
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What counts of a query: pieces that ended, and those that were left when time was over."""

    ended: list[Ended]
    left: list[Work]


class _Queue:
    """Pieces not begun, in the order in which they may yield the next result."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Work]] = []

    def push(self, first: int, number: int, work: Work) -> None:
        heapq.heappush(self._heap, (first, number, work))

    def top(self) -> Work | None:
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Work:
        return heapq.heappop(self._heap)[2]

    def all(self) -> list[Work]:
        return [work for _, _, work in self._heap]

    def __len__(self) -> int:
        return len(self._heap)


@dataclass(slots=True)
class _Yield:
    """What a piece on the pool gave; taken over as a whole."""

    items: list[StoredMessage | Work] = field(default_factory=list)


class Schedule:
    """Does the work of one query; for one :meth:`run`."""

    def __init__(
        self,
        order: Order,
        wanted: int,
        results: Results,
        bill: ReadBill,
        *,
        pool: FetchPool | None = None,
        concurrency: int = 1,
        clock: Clock | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """``wanted``: so many results make the page certain. ``deadline_s`` is a moment of ``clock``."""
        self._newest = order is Order.NEWEST
        self._wanted = wanted
        self._results = results
        self._bill = bill
        self._pool = pool if concurrency > 1 else None
        self._concurrency = concurrency
        self._clock = clock
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._numbers = count()
        self._local, self._remote = _Queue(), _Queue()
        self._local_first: int | None = None
        self._running: dict[int, Work] = {}
        self._workers = 0
        self._known: set[Hashable] = set()
        self._ended: list[Ended] = []
        self._unforeseen: Exception | None = None
        self._is_closed = False
        self._in_archive: ExitStack | None = None

    def push(self, work: Work) -> None:
        """Add a piece, unless it cannot yield anything of the range or is known."""
        if not self._results.within.overlaps(*work.bounds):
            return
        if work.once is not None:
            if work.once in self._known:
                return
            self._known.add(work.once)
        queue = self._local if work.is_local else self._remote
        queue.push(self._first(work), next(self._numbers), work)

    def run(self) -> Outcome:
        """Return as soon as the page is certain, everything is done or time is over.

        What is then still under way on the pool changes nothing any more. Raises what a piece raises that is neither a
        failure of a store nor of the system, and :class:`OverloadedError` if the caller may not wait for the archive.
        """
        try:
            while self._turn():
                pass
            with self._changed:
                return self._outcome()
        finally:
            with self._changed:
                self._is_closed = True
            self._bill.close()
            if self._in_archive is not None:
                self._in_archive.close()

    # the thread that asked

    def _turn(self) -> bool:
        """Do a piece here, or wait for one elsewhere; whether there may be more to do."""
        if self._is_late():
            return False
        with self._changed:
            self._raise_unforeseen()
            work = self._take_here()
            if work is None:
                self._enlist()
                if self._is_over():
                    return False
                self._wait()
                return True
            self._local_first = self._first(work) if self._pool else None
            if not work.is_local:
                self._enter_archive()
            self._enlist()  # what may hold the same times need not wait for this
        ended = self._do(work, self._take_over)
        with self._changed:
            self._local_first = None
            self._end(ended)
        return True

    def _take_here(self) -> Work | None:
        queues = [self._local] if self._pool else [self._local, self._remote]
        tops = [(queue.top(), queue) for queue in queues]
        needed = [(work, queue) for work, queue in tops if work is not None and self._is_needed(work)]
        if not needed:
            return None
        return min(needed, key=lambda each: self._first(each[0]))[1].pop()

    def _take_over(self, item: StoredMessage | Work) -> None:
        with self._changed:
            self._accept(item)

    def _wait(self) -> None:
        if self._deadline_s is None:
            self._changed.wait()
        else:
            self._changed.wait(max(0.0, min(_LOOK_S, self._deadline_s - self._now_s())))

    def _is_late(self) -> bool:
        return self._deadline_s is not None and self._now_s() >= self._deadline_s

    def _now_s(self) -> float:
        assert self._clock is not None
        return self._clock.monotonic_s()

    def _is_over(self) -> bool:
        tops = (self._local.top(), self._remote.top())
        return not any(work is not None and self._is_needed(work) for work in (*tops, *self._running.values()))

    def _raise_unforeseen(self) -> None:
        if self._unforeseen is not None:
            raise self._unforeseen

    def _end(self, ended: Ended) -> None:
        self._ended.append(ended)
        if ended.error is not None and not isinstance(ended.error, StoreError | OSError):
            self._unforeseen = ended.error

    # threads of the pool

    def _enlist(self) -> None:
        """See to it that there are threads for the pieces that may be begun; the lock is held."""
        if self._pool is None or self._next_remote() is None:
            return
        self._enter_archive()
        while self._workers < min(self._width(), len(self._running) + len(self._remote)):
            self._workers += 1
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # out of threads: those that run do with less, the caller hears of it if none does
                self._workers -= 1
                if not self._workers:
                    raise
                return

    def _enter_archive(self) -> None:
        """Before the first piece that asks the archive; on the thread that asked, as the pool has none before it."""
        if self._in_archive is None:
            entered = ExitStack()
            entered.enter_context(entering_archive())
            self._in_archive = entered

    def _width(self) -> int:
        """How many pieces may be under way at once: what is left of a budget goes to the first in the order."""
        left = self._bill.left
        return self._concurrency if left is None else max(1, min(self._concurrency, left // _BUDGET_SHARE))

    def _work(self) -> None:
        """Do one piece after another until there is none, or until another query wants the thread."""
        assert self._pool is not None
        while True:
            with self._changed:
                work = None if self._is_closed else self._next_remote()
                if work is None:
                    self._workers -= 1
                    return
                self._remote.pop()
                number = next(self._numbers)
                self._running[number] = work
            given = _Yield()
            ended = self._do(work, given.items.append)
            with self._changed:
                if self._is_closed:
                    return
                try:
                    for item in given.items:
                        self._accept(item)
                except Exception as error:  # out of memory: what was not taken over must not be missing in silence
                    ended = Ended(work, ended.context, error)
                del self._running[number]
                self._end(ended)
                self._enlist()
                self._changed.notify()
            if self._pool.has_waiting:
                self._pool.submit(self._work)
                return

    def _next_remote(self) -> Work | None:
        """The first piece for the pool if it may be begun now; the lock is held."""
        work = self._remote.top()
        if work is None or not self._is_needed(work) or len(self._running) >= self._width():
            return None
        first, local = self._first(work), self._local.top()
        if local is not None and self._first(local) < first:
            return None
        if self._local_first is not None and self._local_first < first:
            return None
        return None if self._is_expected_to_be_certain_before(work) else work

    def _is_expected_to_be_certain_before(self, work: Work) -> bool:
        """Whether pieces under way are about to give enough results that come before all of this one's."""
        first = self._first(work)
        expected = sum(other.expects for other in self._running.values() if other.expects and self._last(other) < first)
        if not expected:
            return False
        return expected + self._results.before(work.bounds[1] if self._newest else work.bounds[0]) >= self._wanted

    # both; the lock is held but in _do

    def _do(self, work: Work, give: Callable[[StoredMessage | Work], None]) -> Ended:
        """Do a piece; what it gave before a failure is given all the same."""
        context = SearchContext(RequestChain(self._bill, work.depth))
        try:
            for item in self._items(work, context):
                give(item)
        except Exception as error:  # raised again by the thread that asked, or told as a failure
            return Ended(work, context, error)
        return Ended(work, context)

    def _items(self, work: Work, context: SearchContext) -> Iterable[StoredMessage | Work]:
        for item in work.run(context):
            if isinstance(item, Work):
                yield replace(item, depth=context.chain.depth)
            else:
                yield item
            if work.is_local and self._is_late():
                raise AbandonedError("the time of the query is over")

    def _accept(self, item: StoredMessage | Work) -> None:
        if isinstance(item, Work):
            self.push(item)
        else:
            self._results.add(item)

    def _first(self, work: Work) -> int:
        """The first time that a piece may yield, on a scale that rises in the order of the results."""
        return -work.bounds[1] if self._newest else work.bounds[0]

    def _last(self, work: Work) -> int:
        return -work.bounds[0] if self._newest else work.bounds[1]

    def _is_needed(self, work: Work) -> bool:
        return not self._results.is_certain_before(work.bounds[1] if self._newest else work.bounds[0])

    def _outcome(self) -> Outcome:
        self._raise_unforeseen()
        ended = [each for each in self._ended if self._is_needed(each.work)]
        open_pieces = [*self._running.values(), *self._local.all(), *self._remote.all()]
        left = [work for work in open_pieces if self._is_needed(work)]
        left += [each.work for each in ended if isinstance(each.error, AbandonedError)]
        return Outcome([each for each in ended if not isinstance(each.error, AbandonedError)], left)
