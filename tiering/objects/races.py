"""Racing conditional writes: many writers, one key, and who may have won.

A round is one key that all writers put at once on the same condition. The object store keeps its word if exactly one
of them was told that it succeeded and the object is what that one sent. The body names its writer over and over, so
that a mixture of two shows too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tierlog.tiering.base.errors import ObjectStoreUnavailableError, PreconditionFailedError, UnavailableError
from tierlog.tiering.objects.object_store import ObjectStore

_BODY_LINES = 256
_KEPT_VIOLATIONS = 3


class Condition(StrEnum):
    """The condition that all writers of a round demand."""

    ABSENT = "if absent"
    MATCH = "if match"


class WriteAnswer(StrEnum):
    """The answer that one writer got; unknown if it got none."""

    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"


class Racers(Protocol):
    """Writers that wait for a start; they may live in other processes."""

    @property
    def writers(self) -> int:
        """Number of the writers."""
        ...

    def run(self, key: str, etag: str | None) -> Sequence[WriteAnswer]:
        """Puts ``key`` at once, if absent or on ``etag``; the outcomes by number of the writer."""
        ...


def body_of(key: str, etag: str | None, writer: int) -> bytes:
    """Returns what a writer sends in a round."""
    return f"{writer} {key} {etag}\n".encode() * _BODY_LINES


def writer_of(body: bytes) -> int | None:
    """Returns the number of the writer whose body this is, or None for a mixture."""
    lines = body.splitlines()
    if len(lines) != _BODY_LINES or len(set(lines)) != 1:
        return None
    return int(lines[0].split()[0])


class ThreadRacers:
    """Writers in threads of this process, each with its number; ``first`` is that of the first one."""

    def __init__(self, store: ObjectStore, count: int, first: int = 0) -> None:
        self._store = store
        self._first = first
        self._count = count
        self._start = threading.Barrier(count)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="tierlog-racer")

    @property
    def writers(self) -> int:
        return self._count

    def run(self, key: str, etag: str | None) -> Sequence[WriteAnswer]:
        return list(self._pool.map(lambda number: self._attempt(key, etag, number), range(self._count)))

    def close(self) -> None:
        self._pool.shutdown()

    def _attempt(self, key: str, etag: str | None, number: int) -> WriteAnswer:
        body = body_of(key, etag, self._first + number)
        self._start.wait()
        try:
            self._store.put(key, body, if_absent=etag is None, if_match=etag)
        except PreconditionFailedError:
            return WriteAnswer.LOST
        except UnavailableError:
            return WriteAnswer.UNKNOWN
        return WriteAnswer.WON


@dataclass(slots=True)
class RaceReport:
    """Rounds that were run, and in how many the store broke its word; the first violations in words."""

    condition: Condition
    writers: int
    rounds: int = 0
    broken: int = 0
    unanswered: int = 0
    violations: list[str] = field(default_factory=list)

    def judge(self, outcomes: Sequence[WriteAnswer], body: bytes) -> None:
        """Counts a round.

        A writer without an answer may have won, and so may one whose own retry met its first try: only what no such
        story explains is a violation.
        """
        self.rounds += 1
        won = [number for number, outcome in enumerate(outcomes) if outcome is WriteAnswer.WON]
        unknown = outcomes.count(WriteAnswer.UNKNOWN)
        self.unanswered += unknown
        holder = writer_of(body)
        wrong = None
        if len(won) > 1:
            wrong = f"{len(won)} of {len(outcomes)} writers were told that they had won"
        elif holder is None:
            wrong = "the object is a mixture of what several writers sent, or of another round"
        elif won and holder != won[0]:
            wrong = f"writer {won[0]} was told that it had won, and the object is that of writer {holder}"
        if wrong:
            self.broken += 1
            if len(self.violations) < _KEPT_VIOLATIONS:
                self.violations.append(f"round {self.rounds}: {wrong}")


def race(
    store: ObjectStore, racers: Racers, condition: Condition, key_of: Callable[[str], str], rounds: int
) -> RaceReport:
    """Runs rounds: each on a fresh key, or all on one that is replaced again and again; ``key_of`` places names."""
    report = RaceReport(condition, racers.writers)
    etag = store.put(key_of("match"), b"start").etag if condition is Condition.MATCH else None
    for number in range(rounds):
        key = key_of("match" if etag else f"absent-{number:05}")
        outcomes = racers.run(key, etag)
        if len(outcomes) != racers.writers:
            raise ObjectStoreUnavailableError("a racing writer was lost", path=key)
        if all(outcome is WriteAnswer.UNKNOWN for outcome in outcomes):
            raise ObjectStoreUnavailableError("no racing writer got an answer", path=key)
        body, info = store.get(key)
        report.judge(outcomes, body)
        etag = info.etag if etag else None
    return report
