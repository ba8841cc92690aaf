"""The messages of one queue that a consumer has read and not committed, and the offset that it may commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    offset: int
    size: int
    is_finished: bool = False


class Window:
    """Offsets between the committed one and the next one to read. For one thread.

    What may be committed is the lowest offset whose message is not finished: whoever goes on there after a kill gets
    every message that was not finished, and again those behind it that were. These are at most as many as the window
    holds, which is therefore what is bounded, and not only what waits for a handler.
    """

    def __init__(self, start: int) -> None:
        """Begins empty, at the offset of the next message to read."""
        self.committed = start
        #: Offset of the next message to read.
        self.read_to = start
        #: Bytes of messages that are not finished.
        self.open_bytes = 0
        self._open: deque[_Entry] = deque()
        self._by_offset: dict[int, _Entry] = {}
        self._finished: deque[int] = deque()

    def __len__(self) -> int:
        """Returns the number of messages that were read and are not committed."""
        return len(self._open) + len(self._finished)

    @property
    def lowest_unfinished(self) -> int:
        """The offset to commit: every message below it is finished."""
        return self._open[0].offset if self._open else self.read_to

    @property
    def finished_count(self) -> int:
        """The number of messages that a commit would take out of the window."""
        return len(self._finished)

    @property
    def is_due(self) -> bool:
        """Whether there is something to commit."""
        return self.lowest_unfinished > self.committed

    @property
    def is_beyond_end(self) -> bool:
        """Whether the queue ends below what was committed, and is read on from its end."""
        return not len(self) and self.read_to < self.committed

    def took(self, messages: Iterable[tuple[int, int]], next_offset: int) -> None:
        """Adds what was read: offset and size of each message, in order, and where reading goes on."""
        for offset, size in messages:
            if offset < self.read_to:
                raise ValueError(f"offset {offset} was read before {self.read_to}")
            entry = _Entry(offset, size)
            self._open.append(entry)
            self._by_offset[offset] = entry
            self.open_bytes += size
            self.read_to = offset + 1
        # the end of a queue may lie below what was committed, where a disk lost what was not flushed
        self.read_to = max(self.read_to, next_offset) if len(self) else next_offset

    def finish(self, offset: int) -> None:
        """Marks a message as done; KeyError for one that is not open."""
        entry = self._by_offset.pop(offset)
        entry.is_finished = True
        self.open_bytes -= entry.size
        while self._open and self._open[0].is_finished:
            self._finished.append(self._open.popleft().offset)

    def committed_to(self, offset: int) -> None:
        """Notes that the group begins at ``offset`` from now on, which is not beyond :attr:`lowest_unfinished`."""
        self.committed = offset
        while self._finished and self._finished[0] < offset:
            self._finished.popleft()

    def goes_on_at(self, committed: int) -> bool:
        """Returns whether a consumer that finds this offset committed may go on with what it has, and miss nothing.

        Otherwise another member was further in the meantime, or somebody set the group back.
        """
        if self.is_beyond_end:
            return committed == self.committed
        return self.committed <= committed <= self.lowest_unfinished
