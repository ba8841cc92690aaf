"""A query followed to its end, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from index.query import Answer, Query
from service.coverage import merged_coverage
from service.wire import Json
from tiering.message import StoredMessage


class FollowedQuery:
    """The pages of a query, one behind the other; a budget of requests is one for all of them.

    Each page looks at the store as it is then, as it does for a client that follows the cursor itself.
    """

    def __init__(self, ask: Callable[[Query], Answer], query: Query) -> None:
        """``ask`` answers one page."""
        self._ask = ask
        self._query = query
        self._coverage: Json = {}
        self._cursor: str | None = query.cursor

    def pages(self) -> Iterator[list[StoredMessage]]:
        """The messages of each page, until one has no next."""
        query = self._query
        while True:
            answer = self._ask(query)
            self._coverage = merged_coverage(self._coverage, answer.coverage.to_json())
            self._cursor = answer.next_cursor
            yield answer.messages
            if answer.next_cursor is None:
                return
            left = self._query.max_requests
            if left is not None:
                left = max(0, left - int(self._coverage["requests"]))
            query = replace(query, cursor=answer.next_cursor, max_requests=left)

    def beside(self) -> Json:
        """What stands beside the messages of all pages so far."""
        return {"next_cursor": self._cursor, "coverage": self._coverage}
