"""How the HTTP server treats connections: how many, how big their heads, and how long a silent one is waited for."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.setting_groups.serve import ServeSettings


def http_config(app: Any, settings: ServeSettings, **others: Any) -> uvicorn.Config:
    """The server's configuration, with every bound set by the settings; ``others`` are passed on."""
    return uvicorn.Config(
        app,
        http=functools.partial(PatientProtocol, limits=settings),  # type: ignore[arg-type]  # called as the class is
        loop="uvloop",
        ws="none",
        timeout_keep_alive=max(1, settings.keep_alive_ms // 1000),
        h11_max_incomplete_event_size=settings.max_header_bytes,
        lifespan="on",
        server_header=False,
        # who is at the other end is what the socket says: such headers anybody can send
        proxy_headers=False,
        **others,
    )


_TOO_LONG = "The head of the request is too long."
#: Beside a request's target, and beside a header's name and value.
_LEAST_LINE_BYTES, _HEADER_BYTES = len("GET  HTTP/1.1\r\n\r\n"), len(": \r\n")
_PIECE_BYTES = 4096
#: What both parsers' connections have.
if TYPE_CHECKING:
    _Connection = HttpToolsProtocol
else:
    _Connection = asyncio.Protocol


class _Patience(_Connection):
    """One connection. Cut off when the client sends no head, or takes nothing of an answer, for too long.

    What a client has not taken waits in the transport, 64 KiB at most before the application is made to wait. A
    transport that is closed waits for its client too, for ever: so every end has a time.
    """

    def __init__(self, *arguments: Any, limits: ServeSettings, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._send_s = limits.send_timeout_ms / 1000
        self._stalled: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        #: What came of a body after its request was answered.
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse one connection too many, and give the others a time for the head of their first request."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self.connections.discard(self)
            transport.write(_TOO_MANY)
            self._close()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_waiting()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A head that comes piece by piece has the time of one; the application sees to the time of a body.

        Of a body that was not read for its answer, the rest is thrown away: it has the time of a head too, and may be
        as long as the longest body. A client that sends first sees its answer so, and the connection lasts.
        """
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
            self._unread_bytes = 0
        elif self._is_idle():
            self._unread_bytes += len(data)
            if self._unread_bytes > self._limits.max_request_bytes:
                self._close()
            elif self._head_timer is None:
                self._await_head()

    def pause_writing(self) -> None:
        """The client is behind: from now on it has a time to take something."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._send_s, self._cut_off)

    def resume_writing(self) -> None:
        """The client took something."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        """What is still in the transport has a time too."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(self._send_s, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close what was idle, whether or not its client took the last answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self._send_s, self.transport.abort)

    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.receive_timeout_ms / 1000, self._close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cut_off(self) -> None:
        self.logger.warning("a client took nothing of its answer for %g s and is cut off", self._send_s)
        self.transport.abort()

    def _close(self) -> None:
        self.transport.close()
        self.loop.call_later(self._send_s, self.transport.abort)


class PatientProtocol(_Patience, HttpToolsProtocol):
    """One connection, as httptools reads it.

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
        """Refuse a head that is too long, and trailers without end."""
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
        """A request begins."""
        self._begun += 1
        self._head_bytes = _LEAST_LINE_BYTES
        self._is_in_message = self._is_in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """The target, or a piece of it."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Those that come behind the body are left out: everything was judged by the others."""
        if self._is_in_head:
            self._count_head(len(name) + len(value) + _HEADER_BYTES)
            super().on_header(name, value)

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > self._limits.max_header_bytes:
            raise ValueError(_TOO_LONG)

    def on_headers_complete(self) -> None:
        """Refuse what is ambiguous."""
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
        """A piece of the body."""
        self._kept_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has ended, maybe before anybody has looked at it: who reads it needs not wait then."""
        self._is_in_message = False
        self.scope["tierlog.is_whole"] = True  # type: ignore[typeddict-unknown-key]  # servers may add their own
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or leave it to h11."""
        if not self._asks_upgrade:
            super().send_400_response(_TOO_LONG if self._head_bytes > self._limits.max_header_bytes else msg)
            return
        self._stop_waiting()
        self.connections.discard(self)
        other = _WithoutUpgrade(self.config, self.server_state, self.app_state, limits=self._limits)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(b"".join(self._kept))


class _WithoutUpgrade(_Patience, H11Protocol):  # type: ignore[misc]  # the two parsers' connections are alike
    """One connection, as h11 reads it, which passes over an upgrade that is asked for."""

    def data_received(self, data: bytes) -> None:
        """In pieces: h11 asks how long a head is only where it ends for now."""
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
