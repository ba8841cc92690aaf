"""What a search must answer, found by going through a plain list of everything that was appended.

Nothing here shares code with the planner: order, pages, cursors and claims are worked out anew from the promises in
``index.search.query``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tierlog.index.search.query import Answer, Query, TierCoverage
from tierlog.tiering.base.types import Order, Tier, TimeAxis
from tierlog.tiering.message.stored_message import Place, StoredMessage

#: Asks for one page.
Ask = Callable[[Query], Answer]


@dataclass(frozen=True, slots=True)
class Kept:
    """One message as it was acknowledged."""

    store_id: str
    offset: int
    store_ms: int
    born_ms: int
    topic: str
    keys: tuple[str, ...]
    body: bytes

    def time_ms(self, axis: TimeAxis) -> int:
        """One of its two times."""
        return self.store_ms if axis is TimeAxis.STORE else self.born_ms

    def place(self, axis: TimeAxis) -> Place:
        """Where it stands in the total order."""
        return self.time_ms(axis), self.store_id, self.offset


@dataclass(frozen=True, slots=True)
class Held:
    """A message that a reader must find, and the tier that it is to come from."""

    kept: Kept
    tier: Tier


@dataclass
class Tally:
    """How much was compared."""

    queries: int = 0
    messages: int = 0
    pages_cut: int = 0
    by_key: int = 0
    notes: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, more: int = 1) -> None:
        """One more of something."""
        self.notes[name] = self.notes.get(name, 0) + more

    def __str__(self) -> str:
        rest = "".join(f", {name} {count}" for name, count in sorted(self.notes.items()))
        return f"{self.queries} queries ({self.by_key} by key), {self.messages} messages compared{rest}"


def matching(query: Query, held: Sequence[Held]) -> list[Held]:
    """Every message of the query in its order, whatever its limit and cursor."""
    found = [
        each
        for each in held
        if each.kept.topic == query.topic
        and (query.key is None or query.key in each.kept.keys)
        and query.from_ms <= each.kept.time_ms(query.axis) < query.to_ms
    ]
    return sorted(found, key=lambda each: each.kept.place(query.axis), reverse=query.order is Order.NEWEST)


def is_behind(place: Place, other: Place, order: Order) -> bool:
    """Whether a place comes after another one in an order."""
    return place < other if order is Order.NEWEST else place > other


def as_kept(message: StoredMessage) -> Kept:
    """A message of an answer in the form of the list."""
    record = message.record
    return Kept(
        message.store_id, record.physical_offset, record.store_ms, record.born_ms, record.topic,
        tuple(dict.fromkeys(message.keys)), record.body,
    )  # fmt: skip


def check_page(answer: Answer, query: Query, held: Sequence[Held], after: Place | None = None) -> None:
    """One page that must be complete: its messages, their tiers and order, the cursor and what is claimed.

    ``after`` is the place of the last message of the page before.
    """
    wanted = matching(query, held)
    if after is not None:
        wanted = [each for each in wanted if is_behind(each.kept.place(query.axis), after, query.order)]
    found = [Held(as_kept(message), message.tier) for message in answer.messages]
    assert found == wanted[: query.limit], _difference(found, wanted[: query.limit], query)
    assert answer.coverage.complete, answer.coverage
    assert answer.coverage.failures == []
    assert (answer.next_cursor is not None) == (len(wanted) > query.limit), (query, len(wanted))
    assert (answer.coverage.cut_by == "limit") == (answer.next_cursor is not None)
    check_claims(answer, query, held, after)
    check_nothing_unclaimed(answer, query, held, after)


def claims_of(answer: Answer) -> dict[tuple[str, Tier], TierCoverage]:
    """What an answer claims of each store's tiers."""
    claims = {}
    for store in answer.coverage.stores:
        if store.hot is not None:
            claims[store.store_id, Tier.HOT] = store.hot
        if store.cold is not None:
            claims[store.store_id, Tier.COLD] = store.cold
    return claims


def check_claims(answer: Answer, query: Query, held: Sequence[Held], after: Place | None = None) -> None:
    """Every message that a tier held inside what is claimed of it is in this page or in one before.

    One with the time of the page's last message may be in the next.
    """
    found = {(message.store_id, message.record.physical_offset) for message in answer.messages}
    last = answer.messages[-1].time_ms(query.axis) if answer.next_cursor is not None else None
    claims = claims_of(answer)
    for claim in claims.values():
        assert query.from_ms <= claim.from_ms < claim.to_ms <= query.to_ms, (query, claim)
    for each in matching(query, held):
        mine = claims.get((each.kept.store_id, each.tier))
        time_ms = each.kept.time_ms(query.axis)
        if mine is None or not mine.from_ms <= time_ms < mine.to_ms:
            continue
        is_before = after is not None and not is_behind(each.kept.place(query.axis), after, query.order)
        is_given = (each.kept.store_id, each.kept.offset) in found
        assert is_given or is_before or time_ms == last, f"{each} is claimed and missing: {query}, {mine}"


def check_nothing_unclaimed(answer: Answer, query: Query, held: Sequence[Held], after: Place | None = None) -> None:
    """A complete answer claims every instant at which a tier holds a message, as far as the page goes."""
    last = answer.messages[-1].place(query.axis) if answer.next_cursor is not None else None
    claims = claims_of(answer)
    for each in matching(query, held):
        place = each.kept.place(query.axis)
        if after is not None and not is_behind(place, after, query.order):
            continue
        if last is not None and is_behind(place, last, query.order):
            continue
        claim = claims.get((each.kept.store_id, each.tier))
        assert claim is not None, f"{each} is in a tier of which nothing is claimed: {query}, {answer.coverage}"
        assert claim.from_ms <= place[0] < claim.to_ms, f"{each} is not claimed by a complete answer: {query}, {claim}"


def check_all_pages(ask: Ask, query: Query, held: Sequence[Held], tally: Tally, *, most: int = 1000) -> None:
    """Follow the cursor to the end, at most so many pages; each must be complete and right."""
    after: Place | None = None
    for _ in range(most):
        answer = ask(query)
        tally.queries += 1
        tally.by_key += query.key is not None
        tally.messages += len(answer.messages)
        check_page(answer, query, held, after)
        if answer.next_cursor is None:
            return
        tally.pages_cut += 1
        after = answer.messages[-1].place(query.axis)
        query = replace(query, cursor=answer.next_cursor)


def check_incomplete(answer: Answer, query: Query, held: Sequence[Held]) -> None:
    """A first page of which a part failed: right messages in order, each once, and claims that are true."""
    wanted = matching(query, held)
    by_place = {(each.kept.store_id, each.kept.offset): each for each in wanted}
    found = [(message.store_id, message.record.physical_offset) for message in answer.messages]
    assert len(found) == len(set(found)), f"twice: {query}"
    assert set(found) <= by_place.keys(), f"wrong ones: {query}"
    chosen = set(found)
    assert found == [place for place in by_place if place in chosen], f"not in order: {query}"
    for message in answer.messages:
        assert as_kept(message) == by_place[message.store_id, message.record.physical_offset].kept
    assert len(found) <= query.limit
    check_claims(answer, query, held)


def _difference(found: list[Held], wanted: list[Held], query: Query) -> str:
    missing = [each for each in wanted if each not in found]
    surplus = [each for each in found if each not in wanted]
    if not missing and not surplus:
        return f"{query}: right messages, {'twice' if len(found) != len(wanted) else 'in another order'}: {found}"
    return f"{query}: missing {missing[:5]} ({len(missing)}), surplus {surplus[:5]} ({len(surplus)})"
