"""What routes are handed: the engine, the settings, who asks, and the flag that ends long polls."""

from __future__ import annotations

import threading
from typing import Annotated

from fastapi import Depends, Request

from service.access.caller import ANYBODY, Caller
from service.api.auditing import Audit
from service.engine import Engine
from service.settings import Settings
from tiering.errors import UnauthenticatedError


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _stopping(request: Request) -> threading.Event:
    stopping: threading.Event = request.app.state.stopping
    return stopping


def _caller(request: Request) -> Caller:
    """Whom the access middleware found; everybody where no tokens are needed."""
    caller: Caller | None = request.scope.get("tierlog.caller")
    if caller is None:
        if request.app.state.needs_tokens:
            raise UnauthenticatedError("this needs a token")
        return ANYBODY
    return caller


TheEngine = Annotated[Engine, Depends(_engine)]
TheSettings = Annotated[Settings, Depends(_settings)]
Stopping = Annotated[threading.Event, Depends(_stopping)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheAudit = Annotated[Audit, Depends(Audit)]
