"""Answers of many requests: the pages of a query, and a queue that is read on and on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from tierlog.client.calls import Calls, Query
from tierlog.client.errors import IncompleteAnswerError
from tierlog.client.models import Coverage, Page, StoredMessage
from tierlog.client.requests import Flow
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import PullStatus

_LOG = logging.getLogger("tierlog.client")
#: A page of more is refused.
_MOST_OF_A_PAGE = 10_000
#: Of one pull.
_PULLED = 500
#: Time that the service waits for a message; the maximum is 60 s.
_WAIT_MS = 20_000


class Paging:
    """The position of a query. For one thread."""

    def __init__(self, calls: Calls, query: Query, limit: int | None, page_size: int, cursor: str | None) -> None:
        """``limit`` bounds the messages of all pages."""
        if not 1 <= page_size <= _MOST_OF_A_PAGE or (limit is not None and limit < 1):
            raise InvalidRequestError(f"a page has 1 to {_MOST_OF_A_PAGE} messages, and a limit is 1 or more")
        self._calls = calls
        self._query = query
        self._left, self._page_size = limit, page_size
        self._requests_left = query.max_requests
        self._is_over = self._goes_on = False
        #: Behind the last page that was read; None: nothing is left. Another query may go on there.
        self.cursor = cursor
        #: Of the last page that was read.
        self.coverage: Coverage | None = None
        #: Whether every page that was read covers all that it was asked for; False before the first.
        self.is_complete = False

    def next_page(self) -> Flow[Page | None]:
        """Returns the next page, None after the last one."""
        if self._is_over:
            return None
        limit = self._page_size if self._left is None else min(self._left, self._page_size)
        page = yield from self._calls.query_page(self._query, self.cursor, limit, self._requests_left)
        self._goes_on = self._query.timeout_ms is None and page.next_cursor is not None and page.coverage.goes_on
        is_whole = page.coverage.complete or self._goes_on
        self.is_complete = is_whole and (self.is_complete or self.coverage is None)
        self.cursor, self.coverage = page.next_cursor, page.coverage
        if self._left is not None:
            self._left -= len(page.messages)
        if self._requests_left is not None:
            # a page without a budget still reports what is missing
            self._requests_left = max(0, self._requests_left - page.coverage.requests)
        # an exhausted budget or time ends the query; a caller can continue at the cursor. The time that the service
        # itself allows for a page of filtered messages does not: the next page goes on where this one ended.
        cut = page.coverage.cut_by not in (None, "limit") and not self._goes_on
        self._is_over = page.next_cursor is None or self._left == 0 or cut
        return page

    def check(self) -> None:
        """Raises :class:`IncompleteAnswerError` unless the last page covers all that it was asked for."""
        if self.coverage is not None and not self.coverage.complete and not self._goes_on:
            raise IncompleteAnswerError(f"the answer is incomplete: {self.coverage.why_incomplete}", self.coverage)


class _Read:
    """The state that both kinds of pages show."""

    def __init__(self, paging: Paging) -> None:
        self._paging = paging

    @property
    def is_complete(self) -> bool:
        """Whether every page that was read covers all that it was asked for; False before the first."""
        return self._paging.is_complete

    @property
    def coverage(self) -> Coverage | None:
        """The coverage of the last page that was read."""
        return self._paging.coverage

    @property
    def cursor(self) -> str | None:
        """The cursor behind the last page that was read; None if nothing is left."""
        return self._paging.cursor


class Pages(_Read):
    """Iterates over pages, each with its coverage, and asks for one when it is wanted. For one thread, once."""

    def __init__(self, paging: Paging, run: Callable[[Flow[Page | None]], Page | None]) -> None:
        super().__init__(paging)
        self._run = run

    def __iter__(self) -> Iterator[Page]:
        while (page := self._run(self._paging.next_page())) is not None:
            yield page

    def messages(self) -> Iterator[StoredMessage]:
        """Yields the messages of all pages; raises :class:`IncompleteAnswerError` after those of a page that is not
        complete."""
        for page in self:
            yield from page.messages
            self._paging.check()


class AsyncPages(_Read):
    """The same for ``async for``. For one task, once."""

    def __init__(self, paging: Paging, run: Callable[[Flow[Page | None]], Awaitable[Page | None]]) -> None:
        super().__init__(paging)
        self._run = run

    async def __aiter__(self) -> AsyncIterator[Page]:
        while (page := await self._run(self._paging.next_page())) is not None:
            yield page

    async def messages(self) -> AsyncIterator[StoredMessage]:
        """Yields the messages of all pages; raises :class:`IncompleteAnswerError` after those of a page that is not
        complete."""
        async for page in self:
            for message in page.messages:
                yield message
            self._paging.check()


class Tailing:
    """The position of a reader of one queue. For one thread."""

    def __init__(
        self,
        calls: Calls,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        follow: bool,
        tag: str | None,
        store_id: str | None,
    ) -> None:
        """Reads from ``offset`` on; ``follow``: beyond the end as well, when messages come."""
        self._calls = calls
        self._topic, self._queue_id, self._tag, self._store_id = topic, queue_id, tag, store_id
        self._follows = follow
        #: Of the next message.
        self.offset = offset

    def next_messages(self) -> Flow[tuple[StoredMessage, ...] | None]:
        """Waits for at least one message, however long that takes; None at the end of a queue that is not followed."""
        while True:
            page = yield from self._calls.pull(
                self._topic, self._queue_id, self.offset, _PULLED, wait_ms=_WAIT_MS if self._follows else 0,
                tag=self._tag, store_id=self._store_id,
            )  # fmt: skip
            if page.status is PullStatus.OFFSET_TOO_SMALL and self.offset:
                _LOG.warning(
                    "%s queue %d: offsets %d to %d are gone", self._topic, self._queue_id, self.offset, page.next_offset
                )
            self.offset = page.next_offset
            if page.messages:
                return page.messages
            if page.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_TOO_LARGE) and not self._follows:
                return None
