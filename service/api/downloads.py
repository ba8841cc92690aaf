"""Answers of any length: pages are read on a thread of their lane and sent as fast as the client takes them.

One page is in memory at a time, and counts against the budget of answers; one that has begun is not refused half-way. A
client that goes away, or is cut off for taking nothing, ends the reading.
"""

from __future__ import annotations

import json
import logging

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.answer_forms import form_of
from service.api.answers import memory_of, send_pieces, until_gone, while_wanted
from service.api.errors import store_error
from service.api.limits import lane_of
from service.following import FollowedQuery
from tiering.errors import StoreError

_LOG = logging.getLogger("tierlog")


async def download(request: Request, query: FollowedQuery, media_type: str, name: str) -> Response:
    """The answer to a query that is followed to its end; what is wrong before the first page is raised.

    ``name`` is the file that a browser keeps it as.
    """
    found = _Download(request, query, media_type, name)
    await found.begin()
    return found


class _Download(Response):
    def __init__(self, request: Request, query: FollowedQuery, media_type: str, name: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["Content-Disposition"] = f'inline; filename="{name}"'
        self._request, self._lane = request, lane_of(request)
        self._query, self._pages = query, query.pages()
        self._form = form_of(media_type)
        self._next: bytes | None = None
        self._at_end = False

    async def begin(self) -> None:
        self._next = await self._lane.run(self._step)
        self._share = memory_of(self._request).take(len(self._next), waits=False)

    def _step(self) -> bytes:
        """On a thread: the bytes of the next page, or of the end."""
        page = next(self._pages, None)
        if page is None:
            self._at_end = True
            return self._form.end(self._query.beside())
        return self._form.page(page)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; an end is sent only behind everything."""
        try:
            await while_wanted(self._send(send), until_gone(receive))
        finally:
            self._share.release()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        data = self._next or b""
        self._next = None
        while True:
            await send_pieces(send, data)
            if self._at_end:
                break
            try:
                data = await self._lane.run(self._step)
                self._share.hold(len(data))
            except Exception as error:  # the status is out: what can be said is said in the form's own way
                if not isinstance(error, StoreError):
                    _LOG.exception("a download failed")
                last = self._form.failed(self._problem(error))
                if last is None:
                    _LOG.warning("a download is broken off: %s", error)
                    return  # without an end, which the server makes the end of the connection
                await send_pieces(send, last)
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _problem(self, error: Exception) -> dict[str, object]:
        if isinstance(error, StoreError):
            answer = store_error(self._request, error)
            found: dict[str, object] = json.loads(bytes(answer.body))
            return found
        return {"type": "about:blank", "title": "internal error", "status": 500, "detail": "see the service's log"}
