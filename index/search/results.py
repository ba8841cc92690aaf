"""The best results of a query so far, each once, and the time from which on nothing can belong to the page."""

from __future__ import annotations

from itertools import accumulate

from tierlog.index.search.query import Query
from tierlog.tiering.base.types import Order, TimeRange
from tierlog.tiering.message.stored_message import Place, StoredMessage

PAGE_BYTES = 32 << 20
"""Records in one page, their bodies included; one message is always given."""

_LAST_ID, _LAST_OFFSET = "\uffff", (1 << 63) - 1
"""Behind every store id and physical offset."""


class Results:
    """Verified messages, each once, the best ones known so far; bodies of about two pages at most.

    One result more than the limit is looked for, so that a cursor is given exactly when there is a next page.
    """

    def __init__(self, query: Query, page_bytes: int = PAGE_BYTES) -> None:
        self._query = query
        #: The times that may be on the page: the range asked for behind the cursor.
        self.within = range_behind_cursor(query)
        self._page_bytes = page_bytes
        self._after = query.after
        self._newest = query.order is Order.NEWEST
        self._found: dict[Place, StoredMessage] = {}
        self._sizes: dict[Place, int] = {}
        self._bytes = 0
        self._certain: int | None = None
        self._end: Place | None = None
        self._is_filtered = query.filters is not None
        self._fresh = False

    def add(self, message: StoredMessage) -> None:
        """Takes a message that is on the page if nothing better is found."""
        place = message.place(self._query.axis)
        if not self.within.contains(place[0]) or not self._is_behind_cursor(place):
            return
        if self._end is not None and self._is_behind_place(place, self._end):
            return
        if place in self._found or (self._certain is not None and self._is_behind(place[0], self._certain)):
            return
        self._found[place] = message
        self._sizes[place] = message.shown_bytes
        self._bytes += self._sizes[place]
        self._fresh = True
        if self._bytes > 2 * self._page_bytes:
            self._keep_the_best()

    def end_at(self, place: Place) -> None:
        """Notes that nothing behind this place is on the page, and there is more; called before the first result."""
        if self._end is None or self._is_behind_place(self._end, place):
            self._end = place

    def cut_at(self, place: Place) -> None:
        """Forgets what lies behind a place, because not everything up to there is known; the page ends here."""
        self.end_at(place)
        for other in [other for other in self._found if self._is_behind_place(other, place)]:
            del self._found[other]
            self._bytes -= self._sizes.pop(other)

    def page(self) -> tuple[list[StoredMessage], Place | None]:
        """Returns the page in order, and the place where the next one goes on; None if there is none.

        Of messages that were filtered, the page ends where what was examined does, with or without a message there.
        """
        self._keep_the_best()
        page = [self._found[place] for place in self._fitting(sorted(self._found, reverse=self._newest))]
        if self._end is not None and self._is_filtered and len(page) == len(self._found):
            return page, self._end
        has_more = len(page) < len(self._found) or (self._end is not None and bool(page))
        return page, page[-1].place(self._query.axis) if has_more else None

    def is_certain_before(self, time_ms: int) -> bool:
        """Whether nothing of this time, or behind it in the order, can belong to the page or tell of a next one."""
        if self._fresh and (len(self._found) > self._query.limit or self._bytes > self._page_bytes):
            self._keep_the_best()
            self._fresh = False
        if self._end is not None and self._is_behind(time_ms, self._end[0]):
            return True
        return self._certain is not None and self._is_behind(time_ms, self._certain)

    def settle(self) -> None:
        """Does nothing: what is certain is always known."""

    def before(self, time_ms: int) -> int:
        """Returns how many results come before this time in the order."""
        return sum(self._is_behind(time_ms, place[0]) for place in self._found)

    def _is_behind_cursor(self, place: Place) -> bool:
        return self._after is None or self._is_behind_place(place, self._after)

    def _is_behind_place(self, place: Place, other: Place) -> bool:
        return place < other if self._newest else place > other

    def _is_behind(self, time_ms: int, other_ms: int) -> bool:
        return time_ms < other_ms if self._newest else time_ms > other_ms

    def _keep_the_best(self) -> None:
        """Forgets what lies behind the page by more than the one message that tells whether there is another page."""
        ordered = sorted(self._found, reverse=self._newest)
        wanted = len(self._fitting(ordered)) + 1
        if len(ordered) >= wanted:
            self._certain = ordered[wanted - 1][0]
        for place in ordered[wanted:]:
            del self._found[place]
            self._bytes -= self._sizes.pop(place)

    def _fitting(self, ordered: list[Place]) -> list[Place]:
        """As many of the places as a page takes, at least one if there is one."""
        ends = accumulate(self._sizes[place] for place in ordered[: self._query.limit])
        return ordered[: max(1, sum(end <= self._page_bytes for end in ends))]


def place_before(time_ms: int, order: Order) -> Place:
    """Returns a place that everything before a time in the order comes before: behind it come this time and the rest.

    For the newest first, times from ``time_ms`` on come before it.
    """
    return (time_ms - 1, _LAST_ID, _LAST_OFFSET) if order is Order.NEWEST else (time_ms, "", -1)


def range_behind_cursor(query: Query) -> TimeRange:
    """Returns the times that may be on the page: the range asked for behind the cursor."""
    after, within = query.after, query.time_range
    if after is None:
        return within
    if query.order is Order.NEWEST:
        return TimeRange(within.from_ms, min(within.to_ms, after[0] + 1))
    return TimeRange(max(within.from_ms, after[0]), within.to_ms)
