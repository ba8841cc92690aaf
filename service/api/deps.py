"""What routes are handed: the engine, the settings, who asks, and the flag that ends long polls.

All are ``async``, though none waits: the framework runs others on threads of its own.
"""

from __future__ import annotations

import threading
from typing import Annotated

from fastapi import Depends, Request

from service.access.caller import ANYBODY, Caller
from service.engine import Engine
from service.settings import Settings


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
    """Whom the access middleware found; everybody where there is none."""
    caller: Caller = request.scope.get("tierlog.caller", ANYBODY)
    return caller


TheEngine = Annotated[Engine, Depends(_engine)]
TheSettings = Annotated[Settings, Depends(_settings)]
Stopping = Annotated[threading.Event, Depends(_stopping)]
TheCaller = Annotated[Caller, Depends(_caller)]
