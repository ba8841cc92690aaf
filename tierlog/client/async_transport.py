"""Requests over connections that are kept, for tasks on an event loop."""

from __future__ import annotations

import asyncio
from typing import Protocol

import aiohttp
from yarl import URL

from tierlog.client.requests import Answer, Flow, Pause, Request, T
from tierlog.client.transport import Service
from tierlog.tiering.base.errors import ClosedError, StoreError


class AsyncTransport(Protocol):
    """The way of requests to a service. For one event loop."""

    async def send(self, request: Request) -> Answer:
        """Returns the answer, whatever its status; raises :class:`NoAnswerError` if there is none, :class:`AccessError`
        if the server is not who it says it is."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits."""
        ...

    async def close(self) -> None:
        """Closes connections. Idempotent."""
        ...


class AsyncHttpTransport:
    """Over HTTP, by aiohttp. As many connections as there are requests at once: a long poll holds up nobody else."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def send(self, request: Request) -> Answer:
        """See :meth:`AsyncTransport.send`."""
        here = self._service
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=here.connect_s(request), sock_read=here.read_s(request)
        )
        try:
            async with self._opened().request(
                request.method, URL(here.url(request), encoded=True), data=request.body, headers=here.headers(request),
                timeout=timeout, allow_redirects=False,
            ) as answer:  # fmt: skip
                body = await answer.read()
                return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, body)
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:  # UnicodeError: no machine's name
            raise here.failure(error) from error

    async def pause(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Closes connections. Idempotent."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        """Returns the session, which the first request makes: it belongs to the event loop that it is made on."""
        if self._is_closed:
            raise ClosedError("the client is closed")
        if self._session is None:
            tls = self._service.tls()
            connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
            self._session = aiohttp.ClientSession(
                connector=connector, headers={"User-Agent": "tierlog"}, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


async def run(flow: Flow[T], transport: AsyncTransport) -> T:
    """Runs a flow to its end and returns its result."""
    try:
        step = next(flow)
        while True:
            answer: Answer | None = None
            try:
                if isinstance(step, Pause):
                    await transport.pause(step.seconds)
                else:
                    answer = await transport.send(step)
            except StoreError as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as over:
        found: T = over.value
        return found
