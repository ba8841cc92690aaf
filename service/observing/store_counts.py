"""What one open store counts while it works, for metrics: appends, queries, and what was asked of the archive."""

from __future__ import annotations

from index.query import Answer, Coverage, Query
from tiering.cold.metered import Meter
from tiering.gauging import COUNTS, Histogram, Histograms, Tally
from tiering.tracer import Value
from tiering.types import Durability

#: Labels: to ask a member for its value takes as long as to count.
_BY_DURABILITY = {durability: (durability.value,) for durability in Durability}


class StoreCounts:
    """Counted since the store was opened. Thread safe."""

    def __init__(self, archive: Meter, flush_seconds: Histogram) -> None:
        #: Requests to the archive.
        self.archive = archive
        #: How long each flush of the log took, s.
        self.flush_seconds = flush_seconds
        #: How long acknowledged appends took, s, by durability.
        self.append_seconds = Histograms()
        #: Messages of those, by durability.
        self.messages = Tally()
        #: How long answered queries took, s, by what was asked for (``key`` or ``time``).
        self.query_seconds = Histograms()
        #: Answered queries by the same and by outcome.
        self.queries = Tally()
        for asked_by in ("key", "time"):  # a series that begins above 0 hides its first rise
            for outcome in ("complete", "budget", "timeout", "unreachable"):
                self.queries.add((asked_by, outcome), 0)
        #: Requests that each query made to the archive.
        self.query_requests = Histogram(COUNTS)
        #: What those cost, USD.
        self.query_usd = Tally()

    def acknowledged(self, durability: Durability, messages: int, taken_s: float) -> None:
        """Count an append that was acknowledged."""
        labels = _BY_DURABILITY[durability]
        self.append_seconds.observe(labels, taken_s)
        self.messages.add(labels, messages)

    def answered(self, query: Query, answer: Answer, taken_s: float) -> None:
        """Count a query that was answered, whole or not; a dry run is counted as one, and not timed."""
        asked_by, outcome = "time" if query.key is None else "key", outcome_of(answer.coverage)
        self.queries.add((asked_by, outcome))
        if not query.dry_run:
            self.query_seconds.observe((asked_by,), taken_s)
            self.query_requests.observe(answer.coverage.requests)
            self.query_usd.add((), answer.coverage.cost_usd)


def outcome_of(coverage: Coverage) -> str:
    """``complete``, ``dry_run``, or why it is not: ``budget``, ``timeout``, ``unreachable``."""
    if coverage.cut_by in ("budget", "timeout", "dry_run"):
        return coverage.cut_by
    return "complete" if coverage.complete else "unreachable"


def facts_of(answer: Answer) -> dict[str, Value]:
    """What a trace says of an answer."""
    coverage = answer.coverage
    return {
        "messages": len(answer.messages),
        "outcome": outcome_of(coverage),
        "requests": coverage.requests,
        "round_trips": coverage.round_trips,
        "waves": coverage.waves,
        "bytes": coverage.bytes,
        "cost_usd": coverage.cost_usd,
    }
