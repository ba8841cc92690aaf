"""Schedules the tasks of a query: in which order, on which threads, and when no more is needed.

The task that may hold the next result in the order asked for is begun first. Tasks that ask the archive run on a
pool, at most ``concurrency`` at once; those that read what is pinned for the query run on the caller's thread, which
else waits. A task that cannot matter any more is not begun, nor is one that will not matter if those under way give as
many results as they are expected to; and nobody waits for a task of which nothing can matter any more.

What counts in the end is decided by bounds and results alone: of a task that was begun for nothing neither notes nor
failure are kept. With a concurrency of 1 everything is done on the caller's thread, one task after another.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

from tierlog.index.search.column_results import ColumnResults
from tierlog.index.search.results import Results
from tierlog.index.search.task import Found, SearchContext, SearchTask
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.types import Order
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.reading.bill import AbandonedError, ReadBill, RequestChain
from tierlog.tiering.cold.reading.gate import entering_archive

_LOOK_S = 0.05
"""How often a waiting thread looks at the clock, which may be one that a test moves."""

_BUDGET_SHARE = 4
"""Tasks under way at once take at most about this part of the requests that a query may still make."""


@dataclass(slots=True)
class EndedTask:
    """A task that was done, or failed."""

    task: SearchTask
    context: SearchContext
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """The tasks of a query that count: those that ended, and those that were left when time was over."""

    ended: list[EndedTask]
    left: list[SearchTask]


class _Queue:
    """Tasks not begun, in the order in which they may yield the next result."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, SearchTask]] = []

    def push(self, first: int, number: int, task: SearchTask) -> None:
        heapq.heappush(self._heap, (first, number, task))

    def top(self) -> SearchTask | None:
        return self._heap[0][2] if self._heap else None

    def pop(self) -> SearchTask:
        return heapq.heappop(self._heap)[2]

    def all(self) -> list[SearchTask]:
        return [task for _, _, task in self._heap]

    def __len__(self) -> int:
        return len(self._heap)


@dataclass(slots=True)
class _Yield:
    """The yield of a task on the pool; taken over as a whole."""

    items: list[Found | SearchTask] = field(default_factory=list)


class Schedule:
    """Runs the tasks of one query; for one :meth:`run`."""

    def __init__(
        self,
        order: Order,
        wanted: int,
        results: Results | ColumnResults,
        bill: ReadBill,
        *,
        pool: WorkerPool | None = None,
        concurrency: int = 1,
        clock: Clock | None = None,
        deadline_s: float | None = None,
        waits: bool = False,
    ) -> None:
        """``wanted``: so many results make the page certain. ``deadline_s`` is a moment of ``clock``.

        With ``waits`` the caller's thread waits for the pool rather than read what may turn out not to be wanted: for
        answers of which most is given, whose reader wants the processor's time more than the shortest wait.
        """
        self._newest = order is Order.NEWEST
        self._wanted = wanted
        self._results = results
        self._bill = bill
        self._pool = pool if concurrency > 1 else None
        self._concurrency = concurrency
        self._clock = clock
        self._deadline_s = deadline_s
        self._waits = waits
        self._changed = threading.Condition()
        self._numbers = count()
        self._local, self._remote = _Queue(), _Queue()
        self._local_first: int | None = None
        self._running: dict[int, SearchTask] = {}
        self._workers = 0
        self._known: set[Hashable] = set()
        self._ended: list[EndedTask] = []
        self._unforeseen: Exception | None = None
        self._is_closed = False
        self._in_archive: ExitStack | None = None

    def push(self, task: SearchTask) -> None:
        """Adds a task, unless it cannot yield anything of the range or is known."""
        if not self._results.within.overlaps(*task.bounds):
            return
        if task.once is not None:
            if task.once in self._known:
                return
            self._known.add(task.once)
        queue = self._local if task.is_local else self._remote
        queue.push(self._first(task), next(self._numbers), task)

    def run(self) -> ScheduleResult:
        """Returns as soon as the page is certain, everything is done or time is over.

        What is then still under way on the pool changes nothing any more. Raises what a task raises that is neither a
        failure of a store nor of the system, and :class:`OverloadedError` if the caller may not wait for the archive.
        """
        try:
            while self._advance():
                pass
            with self._changed:
                return self._outcome()
        finally:
            with self._changed:
                self._is_closed = True
            self._bill.close()
            if self._in_archive is not None:
                self._in_archive.close()

    # the caller's thread

    def _advance(self) -> bool:
        """Does a task here, or waits for one elsewhere; returns whether there may be more to do."""
        if self._is_late():
            return False
        with self._changed:
            self._raise_unforeseen()
            task = self._take_here()
            if task is None:
                self._enlist()
                if self._is_over():
                    return False
                self._wait()
                return True
            self._local_first = self._first(task) if self._pool else None
            if not task.is_local:
                self._enter_archive()
            self._enlist()  # what may hold the same times need not wait for this
        ended = self._run_task(task, self._take_over)
        with self._changed:
            self._local_first = None
            self._end(ended)
        return True

    def _take_here(self) -> SearchTask | None:
        queues = [self._local] if self._pool else [self._local, self._remote]
        tops = [(queue.top(), queue) for queue in queues]
        needed = [(task, queue) for task, queue in tops if task is not None and self._is_needed(task)]
        if not needed:
            return None
        if self._pool and self._waits and self._is_others_turn(needed[0][0]):
            return None
        return min(needed, key=lambda each: self._first(each[0]))[1].pop()

    def _is_others_turn(self, task: SearchTask) -> bool:
        """Whether something for the pool comes before a task of this thread, and is needed."""
        others = [*self._running.values(), *filter(None, (self._remote.top(),))]
        return any(self._first(other) < self._first(task) and self._is_needed(other) for other in others)

    def _take_over(self, item: Found | SearchTask) -> None:
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
        return not any(task is not None and self._is_needed(task) for task in (*tops, *self._running.values()))

    def _raise_unforeseen(self) -> None:
        if self._unforeseen is not None:
            raise self._unforeseen

    def _end(self, ended: EndedTask) -> None:
        self._ended.append(ended)
        if ended.error is not None and not isinstance(ended.error, StoreError | OSError):
            self._unforeseen = ended.error

    # threads of the pool

    def _enlist(self) -> None:
        """Gets threads for the tasks that may be begun; the lock is held."""
        if self._pool is None or self._next_remote() is None:
            return
        self._enter_archive()
        while self._workers < min(self._width(), len(self._running) + len(self._remote)):
            self._workers += 1
            try:
                self._pool.submit(self._run_tasks)
            except RuntimeError:  # out of threads: those that run do with less, the caller hears of it if none does
                self._workers -= 1
                if not self._workers:
                    raise
                return

    def _enter_archive(self) -> None:
        """Prepares for the first task that reads the archive, on the caller's thread: the pool has none before it."""
        if self._in_archive is None:
            entered = ExitStack()
            entered.enter_context(entering_archive())
            self._in_archive = entered

    def _width(self) -> int:
        """Returns how many tasks may be under way at once: what is left of a budget goes to the first in the order."""
        left = self._bill.left
        return self._concurrency if left is None else max(1, min(self._concurrency, left // _BUDGET_SHARE))

    def _run_tasks(self) -> None:
        """Does one task after another until there is none, or until another query wants the thread."""
        assert self._pool is not None
        while True:
            with self._changed:
                task = None if self._is_closed else self._next_remote()
                if task is None:
                    self._workers -= 1
                    return
                self._remote.pop()
                number = next(self._numbers)
                self._running[number] = task
            given = _Yield()
            ended = self._run_task(task, given.items.append)
            with self._changed:
                if self._is_closed:
                    return
                try:
                    for item in given.items:
                        self._accept(item)
                except Exception as error:  # out of memory: what was not taken over must not be missing in silence
                    ended = EndedTask(task, ended.context, error)
                del self._running[number]
                self._end(ended)
                self._enlist()
                self._changed.notify()
            if self._pool.has_waiting:
                self._pool.submit(self._run_tasks)
                return

    def _next_remote(self) -> SearchTask | None:
        """Returns the first task for the pool if it may be begun now; the lock is held."""
        task = self._remote.top()
        if task is None or not self._is_needed(task) or len(self._running) >= self._width():
            return None
        first, local = self._first(task), self._local.top()
        if local is not None and self._first(local) < first:
            return None
        if self._local_first is not None and self._local_first < first:
            return None
        return None if self._is_expected_to_be_certain_before(task) else task

    def _is_expected_to_be_certain_before(self, task: SearchTask) -> bool:
        """Whether tasks under way are about to give enough results that come before all of this one's."""
        first = self._first(task)
        expected = sum(other.expects for other in self._running.values() if other.expects and self._last(other) < first)
        if not expected:
            return False
        return expected + self._results.before(task.bounds[1] if self._newest else task.bounds[0]) >= self._wanted

    # both; the lock is held but in _run_task

    def _run_task(self, task: SearchTask, give: Callable[[Found | SearchTask], None]) -> EndedTask:
        """Does a task; what it yielded before a failure counts all the same."""
        context = SearchContext(RequestChain(self._bill, task.depth))
        try:
            for item in self._items(task, context):
                give(item)
        except Exception as error:  # raised again on the caller's thread, or reported as a failure
            return EndedTask(task, context, error)
        return EndedTask(task, context)

    def _items(self, task: SearchTask, context: SearchContext) -> Iterable[Found | SearchTask]:
        for item in task.run(context):
            if isinstance(item, SearchTask):
                yield replace(item, depth=context.chain.depth)
            else:
                yield item
            if task.is_local and self._is_late():
                raise AbandonedError("the time of the query is over")

    def _accept(self, item: Found | SearchTask) -> None:
        if isinstance(item, SearchTask):
            self.push(item)
        else:
            self._results.add(item)  # type: ignore[arg-type]  # rows come only where they are asked for

    def _first(self, task: SearchTask) -> int:
        """Returns the first time that a task may yield, on a scale that rises in the order of the results."""
        return -task.bounds[1] if self._newest else task.bounds[0]

    def _last(self, task: SearchTask) -> int:
        return -task.bounds[0] if self._newest else task.bounds[1]

    def _is_needed(self, task: SearchTask) -> bool:
        return not self._results.is_certain_before(task.bounds[1] if self._newest else task.bounds[0])

    def _outcome(self) -> ScheduleResult:
        self._raise_unforeseen()
        self._results.settle()
        ended = [each for each in self._ended if self._is_needed(each.task)]
        open_tasks = [*self._running.values(), *self._local.all(), *self._remote.all()]
        left = [task for task in open_tasks if self._is_needed(task)]
        left += [each.task for each in ended if isinstance(each.error, AbandonedError)]
        return ScheduleResult([each for each in ended if not isinstance(each.error, AbandonedError)], left)
