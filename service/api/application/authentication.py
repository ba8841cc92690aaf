"""Access to the service: by a token, or, where nobody has one, from this machine and from no other site's page."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from tierlog.service.access.control import AccessControl
from tierlog.service.api.errors import problem
from tierlog.tiering.base.errors import UnauthenticatedError
from tierlog.tiering.remote.problems import problem_title, problem_type

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_OWN_SITES = {b"same-origin", b"none"}


class RequireToken:
    """ASGI middleware: finds the caller by the bearer token, and answers 401 if there is none or it is unknown.

    ``open_routes`` are for everybody, and may tell more to a known caller; a path without a route needs a token too.
    The answer is the same for a token that never existed, one that was withdrawn and one that has expired.
    """

    def __init__(self, app: ASGIApp, control: AccessControl, open_routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._control = control
        self._open = open_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on with its caller."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        token = _bearer(scope)
        caller = None if token is None else self._control.caller(token)
        if token is None or caller is None:
            if any(route.matches(scope)[0] is not Match.NONE for route in self._open):
                await self._app(scope, receive, send)
                return
            words = "this needs a token" if token is None else "this token is not known here, or not any more"
            await _unauthenticated(words)(scope, receive, send)
            return
        scope["tierlog.caller"] = caller
        scope["tierlog.caller_now"] = partial(self._control.caller, token)
        await self._app(scope, receive, send)


class LocalOnly:
    """ASGI middleware for a service without tokens: answers names of the loopback, and no other site's pages.

    A page of another site can make a browser on this machine send requests here. Through a name of its own that points
    to the loopback (DNS rebinding) it would even read the answers: the ``Host`` header gives it away. To the loopback's
    own address it can send a change without reading the answer: ``Origin``, which a browser always sends then, and
    ``Sec-Fetch-Site`` give it away. ``origins`` are allowed by name.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = set(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 421 or 403."""
        if scope["type"] == "http":
            headers: dict[bytes, bytes] = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1").lower()
            if not _is_loopback(host):
                answer = problem(
                    421,
                    "misdirected request",
                    "this service asks for no token, and so answers under names of the loopback only",
                    hint="use http://127.0.0.1 or http://localhost, or give it tokens (docs/access.md)",
                )
                await answer(scope, receive, send)
                return
            if scope["method"] not in _SAFE_METHODS and self._is_foreign(headers, host):
                answer = problem(
                    403,
                    "cross-site request",
                    "a page of another origin may not change anything here",
                    hint="access.cors_origins names origins that may",
                )
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_foreign(self, headers: dict[bytes, bytes], host: str) -> bool:
        if b"origin" not in headers:
            return headers.get(b"sec-fetch-site", b"none").lower() not in _OWN_SITES
        origin = headers[b"origin"].decode("latin-1").lower()
        return origin not in self._origins and origin not in (f"http://{host}", f"https://{host}")


def cross_origin(origins: Sequence[str]) -> dict[str, Any]:
    """Returns what scripts of other origins may send and see: no cookies, as they set the token themselves."""
    return {
        "allow_origins": origins,
        "allow_methods": ["GET", "POST", "PUT", "DELETE"],
        "allow_headers": ["Authorization", "Content-Type", "Idempotency-Key", "Traceparent", "X-Request-Id"],
        "expose_headers": ["Retry-After", "Tierlog-Address", "Tierlog-Store", "WWW-Authenticate", "X-Request-Id"],
        "allow_credentials": False,
        "max_age": 600,
    }


def _bearer(scope: Scope) -> str | None:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, token = found[0].decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _unauthenticated(words: str) -> ASGIApp:
    kind = UnauthenticatedError
    answer = problem(
        401,
        problem_title(kind),
        words,
        uri=problem_type(kind),
        hint="send it as `Authorization: Bearer …`; the command line reads it from --token-file or TIERLOG_TOKEN",
    )
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    """Whether a ``Host`` header names the loopback: an address of it, or ``localhost`` and names below that."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if name is None:
        return False
    name = name.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
