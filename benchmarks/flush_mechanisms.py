"""Models of what happens around a flush: what it writes, and who shares it. :mod:`benchmarks.mechanisms` measures them.

The log is tierlog's own (:class:`CommitLog`, on the real file system), and so are the records; a model is the least
change that makes the mechanism of them. Records are encoded before the clock runs, so a figure is write and flush.
Where flushes of one thread follow each other, their time is the median of one times their number: a flush that meets
those of other programs takes a hundred times as long, and says nothing about either side.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.harness import drained
from tierlog.service.engine.append_results import AppendedColumns
from tierlog.service.engine.producers import AsyncProducer
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.pending import PendingMessages

PAGE = 4096
#: As much as a log writes ahead at once, so all of it is written before.
_LOG_BYTES = 16 << 20
#: A log that is not written before: its blocks are only reserved.
_RESERVED_LOG_BYTES = 2 * _LOG_BYTES
_TOPIC, _KEY = "orders", "00f0c5a2b7d4e961"


class Written(NamedTuple):
    """What one run of a side did."""

    seconds: float
    messages: int
    message_bytes: int
    log_bytes: int
    #: Pages of 4 KiB that flushes wrote; one that two flushes wrote counts twice.
    pages: int
    flushes: int

    @property
    def rate(self) -> float:
        """Acknowledged messages a second."""
        return self.messages / self.seconds


def record_of(body_bytes: int) -> bytes:
    """A record as the store writes it, with a key and a tag."""
    pending = PendingMessages(1 << 20)
    pending.add(_TOPIC, os.urandom(body_bytes), keys=(_KEY,), tag="TagA")
    return pending.take_lone(now_ms=1).encode(physical=0, store_ms=1, store_host=bytes(8), queue_id=0, queue_offset=0)


class Laps:
    """Times of flushes one after the other."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._laps: list[float] = []

    def end(self) -> None:
        """Ends one and begins the next."""
        now = time.perf_counter()
        self._laps.append(now - self._last)
        self._last = now

    @property
    def seconds(self) -> float:
        """As long as all would take if each took as long as the median."""
        return statistics.median(self._laps) * len(self._laps)


class CountedLog:
    """A commit log in a folder of its own, which counts the pages that its flushes write."""

    def __init__(self, folder: Path, segment_bytes: int = _LOG_BYTES) -> None:
        paths = StorePaths(folder)
        for each in (paths.commitlog, paths.tmp):
            each.mkdir(parents=True)
        self.log = CommitLog(LocalFileSystem(), paths, segment_bytes)
        self.log.add_first_segment()
        self.path = paths.segment(0)
        self.pages = 0

    def write(self, data: bytes) -> None:
        """Appends; the log never rolls here."""
        assert len(data) <= self.log.room(), "a run is too long for its log"
        self.log.write(data)

    def flush(self) -> None:
        """Flushes what is written since the last flush."""
        if self.log.end > self.log.flushed:
            self.pages += (self.log.end - 1) // PAGE - self.log.flushed // PAGE + 1
            self.log.flush()

    def report(self, seconds: float, messages: int, message_bytes: int) -> Written:
        return Written(seconds, messages, message_bytes, self.log.end, self.pages, self.log.flushes)


@contextmanager
def counted_log(folder: Path, segment_bytes: int = _LOG_BYTES) -> Iterator[CountedLog]:
    """A new log, with all that was written before on the disk."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        counted = CountedLog(Path(inside), segment_bytes)
        drained()
        try:
            yield counted
        finally:
            counted.log.close()


def flushes_for(bytes_of_one: int, most: int) -> int:
    """How many flushes of so many bytes a log has room for."""
    return min(most, (_LOG_BYTES - PAGE) // bytes_of_one)


# tail padding


def each_flushed(folder: Path, record: bytes, together: int, flushes: int, *, padded: bool) -> Written:
    """As many flushes of some records; ``padded``: up to the end of the page, so that the next begins a page."""
    piece = record * together
    data = piece + bytes(-len(piece) % PAGE) if padded else piece
    with counted_log(folder) as counted:
        laps = Laps()
        for _ in range(flushes):
            counted.write(data)
            counted.flush()
            laps.end()
        return counted.report(laps.seconds, flushes * together, flushes * len(piece))


def each_flushed_directly(folder: Path, record: bytes, together: int, flushes: int) -> float:
    """Acknowledged messages a second, padded and beside the page cache, for which writes have to be whole pages."""
    size = -(-len(record) * together // PAGE) * PAGE
    with counted_log(folder) as counted, mmap.mmap(-1, size) as page:
        page[: len(record) * together] = record * together
        file = os.open(counted.path, os.O_WRONLY | os.O_DIRECT)
        laps = Laps()
        for number in range(flushes):
            os.pwrite(file, page, number * size)
            os.fdatasync(file)
            laps.end()
        os.close(file)
    return flushes * together / laps.seconds


# tail cutting and largest first


def closed_loop(
    folder: Path, records: Sequence[bytes], producers: int, messages: int, *, cut: bool, largest_first: bool = False
) -> Written:
    """Producers that each send when their last message is acknowledged, all on one thread.

    ``cut``: a flush writes whole pages only, and what is in the rest of a page waits in memory for the next one,
    unless no page is full and so nobody else can come. Producer ``i`` sends ``records[i % len(records)]``.
    """
    of = list(itertools.islice(itertools.cycle(records), producers))
    idle, waiting = list(range(producers)), list[tuple[int, int]]()
    tail = bytearray()
    done = done_bytes = 0
    with counted_log(folder) as counted:
        log = counted.log
        laps = Laps()
        while done < messages:
            if largest_first:
                idle.sort(key=lambda number: -len(of[number]))
            for number in idle:
                tail += of[number]
                waiting.append((log.end + len(tail), number))
            whole = (log.end + len(tail)) // PAGE * PAGE - log.end
            taken = whole if cut and waiting[0][0] <= log.end + whole else len(tail)
            counted.write(bytes(tail[:taken]))
            del tail[:taken]
            counted.flush()
            count = sum(end <= log.flushed for end, _ in waiting)
            idle, waiting = [number for _, number in waiting[:count]], waiting[count:]
            done += count
            done_bytes += sum(len(of[number]) for number in idle)
            laps.end()
        return counted.report(laps.seconds, done, done_bytes)


# several flush threads


def side_by_side(folder: Path, record: bytes, producers: int, rounds: int, *, logs: int) -> float:
    """Acknowledged messages a second of so many logs, each with its thread and its share of the producers."""
    share = record * (producers // logs)

    def run(counted: CountedLog) -> None:
        for _ in range(rounds):
            counted.write(share)
            counted.flush()

    with tempfile.TemporaryDirectory(dir=folder) as inside:
        all_logs = [CountedLog(Path(inside) / str(number)) for number in range(logs)]
        drained()
        seconds = _run_threads([threading.Thread(target=run, args=(counted,)) for counted in all_logs])
        for counted in all_logs:
            counted.log.close()
    return rounds * (producers // logs) * logs / seconds


def overlapping(folder: Path, record: bytes, producers: int, rounds: int, *, threads: int) -> float:
    """The same of one log, whose threads write and flush side by side, each where its turn has put it.

    A thread's messages are acknowledged once what lies before them is flushed as well.
    """
    share = record * (producers // threads)
    lock, changed = threading.Lock(), threading.Condition()
    ends, done = itertools.count(), set[int]()
    flushed = 0

    def run(file: int) -> None:
        nonlocal flushed
        for _ in range(rounds):
            with lock:
                turn = next(ends)
            os.pwrite(file, share, turn * len(share))
            os.fdatasync(file)
            with changed:
                done.add(turn)
                while flushed in done:
                    done.remove(flushed)
                    flushed += 1
                changed.notify_all()
                while flushed <= turn:
                    changed.wait()

    with counted_log(folder) as counted:
        file = os.open(counted.path, os.O_WRONLY)
        seconds = _run_threads([threading.Thread(target=run, args=(file,)) for _ in range(threads)])
        os.close(file)
    return rounds * (producers // threads) * threads / seconds


def _run_threads(threads: Sequence[threading.Thread]) -> float:
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


# pre-writing


def into_blocks(folder: Path, record: bytes, together: int, flushes: int, blocks: str) -> float:
    """Acknowledged messages a second into blocks that are ``written``, ``reserved`` or a ``hole``."""
    piece = record * together
    with counted_log(folder, _LOG_BYTES if blocks == "written" else _RESERVED_LOG_BYTES) as counted:
        if blocks == "hole":
            counted.log._file.zero(0, _RESERVED_LOG_BYTES)
            counted.log._flush_file()
        laps = Laps()
        for _ in range(flushes):
            counted.write(piece)
            counted.flush()
            laps.end()
        return flushes * together / laps.seconds


# adaptive aggregation, and who sets how many are waited for


class ClimbingProducer(AsyncProducer):
    """Waits for as many senders as were best so far: after every few batches it tries one way or the other."""

    _TRIED_BATCHES, _STEP = 32, 4
    _wanted, _way, _batches, _messages, _since_s, _last_rate = 16, 1, 0, 0, 0.0, 0.0

    def _end(self, batch, found):  # type: ignore[no-untyped-def]  # its parts are the producer's own
        self._batches += 1
        self._messages += len(batch.senders)
        if self._batches == self._TRIED_BATCHES:
            now_s = time.perf_counter()
            rate = self._messages / (now_s - self._since_s)
            if rate < self._last_rate:
                self._way = -self._way
            self._wanted = max(1, self._wanted + self._way * self._STEP)
            self._last_rate, self._since_s = rate, now_s
            self._batches = self._messages = 0
        self._company = self._wanted
        super()._end(batch, found)


def tasks(engine: Store, body: bytes, count: int, messages: int, kind: type[AsyncProducer] = AsyncProducer) -> Written:
    """Tasks that each await their last message."""
    share = messages // count

    async def send(producer: AsyncProducer) -> None:
        for _ in range(share):
            await producer.send(_TOPIC, body, keys=(_KEY,), tag="TagA")

    async def run() -> float:
        async with kind(engine) as producer:
            begun = time.perf_counter()
            await asyncio.gather(*(send(producer) for _ in range(count)))
            return time.perf_counter() - begun

    drained()
    log = engine._hot.log
    end, flushes = log.end, log.flushes
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seconds = runner.run(run())
    return Written(seconds, share * count, share * count * len(body), log.end - end, 0, log.flushes - flushes)


# strict mode


@dataclass(slots=True, eq=False)
class _StrictBatch:
    pending: PendingMessages
    found: AppendedColumns | None = None
    is_taken: bool = False


class StrictAppends:
    """A batch is appended once exactly so many threads have joined, or the first of them has waited for too long."""

    def __init__(self, engine: Store, threads: int, wait_s: float) -> None:
        self._engine, self._threads, self._wait_s = engine, threads, wait_s
        self._changed = threading.Condition()
        self._next = _StrictBatch(engine.pending_messages())

    def append(self, message: Message) -> None:
        """Returns when the message is flushed."""
        with self._changed:
            batch = self._next
            count = batch.pending.add_message(message)
            if count < self._threads:
                if self._changed.wait_for(lambda: batch.found is not None, self._wait_s):
                    return
                if batch.is_taken:
                    self._changed.wait_for(lambda: batch.found is not None)
                    return
            batch.is_taken = True
            if self._next is batch:
                self._next = _StrictBatch(self._engine.pending_messages())
        found = self._engine.append(batch.pending)
        with self._changed:
            batch.found = found
            self._changed.notify_all()


class LearntAppends:
    """A batch is appended once as many threads have joined as were in the one before, or after a short wait."""

    def __init__(self, engine: Store, wait_s: float) -> None:
        self._engine, self._wait_s = engine, wait_s
        self._lock = threading.Lock()
        self._next, self._waiting = _StrictBatch(engine.pending_messages()), list[threading.Lock]()
        self._company, self._is_busy = 1, False

    def append(self, message: Message) -> None:
        """Returns when the message is flushed."""
        with self._lock:
            batch, waiting = self._next, self._waiting
            count = batch.pending.add_message(message)
            leads = not self._is_busy and count >= self._company
            if leads:
                self._take()
            else:
                mine = threading.Lock()
                mine.acquire()
                waiting.append(mine)
        if not leads:
            while not mine.acquire(timeout=self._wait_s if waiting[0] is mine else -1):
                with self._lock:
                    if not batch.is_taken and not self._is_busy:
                        self._take()
                        break
            else:
                if batch.found is not None:
                    return
        batch.found = self._engine.append(batch.pending)
        for one in waiting:
            if one.locked():
                one.release()
        with self._lock:
            self._is_busy = False
            self._company = len(batch.found)
            if len(self._waiting) >= self._company:
                first = self._waiting[0]
                self._take()
                first.release()

    def _take(self) -> None:
        self._next.is_taken = self._is_busy = True
        self._next, self._waiting = _StrictBatch(self._engine.pending_messages()), []


@dataclass(slots=True)
class Senders:
    """Threads that send, some of which pause before each message."""

    threads: int
    pausing: int = 0
    pause_s: float = 0.0
    each: int = 40
    body: bytes = field(default_factory=lambda: os.urandom(385))

    def run(self, append) -> float:  # type: ignore[no-untyped-def]  # of a store, or of StrictAppends
        """Acknowledged messages a second of the threads that do not pause, until they are through."""
        fast = self.threads - self.pausing
        is_over = threading.Event()

        def send() -> None:
            for _ in range(self.each):
                append(Message(_TOPIC, self.body, (_KEY,), "TagA"))

        def pause_and_send() -> None:
            while not is_over.wait(self.pause_s):
                append(Message(_TOPIC, self.body, (_KEY,), "TagA"))

        drained()
        slow = [threading.Thread(target=pause_and_send) for _ in range(self.pausing)]
        for thread in slow:
            thread.start()
        seconds = _run_threads([threading.Thread(target=send) for _ in range(fast)])
        is_over.set()
        for thread in slow:
            thread.join()
        if seconds <= 0:
            raise StoreError("nothing was sent")
        return fast * self.each / seconds
