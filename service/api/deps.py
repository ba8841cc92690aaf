"""What routes are handed: the engine, the settings, who asks, and the flag that ends long polls.

All are ``async``, though none waits: the framework runs others on threads of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from service.access.caller import ANYBODY, Caller, Scope
from service.api.auditing import Audit
from service.engine import Engine
from service.settings import Settings
from tiering.errors import UnauthenticatedError


async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _stopping(request: Request) -> threading.Event:
    stopping: threading.Event = request.app.state.stopping
    return stopping


async def _caller(request: Request) -> Caller:
    """Whom the access middleware found; everybody where no tokens are needed."""
    caller: Caller | None = request.scope.get("tierlog.caller")
    if caller is None:
        if request.app.state.needs_tokens:
            raise UnauthenticatedError("this needs a token")
        return ANYBODY
    return caller


def check_now(request: Request, scope: Scope, topic: str) -> None:
    """Ask again, in the middle of an answer that takes long: tokens are withdrawn and expire. May be on any thread.

    Raises :class:`UnauthenticatedError` or :class:`ForbiddenError`.
    """
    ask: Callable[[], Caller | None] | None = request.scope.get("tierlog.caller_now")
    if ask is None:
        return
    caller = ask()
    if caller is None:
        raise UnauthenticatedError("this token is not known here any more")
    caller.check(scope, topic)


async def _audit(request: Request) -> Audit:
    return Audit(request)


TheEngine = Annotated[Engine, Depends(_engine)]
TheSettings = Annotated[Settings, Depends(_settings)]
Stopping = Annotated[threading.Event, Depends(_stopping)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheAudit = Annotated[Audit, Depends(_audit)]
