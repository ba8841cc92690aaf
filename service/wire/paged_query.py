"""A query that is followed to its end, page by page: by columns where that may be, else message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tierlog.index.search.query import MAX_ROWS, Answer, Query
from tierlog.service.wire.documents import Json, merged_coverage
from tierlog.service.wire.message_text import ndjson
from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA, message_batch

#: Of a message, as long as none was seen: a first page that is too small costs less than one that is too large.
_FIRST_BYTES = 1 << 10
_LEAST_ROWS = 64


class FollowedQuery(Protocol):
    """A query that is followed to its end: its messages in one of two forms, then what stands beside them."""

    def pages(self) -> Iterator[pa.RecordBatch]:
        """Yields the messages as rows of ``FOUND_SCHEMA``."""
        ...

    def lines(self) -> Iterator[bytes]:
        """Yields the messages as NDJSON, whole lines at a time."""
        ...

    def metadata(self) -> Json:
        """Returns cursor and coverage of all pages."""
        ...


class PagedQuery:
    """The pages of a query that is followed to its end; one budget of requests is for all of them.

    Each page looks at the store as it is then, as it does for a client that follows the cursor itself.
    """

    def __init__(
        self, ask: Callable[[Query, int], Answer], query: Query, page_bytes: int, most_rows: int | None = None
    ) -> None:
        """``ask`` answers one page of at most so many bytes. A page has at most ``most_rows``.

        None leaves that to what is best; the query's limit then counts only where it cannot go by columns.
        """
        self._ask = ask
        self._query = query
        self._page_bytes = page_bytes
        self._most_rows = MAX_ROWS if most_rows is None else most_rows
        self._coverage: Json = {}
        self._cursor: str | None = query.cursor
        self._hint: Json = {}

    def pages(self) -> Iterator[pa.RecordBatch]:
        """Yields the messages of each page, with the columns of ``FOUND_SCHEMA``, until a page has no next."""
        query = self._query
        if query.may_go_by_columns:
            query = replace(query, by_columns=True, limit=self._rows_for(_FIRST_BYTES))
        while True:
            answer = self._ask(query, self._page_bytes)
            self._coverage = merged_coverage(self._coverage, answer.coverage.to_json())
            self._cursor = answer.next_cursor
            if answer.hint is not None:
                self._hint = {"hint": answer.hint.to_json()}
            rows = message_batch(answer.messages, FOUND_SCHEMA) if answer.rows is None else answer.rows
            yield rows
            is_spent = answer.coverage.examined_to_ms is not None and answer.coverage.cut_by == "budget"
            if answer.next_cursor is None or is_spent:
                return
            left = self._query.max_requests
            if left is not None:
                left = max(0, left - int(self._coverage["requests"]))
            query = replace(query, cursor=answer.next_cursor, max_requests=left)
            if query.by_columns and rows.num_rows:
                query = replace(query, limit=self._rows_for(pc.mean(rows.column("size_bytes")).as_py()))

    def lines(self) -> Iterator[bytes]:
        """Yields the same as NDJSON, the lines of a page at a time."""
        return map(ndjson, self.pages())

    def metadata(self) -> Json:
        """Returns what stands beside the messages of all pages so far."""
        return {"next_cursor": self._cursor, "coverage": self._coverage, **self._hint}

    def _rows_for(self, message_bytes: float) -> int:
        """Returns how many messages of this size fill a page: searching for more would be for nothing."""
        return min(self._most_rows, max(_LEAST_ROWS, int(self._page_bytes / message_bytes)))
