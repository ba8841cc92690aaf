"""What do this machine's disk and memory do without any log?

Rows with one side: what the figures of the other benchmarks can be held against. A piece is 1 MiB of random bytes and
a record 436 bytes, as a message with a body of 256 bytes takes; files are written before, so that blocks are allocated,
unless the row says that they grow.

``python benchmarks/limits.py [--mib 512] [--syncs 2000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from benchmarks.harness import Report, Row, drained, in_turns

#: Topic, body, key and tag.
LeastMessage = tuple[str, bytes, str, str]
#: Message id, queue, offset in it, and store time.
Place = tuple[str, int, int, int]
_PIECE = 1 << 20
_RECORD = 436


class Disk:
    """One file, and a piece of random bytes that is aligned as O_DIRECT wants it."""

    def __init__(self, path: Path, pieces: int) -> None:
        self._path = path
        self._pieces = pieces
        self._piece = mmap.mmap(-1, _PIECE)
        self._piece[:] = os.urandom(_PIECE)
        self.grow()

    def grow(self) -> float:
        """MB a second of a file that comes to be, until it is on the disk."""
        self._path.unlink(missing_ok=True)
        return self._written(os.O_CREAT, lambda file: os.fdatasync(file))

    def overwrite(self) -> float:
        """MB a second through the page cache, until they are on the disk."""
        return self._written(0, lambda file: os.fdatasync(file))

    def overwrite_directly(self) -> float:
        """MB a second beside the page cache."""
        return self._written(os.O_DIRECT, lambda file: os.fdatasync(file))

    def overwrite_cached(self) -> float:
        """MB a second into the page cache alone."""
        return self._written(0, lambda _: None)

    def read_cached(self) -> float:
        """MB a second out of the page cache."""
        with self._opened(0) as file:
            begun = time.perf_counter()
            for number in range(self._pieces):
                os.preadv(file, [self._piece], number * _PIECE)
            return self._rate(begun)

    def synced(self, times: int) -> float:
        """Records a second, each of them on the disk before the next."""
        record = bytes(self._piece[:_RECORD])
        with self._opened(0) as file:
            begun = time.perf_counter()
            for number in range(times):
                os.pwrite(file, record, number * _RECORD)
                os.fdatasync(file)
            return times / (time.perf_counter() - begun)

    def _written(self, flags: int, finish: Callable[[int], None]) -> float:
        with self._opened(flags) as file:
            begun = time.perf_counter()
            for number in range(self._pieces):
                os.pwrite(file, self._piece, number * _PIECE)
            finish(file)
            return self._rate(begun)

    def _rate(self, begun: float) -> float:
        return self._pieces * _PIECE / 1e6 / (time.perf_counter() - begun)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        drained()
        file = os.open(self._path, os.O_RDWR | flags)
        try:
            yield file
        finally:
            os.close(file)


class LeastLog:
    """What a log in Python cannot leave out before it acknowledges a message as flushed, and nothing else.

    The message is checked as far as bytes of a key could break a record, its record is made, numbered and written
    behind the last one into a pre-written file, the file is flushed, and whoever waits gets the place. There are no
    queues, no index, no topics, no locks but those that make a thread or a task wait, and no failure is handled.
    """

    #: Of the record: the fixed fields before the body.
    _HEAD = Struct(">IIIiIqqIq8sq8sIqI")
    _FILE_BYTES = 64 << 20

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        for position in range(0, self._FILE_BYTES, _PIECE):
            os.pwrite(self._file, bytes(_PIECE), position)
        os.fsync(self._file)
        self._end = self._offset = 0
        # of threads: those who wait for the flush under way, the first of them appends for all
        self._lock = threading.Lock()
        self._is_busy = False
        self._next: tuple[list[LeastMessage], list[threading.Lock], list[Place]] = ([], [], [])
        # of tasks
        self._waiting: list[tuple[LeastMessage, asyncio.Future[Place]]] = []
        self._taken = 0

    def append(self, messages: list[LeastMessage]) -> list[Place]:
        """Appends and flushes; the place of each message."""
        records, places = [], []
        size = 0
        now_ms = time.time_ns() // 1_000_000
        for topic, body, key, tag in messages:
            if not body or not key.isprintable() or " " in key or not tag.isprintable():
                raise ValueError(key)
            text = f"KEYS\x01{key}\x02TAGS\x01{tag}\x02".encode()
            physical, self._offset = self._end + size, self._offset + 1
            head = self._HEAD.pack(
                91 + len(body) + len(topic) + len(text), 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, self._offset,
                physical, 0, now_ms, bytes(8), now_ms, bytes(8), 0, 0, len(body),
            )  # fmt: skip
            record = b"%b%b%c%b%b%b" % (head, body, len(topic), topic.encode(), len(text).to_bytes(2), text)
            records.append(record)
            places.append((f"{physical:032X}", 0, self._offset, now_ms))
            size += len(record)
        os.pwrite(self._file, b"".join(records), self._end % (self._FILE_BYTES - _PIECE))
        self._end += size
        os.fdatasync(self._file)
        return places

    def append_shared(self, message: LeastMessage) -> Place:
        """Appends one message, with those of other threads that wait; each wakes the next, which is the fastest."""
        with self._lock:
            is_first = not self._is_busy
            if is_first:
                self._is_busy = True
            else:
                batch = messages, callers, places = self._next
                turn, place = threading.Lock(), len(callers)
                turn.acquire()
                messages.append(message)
                callers.append(turn)
        if is_first:
            (found,) = self.append([message])
            self._pass_on()
            return found
        turn.acquire()
        if place == 0:
            with self._lock:
                if self._next is batch:
                    self._next = ([], [], [])
            places += self.append(messages)
            self._pass_on()
        if place + 1 < len(callers):
            callers[place + 1].release()
        return places[place]

    def _pass_on(self) -> None:
        with self._lock:
            callers = self._next[1]
            self._is_busy = bool(callers)
            if callers:
                callers[0].release()

    async def send(self, message: LeastMessage) -> Place:
        """Appends one message on the event loop, with those of other tasks that send in the same turns of it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Place] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush, loop, 0)
        self._waiting.append((message, answer))
        return await answer

    def _flush(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        """Waits for another turn, three times at most, while there are fewer than the last time."""
        if len(self._waiting) < self._taken and turns < 3:
            loop.call_soon(self._flush, loop, turns + 1)
            return
        mine, self._waiting = self._waiting, []
        self._taken = len(mine)
        for (_, answer), place in zip(mine, self.append([message for message, _ in mine]), strict=True):
            answer.set_result(place)


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--syncs", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        disk = Disk(Path(folder) / "file", given.mib)
        rows = {
            "sequential write of a file that grows, then fdatasync": ("MB/s", disk.grow),
            "sequential overwrite, then fdatasync": ("MB/s", disk.overwrite),
            "sequential overwrite with O_DIRECT, then fdatasync": ("MB/s", disk.overwrite_directly),
            "overwrite in the page cache": ("MB/s", disk.overwrite_cached),
            "read from the page cache": ("MB/s", disk.read_cached),
            f"pwrite of {_RECORD} bytes and fdatasync in turn": ("records/s", lambda: disk.synced(given.syncs)),
        }
        figures = in_turns({what: side for what, (_, side) in rows.items()}, given.runs)
    for what, (unit, _) in rows.items():
        report.add(Row(what, unit, {"this machine": figures[what]}))
    print(report.save())


if __name__ == "__main__":
    main()
