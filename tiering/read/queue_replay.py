"""Reads one archived queue in order, fetching ahead of whoever replays it.

A queue's frames lie side by side in each object, so a stretch of them is one ranged GET, a *window*. The first
window is one frame, through the caches, as a point read is. Whoever asks for more is taken to go on: windows double
up to 8 MiB, and further ones are on their way while one is read, with the directories of the segments that
follow. What is on its way or waits stays below twice the next window, 16 MiB and the budget that all replays
share; so a reader that stops early has cost about twice what was read. Frames are decompressed a megabyte at a time,
in memory of the same budget, or one by one where nothing is left of it.

Nothing is fetched ahead where the budget is 0: each frame is asked for when it is wanted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from tierlog.tiering.base.worker_pool import WorkerPool, done_here
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.cold.segment.queue_frames import QueueFrames, QueuePiece
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import LogEntry
from tierlog.tiering.format.sorted_segment import FramePlace

_FIRST_WINDOW_BYTES = 64 << 10
_MAX_WINDOW_BYTES = 8 << 20
_MAX_AHEAD_BYTES = 2 * _MAX_WINDOW_BYTES
_MAX_WINDOWS = 8
_LAYOUTS_AHEAD = 3
_MAX_TOGETHER_BYTES = 1 << 20
_MAX_IDLE = 64
_THREADS = 8
_LINGER_S = 0.1
"""About what a window takes to be read: the next finds a thread that need not be started."""
#: Topic id, queue id and the offset to go on at.
ReplayKey = tuple[int, int, int]


class ReadAheadBudget:
    """Bytes that all replays of one reader of archives may hold. Thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes that are held or on their way."""
        return self._used

    def take(self, size_bytes: int) -> bool:
        """Takes bytes if they are left."""
        with self._lock:
            if self._used + size_bytes > self.limit_bytes:
                return False
            self._used += size_bytes
            return True

    def give(self, size_bytes: int) -> None:
        """Gives bytes back."""
        with self._lock:
            self._used -= size_bytes


@dataclass(slots=True)
class _Layout:
    """The places of the queue's records in one segment; ``next_frame`` is the first that no window has."""

    segment: SegmentReader
    key: str
    frames: QueueFrames
    next_frame: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.next_frame == len(self.frames)

    @property
    def bytes_left(self) -> int:
        """Bytes of frames that no window has."""
        if self.is_used_up:
            return 0
        start, end = self.frames.bytes_between(self.next_frame, len(self.frames))
        return end - start


@dataclass(frozen=True, slots=True)
class _Window:
    """Frames ``[first, end)`` of a layout, which are neighbours, on their way."""

    layout: _Layout
    first: int
    end: int
    start_byte: int
    end_byte: int
    data: Future[bytes]

    @property
    def size_bytes(self) -> int:
        return self.end_byte - self.start_byte


class QueueReplay:
    """The records and fillers of one queue from an offset on, in order. For one thread at a time.

    The first piece may begin below that offset.

    ``segments`` gives the entries of the segments that hold the queue, ascending; it may raise, and what it raises
    comes up where its segment would have come. Once anything was raised, the replay is of no more use.
    """

    def __init__(
        self,
        reader: Callable[[bool], ArchiveReader],
        segments: Iterator[LogEntry],
        *,
        topic: str,
        queue_id: int,
        offset: int,
        budget: ReadAheadBudget,
        pool: WorkerPool,
    ) -> None:
        """``reader`` makes a reader, for a scan if its argument says so."""
        self._reader, self._scanner = reader(False), reader(True)
        self._topic, self._queue_id, self._offset = topic, queue_id, offset
        self._segments, self._planning = segments, threading.Lock()
        self._planned: dict[int, LogEntry] = {}
        self._plan_length = 0
        self._budget, self._pool = budget, pool
        self._layouts: deque[Future[_Layout | None]] = deque()
        self._tickets = 0
        self._windows: deque[_Window] = deque()
        self._ahead_bytes = 0
        self._window_bytes = 0
        self._is_ahead = False
        self._piece: QueuePiece | None = None
        self._pieces = self._in_order()

    def pieces(self) -> Iterator[QueuePiece]:
        """Yields pieces from where it was left: one that was not read to its end comes again."""
        self._fill()
        while True:
            if self._piece is None or self._piece.is_read:
                self._piece = next(self._pieces, None)
            if self._piece is None:
                return
            yield self._piece

    def expect_more(self) -> None:
        """Fetches ahead from now on, as whoever reads goes on."""
        self._is_ahead = self._budget.limit_bytes > 0

    def drop(self) -> None:
        """Gives back what was fetched ahead and is not wanted any more."""
        for layout in self._layouts:
            layout.cancel()
        for window in self._windows:
            window.data.cancel()
            window.data.add_done_callback(lambda _, size=window.size_bytes: self._budget.give(size))  # type: ignore[misc]
        self._layouts.clear()
        self._windows.clear()
        self._pieces.close()

    def _in_order(self) -> Generator[QueuePiece]:
        room = np.empty(0, np.uint8)
        try:
            while (window := self._next_window()) is not None:
                try:
                    data, frames = window.data.result(), window.layout.frames
                    wanted = frames.room_for(window.first, window.end)
                    if wanted > len(room) and self._budget.take(wanted - len(room)):
                        room = np.empty(wanted, np.uint8)
                    for piece in frames.pieces(window.first, window.end, data, room):
                        yield piece
                        self._fill()
                finally:
                    self._budget.give(window.size_bytes)
        finally:
            self._budget.give(len(room))

    # windows

    def _next_window(self) -> _Window | None:
        if self._window_bytes:
            self.expect_more()
        self._fill()
        if not self._windows and not self._cut(is_wanted_now=True):
            return None
        window = self._windows.popleft()
        self._ahead_bytes -= window.size_bytes
        self._window_bytes = min(2 * self._window_bytes or _FIRST_WINDOW_BYTES, _MAX_WINDOW_BYTES)
        return window

    def _fill(self) -> None:
        """Keeps as much on its way as may be, without waiting."""
        while self._is_ahead and len(self._windows) < _MAX_WINDOWS:
            if self._ahead_bytes >= min(2 * self._window_bytes, _MAX_AHEAD_BYTES) or not self._cut(is_wanted_now=False):
                return

    def _cut(self, *, is_wanted_now: bool) -> bool:
        """Asks for the next window; False if there is none, or if that cannot be known yet, or without room for it."""
        layout = self._layout(may_wait=is_wanted_now)
        if layout is None:
            return False
        first, frames = layout.next_frame, layout.frames
        end = frames.neighbours(first, self._window_bytes if self._is_ahead else 0)
        start_byte, end_byte = frames.bytes_between(first, end)
        if not self._budget.take(end_byte - start_byte):
            if not is_wanted_now:
                return False
            end = first + 1
            start_byte, end_byte = frames.bytes_between(first, end)
            self._budget.give(start_byte - end_byte)  # one frame that is wanted now is fetched whatever others hold
        layout.next_frame = end
        data = self._fetch(layout, frames.place(first), start_byte, end_byte, is_wanted_now=is_wanted_now)
        self._windows.append(
            _Window(layout=layout, first=first, end=end, start_byte=start_byte, end_byte=end_byte, data=data)
        )
        self._ahead_bytes += end_byte - start_byte
        return True

    def _fetch(self, layout: _Layout, first: FramePlace, start: int, end: int, *, is_wanted_now: bool) -> Future[bytes]:
        def fetch() -> bytes:
            if end > first.position + first.length:
                return self._scanner.fetch_once(layout.key, start, end, "frames")[0]
            return reader.data(layout.key, start, end, "frame", checked)

        def checked(data: bytes) -> bytes:
            layout.segment.decode_frame(first, data)
            return data

        reader = self._scanner if self._window_bytes else self._reader
        return done_here(fetch) if is_wanted_now else self._pool.submit(fetch)

    # segments

    def _layout(self, *, may_wait: bool) -> _Layout | None:
        """The layout that the next window is cut from; None at the end, or if it is not there and must not wait."""
        while True:
            if not self._layouts:
                self._layouts.append(self._ask_for_layout())
            if not may_wait and not self._layouts[0].done():
                return None
            if not may_wait and self._layouts[0].exception() is not None:
                return None  # it comes up when somebody wants what follows
            layout = self._layouts[0].result()
            if self._is_ahead and (layout is None or layout.bytes_left > _MAX_WINDOWS * self._window_bytes):
                return layout
            while self._is_ahead and len(self._layouts) < 1 + _LAYOUTS_AHEAD:
                self._layouts.append(self._ask_for_layout())
            if layout is None or not layout.is_used_up:
                return layout
            self._layouts.popleft()

    def _ask_for_layout(self) -> Future[_Layout | None]:
        ticket = self._tickets
        self._tickets += 1
        if self._is_ahead:
            return self._pool.submit(lambda: self._make_layout(ticket))
        return done_here(lambda: self._make_layout(ticket))

    def _make_layout(self, ticket: int) -> _Layout | None:
        """Returns what the segment with this number of the queue's holds of it; None behind the last."""
        with self._planning:
            while self._plan_length <= ticket:
                entry = next(self._segments, None)
                if entry is None:
                    return None
                self._planned[self._plan_length] = entry
                self._plan_length += 1
            entry = self._planned.pop(ticket)
        directory = entry.sections["directory"]
        reader = self._scanner if ticket else self._reader
        if directory.length <= _MAX_TOGETHER_BYTES:
            reader = reader.together(entry.key, directory.position, directory.position + directory.length)
        segment = SegmentReader(reader, entry)
        runs = segment.queue_runs(self._topic, self._queue_id)
        runs = runs[runs["first_queue_offset"] + runs["records"] > self._offset]
        return _Layout(segment, entry.key, QueueFrames(segment, runs))


class OpenReplays:
    """Keeps replays between two pulls: each pull is a call of its own, and the next goes on where the last stopped.

    At most 64 that nobody is reading are kept, the least recently left goes first. Thread safe.

    All of them are of one version of the manifest: a newer one may have other objects in the place of theirs.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.budget = ReadAheadBudget(limit_bytes)
        self.pool = WorkerPool(_THREADS, linger_s=_LINGER_S)
        self._lock = threading.Lock()
        self._version = 0
        self._idle: OrderedDict[ReplayKey, QueueReplay] = OrderedDict()

    def take(self, version: int, key: ReplayKey, make: Callable[[], QueueReplay]) -> tuple[QueueReplay, bool]:
        """The replay that was left there, or a new one, and whether it was left; nobody else gets it meanwhile."""
        with self._lock:
            outdated = self._of_version(version)
            found = self._idle.pop(key, None)
        _drop(outdated)
        if found is None:
            return make(), False
        self._make_room()
        found.expect_more()
        return found, True

    def has(self, version: int, key: ReplayKey) -> bool:
        """Whether a replay of this version was left there."""
        with self._lock:
            return version == self._version and key in self._idle

    def leave(self, version: int, key: ReplayKey, replay: QueueReplay) -> None:
        """Keeps a replay for the next pull. Of two that stopped at one place the later is kept."""
        with self._lock:
            dropped = self._of_version(version)
            if key in self._idle:
                dropped.append(self._idle.pop(key))
            self._idle[key] = replay
            if self.budget.limit_bytes == 0 or len(self._idle) > _MAX_IDLE:
                dropped.append(self._idle.popitem(last=False)[1])
        _drop(dropped)

    def _of_version(self, version: int) -> list[QueueReplay]:
        """Goes over to another version; the replays that end with the one before."""
        if version == self._version:
            return []
        outdated, self._idle = list(self._idle.values()), OrderedDict()
        self._version = version
        return outdated

    def _make_room(self) -> None:
        """Drops what was left longest ago, as long as less than a quarter of the budget is free."""
        while self.budget.used_bytes > self.budget.limit_bytes * 3 // 4:
            with self._lock:
                if not self._idle:
                    return
                _, oldest = self._idle.popitem(last=False)
            oldest.drop()


def _drop(replays: list[QueueReplay]) -> None:
    for each in replays:
        each.drop()
