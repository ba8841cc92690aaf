"""Counts for metrics: of one open store (appends, queries, requests to the archive), of requests over HTTP, and of
those at a door for RocketMQ's clients.

Labels are routes, methods and reasons that the code knows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, Protocol

from tierlog.index.search.query import Answer, Coverage, Query
from tierlog.tiering.base.telemetry import COUNTS, Histogram, Histograms, Tally, Value
from tierlog.tiering.base.types import Durability
from tierlog.tiering.objects.metered import Meter

#: Labels: reading a member's value takes as long as counting.
_BY_DURABILITY = {durability: (durability.value,) for durability in Durability}
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))
_REFUSALS = frozenset((401, 403, 413, 429, 503, 507))
#: The client went away before it was answered.
GONE = 499


class StoreCounts:
    """The counts of one store since it was opened. Thread safe."""

    def __init__(self, archive: Meter, flush_seconds: Histogram) -> None:
        #: Requests to the archive.
        self.archive = archive
        #: How long each flush of the log took, s.
        self.flush_seconds = flush_seconds
        #: Seconds that acknowledged appends took, by durability.
        self.append_seconds = Histograms()
        #: Messages of those, by durability.
        self.messages = Tally()
        #: Seconds that answered queries took, by what was asked for (``key`` or ``time``).
        self.query_seconds = Histograms()
        #: Answered queries by the same and by outcome.
        self.queries = Tally()
        for asked_by in ("key", "time"):  # a series that begins above 0 hides its first rise
            for outcome in ("complete", "budget", "timeout", "unreachable"):
                self.queries.add((asked_by, outcome), 0)
        #: Requests that each query made to the archive.
        self.query_requests = Histogram(COUNTS)
        #: Cost of those requests, USD.
        self.query_usd = Tally()

    def acknowledged(self, durability: Durability, messages: int, taken_s: float) -> None:
        """Counts an append that was acknowledged."""
        labels = _BY_DURABILITY[durability]
        self.append_seconds.observe(labels, taken_s)
        self.messages.add(labels, messages)

    def answered(self, query: Query, answer: Answer, taken_s: float) -> None:
        """Counts a query that was answered, whole or not; a dry run is counted as one, and not timed."""
        asked_by, outcome = "time" if query.key is None else "key", outcome_of(answer.coverage)
        self.queries.add((asked_by, outcome))
        if not query.dry_run:
            self.query_seconds.observe((asked_by,), taken_s)
            self.query_requests.observe(answer.coverage.requests)
            self.query_usd.add((), answer.coverage.cost_usd)


def outcome_of(coverage: Coverage) -> str:
    """Returns ``complete``, ``dry_run``, or why it is not complete: ``budget``, ``timeout``, ``unreachable``."""
    if coverage.cut_by in ("budget", "timeout", "dry_run"):
        return coverage.cut_by
    return "complete" if coverage.complete else "unreachable"


def facts_of(answer: Answer) -> dict[str, Value]:
    """Returns the attributes that a trace has of an answer."""
    coverage = answer.coverage
    return {
        "messages": answer.count,
        "outcome": outcome_of(coverage),
        "requests": coverage.requests,
        "round_trips": coverage.round_trips,
        "waves": coverage.waves,
        "bytes": coverage.bytes,
        "cost_usd": coverage.cost_usd,
    }


class HttpCounts:
    """The counts of requests since the service began. Thread safe."""

    def __init__(self) -> None:
        self.requests = Tally()
        self.seconds = Histograms()
        self.bytes = Tally()
        self.refused = Tally()
        self.in_flight = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Counts a request that is being answered."""
        with self._lock:
            self.in_flight += 1

    def end(
        self, route: str, method: str, status: int, taken_s: float, *, received: int, sent: int, problem: str | None
    ) -> None:
        """Counts a request that ended; ``problem`` is the title of the problem that was answered."""
        method = method if method in _METHODS else "other"
        self.requests.add((route, method, str(status)))
        self.seconds.observe((route, method), taken_s)
        self.bytes.add(("received",), received)
        self.bytes.add(("sent",), sent)
        if status in _REFUSALS:
            self.refused.add(((problem or str(status)).replace(" ", "_"),))
        with self._lock:
            self.in_flight -= 1


#: Requests whose time is told: those that bring messages in, and those that take them out.
MessageFlow = Literal["send", "receive"]


class DoorCounts:
    """The counts of one door for RocketMQ's clients since it opened. Thread safe.

    Labels are the door's, and names of requests and answers that the code knows.
    """

    def __init__(self, door: str) -> None:
        self.door = door
        #: By request and answer.
        self.requests = Tally()
        self.seconds = Histograms()
        self.bytes = Tally()
        for direction in ("received", "sent"):
            self.bytes.add((direction,), 0)

    def end(self, request: str, answer: str, *, received: int, sent: int) -> None:
        """Counts a request that was answered, and the bytes of both bodies."""
        self.requests.add((request, answer))
        self.bytes.add(("received",), received)
        self.bytes.add(("sent",), sent)

    def took(self, flow: MessageFlow, taken_s: float) -> None:
        """Counts the time of a request that carries messages."""
        self.seconds.observe((flow,), taken_s)


@dataclass(frozen=True, slots=True)
class DoorNumbers:
    """What is at a door at this moment."""

    clients: int
    #: Members of groups.
    consumers: int
    producers: int
    groups: int
    waiting: int
    """Requests that wait for messages."""
    #: Connections, and those turned away by reason; None where the library keeps them to itself.
    connections: int | None = None
    refused: dict[str, float] | None = None


class ObservedDoor(Protocol):
    """A door that metrics tell of."""

    @property
    def counts(self) -> DoorCounts:
        """What was counted."""
        ...

    def numbers(self) -> DoorNumbers:
        """What is there now; from any thread."""
        ...
