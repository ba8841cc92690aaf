"""The HTTP server's bounds on connections: the size of heads, and the time it waits for silent and slow clients."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import json
import socket
import struct
import termios
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tierlog.service.config.serve import ServeSettings
from tierlog.service.server.connections import Connections, ConnectionSlot, Listener

#: Bytes that wait in a connection before the application has to wait; a piece of an answer comes on top.
_WAITING_BYTES = 64 << 10


def http_config(app: Any, settings: ServeSettings, **others: Any) -> uvicorn.Config:
    """Makes the server's configuration, with every bound set by the settings; ``others`` are passed on."""
    return uvicorn.Config(
        app,
        http=functools.partial(TimedProtocol, limits=settings),  # type: ignore[arg-type]  # called as the class is
        loop="uvloop",
        ws="none",
        timeout_keep_alive=max(1, settings.keep_alive_ms // 1000),
        h11_max_incomplete_event_size=settings.max_header_bytes,
        lifespan="on",
        server_header=False,
        # the socket says who the client is: anybody can send such headers
        proxy_headers=False,
        **others,
    )


_TOO_LONG = "The head of the request is too long."
#: Beside a request's target, and beside a header's name and value.
_LEAST_LINE_BYTES, _HEADER_BYTES = len("GET  HTTP/1.1\r\n\r\n"), len(": \r\n")
_PIECE_BYTES = 4096


class HttpServer(uvicorn.Server):
    """A server with the connections that there may be, as :func:`http_config` says."""

    def __init__(self, config: uvicorn.Config, connections: Connections, settings: ServeSettings) -> None:
        super().__init__(config)
        self._connections = connections
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts, once the application is ready."""
        await super().startup(sockets=[])

        def protocol(place: ConnectionSlot) -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]  # as http_config has it
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, place=place
            )
            return made

        handshake_s, shutdown_s = self._settings.receive_timeout_ms / 1000, self._settings.send_timeout_ms / 1000
        listeners: list[Any] = [
            Listener(
                listening, self._connections, protocol, _TOO_MANY,
                tls=self.config.ssl, handshake_s=handshake_s, shutdown_s=shutdown_s,
            )
            for listening in sockets or ()
        ]  # fmt: skip
        self.servers = listeners  # what is closed and waited for in the end


#: What both parsers' connections have.
if TYPE_CHECKING:
    _Connection = HttpToolsProtocol
else:
    _Connection = asyncio.Protocol


class _TimedConnection(_Connection):
    """A connection that is cut off when the client sends no head, or takes too little of an answer, for too long.

    What a client has not taken waits in the transport, 64 KiB and a piece at most before the application is made to
    wait, and in the socket. A transport that is closed waits for its client too, for ever: so every end has a time.
    """

    def __init__(self, *arguments: Any, limits: ServeSettings, place: ConnectionSlot, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._place = place
        self._send_s = limits.send_timeout_ms / 1000
        self._least_taken = max(1, int(limits.min_send_rate * self._send_s))
        self._untaken = 0
        self._watching: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        #: Bytes of a body that arrived after its request was answered.
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gives the client a time for the head of its first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(_WAITING_BYTES)
        self._place.drop = transport.abort
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting for anything."""
        self._place.end()
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Gives a head that comes piece by piece the time of one; the application sees to the time of a body.

        Of a body that was not read for its answer, the rest is thrown away: it has the time of a head too, and may be
        as long as the longest body. A client that sends first sees its answer so, and the connection lasts.
        """
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._place.is_at_work()
            self._stop_waiting()
            self._unread_bytes = 0
        elif self._is_idle():
            self._unread_bytes += len(data)
            if self._unread_bytes > self._limits.max_request_bytes:
                self._close()
            elif self._head_timer is None:
                self._await_head()

    def pause_writing(self) -> None:
        """Watches from now on that the client, which is behind, goes on taking."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stops watching, as the client has caught up."""
        if not self.transport.is_closing():
            self._stop_watching()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Keeps the place of a caller; what is still in a transport that was closed has to be taken in time too."""
        self._place.has_answered(self.cycle.scope.get("tierlog.caller"))
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Closes what was idle, whether or not its client took the last answer."""
        super().timeout_keep_alive_handler()
        self._watch()

    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.receive_timeout_ms / 1000, self._close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch(self) -> None:
        """Watches from now on how much the client takes while nothing is written to it."""
        if self._watching is None:
            self._untaken = self._untaken_bytes()
            self._watching = self.loop.call_later(self._send_s, self._look)

    def _look(self) -> None:
        untaken = self._untaken_bytes()
        taken, self._untaken = self._untaken - untaken, untaken
        if taken >= self._least_taken:
            self._watching = self.loop.call_later(self._send_s, self._look)
            return
        self._watching = None
        if untaken:
            self.logger.warning(
                "a client took %d bytes of its answer in %g s and is cut off", max(0, taken), self._send_s
            )
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _untaken_bytes(self) -> int:
        """Counts bytes the client has not taken, in the transport and the socket: a large buffer hides whether it still
        reads."""
        try:
            queued = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, ValueError):  # the socket was closed: the rest is the system's
            queued = bytes(4)
        (in_socket,) = struct.unpack("i", queued)
        return int(in_socket) + self.transport.get_write_buffer_size()

    def _close(self) -> None:
        self.transport.close()
        self._watch()


class TimedProtocol(_TimedConnection, HttpToolsProtocol):
    """A connection that httptools reads.

    Stricter than httptools alone: a head has a greatest size, however many bytes come at once, one ``Host`` and a
    target without a fragment, and what stands behind a body is not taken for headers. A request that asks for an
    upgrade (Java's client does, of its own accord) would lose its body: such a connection is handed to h11, which goes
    on without the upgrade.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: What came of a head, and whether it is of one request alone; what came of a body without being one.
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._begun = 0
        #: Of the head's line and headers, as they are found.
        self._head_bytes = 0
        self._is_in_message = self._is_in_head = self._asks_upgrade = False

    def data_received(self, data: bytes) -> None:
        """Refuses a head that is too long, and trailers without end."""
        if not self._is_in_message:
            self._kept, self._kept_bytes, self._begun = [], 0, 0
        if self._is_in_head or not self._is_in_message:
            self._kept.append(data)
        self._kept_bytes += len(data)
        super().data_received(data)
        if self._kept_bytes > self._limits.max_header_bytes and self._is_in_message:
            super().send_400_response(_TOO_LONG)
        if not self._is_in_head:
            self._kept = []

    def on_message_begin(self) -> None:
        """Begins a request."""
        self._begun += 1
        self._head_bytes = _LEAST_LINE_BYTES
        self._is_in_message = self._is_in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Takes the target, or a piece of it."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; those behind the body are left out, as everything was judged by the others."""
        if self._is_in_head:
            self._count_head(len(name) + len(value) + _HEADER_BYTES)
            super().on_header(name, value)

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > self._limits.max_header_bytes:
            raise ValueError(_TOO_LONG)

    def on_headers_complete(self) -> None:
        """Refuses what is ambiguous."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request names one host")
        if self.parser.should_upgrade():
            self._asks_upgrade = self._begun == 1 and self._is_idle()
            raise ValueError("httptools would take the body for another protocol")
        if b"#" in self.url:
            raise ValueError("a target has no fragment")
        self._is_in_head, self._kept_bytes = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body."""
        self._kept_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request, possibly before it is handled; its handler need not wait for the body."""
        self._is_in_message = False
        self.scope["tierlog.is_whole"] = True  # type: ignore[typeddict-unknown-key]  # servers may add their own
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request, or leaves it to h11."""
        if not self._asks_upgrade:
            super().send_400_response(_TOO_LONG if self._head_bytes > self._limits.max_header_bytes else msg)
            return
        self._stop_waiting()
        self.connections.discard(self)
        other = _WithoutUpgrade(self.config, self.server_state, self.app_state, limits=self._limits, place=self._place)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(b"".join(self._kept))


class _WithoutUpgrade(_TimedConnection, H11Protocol):  # type: ignore[misc]  # the two parsers' connections are alike
    """A connection that h11 reads, which passes over an upgrade that is asked for."""

    def data_received(self, data: bytes) -> None:
        """Takes data in pieces: h11 asks how long a head is only where it ends for now."""
        for start in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + _PIECE_BYTES])


_REFUSAL = json.dumps(
    {
        "type": "urn:tierlog:problem:overloaded",
        "title": "overloaded",
        "status": 503,
        "detail": "there are too many connections",
        "hint": "try again in a moment; serve.max_connections is the limit",
    }
).encode()
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
) % (len(_REFUSAL), _REFUSAL)
