"""Tasks of a search, each with bounds on the times it can yield, and the notes that a task takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from tierlog.index.search.column_results import FoundRows
from tierlog.index.search.cost import TaskCost
from tierlog.index.search.query import Query, TierCoverage
from tierlog.tiering.base.types import Order, Tier, TimeRange
from tierlog.tiering.cold.reading.bill import RequestChain
from tierlog.tiering.message.stored_message import StoredMessage

Bounds = tuple[int, int]
#: One message, or rows of several where a query goes by columns.
Found = StoredMessage | FoundRows


class IndexOutcome(IntEnum):
    """The outcome for an index file or object that overlaps the range; of two, the greater one counts."""

    SKIPPED = 0
    """Not asked: the page was certain without it, or budget or time were over."""
    SEARCHED = 1
    """Asked for the key, as far as that could matter."""
    FILTERED = 2
    """What is in memory proved that it lacks the key."""
    EXPIRED = 3
    """All that it holds of the topic has expired."""


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A task of a search: inclusive bounds of the times it may yield, and how to do it.

    ``name`` says what is read, for the failure list; ``counter`` is the coverage field that counts a failure;
    ``claim`` is what is not true in full until the task is done. ``run`` gives messages and smaller tasks, whose
    bounds lie inside these; it gets the context of this task and touches nothing else that changes.
    """

    bounds: Bounds
    name: str
    counter: str
    claim: TierCoverage
    run: Callable[[SearchContext], Iterable[Found | SearchTask]]
    #: Reads what is pinned for the query: done on the thread of the caller, before the query ends.
    is_local: bool = False
    #: At least so many results inside the bounds, as far as one can know before. What can only follow them waits.
    expects: int = 0
    #: Requests, one after another, that led to this task.
    depth: int = 0
    #: Of all tasks with the same value only the first one is done.
    once: Hashable = None
    #: What it may cost, for a dry run that leaves it; None where it asks for nothing but the manifest.
    cost: Callable[[SearchContext], TaskCost] | None = None

    def give_up(self, order: Order) -> None:
        """Leaves of the claim only what comes before anything that this task may yield."""
        low, high = self.bounds
        self.claim.end_at(high + 1 if order is Order.NEWEST else low - 1, order)


@dataclass(slots=True)
class SearchContext:
    """The bill and the notes of one task, its own alone.

    The notes count, all at once, when the task has ended and its results may matter for the page; those of a task
    that was begun for nothing, or is still at it when the answer is given, never do. So coverage does not depend on
    how threads follow each other.
    """

    chain: RequestChain
    #: By (store id, version of what was planned from), then by name. The newest version counts.
    index_files: dict[tuple[str, int], dict[str, IndexOutcome]] = field(default_factory=dict)
    segments_read: set[tuple[str, Tier, int]] = field(default_factory=set)
    segments_erased: set[tuple[str, int]] = field(default_factory=set)
    segments_expired: set[tuple[str, int]] = field(default_factory=set)
    effects: list[Callable[[], None]] = field(default_factory=list)
    messages_read: int = 0
    messages_matched: int = 0

    def index_file(self, plan: tuple[str, int], name: str, outcome: IndexOutcome) -> None:
        """Notes what became of an index file or object."""
        outcomes = self.index_files.setdefault(plan, {})
        outcomes[name] = max(outcome, outcomes.get(name, IndexOutcome.SKIPPED))

    def matches(self, message: StoredMessage, query: Query, within: TimeRange) -> bool:
        """Whether a message of the query's topic and key has a time of the range and passes the filters; counts it."""
        if not within.contains(message.time_ms(query.axis)):
            return False
        self.messages_read += 1
        if query.filters is not None and not query.filters.match(message):
            return False
        self.messages_matched += 1
        return True

    def when_counted(self, effect: Callable[[], None]) -> None:
        """Has ``effect`` change the coverage of the answer if the task counts."""
        self.effects.append(effect)

    def add(self, other: SearchContext) -> None:
        """Takes over the notes of a task that counts."""
        for plan, outcomes in other.index_files.items():
            for name, outcome in outcomes.items():
                self.index_file(plan, name, outcome)
        self.segments_read |= other.segments_read
        self.segments_erased |= other.segments_erased
        self.segments_expired |= other.segments_expired
        self.messages_read += other.messages_read
        self.messages_matched += other.messages_matched
        for effect in other.effects:
            effect()

    def index_outcomes(self, but: Collection[str] = ()) -> list[IndexOutcome]:
        """Returns one for each index file or object of the newest plan of each store, without those named."""
        newest: dict[str, int] = {}
        for store_id, version in self.index_files:
            newest[store_id] = max(version, newest.get(store_id, version))
        return [
            outcome
            for (store_id, version), outcomes in self.index_files.items()
            if version == newest[store_id]
            for name, outcome in outcomes.items()
            if name not in but
        ]
