"""HEAD and OPTIONS, which no route declares: both follow from the methods of a path."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")


def allowed_methods(scope: Scope) -> list[str]:
    """Returns the methods of the path of a request; none if there is nothing at the path."""
    router: Router = scope["app"].router
    found = [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in router.routes)
    ]
    if not found:
        return []
    return [*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"]


class HeadAndOptions:
    """ASGI middleware: HEAD is answered as GET is, without the body; OPTIONS by 204 with ``Allow``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers OPTIONS."""
        method = scope.get("method")
        if method == "OPTIONS" and (allowed := allowed_methods(scope)):
            await Response(status_code=204, headers={"Allow": ", ".join(allowed)})(scope, receive, send)
        elif method == "HEAD":
            answer = _WithoutBody(receive, send)
            await self._app({**scope, "method": "GET"}, answer.receive, answer.send)
        else:
            await self._app(scope, receive, send)


class _WithoutBody:
    """Ends an answer where its body would begin, and tells its maker that nobody listens any more."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._has_ended = False

    async def receive(self) -> Message:
        """Receives the request, until the answer has ended."""
        return {"type": "http.disconnect"} if self._has_ended else await self._receive()

    async def send(self, message: Message) -> None:
        """Passes the head of the answer on."""
        if message["type"] == "http.response.start":
            await self._send(message)
        elif not self._has_ended:
            self._has_ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
