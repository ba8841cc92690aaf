"""How the HTTP server treats connections: how many, how big their heads, and how long a silent one is waited for."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from service.setting_groups.serve import ServeSettings


def http_config(app: Any, settings: ServeSettings, **others: Any) -> uvicorn.Config:
    """The server's configuration, with every bound set by the settings; ``others`` are passed on."""
    return uvicorn.Config(
        app,
        http=functools.partial(PatientProtocol, limits=settings),  # type: ignore[arg-type]  # called as the class is
        ws="none",
        timeout_keep_alive=max(1, settings.keep_alive_ms // 1000),
        h11_max_incomplete_event_size=settings.max_header_bytes,
        lifespan="on",
        server_header=False,
        **others,
    )


class PatientProtocol(H11Protocol):
    """One connection. Cut off when the client sends no head, or takes nothing of an answer, for too long.

    What a client has not taken waits in the transport, 64 KiB at most before the application is made to wait. A
    transport that is closed waits for its client too, for ever: so every end has a time.
    """

    def __init__(self, *arguments: Any, limits: ServeSettings, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._send_s = limits.send_timeout_ms / 1000
        self._stalled: asyncio.TimerHandle | None = None
        self._head: asyncio.TimerHandle | None = None

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
        """A head that comes piece by piece has the time of one; the application sees to the time of a body."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif self._head is None and self._is_idle():
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
        self._head = self.loop.call_later(self._limits.receive_timeout_ms / 1000, self._close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _cut_off(self) -> None:
        self.logger.warning("a client took nothing of its answer for %g s and is cut off", self._send_s)
        self.transport.abort()

    def _close(self) -> None:
        self.transport.close()
        self.loop.call_later(self._send_s, self.transport.abort)


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
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
) % (len(_REFUSAL), _REFUSAL)
