"""HTTP to the other nodes that requests are sent on to: the one module that knows the client library.

Bytes pass as they are, both ways, no faster than the slower side takes them. Nothing is decoded or followed,
and nothing but a GET or HEAD is ever sent twice. The library is imported when it is needed: a store that is alone
starts without it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.remote.endpoint import ServiceAccess, ServiceAddress

if TYPE_CHECKING:
    import aiohttp

#: Bytes of an answer that are read ahead of its reader.
_AHEAD_BYTES = 64 << 10
#: A machine that vanishes is noticed after about 30 s, however long an answer may take.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
#: Headers that the library would add by itself.
_NOT_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_MAY_BE_SENT_TWICE = ("GET", "HEAD")

Headers = Sequence[tuple[bytes, bytes]]


class NotSentError(Exception):
    """There was no connection: nothing of the request has reached the node."""


class BrokenOffError(Exception):
    """The connection broke, or something on it was no HTTP: what the node has done is not known."""


class NodeAnswer:
    """One answer of a node, on its way."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers: Headers = answer.raw_headers

    async def pieces(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Yields the body as it arrives, each piece with whether more may come; raises :class:`BrokenOffError` if it
        does not end."""
        import aiohttp

        content = self._answer.content
        try:
            while not content.at_eof():
                piece = await content.readany()
                yield piece, not content.at_eof()
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOffError(_words(error)) from error


def load_client() -> None:
    """Imports the library now, which takes a fifth of a second that no request should wait for."""
    import aiohttp  # noqa: F401


class NodeSession:
    """Connections to other nodes, kept for the next request. Of one event loop; made when they are first needed."""

    def __init__(self, connect_timeout_s: float, keep_s: float) -> None:
        """``keep_s``: how long an idle connection is kept, which has to be shorter than the other side keeps it."""
        self._connect_timeout_s = connect_timeout_s
        self._keep_s = keep_s
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tls: tuple[object, ssl.SSLContext] | None = None

    async def close(self) -> None:
        """Closes all connections. Idempotent; a later request opens others."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    @asynccontextmanager
    async def ask(
        self, method: str, address: ServiceAddress, target: str, headers: Headers, body: AsyncIterator[bytes] | None
    ) -> AsyncIterator[NodeAnswer]:
        """Sends a request for ``target``, the path and query as they are written, and gives the head of the answer.

        Leaving the context before the answer was read to its end closes the connection. Raises
        :class:`NotSentError` or :class:`BrokenOffError`.
        """
        import aiohttp
        from yarl import URL

        named = [(name.decode("latin-1"), value.decode()) for name, value in headers]
        try:
            tls = self._context() if address.is_tls else True
        except (StoreError, OSError) as error:
            raise NotSentError(_words(error)) from error
        try:
            answer = await self._at_hand().request(
                method, URL(f"{address}{target}", encoded=True), headers=named, data=body, allow_redirects=False,
                skip_auto_headers=_NOT_OURS, ssl=tls,
                middlewares=() if method in _MAY_BE_SENT_TWICE else (_once,),
            )  # fmt: skip
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSentError(_words(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOffError(_words(error)) from error
        try:
            yield NodeAnswer(answer)
        finally:
            answer.close()

    def _at_hand(self) -> aiohttp.ClientSession:
        import aiohttp

        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=self._keep_s, ttl_dns_cache=10, socket_factory=_socket
            )
            limit_s = self._connect_timeout_s
            timeout = aiohttp.ClientTimeout(total=None, connect=limit_s, sock_connect=limit_s)
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False, read_bufsize=_AHEAD_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
            )  # fmt: skip
        return self._session

    def _context(self) -> ssl.SSLContext:
        """Returns the TLS context, made again when a file of it has changed: certificates are replaced while a service
        runs."""
        access = ServiceAccess.of()
        files = (access.ca_file, access.certificate, access.key)
        stamps = [None if path is None else (path, os.stat(path).st_mtime_ns) for path in files]
        if self._tls is None or self._tls[0] != stamps:
            self._tls = stamps, access.tls()
        return self._tls[1]


async def _once(
    request: aiohttp.ClientRequest, send: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]
) -> aiohttp.ClientResponse:
    """Keeps the library from repeating a PUT or DELETE by itself."""
    import aiohttp

    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientError(_words(error)) from error


def _socket(found: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = found
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
