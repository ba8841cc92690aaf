"""What is known of delayed messages: those that are pending, in memory, and those that are done, as notes say it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Behind every offset and every time.
FAR = (1 << 63) - 1
_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimerRun:
    """Messages in the order in which they are due: time, offset and bytes of each."""

    due_ms: _Column = field(default_factory=lambda: np.empty(0, np.int64))
    offset: _Column = field(default_factory=lambda: np.empty(0, np.int64))
    size: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.due_ms)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yields (due_ms, offset, size) of each."""
        return zip(self.due_ms.tolist(), self.offset.tolist(), self.size.tolist(), strict=True)

    @classmethod
    def of(cls, timers: Iterable[tuple[int, int, int]]) -> TimerRun:
        """Makes columns of (due_ms, offset, size)."""
        rows = np.array(list(timers), np.int64).reshape(-1, 3)
        return cls(rows[:, 0], rows[:, 1], rows[:, 2].astype(np.int32))

    def joined(self, other: TimerRun) -> TimerRun:
        due_ms = np.concatenate((self.due_ms, other.due_ms))
        offset = np.concatenate((self.offset, other.offset))
        order = np.lexsort((offset, due_ms))
        return TimerRun(due_ms[order], offset[order], np.concatenate((self.size, other.size))[order])

    def part(self, places: slice | NDArray[np.bool_]) -> TimerRun:
        return TimerRun(self.due_ms[places], self.offset[places], self.size[places])


class PendingTimers:
    """Messages that have not fired, 20 bytes each: a long sorted run, and a short one of what came last."""

    _SHORT = 1 << 14

    def __init__(self) -> None:
        self._long, self._short = TimerRun(), TimerRun()

    def __len__(self) -> int:
        return len(self._long) + len(self._short)

    def copy(self) -> PendingTimers:
        """Returns the same, apart from these; runs are never changed."""
        copied = PendingTimers()
        copied._long, copied._short = self._long, self._short
        return copied

    def add(self, timers: Iterable[tuple[int, int, int]]) -> None:
        """Adds (due_ms, offset, size) of messages."""
        self._short = self._short.joined(TimerRun.of(timers))
        if len(self._short) > self._SHORT:
            self._long, self._short = self._long.joined(self._short), TimerRun()

    def held_bytes(self) -> int:
        """Returns the memory that they take."""
        return sum(column.nbytes for run in (self._long, self._short) for column in (run.due_ms, run.offset, run.size))

    def first(self) -> tuple[int, int] | None:
        """(due_ms, offset) of the one that is due first."""
        heads = [(int(run.due_ms[0]), int(run.offset[0])) for run in (self._long, self._short) if len(run)]
        return min(heads, default=None)

    def least_offset(self) -> int:
        """The least offset of all, or one that no message has."""
        return min((int(run.offset.min()) for run in (self._long, self._short) if len(run)), default=FAR)

    def due(self, now_ms: int, *, most: int, most_bytes: int) -> TimerRun:
        """Returns those that are due, in their order, as many as one append takes; they stay."""
        found = TimerRun()
        for run in (self._long, self._short):
            end = min(int(run.due_ms.searchsorted(now_ms, side="right")), most)
            found = found.joined(run.part(slice(0, end)))
        end = max(1, int(found.size.cumsum(dtype=np.int64).searchsorted(most_bytes, side="right")))
        return found.part(slice(0, min(most, end)))

    def below(self, offset: int, *, most: int, most_bytes: int) -> TimerRun:
        """Returns those with the least offsets, all below ``offset``, in the order of the offsets; they stay."""
        found = TimerRun()
        for run in (self._long, self._short):
            found = found.joined(run.part(run.offset < offset))
        order = np.argsort(found.offset)[:most]
        found = TimerRun(found.due_ms[order], found.offset[order], found.size[order])
        end = max(1, int(found.size.cumsum(dtype=np.int64).searchsorted(most_bytes, side="right")))
        return found.part(slice(0, end))

    def remove(self, offsets: Sequence[int]) -> None:
        """Removes messages; those of :meth:`due` are the first of each run, which costs nothing."""
        gone = np.array(offsets, np.int64)
        heads = [int(np.isin(run.offset[: len(gone)], gone).sum()) for run in (self._long, self._short)]
        if sum(heads) == len(gone) and all(
            np.isin(run.offset[:count], gone).all() for run, count in zip((self._long, self._short), heads, strict=True)
        ):
            self._long, self._short = self._long.part(slice(heads[0], None)), self._short.part(slice(heads[1], None))
            return
        self._long, self._short = (run.part(~np.isin(run.offset, gone)) for run in (self._long, self._short))


class DoneStep(NamedTuple):
    """Of the messages below ``end``, those due before ``due_ms``, and those due then up to ``offset``, are done."""

    end: int
    due_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class DoneTimers:
    """What has fired, was called back, or can never fire."""

    below: int = 0
    """All messages below are done."""
    steps: tuple[DoneStep, ...] = ()
    """Those that end further on come later."""
    excepted: frozenset[int] = frozenset()
    """The ones among all these that are not done."""
    latest_ms: int = -FAR
    """The latest time at which one that is done was due."""

    def has(self, due_ms: int, offset: int) -> bool:
        """Whether a message is done."""
        if offset in self.excepted:
            return False
        return offset < self.below or any(offset < step.end and (due_ms, offset) <= step[1:] for step in self.steps)

    @property
    def begin(self) -> int:
        """The first message that may not be done."""
        return min(self.below, *self.excepted) if self.excepted else self.below

    def extended(
        self, below: int, end: int, next_due: tuple[int, int] | None, *, excepted: Iterable[int], latest_ms: int
    ) -> DoneTimers:
        """Returns what is done if of all messages below ``end`` the first that is not is ``next_due``.

        That is (due_ms, offset). No step goes beyond ``latest_ms``, so that few are kept.
        """
        below, latest_ms = max(below, self.below), max(latest_ms, self.latest_ms)
        latest = latest_ms, FAR
        last = latest if next_due is None or next_due > latest else (next_due[0], next_due[1] - 1)
        kept = [old for old in self.steps if old.end > end or old[1:] > last]
        steps = tuple(one for one in (*kept, DoneStep(end, *last)) if one.end > below)
        return DoneTimers(below, steps, frozenset(excepted), latest_ms)


class TimerNote(NamedTuple):
    """The body of a note: what is done once the copies behind it are there.

    ::

        {"format": 1, "at": 17, "from": 40, "done": [[52, 1700000000000, 51]], "except": [44],
         "latest": 1700000000000, "copies": [45, 46], "rolled": false}

    Offsets are those of the timer topic. ``[end, time, offset]`` of ``done``: of the messages below ``end``, those due
    before ``time``, and those due then up to ``offset``, are done. So is everything below ``from``, and nothing in
    ``except``, which could not be read. ``latest`` is the latest time at which anything that is done was due. ``at`` is
    the note's own offset: what says another one was appended again, by a salvage, and is none. ``copies`` are the
    messages that are copied, to their own topics or, ``rolled``, to the timer topic once more.
    """

    at: int
    done: DoneTimers
    copies: list[int]
    is_rolled: bool

    def encode(self) -> bytes:
        document = {
            "format": 1, "at": self.at, "from": self.done.below, "done": self.done.steps,
            "except": sorted(self.done.excepted), "latest": self.done.latest_ms, "copies": self.copies,
            "rolled": self.is_rolled,
        }  # fmt: skip
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> TimerNote:
        """Inverse of :meth:`encode`; ValueError, LookupError or TypeError for anything else."""
        document = json.loads(body)
        if document["format"] != 1:
            raise ValueError(f"format {document['format']!r}")
        steps = tuple(DoneStep(int(end), int(due_ms), int(offset)) for end, due_ms, offset in document["done"])
        excepted, latest_ms = frozenset(map(int, document["except"])), int(document["latest"])
        done = DoneTimers(int(document["from"]), steps, excepted, latest_ms)
        return cls(int(document["at"]), done, list(map(int, document["copies"])), bool(document["rolled"]))
