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
from service.archived_reader import ArchivedReader
from service.cluster.meant_store import STORE_ID
from service.cluster.view import ClusterView
from service.engine import Engine
from service.querier_engine import QuerierEngine
from service.settings import Settings
from tiering.errors import InvalidRequestError, UnauthenticatedError


async def _engine(request: Request) -> Engine:
    engine: Engine | QuerierEngine = request.app.state.engine
    if isinstance(engine, QuerierEngine):
        raise InvalidRequestError(
            "a querier has no store, and only a store can answer this", hint="name the one that is meant by store_id"
        )
    return engine


async def _served(request: Request) -> Engine | QuerierEngine:
    engine: Engine | QuerierEngine = request.app.state.engine
    return engine


async def _reader(request: Request) -> Engine | QuerierEngine | ArchivedReader:
    """Of a querier's stores those with a service answer themselves if they are named: this one has none."""
    engine: Engine | QuerierEngine = request.app.state.engine
    store_id = request.query_params.get(STORE_ID)
    (await _caller(request)).check(Scope.READ)  # before anybody is told which stores there are
    return engine.archived(store_id) if isinstance(engine, QuerierEngine) and store_id is not None else engine


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


async def _cluster(request: Request) -> ClusterView | None:
    cluster: ClusterView | None = request.app.state.cluster
    return cluster


async def _own_store(request: Request) -> str | None:
    """The store of this service, also where it is alone; None for one without any."""
    engine: Engine | QuerierEngine | None = getattr(request.app.state, "engine", None)
    return engine.store_id if engine is not None else None


async def _audit(request: Request) -> Audit:
    return Audit(request)


TheEngine = Annotated[Engine, Depends(_engine)]
#: What this process answers from, whatever store is named.
TheServed = Annotated[Engine | QuerierEngine, Depends(_served)]
#: A store, or what reads many, or one archive: for calls that only look.
TheReader = Annotated[Engine | QuerierEngine | ArchivedReader, Depends(_reader)]
TheSettings = Annotated[Settings, Depends(_settings)]
Stopping = Annotated[threading.Event, Depends(_stopping)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheCluster = Annotated[ClusterView | None, Depends(_cluster)]
OwnStore = Annotated[str | None, Depends(_own_store)]
TheAudit = Annotated[Audit, Depends(_audit)]
