"""Requests over connections that are kept, for tasks on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp
from yarl import URL

from tierlog.client.requests import Answer, Flow, Pause, Request, T
from tierlog.client.transport import Service
from tierlog.tiering.base.errors import ClosedError, StoreError

#: A larger body is sent in pieces of so many bytes.
_PIECE_BYTES = 64 << 10


class AsyncTransport(Protocol):
    """The way of requests to a service. For one event loop."""

    async def send(self, request: Request) -> Answer:
        """Returns the answer, whatever its status; raises :class:`NoAnswerError` if there is none, :class:`AccessError`
        if the server is not who it says it is."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits; raises :class:`ClosedError` once the transport is closed."""
        ...

    async def close(self) -> None:
        """Ends pauses and closes connections. Idempotent."""
        ...


class AsyncHttpTransport:
    """Over HTTP, by aiohttp. As many connections as there are requests at once: a long poll holds up nobody else."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._session: aiohttp.ClientSession | None = None
        self._closed = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """See :meth:`AsyncTransport.send`."""
        here = self._service
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=here.connect_s(request), sock_read=here.read_s(request)
        )
        headers, sent = here.headers(request), request.body
        data: bytes | _Pieces | None = sent
        if sent is not None and len(sent) > _PIECE_BYTES:
            headers["Content-Length"], data = str(len(sent)), _Pieces(sent)
        try:
            sending = self._opened().request(
                request.method, URL(here.url(request), encoded=True), data=data, headers=headers, timeout=timeout,
                allow_redirects=False,
            )  # fmt: skip
            async with contextlib.AsyncExitStack() as answers:
                # sock_read does not count while the body is sent
                async with asyncio.timeout(here.connect_s(request) + here.read_s(request)):
                    answer = await answers.enter_async_context(sending)
                body = await answer.read()
                return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, body)
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:  # UnicodeError: no machine's name
            raise here.failure(error) from error

    async def pause(self, seconds: float) -> None:
        """Waits; raises :class:`ClosedError` once the transport is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        if self._closed.is_set():
            raise ClosedError("the client is closed")

    async def close(self) -> None:
        """Ends pauses and closes connections. Idempotent."""
        self._closed.set()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        """Returns the session, which the first request makes: it belongs to the event loop that it is made on."""
        if self._closed.is_set():
            raise ClosedError("the client is closed")
        if self._session is None:
            tls = self._service.tls()
            connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
            self._session = aiohttp.ClientSession(
                connector=connector, headers={"User-Agent": "tierlog"}, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


class _Pieces:
    """A body in pieces. The event loop runs between them, and reads an answer that comes before the last one."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for begin in range(0, len(self._body), _PIECE_BYTES):
            yield self._body[begin : begin + _PIECE_BYTES]
            await asyncio.sleep(0)


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
