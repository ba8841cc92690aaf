"""The application of a process that follows brokers: one application for each open store, chosen for each request.

A store is closed and opened again while requests come, which is rare: they are answered with 503 meanwhile, and health
and metrics as ever. Of several stores the one is chosen that ``store_id`` names; what names none is answered from all
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from tierlog.service.api.errors import problem
from tierlog.service.cluster.routing import STORE_ID
from tierlog.service.follow.followed_broker import FollowedBroker

_SOON_S = 1
#: Paths that are the same for every store of the process, and take no argument that names one.
_PLAIN = ("/metrics", "/readyz", "/livez")


class FollowedStores:
    """ASGI application. :meth:`changed` may be called on any thread."""

    def __init__(self, make: Callable[[FollowedBroker], ASGIApp], closed: ASGIApp) -> None:
        """``make`` makes the application of a broker's open store; ``closed`` has health and metrics without one."""
        self._make = make
        self._closed = closed
        self._apps: dict[str, ASGIApp | None] = {}
        #: Answers what names no store, where there are several.
        self.whole: ASGIApp | None = None

    def changed(self, broker: FollowedBroker) -> None:
        """Takes a store that was opened, or leaves one that is going to be closed."""
        self._apps[broker.store_id] = None if broker.store is None else self._make(broker)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Has the store answer that is meant."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        app = self._chosen(scope)
        if app is None and scope.get("path") in _PLAIN:
            app = self._closed
        elif app is None:
            app = problem(503, "opening", "the store is not open", hint="try again in a moment", retry_s=_SOON_S)
        await app(scope, receive, send)

    def _chosen(self, scope: Scope) -> ASGIApp | None:
        """Returns what answers a request; None while the store that is meant is closed."""
        if self.whole is None:
            return next(iter(self._apps.values()), None)
        named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(STORE_ID, [])
        if len(named) != 1 or named[0] not in self._apps:
            return self.whole
        if scope.get("path") in _PLAIN:
            scope["query_string"] = b""
        return self._apps[named[0]]


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
