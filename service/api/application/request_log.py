"""Observation of requests: the id of each, a line in the log, numbers for metrics, a span for traces."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierlog.service.access.caller import Caller
from tierlog.service.api.errors import problem
from tierlog.service.observing.counts import GONE, HttpCounts
from tierlog.service.observing.logs import log_request
from tierlog.service.observing.request_context import RequestNotes, bind, is_sane_id, request_ids, unbind
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer

_LOG = logging.getLogger("tierlog.access")
_ID, _PARENT = b"x-request-id", b"traceparent"
#: Requested by machines all the time.
_QUIET = frozenset(("/livez", "/readyz", "/metrics"))
#: One label for all requests without a route: clients could invent any number of paths.
UNMATCHED = "unmatched"


class RequestObserver:
    """ASGI middleware, the outermost: takes or makes ``X-Request-Id``, and logs and counts the request.

    Query strings, bodies and headers are never logged.
    """

    def __init__(
        self,
        app: ASGIApp,
        counts: HttpCounts,
        clock: Clock,
        randomness: Randomness,
        *,
        access_every: int = 1,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._app = app
        self._counts = counts
        self._clock = clock
        self._ids = request_ids(randomness)
        self._access_every = access_every
        self._tracer = tracer
        self._answered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, between two looks at the clock."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given, parent = _headers(scope)
        request_id = given if given is not None and is_sane_id(given) else next(self._ids)
        notes = RequestNotes(request_id, self._clock.now_ms())
        answer = _Answer(scope, receive, send, notes.request_id.encode())
        token = bind(notes)
        self._counts.begin()
        begun_s = self._clock.monotonic_s()
        try:
            if self._tracer is NO_TRACER:
                await self._answer(scope, answer)
            else:
                await self._traced(scope, answer, notes, parent)
        finally:
            taken_s = self._clock.monotonic_s() - begun_s
            self._counts.end(
                answer.route, scope["method"], answer.status, taken_s,
                received=answer.received, sent=answer.sent, problem=notes.problem,
            )  # fmt: skip
            self._log(scope, answer, notes, taken_s)
            unbind(token)

    async def _traced(self, scope: Scope, answer: _Answer, notes: RequestNotes, parent: str | None) -> None:
        with self._tracer.joined(parent), self._tracer.span("request") as span:
            notes.trace_id = span.trace_id
            try:
                await self._answer(scope, answer)
            finally:
                span.rename(f"{scope['method']} {answer.route}")
                span.annotate(
                    method=scope["method"], route=answer.route, status=answer.status,
                    received_bytes=answer.received, sent_bytes=answer.sent, request_id=notes.request_id,
                )  # fmt: skip

    async def _answer(self, scope: Scope, answer: _Answer) -> None:
        try:
            await self._app(scope, answer.receive, answer.send)
        except Exception:
            _LOG.exception("unexpected error")
            if answer.has_begun:
                raise  # the server cuts the answer off
            unexpected = problem(500, "internal error", "an unexpected error, see the service's log")
            await unexpected(scope, answer.receive, answer.send)

    def _log(self, scope: Scope, answer: _Answer, notes: RequestNotes, taken_s: float) -> None:
        level = logging.DEBUG if answer.route in _QUIET else logging.INFO
        if not _LOG.isEnabledFor(level):
            return
        if answer.status < 400:
            self._answered += 1
            if not self._access_every or self._answered % self._access_every:
                return
        facts = {
            "method": scope["method"],
            "route": answer.route,
            "status": answer.status,
            "ms": round(taken_s * 1000, 3),
            "received_bytes": answer.received,
            "sent_bytes": answer.sent,
        }
        caller: Caller | None = scope.get("tierlog.caller")
        if caller is not None:
            facts["caller"] = caller.name
        if notes.problem is not None:
            facts["problem"] = notes.problem
        log_request(_LOG, level, "request", facts)


#: Headers of every answer that does not set them itself: no guessing of its type, and no caching.
_GUARDS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


def _headers(scope: Scope) -> tuple[str | None, str | None]:
    """Returns the id that the client sent, and the trace that the request belongs to."""
    given = parent = None
    for name, value in reversed(scope["headers"]):  # of several the first
        if name == _ID:
            given = value.decode("latin-1")
        elif name == _PARENT:
            parent = value.decode("latin-1")
    return given, parent


class _Answer:
    """One request and its answer on their way."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self.has_begun = False
        self.status = GONE
        self.received = 0
        self.sent = 0

    @property
    def route(self) -> str:
        """The template of the route that took the request."""
        return getattr(self._scope.get("route"), "path", UNMATCHED)

    async def receive(self) -> Message:
        message = await self._receive()
        self.received += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            headers = [*message.get("headers", ()), (_ID, self._request_id)]
            names = {name for name, _ in headers}
            headers += [guard for guard in _GUARDS if guard[0] not in names]
            message = {**message, "headers": headers}
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)
