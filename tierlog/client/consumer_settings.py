"""The settings of a consumer: what it reads, how far ahead, in what order, and what it does about failures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypedDict

from tierlog.client.requests import RetryPolicy
from tierlog.tiering.base.errors import InvalidRequestError

_SESSION_MS = (1_000, 600_000)
#: Shorter waits would ask an idle queue without end.
_WAIT_MS = (100, 60_000)


class Start(Enum):
    """The place where a queue begins for a group that has committed nothing in it."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Decision(StrEnum):
    """The fate of a message for which all tries of the handler failed."""

    SKIP = "skip"
    """It counts as done."""
    RETRY = "retry"
    """The handler gets it again, as often as the first time."""
    STOP = "stop"
    """The consumer ends, and the message comes again to whoever reads the queue next."""


@dataclass(frozen=True, slots=True)
class Consuming:
    """Settings of a consumer. With the defaults a kill repeats at most ``read_ahead`` messages of each queue."""

    workers: int = 8
    """Handlers that run at once, over all queues."""
    is_ordered: bool = True
    """Whether the messages of a queue are handled one after another. False: as many at once as there are workers, in
    any order."""
    read_ahead: int = 500
    """Maximum number of messages of a queue that were read and are not committed, and so of those handled again after
    a kill. A queue at the limit waits for the next commit, which comes as soon as half of them are done."""
    read_ahead_bytes: int = 16 << 20
    """Bytes of a queue's messages that are not done; passed by one page at most."""
    commit_interval_s: float = 1.0
    """Maximum time from handling a message to its commit."""
    session_timeout_ms: int = 30_000
    """Time without a heartbeat after which other members get the queues: 1,000 to 600,000."""
    heartbeat_s: float = 3.0
    """Time between heartbeats, and so until new members are noticed; at most a third of the session."""
    drain_s: float = 30.0
    """Time to wait for running handlers when the consumer closes or a queue is begun anew."""
    start: Start | int = Start.EARLIEST
    """The place where a queue without a commit begins; a number is a store time in ms."""
    tag: str | None = None
    """A tag expression; other messages are skipped."""
    wait_ms: int = 20_000
    """Time that a pull waits at the end of a queue: 100 to 60,000."""
    tries: int = 3
    """Number of times a handler gets a message before ``on_failure`` decides."""
    first_pause_s: float = 0.5
    """Pause between the first two tries; each further one is twice as long."""
    most_pause_s: float = 30.0

    def __post_init__(self) -> None:
        if min(self.workers, self.read_ahead, self.read_ahead_bytes, self.tries) < 1:
            raise InvalidRequestError("workers, read_ahead, read_ahead_bytes and tries are 1 or more")
        if not _SESSION_MS[0] <= self.session_timeout_ms <= _SESSION_MS[1]:
            raise InvalidRequestError(f"a session lasts {_SESSION_MS[0]} to {_SESSION_MS[1]} ms")
        if not _WAIT_MS[0] <= self.wait_ms <= _WAIT_MS[1]:
            raise InvalidRequestError(f"a pull waits {_WAIT_MS[0]} to {_WAIT_MS[1]} ms")
        if min(self.first_pause_s, self.most_pause_s) < 0:
            raise InvalidRequestError("pauses are not less than 0")
        if min(self.commit_interval_s, self.heartbeat_s) <= 0 or self.drain_s < 0:
            raise InvalidRequestError("commit_interval_s and heartbeat_s are more than 0, drain_s is not less")

    @property
    def pauses(self) -> RetryPolicy:
        """The pauses between the tries of a handler."""
        return RetryPolicy(first_s=self.first_pause_s, most_s=self.most_pause_s)

    @property
    def beat_s(self) -> float:
        """The pause between heartbeats."""
        return min(self.heartbeat_s, self.session_timeout_ms / 3000)


class ConsumingChanges(TypedDict, total=False):
    """The fields of :class:`Consuming`, as a consumer takes them by name."""

    workers: int
    is_ordered: bool
    read_ahead: int
    read_ahead_bytes: int
    commit_interval_s: float
    session_timeout_ms: int
    heartbeat_s: float
    drain_s: float
    start: Start | int
    tag: str | None
    wait_ms: int
    tries: int
    first_pause_s: float
    most_pause_s: float


@dataclass(slots=True)
class ConsumerCounts:
    """The counts of a consumer since it was made."""

    handled: int = 0
    """Messages for which the handler returned."""
    failed: int = 0
    """Tries for which it raised."""
    skipped: int = 0
    """Messages that ``on_failure`` gave up."""
    commits: int = 0
    refused_commits: int = 0
    """Commits in a generation that had passed."""
    joins: int = 0
    rebalances: int = 0
    """Assignments that differed from the one before."""
