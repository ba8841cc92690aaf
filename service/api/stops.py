"""A request that is cut off by the end of the service is told so."""

from __future__ import annotations

import asyncio
import threading

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import problem


class AnswerWhenStopped:
    """ASGI middleware: 503 for a request that is still being worked on when the server gives up on it.

    Its work may have been done or not, as after any lost answer.
    """

    def __init__(self, app: ASGIApp, stopping: threading.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if started or not self._stopping.is_set():
                raise
            answer = problem(503, "stopping", "the service stopped before it had answered")
            await answer(scope, receive, send)
